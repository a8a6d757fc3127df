// AVX-512 row operations, and the table.
#include "kernels/cpu/avx512.h"

#include <immintrin.h>

#include "kernels/cpu/rows.h"
#include "kernels/cpu/tables.h"

namespace verbatim::kernels::cpu {
namespace {

struct V {
  static constexpr size_t kLanes = 16;
  using Float = __m512;
  static Float Load(const float* p) { return _mm512_loadu_ps(p); }
  static void Store(float* p, Float v) { _mm512_storeu_ps(p, v); }
  static Float Set(float x) { return _mm512_set1_ps(x); }
  static Float Add(Float a, Float b) { return _mm512_add_ps(a, b); }
  static Float Sub(Float a, Float b) { return _mm512_sub_ps(a, b); }
  static Float Mul(Float a, Float b) { return _mm512_mul_ps(a, b); }
  static Float Div(Float a, Float b) { return _mm512_div_ps(a, b); }
  static Float Min(Float a, Float b) { return _mm512_min_ps(a, b); }
  static Float Max(Float a, Float b) { return _mm512_max_ps(a, b); }
  static Float Negate(Float a) { return _mm512_xor_ps(a, Set(-0.0f)); }
  static Float Rint(Float a) {
    return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  static Float AddExponent(Float p, Float n) {
    return _mm512_castsi512_ps(
        _mm512_add_epi32(_mm512_castps_si512(p), _mm512_slli_epi32(_mm512_cvtps_epi32(n), 23)));
  }
  static Float KeepWhereAtLeast(Float p, Float x, float lo) {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, Set(lo), _CMP_GE_OQ), p);
  }
  static bool AnyEqual(Float a, float x) { return _mm512_cmp_ps_mask(a, Set(x), _CMP_EQ_OQ) != 0; }

  static __m512i ZeroBits() { return _mm512_setzero_si512(); }
  static __m512i MaxBits(__m512i m, Float x) {
    return _mm512_max_epu32(
        m, _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(kMagnitudeMask)));
  }
  static uint32_t ReduceMaxBits(__m512i m) { return _mm512_reduce_max_epu32(m); }

  static void StoreInt16(int16_t* q, Float v) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(q),
                        _mm512_cvtepi32_epi16(_mm512_cvtps_epi32(v)));
  }
  static void StoreInt32(uint32_t* p, Float v) { _mm512_storeu_si512(p, _mm512_cvtps_epi32(v)); }

  static __m512i ZeroSquares() { return _mm512_setzero_si512(); }
  static __m512i AddSquares(__m512i acc, Float v) {
    const __m512i even = _mm512_cvtps_epi32(v);
    const __m512i odd = _mm512_srli_epi64(even, 32);
    acc = _mm512_add_epi64(acc, _mm512_mul_epi32(even, even));
    return _mm512_add_epi64(acc, _mm512_mul_epi32(odd, odd));
  }
  static int64_t ReduceSquares(__m512i acc) { return _mm512_reduce_add_epi64(acc); }
};

__m512i FinVector(__m512i z) {
  z = _mm512_xor_si512(z, _mm512_srli_epi64(z, 30));
  z = _mm512_mullo_epi64(z, _mm512_set1_epi64(static_cast<int64_t>(0xbf58476d1ce4e5b9)));
  z = _mm512_xor_si512(z, _mm512_srli_epi64(z, 27));
  z = _mm512_mullo_epi64(z, _mm512_set1_epi64(static_cast<int64_t>(0x94d049bb133111eb)));
  return _mm512_xor_si512(z, _mm512_srli_epi64(z, 31));
}

void DigestRow(const float* x, size_t n, uint64_t first, uint64_t sums[2]) {
  const __m512i key_a = _mm512_set1_epi64(static_cast<int64_t>(kDigestA));
  const __m512i key_b = _mm512_set1_epi64(static_cast<int64_t>(kDigestB));
  __m512i index = _mm512_slli_epi64(_mm512_add_epi64(_mm512_set1_epi64(static_cast<int64_t>(first)),
                                                     _mm512_setr_epi64(0, 1, 2, 3, 4, 5, 6, 7)),
                                    32);
  __m512i a = _mm512_setzero_si512();
  __m512i b = _mm512_setzero_si512();
  size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m512i bits =
        _mm512_cvtepu32_epi64(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + i)));
    const __m512i z = _mm512_or_si512(index, bits);
    a = _mm512_add_epi64(a, FinVector(_mm512_xor_si512(z, key_a)));
    b = _mm512_add_epi64(b, FinVector(_mm512_xor_si512(z, key_b)));
    index = _mm512_add_epi64(index, _mm512_set1_epi64(int64_t{8} << 32));
  }
  alignas(64) uint64_t lanes_a[8], lanes_b[8];
  _mm512_store_si512(lanes_a, a);
  _mm512_store_si512(lanes_b, b);
  for (size_t j = 0; j < 8; ++j) {
    sums[0] += lanes_a[j];
    sums[1] += lanes_b[j];
  }
  for (; i < n; ++i) {
    sums[0] += DigestTerm(first + i, x[i], kDigestA);
    sums[1] += DigestTerm(first + i, x[i], kDigestB);
  }
}

bool KvStore(const KvTileLayout& layout, uint8_t* tile, size_t slot, const float* k,
             const float* v) {
  return VectorKvStore<V>(layout, tile, slot, k, v, StoreKey);
}

}  // namespace

const Ops& Avx512VnniOps() {
  static constexpr Ops kOps = {
      .isa = Isa::kAvx512Vnni,
      .quantize = VectorQuantize<V>,
      .linear = Avx512Linear,
      .rms_norm = VectorRmsNorm<V>,
      .embedding = Embedding,
      .rope = Rope,
      .kv_store = KvStore,
      .attention = Avx512Attention,
      .attention_tile = Avx512AttentionTile,
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
