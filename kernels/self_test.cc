// Inputs come from the digest's finaliser, so that a few constants stand for thousands of values;
// the expected digests were computed by the specification's executable form on the same inputs.
#include "kernels/self_test.h"

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "kernels/numerics.h"
#include "kernels/rope.h"
#include "kernels/sampling.h"

#if defined(__SSE2__)
#include <xmmintrin.h>
#else
#include <cfenv>
#endif

namespace verbatim::kernels {
namespace {

uint64_t Word(uint64_t seed, size_t i) { return Fin(i + (seed << 32)); }

// n values in [-4, 4) with 24-bit mantissas, times a power of two.
std::vector<float> Input(uint64_t seed, size_t n, float factor = 1.0f) {
  std::vector<float> x(n);
  for (size_t i = 0; i < n; ++i) {
    const int64_t v = static_cast<int64_t>(Word(seed, i) >> 40) - (int64_t{1} << 23);
    x[i] = static_cast<float>(v) * 0x1p-21f * factor;
  }
  return x;
}

std::string DigestOf(const std::vector<float>& x) {
  uint64_t sums[2] = {0, 0};
  for (size_t i = 0; i < x.size(); ++i) {
    sums[0] += DigestTerm(i, x[i], kDigestA);
    sums[1] += DigestTerm(i, x[i], kDigestB);
  }
  return FormatDigest(sums);
}

class Tester {
 public:
  explicit Tester(const Ops& ops) : ops_(ops) {}

  Status Run() {
    Elementwise();
    Rows();
    Matrices();
    Attention();
    Logits();
    if (failed_.empty()) return {};
    return Error{Code::kNumericFault,
                 "self-test: " + failed_ + " on " + IsaName(ops_.isa) +
                     " does not give the specified bits; do not serve from this machine or build "
                     "(try VERBATIM_ISA=scalar, and check compiler flags and hardware)"};
  }

 private:
  void Expect(bool ok, const char* what) {
    if (!ok && failed_.empty()) failed_ = what;
  }
  void Expect(const std::vector<float>& got, const char* digest, const char* what) {
    Expect(DigestOf(got) == digest, what);
  }

  void Elementwise() {
    std::vector<float> x = Input(1, 250, 32.0f);
    ops_.exp2(x.data(), x.size(), x.data());
    Expect(x, "04dffb746208aeb697383564fcfe84e5", "exp2");

    const std::vector<float> gate = Input(16, 100, 8.0f), up = Input(17, 100);
    std::vector<float> y(100);
    ops_.swiglu(gate.data(), up.data(), y.size(), y.data());
    Expect(y, "6cce432e35e47eee54bbb4bb13b0fbf4", "swiglu");

    y = Input(16, 100);
    ops_.add(y.data(), up.data(), y.size());
    Expect(y, "51385cb99495a79812aec146719c82a5", "add");

    float cos[8], sin[8];
    const Result<RopeTable> table = RopeTable::Make(10000.0, 16);
    CHECK(table.ok());
    table->CosSin(77, cos, sin);
    std::vector<float> a = Input(12, 32), b = a;
    ops_.rope(a.data(), 2, 16, 16, cos, sin, RopeLayout::kInterleaved);
    ops_.rope(b.data(), 2, 16, 16, cos, sin, RopeLayout::kHalves);
    a.insert(a.end(), b.begin(), b.end());
    Expect(a, "361d72b3d19be64c7136f3163650bed4", "rope");
  }

