// Every instruction set against the plain C++ reference, bit for bit, on random shapes and values:
// sizes that no vector divides, full-scale and zero rows, subnormals, faults.
#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "kernels/ops.h"
#include "kernels/sampling.h"
#include "tests/kernels/golden.h"
#include "tests/kernels/kv.h"

namespace verbatim::kernels {
namespace {

class Differential : public ::testing::TestWithParam<Isa> {
 protected:
  size_t Pick(size_t lo, size_t hi) {
    return std::uniform_int_distribution<size_t>(lo, hi)(random_);
  }
  template <typename T>
  T OneOf(std::initializer_list<T> values) {
    return values.begin()[Pick(0, values.size() - 1)];
  }

  // Rows of several kinds: smooth, heavy-tailed, all at the extremes, zero, subnormal, tiny.
  std::vector<float> Row(size_t n) {
    std::vector<float> x(n);
    std::normal_distribution<float> normal;
    const size_t kind = Pick(0, 6);
    const float factor = std::ldexp(1.0f, static_cast<int>(Pick(0, 60)) - 30);
    for (float& v : x) {
      switch (kind) {
        case 0:
        case 1:
          v = normal(random_) * factor;
          break;
        case 2:
          v = std::ldexp(normal(random_), static_cast<int>(Pick(0, 40)) - 20);
          break;
        case 3:
          v = Pick(0, 1) != 0 ? factor : -factor;
          break;
        case 4:
          v = Pick(0, 3) == 0 ? -0.0f : 0.0f;
          break;
        case 5:
          v = FromBits(static_cast<uint32_t>(Pick(0, 0x7fffff)) |
                       (Pick(0, 1) != 0 ? 0x80000000 : 0));
          break;
        default:
          v = Pick(0, 9) == 0 ? normal(random_) * factor : normal(random_) * 0x1p-120f;
      }
    }
    return x;
  }
  std::vector<float> Rows(size_t rows, size_t n) {
    std::vector<float> out;
    for (size_t r = 0; r < rows; ++r) {
      const std::vector<float> row = Row(n);
      out.insert(out.end(), row.begin(), row.end());
    }
    return out;
  }
  // A value at which Quantize must fault.
  float Bad() {
    return OneOf({std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::quiet_NaN(),
                  std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                  0x1p60f, -0x1p60f, std::numeric_limits<float>::max()});
  }

  PackedMatrix Matrix(size_t N, size_t K, int kind) {
    const std::vector<float> bias = Pick(0, 1) != 0 ? Row(N) : std::vector<float>();
    if (kind < 2) {
      auto m = PackedMatrix::PackRows("test", Rows(N, K), N, K, kind == 0 ? 8 : 16, bias);
      CHECK(m.ok());
      return *std::move(m);
    }
    // All block kinds: 4 to 8 bits, with and without m, with and without an offset.
    BlockWeights w;
    w.bits = kind == 2 ? 4 : static_cast<int>(Pick(5, 8));
    w.offset = Pick(0, 1) != 0 ? 1 << (w.bits - 1) : 0;
    w.qm = std::min(w.offset != 0 ? w.offset : (1 << w.bits) - 1, 128);
    std::vector<uint8_t> codes(N * K);
    const bool extreme = Pick(0, 3) == 0;
    for (uint8_t& c : codes) {
      const size_t top = (size_t{1} << w.bits) - 1;
      c = static_cast<uint8_t>(extreme ? (Pick(0, 1) != 0 ? top : 0) : Pick(0, top));
    }
    const std::vector<float> d = Rows(N, K / 32);
    const std::vector<float> m = Pick(0, 1) != 0 ? Rows(N, K / 32) : std::vector<float>();
    w.codes = codes;
    w.d = d;
    w.m = m;
    auto packed = PackedMatrix::PackBlocks("test", w, N, K, bias);
    CHECK(packed.ok());
    return *std::move(packed);
  }

