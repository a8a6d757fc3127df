// Attention with AVX2: the tile's bytes widened to int16, vpmaddwd with the int16 query (lanes are
// keys) or weights (lanes are dimensions), each product pair widened to int64 at once.
#include <immintrin.h>

#include <cstring>

#include "kernels/cpu/attention_loop.h"
#include "kernels/cpu/avx2.h"

namespace verbatim::kernels::cpu {
namespace {

inline __m256i Load(const uint8_t* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}
inline __m256i Quad(const int16_t* p) {
  int64_t v;
  std::memcpy(&v, p, sizeof v);
  return _mm256_set1_epi64x(v);
}
inline __m256i WidenPairs(__m256i v) {
  const __m256i one = _mm256_set1_epi32(1);
  return _mm256_add_epi64(_mm256_mul_epi32(v, one),
                          _mm256_mul_epi32(_mm256_srli_epi64(v, 32), one));
}

// Exact product sums of 8 lanes (keys or dimensions): over `quads` lines of 8 x 4 stored integers,
// `stride` bytes apart, with 4 integers of x each. f32 of them to out[0..8).
void EightSums(const uint8_t* p, size_t stride, size_t plane_bytes, bool wide, const int16_t* x,
               size_t quads, float* out) {
  const __m256i sign = _mm256_set1_epi8(static_cast<char>(0x80));
  __m256i acc0 = _mm256_setzero_si256();  // lanes 0, 1, 4, 5
  __m256i acc1 = _mm256_setzero_si256();  // lanes 2, 3, 6, 7
  for (size_t i = 0; i < quads; ++i, p += stride) {
    const __m256i first = Load(p);
    __m256i a, b;
    if (wide) {
      const __m256i high = _mm256_xor_si256(Load(p + plane_bytes), sign);
      a = _mm256_unpacklo_epi8(first, high);
      b = _mm256_unpackhi_epi8(first, high);
    } else {
      const __m256i q = _mm256_xor_si256(first, sign);
      const __m256i negative = _mm256_cmpgt_epi8(_mm256_setzero_si256(), q);
      a = _mm256_unpacklo_epi8(q, negative);
      b = _mm256_unpackhi_epi8(q, negative);
    }
    const __m256i quad = Quad(x + 4 * i);
    acc0 = _mm256_add_epi64(acc0, WidenPairs(_mm256_madd_epi16(a, quad)));
    acc1 = _mm256_add_epi64(acc1, WidenPairs(_mm256_madd_epi16(b, quad)));
  }
  alignas(32) int64_t s0[4], s1[4];
  _mm256_store_si256(reinterpret_cast<__m256i*>(s0), acc0);
  _mm256_store_si256(reinterpret_cast<__m256i*>(s1), acc1);
  const int64_t order[8] = {s0[0], s0[1], s1[0], s1[1], s0[2], s0[3], s1[2], s1[3]};
  for (size_t i = 0; i < 8; ++i) out[i] = FloatOf(order[i]);
}

void Tile(const AttentionArgs& a, size_t t, size_t first_head, size_t heads, float* m, float* l,
          float* o) {
  const KvTileLayout& layout = a.layout;
  const bool wide = layout.planes() == 2;
  const uint8_t* tile = a.pages[t] + a.tile_offset;
  const float* scales = reinterpret_cast<const float*>(tile);
  const VisibleKeys keys = VisibleIn(a, t);
  const size_t first_quad = keys.begin / 4;
  const size_t end_quad = (keys.end + 3) / 4;
  for (size_t h = 0; h < heads; ++h) {
    const size_t row = a.q_row + first_head + h;
    const float scale = a.q->scale(row) * a.scale;
    alignas(32) float s[kTileKeys];
    for (size_t j = keys.begin / 8 * 8; j < keys.end; j += 8) {
      EightSums(tile + layout.k_offset() + j * 4, 4 * kTileKeys, layout.k_plane_bytes(), wide,
                a.q->q(row), layout.head_dim / 4, s + j);
    }
    m[h] = FromBits(kInfBits | 0x80000000);
    for (size_t j = keys.begin; j < keys.end; ++j) {
      s[j] = s[j] * (scale * scales[j]);
      m[h] = std::max(m[h], s[j]);
    }
    int32_t sum = 0;
    float largest = 0.0f;
    for (size_t j = keys.begin; j < keys.end; ++j) {
      const float p = Exp2(s[j] - m[h]);
      sum += static_cast<int32_t>(rintf(p * 0x1p24f));
      s[j] = p * scales[kTileKeys + j];
      largest = std::max(largest, s[j]);
    }
    l[h] = FloatOf(sum) * 0x1p-24f;
    const QuantizeStep step = StepOf(BitsOf(largest), kQ16);
    alignas(32) int16_t W[kTileKeys] = {};
    for (size_t j = keys.begin; j < keys.end; ++j) {
      W[j] = static_cast<int16_t>(QuantizeOne(s[j], step.r));
    }
    for (size_t d = 0; d < layout.head_dim; d += 8) {
      float* out = o + h * kOutStride + d;
      EightSums(tile + layout.v_offset() + first_quad * 4 * layout.padded_dim() + d * 4,
                4 * layout.padded_dim(), layout.v_plane_bytes(), wide, W + 4 * first_quad,
                end_quad - first_quad, out);
      for (size_t i = 0; i < 8; ++i) out[i] = out[i] * step.scale;
    }
  }
}

}  // namespace

void Avx2Attention(const AttentionArgs& args, float* out) { AttentionLoop(args, out, Tile); }

void Avx2AttentionTile(const AttentionArgs& args, size_t t, float* m, float* l, float* o) {
  AttentionOneTile(args, t, m, l, o, Tile);
}

}  // namespace verbatim::kernels::cpu