  void Quantize(int qmax, const char* digest) {
    std::vector<float> x = Input(2, 100), got;
    QuantizedRows rows;
    rows.Resize(1, x.size());
    Expect(ops_.quantize(x.data(), x.size(), qmax, rows.row(0)), "quantize");
    for (size_t k = 0; k < x.size(); ++k) {
      got.push_back(rows.q(0)[k]);
      Expect(rows.q(0)[k] == 256 * rows.hi(0)[k] + rows.lo(0)[k], "quantize");
    }
    got.push_back(rows.scale(0));
    Expect(got, digest, "quantize");
    for (float bad : {std::numeric_limits<float>::quiet_NaN(),
                      -std::numeric_limits<float>::infinity(), 0x1p60f}) {
      x[99] = bad;
      Expect(!ops_.quantize(x.data(), x.size(), qmax, rows.row(0)), "quantize's fault check");
    }
  }

  void Rows() {
    Quantize(kQ16, "317fcc4170c354190cd979243f20c27d");
    Quantize(kQ8, "b88ddad067efc8dbbb3fc8fe87791b30");
    // Half of the gains are subnormal: flushing them, or the results, shows.
    std::vector<float> x = Input(10, 100), gain = Input(11, 100);
    for (size_t i = 0; i < 50; ++i) gain[i] = gain[i] * 0x1p-130f;
    Expect(ops_.rms_norm(x.data(), gain.data(), 1e-5f, x.size(), x.data()), "rms_norm");
    Expect(x, "dadaf5708ede11883b2d831d6f677af0", "rms_norm");
  }

  void Matrix(const Result<PackedMatrix>& w, const char* digest, const char* what) {
    CHECK(w.ok());
    constexpr size_t kRows = 5, kK = 64, kN = 20;
    const std::vector<float> x = Input(3, kRows * kK);
    QuantizedRows rows;
    rows.Resize(kRows, kK);
    for (size_t r = 0; r < kRows; ++r) {
      Expect(ops_.quantize(x.data() + r * kK, kK, kQ16, rows.row(r)), "quantize");
    }
    std::vector<float> y(kRows * kN);
    ops_.linear(*w, rows, 0, kRows, 0, kN, y.data(), kN);
    Expect(y, digest, what);
  }

  void Matrices() {
    constexpr size_t kK = 64, kN = 20;
    const std::vector<float> w = Input(4, kN * kK), bias = Input(5, kN);
    Matrix(PackedMatrix::PackRows("self-test", w, kN, kK, 8, bias),
           "a7bf7874330e9e7b3295b6e961bbb8f5", "linear with W8");
    Matrix(PackedMatrix::PackRows("self-test", w, kN, kK, 16, bias),
           "c4d6c18ca7891249ebe25f96a646ff4c", "linear with W16");

    const std::vector<float> d = Input(7, kN * kK / 32), m = Input(8, kN * kK / 32);
    std::vector<uint8_t> codes(kN * kK);
    BlockWeights blocks;
    blocks.codes = codes;
    blocks.d = d;
    blocks.m = m;
    blocks.bits = 4;
    blocks.qm = 15;
    for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<uint8_t>(Word(6, i) >> 60);
    const Result<PackedMatrix> q4 = PackedMatrix::PackBlocks("self-test", blocks, kN, kK);
    Matrix(q4, "556fb253aa1c10819ad89ed108ab540c", "linear with 4-bit blocks");
    std::vector<float> row(kK);
    ops_.embedding(*q4, 17, row.data());
    Expect(row, "dd161c9b71bf67803fb85e01aad13577", "embedding");

    blocks.m = {};
    blocks.bits = 8;
    blocks.offset = 128;
    blocks.qm = 127;
    for (size_t i = 0; i < codes.size(); ++i) {
      codes[i] = std::max<uint8_t>(static_cast<uint8_t>(Word(9, i) >> 56), 1);
    }
    Matrix(PackedMatrix::PackBlocks("self-test", blocks, kN, kK),
           "fffebcbc196ac77936f19a67410e6bb7", "linear with 8-bit blocks");
  }