  const Ops& reference_ = Select(Isa::kScalar);
  const Ops& ops_ = Select(GetParam());
  std::mt19937_64 random_{20240607};
  Compared compared_;
};

INSTANTIATE_TEST_SUITE_P(AllIsas, Differential, ::testing::ValuesIn(AvailableIsas()),
                         [](const auto& p) { return std::string(IsaName(p.param)); });

TEST_P(Differential, Quantize) {
  for (int round = 0; round < 400; ++round) {
    const size_t K = Pick(1, round % 20 == 0 ? 3000 : 200);
    std::vector<float> x = Row(K);
    const bool fault = Pick(0, 9) == 0;
    if (fault) x[Pick(0, K - 1)] = Bad();
    const int qmax = Pick(0, 1) != 0 ? kQ16 : kQ8;
    QuantizedRows want, got;
    want.Resize(2, K);
    got.Resize(2, K);
    compared_.Equal(!fault, reference_.quantize(x.data(), K, qmax, want.row(1)), "fault");
    compared_.Equal(!fault, ops_.quantize(x.data(), K, qmax, got.row(1)), "fault");
    compared_.Bits({want.scale(1)}, got.row(1).scale, "scale");
    for (size_t k = 0; k < want.padded(); ++k) {
      compared_.Equal(want.q(1)[k], got.q(1)[k], "q");
      compared_.Equal(want.hi(1)[k], got.hi(1)[k], "hi");
      compared_.Equal(want.lo(1)[k], got.lo(1)[k], "lo");
      compared_.Equal(want.block_sum(1)[k / 32], got.block_sum(1)[k / 32], "block sum");
    }
  }
}

TEST_P(Differential, Linear) {
  for (int round = 0; round < 240; ++round) {
    const int kind = round % 4;
    const size_t N = Pick(1, 70), M = Pick(1, 11);
    size_t K = Pick(1, 300);
    if (round % 24 < 4) K = OneOf<size_t>({576, 1536, 2048});
    if (kind >= 2) K = (K + 31) / 32 * 32;
    const PackedMatrix w = Matrix(N, K, kind);
    const std::vector<float> x = Rows(M, K);
    const int qmax = Pick(0, 3) != 0 ? kQ16 : kQ8;
    QuantizedRows rows;
    rows.Resize(M, K);
    for (size_t r = 0; r < M; ++r) {
      ASSERT_TRUE(reference_.quantize(x.data() + r * K, K, qmax, rows.row(r)));
    }
    const size_t stride = N + Pick(0, 3);
    std::vector<float> want(M * stride, 7.0f), got(M * stride, 7.0f);
    reference_.linear(w, rows, 0, M, 0, N, want.data(), stride);
    // In parts: two row ranges, two output ranges.
    const size_t r = Pick(0, M), n = std::min(N, Pick(0, N / 16) * 16);
    ops_.linear(w, rows, 0, r, 0, N, got.data(), stride);
    ops_.linear(w, rows, r, M, 0, n, got.data(), stride);
    ops_.linear(w, rows, r, M, n, N, got.data(), stride);
    compared_.Bits(want, got.data(),
                   "linear kind " + std::to_string(kind) + " N=" + std::to_string(N) +
                       " K=" + std::to_string(K) + " M=" + std::to_string(M));
  }
}

// The largest sums there can be: every product at full scale, the longest row.
TEST_P(Differential, LinearAtItsBounds) {
  constexpr size_t kK = PackedMatrix::kMaxK;
  for (int kind = 0; kind < 4; ++kind) {
    for (float sign : {1.0f, -1.0f}) {
      const std::vector<float> ones(kK, 1.0f), x(kK, sign);
      const std::vector<uint8_t> codes(kK, kind == 2 ? 15 : 255);
      const std::vector<float> d(kK / 32, 1.0f), m(kK / 32, kind == 2 ? 15.0f : 127.0f);
      Result<PackedMatrix> w = Error{};
      if (kind < 2) {
        w = PackedMatrix::PackRows("test", ones, 1, kK, kind == 0 ? 8 : 16);
      } else {
        BlockWeights b;
        b.codes = codes;
        b.d = d;
        b.m = m;
        b.bits = kind == 2 ? 4 : 8;
        b.offset = kind == 2 ? 0 : 128;
        b.qm = kind == 2 ? 15 : 127;
        w = PackedMatrix::PackBlocks("test", b, 1, kK);
      }
      ASSERT_TRUE(w.ok());
      QuantizedRows rows;
      rows.Resize(1, kK);
      ASSERT_TRUE(ops_.quantize(x.data(), kK, kQ16, rows.row(0)));
      float want = 0, got = 0;
      reference_.linear(*w, rows, 0, 1, 0, 1, &want, 1);
      ops_.linear(*w, rows, 0, 1, 0, 1, &got, 1);
      compared_.Bits({want}, &got, "kind " + std::to_string(kind));
      EXPECT_NEAR(want,
                  sign * static_cast<float>(kK) *
                      (kind == 2   ? 30.0f
                       : kind == 3 ? 254.0f
                                   : 1.0f),
                  kK * 0.01f);
    }
  }
}

TEST_P(Differential, RmsNorm) {
  for (int round = 0; round < 300; ++round) {
    const size_t K = Pick(1, 200);
    std::vector<float> x = Row(K);
    const std::vector<float> gain = Row(K);
    const bool fault = Pick(0, 9) == 0;
    if (fault) x[Pick(0, K - 1)] = Bad();
    const float eps = OneOf({1e-5f, 1e-6f, 1e-12f});
    std::vector<float> want(K), got(K);
    compared_.Equal(!fault, reference_.rms_norm(x.data(), gain.data(), eps, K, want.data()),
                    "fault");
    compared_.Equal(!fault, ops_.rms_norm(x.data(), gain.data(), eps, K, got.data()), "fault");
    compared_.Bits(want, got.data(), "rms_norm K=" + std::to_string(K));
  }
}

TEST_P(Differential, Elementwise) {
  for (int round = 0; round < 300; ++round) {
    const size_t n = Pick(1, 100);
    std::vector<float> a = Row(n), b = Row(n), want(n), got(n);
    reference_.swiglu(a.data(), b.data(), n, want.data());
    ops_.swiglu(a.data(), b.data(), n, got.data());
    compared_.Bits(want, got.data(), "swiglu");
    reference_.exp2(a.data(), n, want.data());
    ops_.exp2(a.data(), n, got.data());
    compared_.Bits(want, got.data(), "exp2");
    want = got = a;
    reference_.add(want.data(), b.data(), n);
    ops_.add(got.data(), b.data(), n);
    compared_.Bits(want, got.data(), "add");
  }
}

TEST_P(Differential, Attention) {
  for (int round = 0; round < 120; ++round) {
    const size_t D = OneOf<size_t>({8, 16, 24, 64, 80, 96, 112, 128, 256});
    const KvTileLayout layout{D, Pick(0, 1) != 0 ? 16 : 8};
    const size_t keys = Pick(1, 300), kv_heads = Pick(1, 2), group = Pick(1, 9);
    TestCache want_cache(layout, kv_heads, keys), got_cache(layout, kv_heads, keys);
    for (size_t i = 0; i < keys * kv_heads; ++i) {
      std::vector<float> k = Row(D), v = Row(D);
      const bool fault = Pick(0, 99) == 0;
      if (fault) (Pick(0, 1) != 0 ? k : v)[Pick(0, D - 1)] = Bad();
      compared_.Equal(!fault,
                      want_cache.Store(reference_, i / kv_heads, i % kv_heads, k.data(), v.data()),
                      "fault");
      compared_.Equal(!fault, got_cache.Store(ops_, i / kv_heads, i % kv_heads, k.data(), v.data()),
                      "fault");
    }
    for (size_t p = 0; p < want_cache.data().size(); ++p) {
      ASSERT_EQ(want_cache.data()[p], got_cache.data()[p]) << "stored tiles differ";
    }
    const std::vector<float> x = Rows(group, D);
    QuantizedRows q;
    q.Resize(group, D);
    for (size_t h = 0; h < group; ++h) {
      ASSERT_TRUE(reference_.quantize(x.data() + h * D, D, kQ16, q.row(h)));
    }
    // Every other time at the edge of a tile, where one key more or less would show.
    uint64_t position = Pick(0, keys - 1);
    if (Pick(0, 1) != 0) {
      position = std::min(keys - 1, std::max<size_t>(Pick(0, keys / 64) * 64 + Pick(0, 4), 2) - 2);
    }
    const uint64_t window = Pick(0, 2) == 0 ? Pick(1, keys + 5) : 0;
    const AttentionArgs args =
        got_cache.Args(kv_heads - 1, position, AttentionScale(D), q, 0, group, window);
    std::vector<float> want(group * D), got(group * D);
    reference_.attention(args, want.data());
    ops_.attention(args, got.data());
    compared_.Bits(want, got.data(),
                   "attention D=" + std::to_string(D) + " KV" + std::to_string(layout.bits) +
                       " position " + std::to_string(position));
  }
}

// Two sequences, or the same one at another batch place, never touch: a row's result depends on its
// own keys only, and on positions at most its own.
TEST_P(Differential, AttentionIgnoresLaterKeys) {
  const KvTileLayout layout{64, 16};
  TestCache cache(layout, 1, 128);
  const std::vector<float> x = Rows(2, 64);
  QuantizedRows q;
  q.Resize(1, 64);
  ASSERT_TRUE(ops_.quantize(x.data(), 64, kQ16, q.row(0)));
  for (size_t i = 0; i < 70; ++i) ASSERT_TRUE(cache.Store(ops_, i, 0, x.data(), x.data() + 64));
  std::vector<float> before(64), after(64);
  ops_.attention(cache.Args(0, 66, AttentionScale(64), q, 0, 1), before.data());
  for (size_t i = 67; i < 128; ++i) {
    const std::vector<float> k = Row(64), v = Row(64);
    ASSERT_TRUE(cache.Store(ops_, i, 0, k.data(), v.data()));
  }
  ops_.attention(cache.Args(0, 66, AttentionScale(64), q, 0, 1), after.data());
  compared_.Bits(before, after.data(), "attention");
}

TEST_P(Differential, LogitsDigestAndSampling) {
  SamplingScratch scratch;
  for (int round = 0; round < 200; ++round) {
    const size_t V = Pick(1, round % 10 == 0 ? 20000 : 300);
    scratch.Resize(V);
    std::vector<float> want = Row(V);
    if (Pick(0, 1) != 0) {
      for (float& v : want) v = static_cast<float>(Pick(0, 40)) - 20.0f;  // many ties
    }
    std::vector<float> got = want;
    EXPECT_TRUE(reference_.finish_logits(want.data(), V));
    EXPECT_TRUE(ops_.finish_logits(got.data(), V));
    compared_.Bits(want, got.data(), "finish_logits");

    uint64_t want_sums[2] = {1, 2}, got_sums[2] = {1, 2};
    const size_t part = Pick(0, V);
    reference_.digest(want.data(), V, 0, want_sums);
    ops_.digest(want.data() + part, V - part, part, got_sums);
    ops_.digest(want.data(), part, 0, got_sums);
    compared_.Equal(FormatDigest(want_sums), FormatDigest(got_sums), "digest");

    const size_t best = reference_.arg_max(want.data(), V);
    compared_.Equal(best, ops_.arg_max(want.data(), V), "arg_max");
    compared_.Equal(reference_.logprob_sum(want.data(), V, want[best]),
                    ops_.logprob_sum(want.data(), V, want[best]), "logprob_sum");
    const SamplingParams params{OneOf({0.0f, 1e-5f, 0.1f, 0.8f, 1.0f, 2.0f, 1e30f}),
                                OneOf<uint64_t>({0, 1, 5, 40, V, V + 7}),
                                OneOf({0.0, 0.1, 0.9, 0.95, 1.0}), OneOf({0.0, 0.05, 0.5, 1.0})};
    const uint64_t r = random_();
    const SampledToken a = Sample(reference_, want, params, r, scratch);
    const SampledToken b = Sample(ops_, want, params, r, scratch);
    compared_.Equal(a.token, b.token, "token");
    compared_.Equal(a.kept, b.kept, "kept");
    compared_.Equal(a.total, b.total, "total");

    got[Pick(0, V - 1)] =
        OneOf({std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()});
    EXPECT_FALSE(reference_.finish_logits(got.data(), V));
    EXPECT_FALSE(ops_.finish_logits(got.data(), V));
  }
}

}  // namespace
}  // namespace verbatim::kernels
