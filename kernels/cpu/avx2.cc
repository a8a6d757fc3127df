// AVX2 row operations, and the table.
#include "kernels/cpu/avx2.h"

#include <immintrin.h>

#include "kernels/cpu/rows.h"
#include "kernels/cpu/tables.h"

namespace verbatim::kernels::cpu {
namespace {

struct V {
  static constexpr size_t kLanes = 8;
  using Float = __m256;
  static Float Load(const float* p) { return _mm256_loadu_ps(p); }
  static void Store(float* p, Float v) { _mm256_storeu_ps(p, v); }
  static Float Set(float x) { return _mm256_set1_ps(x); }
  static Float Add(Float a, Float b) { return _mm256_add_ps(a, b); }
  static Float Sub(Float a, Float b) { return _mm256_sub_ps(a, b); }
  static Float Mul(Float a, Float b) { return _mm256_mul_ps(a, b); }
  static Float Div(Float a, Float b) { return _mm256_div_ps(a, b); }
  static Float Min(Float a, Float b) { return _mm256_min_ps(a, b); }
  static Float Max(Float a, Float b) { return _mm256_max_ps(a, b); }
  static Float Negate(Float a) { return _mm256_xor_ps(a, Set(-0.0f)); }
  static Float Rint(Float a) {
    return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  static Float AddExponent(Float p, Float n) {
    return _mm256_castsi256_ps(
        _mm256_add_epi32(_mm256_castps_si256(p), _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23)));
  }
  static Float KeepWhereAtLeast(Float p, Float x, float lo) {
    return _mm256_and_ps(p, _mm256_cmp_ps(x, Set(lo), _CMP_GE_OQ));
  }
  static bool AnyEqual(Float a, float x) {
    return _mm256_movemask_ps(_mm256_cmp_ps(a, Set(x), _CMP_EQ_OQ)) != 0;
  }

  static __m256i ZeroBits() { return _mm256_setzero_si256(); }
  static __m256i MaxBits(__m256i m, Float x) {
    return _mm256_max_epu32(
        m, _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(kMagnitudeMask)));
  }
  static uint32_t ReduceMaxBits(__m256i m) {
    alignas(32) uint32_t lanes[8];
    _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), m);
    return *std::max_element(lanes, lanes + 8);
  }

  static void StoreInt16(int16_t* q, Float v) {
    const __m256i i = _mm256_cvtps_epi32(v);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(q),
                     _mm_packs_epi32(_mm256_castsi256_si128(i), _mm256_extracti128_si256(i, 1)));
  }
  static void StoreInt32(uint32_t* p, Float v) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_cvtps_epi32(v));
  }

  static __m256i ZeroSquares() { return _mm256_setzero_si256(); }
  static __m256i AddSquares(__m256i acc, Float v) {
    const __m256i even = _mm256_cvtps_epi32(v);
    const __m256i odd = _mm256_srli_epi64(even, 32);
    acc = _mm256_add_epi64(acc, _mm256_mul_epi32(even, even));
    return _mm256_add_epi64(acc, _mm256_mul_epi32(odd, odd));
  }
  static int64_t ReduceSquares(__m256i acc) {
    alignas(32) int64_t lanes[4];
    _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), acc);
    return lanes[0] + lanes[1] + lanes[2] + lanes[3];
  }
};

bool KvStore(const KvTileLayout& layout, uint8_t* tile, size_t slot, const float* k,
             const float* v) {
  return VectorKvStore<V>(layout, tile, slot, k, v, StoreKey);
}

// AVX2 has no 64-bit multiply; the scalar one is as fast as any substitute.
void DigestRow(const float* x, size_t n, uint64_t first, uint64_t sums[2]) {
  uint64_t a = 0, b = 0;
  for (size_t i = 0; i < n; ++i) {
    a += DigestTerm(first + i, x[i], kDigestA);
    b += DigestTerm(first + i, x[i], kDigestB);
  }
  sums[0] += a;
  sums[1] += b;
}

}  // namespace

const Ops& Avx2Ops() {
  static constexpr Ops kOps = {
      .isa = Isa::kAvx2,
      .quantize = VectorQuantize<V>,
      .linear = Avx2Linear,
      .rms_norm = VectorRmsNorm<V>,
      .embedding = Embedding,
      .rope = Rope,
      .kv_store = KvStore,
      .attention = Avx2Attention,
      .attention_tile = Avx2AttentionTile,
      .swiglu = VectorSwiGlu<V>,
      .add = VectorAdd<V>,
      .exp2 = VectorExp2Row<V>,
      .finish_logits = VectorFinishLogits<V>,
      .digest = DigestRow,
      .arg_max = VectorArgMax<V>,
      .sampling_weights = VectorSamplingWeights<V>,
      .logprob_sum = VectorLogprobSum<V>,
  };
  return kOps;
}

}  // namespace verbatim::kernels::cpu
