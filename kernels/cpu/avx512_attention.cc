// Attention with AVX-512 VNNI: up to four query heads against one tile. For scores the lanes are
// keys, for outputs they are dimensions; both read the tile's byte planes front to back.
//
// A stored integer is 256*(hi - 128) + lo, an activation 256*h + l, so a product sum is
// 65536*hh + 256*(hl + lh) + ll - 128*256*(sum of activations); with 8-bit tiles it is
// 256*h + l - 128*(sum of activations). Every byte sum is below 256*255*128*2 < 2^31.
#include <immintrin.h>

#include <cstring>

#include "kernels/cpu/attention_loop.h"
#include "kernels/cpu/avx512.h"

namespace verbatim::kernels::cpu {
namespace {

constexpr size_t kLine = 64;

inline __m512i Quad(const int8_t* p) {
  int32_t v;
  std::memcpy(&v, p, sizeof v);
  return _mm512_set1_epi32(v);
}

// The byte sums of 16 lanes.
template <bool kWide>
struct Planes {
  __m512i top = _mm512_setzero_si512();     // hh, or unused
  __m512i middle = _mm512_setzero_si512();  // hl + lh, or h
  __m512i bottom = _mm512_setzero_si512();  // ll, or l

  void Add(const uint8_t* line, size_t plane_bytes, __m512i h, __m512i l) {
    const __m512i low = _mm512_loadu_si512(line);
    middle = _mm512_dpbusd_epi32(middle, low, h);
    bottom = _mm512_dpbusd_epi32(bottom, low, l);
    if constexpr (kWide) {
      const __m512i high = _mm512_loadu_si512(line + plane_bytes);
      top = _mm512_dpbusd_epi32(top, high, h);
      middle = _mm512_dpbusd_epi32(middle, high, l);
    }
  }

  // f32 of the exact product sums; sum: of the activations.
  __m512 Float(int64_t sum) const {
    const __m512i correction = _mm512_set1_epi64((kWide ? 128 * 256 : 128) * sum);
    const auto half = [&](__m256i t, __m256i m, __m256i b) {
      __m512i v = _mm512_add_epi64(_mm512_slli_epi64(_mm512_cvtepi32_epi64(m), 8),
                                   _mm512_cvtepi32_epi64(b));
      if constexpr (kWide) {
        v = _mm512_add_epi64(v, _mm512_slli_epi64(_mm512_cvtepi32_epi64(t), 16));
      }
      return _mm512_cvtepi64_ps(_mm512_sub_epi64(v, correction));
    };
    const __m256 low = half(_mm512_castsi512_si256(top), _mm512_castsi512_si256(middle),
                            _mm512_castsi512_si256(bottom));
    const __m256 high =
        half(_mm512_extracti64x4_epi64(top, 1), _mm512_extracti64x4_epi64(middle, 1),
             _mm512_extracti64x4_epi64(bottom, 1));
    return _mm512_insertf32x8(_mm512_castps256_ps512(low), high, 1);
  }
};

// 2^x for x <= 0 or -Inf.
inline __m512 Exp2Vector(__m512 x0) {
  const __m512 x = _mm512_max_ps(x0, _mm512_set1_ps(-125.0f));
  const __m512 n = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m512 f = _mm512_sub_ps(x, n);
  __m512 p = _mm512_set1_ps(kExp2C5);
  for (float c : {kExp2C4, kExp2C3, kExp2C2, kExp2C1, kExp2C0}) {
    p = _mm512_add_ps(_mm512_mul_ps(p, f), _mm512_set1_ps(c));
  }
  const __m512i bits =
      _mm512_add_epi32(_mm512_castps_si512(p), _mm512_slli_epi32(_mm512_cvtps_epi32(n), 23));
  return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x0, _mm512_set1_ps(-125.0f), _CMP_GE_OQ),
                             _mm512_castsi512_ps(bits));
}

// The weights of one head over the 64 keys, as the activations of the second product.
struct HeadWeights {
  alignas(64) int8_t hi[kTileKeys];
  alignas(64) int8_t lo[kTileKeys];
  int64_t sum;  // of the integers
  float scale;
};

// Scores (four vectors, -Inf where masked) to m, l and the weights.
void Softmax(__m512 s[4], uint64_t visible, const float* v_scale, float* m, float* l,
             HeadWeights& w) {
  const __m512 top = _mm512_max_ps(_mm512_max_ps(s[0], s[1]), _mm512_max_ps(s[2], s[3]));
  *m = _mm512_reduce_max_ps(top);
  const __m512 max = _mm512_set1_ps(*m);
  __m512i l_sum = _mm512_setzero_si512();
  __m512 largest = _mm512_setzero_ps();
  for (size_t i = 0; i < 4; ++i) {
    const __mmask16 mask = static_cast<__mmask16>(visible >> (16 * i));
    const __m512 p = Exp2Vector(_mm512_sub_ps(s[i], max));
    l_sum = _mm512_add_epi32(l_sum, _mm512_cvtps_epi32(_mm512_mul_ps(p, _mm512_set1_ps(0x1p24f))));
    s[i] = _mm512_maskz_mul_ps(mask, p, _mm512_maskz_loadu_ps(mask, v_scale + 16 * i));
    largest = _mm512_max_ps(largest, s[i]);
  }
  *l = static_cast<float>(_mm512_reduce_add_epi32(l_sum)) * 0x1p-24f;
  const QuantizeStep step = StepOf(BitsOf(_mm512_reduce_max_ps(largest)), kQ16);
  const __m512 r = _mm512_set1_ps(step.r);
  __m512i sum = _mm512_setzero_si512();
  for (size_t i = 0; i < 4; ++i) {
    const __m512i q = _mm512_cvtps_epi32(_mm512_mul_ps(s[i], r));
    sum = _mm512_add_epi32(sum, q);
    _mm_store_si128(reinterpret_cast<__m128i*>(w.lo + 16 * i), _mm512_cvtepi32_epi8(q));
    const __m512i high = _mm512_srai_epi32(_mm512_add_epi32(q, _mm512_set1_epi32(128)), 8);
    _mm_store_si128(reinterpret_cast<__m128i*>(w.hi + 16 * i), _mm512_cvtepi32_epi8(high));
  }
  w.sum = _mm512_reduce_add_epi32(sum);
  w.scale = step.scale;
}