  void Attention() {
    Attention(16, "568ef0c11e7cd81874317abacf9994ca", "attention with KV16");
    Attention(8, "501c272cfb4e26967f0615fab7e2711a", "attention with KV8");
  }
  void Attention(int bits, const char* digest, const char* what) {
    constexpr size_t kDim = 16, kKeys = 70, kHeads = 2;
    const KvTileLayout layout{kDim, bits};
    const std::vector<float> q = Input(13, kHeads * kDim), k = Input(14, kKeys * kDim),
                             v = Input(15, kKeys * kDim);
    AlignedVector<uint8_t> pages[2];
    for (auto& page : pages) page.resize(layout.bytes());
    for (size_t i = 0; i < kKeys; ++i) {
      Expect(ops_.kv_store(layout, pages[i / 64].data(), i % 64, k.data() + i * kDim,
                           v.data() + i * kDim),
             "kv_store");
    }
    QuantizedRows rows;
    rows.Resize(kHeads, kDim);
    for (size_t h = 0; h < kHeads; ++h) {
      Expect(ops_.quantize(q.data() + h * kDim, kDim, kQ16, rows.row(h)), "quantize");
    }
    const uint8_t* pointers[2] = {pages[0].data(), pages[1].data()};
    std::vector<float> out(kHeads * kDim);
    ops_.attention({layout, pointers, 0, kKeys - 1, 0, AttentionScale(kDim), &rows, 0, kHeads},
                   out.data());
    Expect(out, digest, what);
  }

  void Logits() {
    std::vector<float> x = Input(18, 500);
    x[7] = -0.0f;
    uint64_t sums[2] = {0, 0};
    ops_.digest(x.data(), x.size(), 0, sums);
    Expect(FormatDigest(sums) == "e8c9c03ed3f7f5b007522c10e9d5b4c6", "digest");
    Expect(ops_.finish_logits(x.data(), x.size()), "finish_logits");
    Expect(x, "e5e50f704eb1fe02e2c08dc28bfdd437", "finish_logits");

    const size_t best = ops_.arg_max(x.data(), x.size());
    Expect(best == 260, "arg_max");
    std::vector<uint32_t> weights(x.size());
    ops_.sampling_weights(x.data(), x.size(), x[best], kLog2eF / 0.8f, weights.data());
    Expect({weights.begin(), weights.end()}, "fc566dccd5f051e69859cc12432491c5",
           "sampling_weights");
    Expect(ops_.logprob_sum(x.data(), x.size(), x[best]) == 59723602857664, "logprob_sum");

    SamplingScratch scratch;
    scratch.Resize(x.size());
    const SampledToken token = Sample(ops_, x, {0.8f, 40, 0.95, 0.05}, 0x123456789abcdef0, scratch);
    Expect(token.token == 485 && token.kept == 37 && token.total == 26512075456 &&
               token.point == 1885303143,
           "sampling");
    x[499] = std::numeric_limits<float>::quiet_NaN();
    Expect(!ops_.finish_logits(x.data(), x.size()), "finish_logits' fault check");
  }

  const Ops& ops_;
  std::string failed_;  // the first op that differed
};

}  // namespace

Status CheckFloatEnvironment() {
#if defined(__SSE2__)
  const unsigned mxcsr = _mm_getcsr();
  const bool rounds_to_nearest = (mxcsr & 0x6000) == 0;
  const bool flushes = (mxcsr & 0x8040) != 0;  // FTZ, DAZ
#else
  const bool rounds_to_nearest = std::fegetround() == FE_TONEAREST;
  volatile float tiny = 0x1p-126f;
  const bool flushes = tiny * 0.5f == 0.0f;
#endif
  if (rounds_to_nearest && !flushes) return {};
  return Error{Code::kNumericFault,
               std::string("float environment: ") +
                   (flushes ? "subnormals are flushed to zero" : "rounding is not to nearest") +
                   "; a library of this process was built with fast-math or changed the mode"};
}

Status SelfTest(const Ops& ops) {
  if (Status s = CheckFloatEnvironment(); !s) return s;
  return Tester(ops).Run();
}

}  // namespace verbatim::kernels
