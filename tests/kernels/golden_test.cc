// Every unit vector of the specification, bit for bit, on every instruction set of this machine.

#include "tests/kernels/golden.h"

#include <cmath>
#include <string>
#include <vector>

#include "base/philox.h"
#include "kernels/ops.h"
#include "kernels/rope.h"
#include "kernels/sampling.h"
#include "tests/kernels/kv.h"

namespace verbatim::kernels {
namespace {

class Golden : public ::testing::TestWithParam<Isa> {
 protected:
  const Ops& ops_ = Select(GetParam());
};

INSTANTIATE_TEST_SUITE_P(AllIsas, Golden, ::testing::ValuesIn(AvailableIsas()),
                         [](const auto& p) { return std::string(IsaName(p.param)); });

std::string DigestOf(const Ops& ops, const std::vector<float>& x) {
  uint64_t sums[2] = {0, 0};
  const size_t middle = x.size() / 3;  // in two parts: the sums are order-free
  ops.digest(x.data() + middle, x.size() - middle, middle, sums);
  ops.digest(x.data(), middle, 0, sums);
  return FormatDigest(sums);
}

TEST_P(Golden, Quantize) {
  const json::Value golden = LoadGolden("quantize");
  Compared compared;
  for (const json::Value& c : golden.items()) {
    const std::string name = At(c, "name").as_string();
    const std::vector<float> x = Floats(At(c, "x"));
    QuantizedRows rows;
    rows.Resize(1, x.size());
    const bool ok =
        ops_.quantize(x.data(), x.size(), static_cast<int>(Size(c, "qmax")), rows.row(0));
    compared.Equal(c.Find("fault") == nullptr, ok, name);
    if (!ok) continue;
    const std::vector<int> want = Integers<int>(At(c, "q"));
    int sum = 0;
    for (size_t k = 0; k < want.size(); ++k) {
      compared.Equal(want[k], int{rows.q(0)[k]}, name);
      compared.Equal(want[k], 256 * rows.hi(0)[k] + rows.lo(0)[k], name + " planes");
      sum += want[k];
      if (k % 32 == 31 || k + 1 == want.size()) {
        compared.Equal(sum, rows.block_sum(0)[k / 32], name + " block sum");
        sum = 0;
      }
    }
    const float scale = rows.scale(0);
    compared.Bits(Floats(At(c, "scale")), &scale, name + " scale");
  }
}

TEST_P(Golden, Exp2) {
  const json::Value golden = LoadGolden("exp2");
  Compared compared;
  const std::vector<float> x = Floats(At(golden, "x"));
  std::vector<float> y(x.size());
  ops_.exp2(x.data(), x.size(), y.data());
  compared.Bits(Floats(At(golden, "y")), y.data(), "exp2");
  for (const json::Value& sweep : At(golden, "sweep").items()) {
    const int64_t first = *At(sweep, "first").AsInt64();
    std::vector<float> v(Size(sweep, "count"));
    for (size_t i = 0; i < v.size(); ++i) {
      v[i] = static_cast<float>(first - static_cast<int64_t>(i)) * 0x1p-15f;
    }
    ops_.exp2(v.data(), v.size(), v.data());
    compared.Equal(At(sweep, "digest").as_string(), DigestOf(ops_, v), "exp2 sweep");
  }
}

TEST_P(Golden, RmsNorm) {
  const json::Value golden = LoadGolden("rmsnorm");
  Compared compared;
  for (const json::Value& c : golden.items()) {
    std::vector<float> x = Floats(At(c, "x"));
    const std::vector<float> gain = Floats(At(c, "g"));
    ASSERT_TRUE(ops_.rms_norm(x.data(), gain.data(), OneFloat(At(c, "eps")), x.size(), x.data()));
    compared.Bits(Floats(At(c, "y")), x.data(), "rmsnorm K=" + std::to_string(x.size()));
  }
}

TEST_P(Golden, SwiGlu) {
  const json::Value golden = LoadGolden("swiglu");
  Compared compared;
  std::vector<float> g = Floats(At(golden, "g"));
  const std::vector<float> u = Floats(At(golden, "u"));
  ops_.swiglu(g.data(), u.data(), g.size(), g.data());
  compared.Bits(Floats(At(golden, "y")), g.data(), "swiglu");
}

// x or w of a linear case: given in full, or as one value that fills it.
std::vector<float> Filled(const json::Value& c, const std::string& key, size_t n) {
  const json::Value* fill = c.Find(key + "_fill");
  if (fill != nullptr) return std::vector<float>(n, OneFloat(*fill));
  return Floats(At(c, key.c_str()));
}

QuantizedRows QuantizeAll(const Ops& ops, const std::vector<float>& x, size_t M, size_t K,
                          size_t abits) {
  QuantizedRows rows;
  rows.Resize(M, K);
  for (size_t r = 0; r < M; ++r) {
    EXPECT_TRUE(ops.quantize(x.data() + r * K, K, abits == 8 ? kQ8 : kQ16, rows.row(r)));
  }
  return rows;
}

TEST_P(Golden, Linear) {
  const json::Value golden = LoadGolden("linear");
  Compared compared;
  for (const json::Value& c : golden.items()) {
    const size_t N = Size(c, "N"), K = Size(c, "K"), M = Size(c, "M");
    const std::string name = "linear K=" + std::to_string(K) + " N=" + std::to_string(N) + " w" +
                             std::to_string(Size(c, "wbits")) + "a" +
                             std::to_string(Size(c, "abits"));
    const std::vector<float> w = Filled(c, "w", N * K);
    std::vector<float> bias;
    if (c.Find("bias") != nullptr) bias = Floats(At(c, "bias"));
    Result<PackedMatrix> matrix =
        PackedMatrix::PackRows(name, w, N, K, static_cast<int>(Size(c, "wbits")), bias);
    ASSERT_TRUE(matrix.ok());
    const QuantizedRows x = QuantizeAll(ops_, Filled(c, "x", M * K), M, K, Size(c, "abits"));
    std::vector<float> y(M * N);
    ops_.linear(*matrix, x, 0, M, 0, N, y.data(), N);
    compared.Bits(Floats(At(c, "y")), y.data(), name);
  }
}

TEST_P(Golden, LinearBlock) {
  const json::Value golden = LoadGolden("linear_block");
  Compared compared;
  for (const json::Value& c : golden.items()) {
    const size_t N = Size(c, "N"), K = Size(c, "K"), M = Size(c, "M");
    const bool q4 = At(c, "format").as_string() == "Q4_1";
    const std::string name = At(c, "format").as_string() + " K=" + std::to_string(K);
    std::vector<uint8_t> codes;
    for (int q : Integers<int>(At(c, "q")))
      codes.push_back(static_cast<uint8_t>(q + (q4 ? 0 : 128)));
    const std::vector<float> d = Floats(At(c, "d"));
    const std::vector<float> m = Floats(At(c, "m"));
    BlockWeights w;
    w.codes = codes;
    w.d = d;
    if (q4) w.m = m;
    w.bits = q4 ? 4 : 8;
    w.offset = q4 ? 0 : 128;
    w.qm = q4 ? 15 : 127;
    Result<PackedMatrix> matrix = PackedMatrix::PackBlocks(name, w, N, K);
    ASSERT_TRUE(matrix.ok());
    const std::vector<int> D = Integers<int>(At(c, "D"));
    const std::vector<int> Mint = Integers<int>(At(c, "Mint"));
    const size_t blocks = K / 32;
    for (size_t i = 0; i < N * blocks; ++i) {
      compared.Equal(D[i], matrix->D(i / blocks, i % blocks), name + " D");
      compared.Equal(Mint[i], matrix->M(i / blocks, i % blocks), name + " M");
    }
    compared.Bits(Floats(At(c, "s")), matrix->scale(), name + " s");
    std::vector<float> row0(K);
    ops_.embedding(*matrix, 0, row0.data());
    compared.Bits(Floats(At(c, "row0")), row0.data(), name + " embedding");
    const QuantizedRows x = QuantizeAll(ops_, Floats(At(c, "x")), M, K, Size(c, "abits"));
    std::vector<float> y(M * N);
    ops_.linear(*matrix, x, 0, M, 0, N, y.data(), N);
    compared.Bits(Floats(At(c, "y")), y.data(), name);
  }
}

TEST_P(Golden, Attention) {
  const json::Value golden = LoadGolden("attention");
  Compared compared;
  for (const json::Value& c : golden.items()) {
    const size_t rows = Size(c, "rows"), keys = Size(c, "keys"), p0 = Size(c, "p0");
    const size_t Hq = Size(c, "Hq"), Hk = Size(c, "Hk"), D = Size(c, "D");
    const std::string name = "attention rows=" + std::to_string(rows) +
                             " keys=" + std::to_string(keys) + " D=" + std::to_string(D);
    const KvTileLayout layout{D, static_cast<int>(Size(c, "kvbits"))};
    TestCache cache(layout, Hk, keys);
    const std::vector<float> k = Floats(At(c, "k"));
    const std::vector<float> v = Floats(At(c, "v"));
    for (size_t i = 0; i < keys * Hk; ++i) {
      ASSERT_TRUE(cache.Store(ops_, i / Hk, i % Hk, k.data() + i * D, v.data() + i * D));
    }
    const QuantizedRows q = QuantizeAll(ops_, Floats(At(c, "q")), rows * Hq, D, 16);
    const json::Value* scale = c.Find("c");
    const float attention_scale = scale != nullptr ? OneFloat(*scale) : AttentionScale(D);
    EXPECT_EQ(BitsOf(attention_scale), BitsOf(AttentionScale(D)));
    std::vector<float> out(rows * Hq * D);
    const size_t group = Hq / Hk;
    for (size_t r = 0; r < rows; ++r) {
      for (size_t h = 0; h < Hk; ++h) {
        const AttentionArgs args =
            cache.Args(h, p0 + r, attention_scale, q, r * Hq + h * group, group);
        ops_.attention(args, out.data() + (r * Hq + h * group) * D);
      }
    }
    compared.Bits(Floats(At(c, "out")), out.data(), name);
    if (c.Find("tiles") == nullptr) continue;
    ASSERT_EQ(rows * Hk, 1u);
    size_t t = 0;
    for (const json::Value& tile : At(c, "tiles").items()) {
      std::vector<float> m(group), l(group), o(group * D);
      ops_.attention_tile(cache.Args(0, p0, attention_scale, q, 0, group), t++, m.data(), l.data(),
                          o.data());
      compared.Bits(Floats(At(tile, "m")), m.data(), name + " m");
      compared.Bits(Floats(At(tile, "l")), l.data(), name + " l");
      compared.Bits(Floats(At(tile, "o")), o.data(), name + " o");
    }
  }
}

TEST_P(Golden, Sampling) {
  const json::Value golden = LoadGolden("sampling");
  Compared compared;
  SamplingScratch scratch;
  for (const json::Value& c : At(golden, "cases").items()) {
    const std::string row = json::Serialize(At(c, "case"));
    std::string key = row;
    if (At(c, "case").is_string()) key = At(c, "case").as_string();
    const std::vector<float> logits = Floats(At(At(golden, "logits"), key.c_str()));
    scratch.Resize(logits.size());
    const SamplingParams params{OneFloat(At(c, "T")), Size(c, "top_k"), OneDouble(At(c, "top_p")),
                                OneDouble(At(c, "min_p"))};
    const SampledToken got = Sample(ops_, logits, params, Words(At(c, "r")).at(0), scratch);
    const std::string name = json::Serialize(c);
    compared.Equal<uint64_t>(Size(c, "token"), got.token, name);
    if (c.Find("kept") == nullptr) continue;
    compared.Equal<uint64_t>(Size(c, "kept"), got.kept, name + " kept");
    compared.Equal(Words(At(c, "total")).at(0), got.total, name + " total");
    compared.Equal(Words(At(c, "u")).at(0), got.point, name + " u");
  }
}

TEST_P(Golden, Digest) {
  const json::Value golden = LoadGolden("digest");
  Compared compared;
  for (const json::Value& c : golden.items()) {
    std::vector<float> logits = Floats(At(c, "logits"));
    const std::string raw = DigestOf(ops_, logits);
    EXPECT_TRUE(ops_.finish_logits(logits.data(), logits.size()));
    compared.Equal(At(c, "digest").as_string(), DigestOf(ops_, logits),
                   "digest of " + std::to_string(logits.size()) + " logits, without +0.0: " + raw);
  }
}

TEST_P(Golden, RopeRotation) {
  const json::Value golden = LoadGolden("rope");
  const json::Value& c = At(golden, "apply");
  Compared compared;
  const size_t d = Size(c, "d"), heads = Size(c, "heads");
  Result<RopeTable> table = RopeTable::Make(*At(c, "base").AsDouble(), d);
  ASSERT_TRUE(table.ok());
  std::vector<float> cos(d / 2), sin(d / 2);
  table->CosSin(Size(c, "pos"), cos.data(), sin.data());
  std::vector<float> x = Floats(At(c, "x"));
  ops_.rope(x.data(), heads, d, d, cos.data(), sin.data(), RopeLayout::kInterleaved);
  compared.Bits(Floats(At(c, "interleaved")), x.data(), "rope interleaved");
  x = Floats(At(c, "x"));
  ops_.rope(x.data(), heads, d, d, cos.data(), sin.data(), RopeLayout::kHalves);
  compared.Bits(Floats(At(c, "halves")), x.data(), "rope halves");
}

// What is computed on the host only, whatever the instruction set.

TEST(GoldenHost, Int64ToFloat) {
  const json::Value golden = LoadGolden("i64_to_f32");
  Compared compared;
  std::vector<float> got;
  for (int64_t i : Integers<int64_t>(At(golden, "i"))) got.push_back(FloatOf(i));
  compared.Bits(Floats(At(golden, "f")), got.data(), "i64_to_f32");
}

RopeScaling ScalingOf(const json::Value& c) {
  const std::string method = At(c, "scaling").as_string();
  const json::Value& p = At(c, "params");
  const auto number = [&](const char* key, double& out) {
    if (p.Find(key) != nullptr) out = *At(p, key).AsDouble();
  };
  RopeScaling s;
  using Method = RopeScaling::Method;
  s.method = method == "linear"   ? Method::kLinear
             : method == "table"  ? Method::kTable
             : method == "llama3" ? Method::kLlama3
             : method == "yarn"   ? Method::kYarn
                                  : Method::kNone;
  number("factor", s.factor);
  number("low_freq_factor", s.low_freq_factor);
  number("high_freq_factor", s.high_freq_factor);
  number("original_context", s.original_context);
  number("beta_fast", s.beta_fast);
  number("beta_slow", s.beta_slow);
  if (p.Find("table") != nullptr) s.table = Floats(At(p, "table"));
  return s;
}

TEST(GoldenHost, RopeTables) {
  const json::Value golden = LoadGolden("rope");
  Compared compared;
  for (const json::Value& c : At(golden, "tables").items()) {
    const std::string name = "rope " + At(c, "scaling").as_string() + " " +
                             json::Serialize(At(c, "base")) + " d=" + std::to_string(Size(c, "d"));
    Result<RopeTable> table =
        RopeTable::Make(*At(c, "base").AsDouble(), Size(c, "d"), ScalingOf(c));
    ASSERT_TRUE(table.ok()) << table.error().message;
    compared.Equal(OneDouble(At(c, "mag")), table->magnitude(), name + " mag");
    const std::vector<uint64_t> F = Words(At(c, "F"));
    ASSERT_EQ(F.size(), table->fractions().size());
    for (size_t i = 0; i < F.size(); ++i) compared.Equal(F[i], table->fractions()[i], name + " F");
    const std::vector<uint64_t> pos = Integers<uint64_t>(At(c, "pos"));
    std::vector<float> cos(F.size()), sin(F.size());
    for (size_t i = 0; i < pos.size(); ++i) {
      table->CosSin(pos[i], cos.data(), sin.data());
      compared.Bits(Floats(At(c, "cos").items()[i]), cos.data(), name + " cos");
      compared.Bits(Floats(At(c, "sin").items()[i]), sin.data(), name + " sin");
    }
  }
  const std::vector<uint64_t> phase = Words(At(golden, "phase"));
  std::vector<float> cos, sin;
  for (uint64_t p : phase) {
    cos.push_back(CosSinOfPhase(p, 1.0).cos);
    sin.push_back(CosSinOfPhase(p, 1.0).sin);
  }
  compared.Bits(Floats(At(golden, "phase_cos")), cos.data(), "phase cos");
  compared.Bits(Floats(At(golden, "phase_sin")), sin.data(), "phase sin");
}

TEST(GoldenHost, Philox) {
  const json::Value golden = LoadGolden("philox");
  Compared compared;
  const auto words = [](const json::Value& v) {
    std::vector<uint32_t> out;
    for (const json::Value& w : v.items()) out.push_back(static_cast<uint32_t>(Words(w).at(0)));
    return out;
  };
  for (const json::Value& c : At(golden, "kat").items()) {
    const std::vector<uint32_t> ctr = words(At(c, "ctr")), key = words(At(c, "key"));
    const std::vector<uint32_t> want = words(At(c, "out"));
    const auto got = Philox4x32({ctr[0], ctr[1], ctr[2], ctr[3]}, {key[0], key[1]});
    for (size_t i = 0; i < 4; ++i) compared.Equal(want[i], got[i], "philox");
  }
  for (const json::Value& c : At(golden, "draw64").items()) {
    compared.Equal(Words(At(c, "r")).at(0),
                   Draw64(Words(At(c, "seed")).at(0), Size(c, "position"), Size(c, "stream")),
                   "draw64");
  }
}

}  // namespace
}  // namespace verbatim::kernels