template <size_t H, bool kWide>
void TileHeads(const AttentionArgs& a, size_t t, size_t first_head, float* m, float* l, float* o) {
  const KvTileLayout& layout = a.layout;
  const size_t dim = layout.head_dim;
  const uint8_t* tile = a.pages[t] + a.tile_offset;
  const float* scales = reinterpret_cast<const float*>(tile);
  const VisibleKeys keys = VisibleIn(a, t);
  const uint64_t visible = (keys.end == 64 ? ~uint64_t{0} : (uint64_t{1} << keys.end) - 1) &
                           (~uint64_t{0} << keys.begin);

  const int8_t* qh[H];
  const int8_t* ql[H];
  float scale[H];
  int64_t q_sum[H];
  for (size_t h = 0; h < H; ++h) {
    const size_t row = a.q_row + first_head + h;
    qh[h] = a.q->hi(row);
    ql[h] = a.q->lo(row);
    scale[h] = a.q->scale(row) * a.scale;
    q_sum[h] = 0;
    for (size_t g = 0; g < a.q->padded() / 32; ++g) q_sum[h] += a.q->block_sum(row)[g];
  }

  const __m512 minus_inf = _mm512_set1_ps(FromBits(kInfBits | 0x80000000));
  __m512 s[H][4];
  for (size_t i = 0; i < 4; ++i) {  // 16 keys at a time
    const __mmask16 mask = static_cast<__mmask16>(visible >> (16 * i));
    if (mask == 0) {
      for (size_t h = 0; h < H; ++h) s[h][i] = minus_inf;
      continue;
    }
    Planes<kWide> sums[H];
    const uint8_t* line = tile + layout.k_offset() + i * kLine;
    for (size_t d = 0; d < dim; d += 4, line += 4 * kLine) {
#pragma GCC unroll 4
      for (size_t h = 0; h < H; ++h) {
        sums[h].Add(line, layout.k_plane_bytes(), Quad(qh[h] + d), Quad(ql[h] + d));
      }
    }
    const __m512 k_scale = _mm512_maskz_loadu_ps(mask, scales + 16 * i);
    for (size_t h = 0; h < H; ++h) {
      const __m512 factor = _mm512_mul_ps(_mm512_set1_ps(scale[h]), k_scale);
      s[h][i] = _mm512_mask_mul_ps(minus_inf, mask, sums[h].Float(q_sum[h]), factor);
    }
  }

  HeadWeights w[H];
  for (size_t h = 0; h < H; ++h) Softmax(s[h], visible, scales + kTileKeys, m + h, l + h, w[h]);

  const size_t quad_bytes = 4 * layout.padded_dim();
  const size_t first_quad = keys.begin / 4;
  const size_t end_quad = (keys.end + 3) / 4;
  for (size_t d = 0; d < dim; d += 16) {
    Planes<kWide> sums[H];
    const uint8_t* line = tile + layout.v_offset() + first_quad * quad_bytes + d * 4;
    for (size_t j = first_quad; j < end_quad; ++j, line += quad_bytes) {
#pragma GCC unroll 4
      for (size_t h = 0; h < H; ++h) {
        sums[h].Add(line, layout.v_plane_bytes(), Quad(w[h].hi + 4 * j), Quad(w[h].lo + 4 * j));
      }
    }
    for (size_t h = 0; h < H; ++h) {
      _mm512_storeu_ps(o + h * kOutStride + d,
                       _mm512_mul_ps(sums[h].Float(w[h].sum), _mm512_set1_ps(w[h].scale)));
    }
  }
}

template <bool kWide>
void TileOf(const AttentionArgs& a, size_t t, size_t first_head, size_t heads, float* m, float* l,
            float* o) {
  switch (heads) {
    case 1:
      return TileHeads<1, kWide>(a, t, first_head, m, l, o);
    case 2:
      return TileHeads<2, kWide>(a, t, first_head, m, l, o);
    case 3:
      return TileHeads<3, kWide>(a, t, first_head, m, l, o);
    default:
      return TileHeads<4, kWide>(a, t, first_head, m, l, o);
  }
}

}  // namespace

void Avx512Attention(const AttentionArgs& args, float* out) {
  if (args.layout.planes() == 2) {
    AttentionLoop(args, out, TileOf<true>);
  } else {
    AttentionLoop(args, out, TileOf<false>);
  }
}

void Avx512AttentionTile(const AttentionArgs& args, size_t t, float* m, float* l, float* o) {
  if (args.layout.planes() == 2) {
    AttentionOneTile(args, t, m, l, o, TileOf<true>);
  } else {
    AttentionOneTile(args, t, m, l, o, TileOf<false>);
  }
}

}  // namespace verbatim::kernels::cpu
