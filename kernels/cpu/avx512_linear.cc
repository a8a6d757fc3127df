// Linear with AVX-512 VNNI. Vector lanes are the 16 output rows of a group; vpdpbusd multiplies
// four unsigned weight bytes of each row with four signed bytes of one activation plane, broadcast
// from memory. Sums that pass through int32 stay exact by the bounds of numerics.md 13 (unsigned
// byte times signed byte: 255*128*65536 < 2^31), so the wrapping vpdpbusd never wraps.
#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "kernels/cpu/avx512.h"
#include "kernels/numerics.h"

namespace verbatim::kernels::cpu {
namespace {

using Kind = PackedMatrix::Kind;

constexpr size_t kRowsAtOnce = 4;  // token rows that share the unpacked weights
constexpr size_t kLine = 64;

// Four consecutive signed bytes in every lane.
inline __m512i Quad(const int8_t* p) {
  int32_t v;
  std::memcpy(&v, p, sizeof v);
  return _mm512_set1_epi32(v);
}
// Weights are read once, front to back; this far ahead hides the memory's latency (measured).
constexpr uintptr_t kPrefetchBytes = 4096;
inline __m512i LoadLine(const uint8_t* p) {
  const uintptr_t ahead = reinterpret_cast<uintptr_t>(p) + kPrefetchBytes;
  _mm_prefetch(reinterpret_cast<const char*>(ahead), _MM_HINT_T0);
  return _mm512_loadu_si512(p);
}

// y = f32(acc) * (sx * s_n) [+ bias_n] for one group of 16 outputs.
struct Epilogue {
  const PackedMatrix& w;
  size_t n;       // first output of the group
  __mmask16 out;  // which of them exist

  void operator()(__m512 acc, float sx, float* y) const {
    const __m512 scale = _mm512_mul_ps(_mm512_set1_ps(sx), _mm512_loadu_ps(w.scale() + n));
    __m512 v = _mm512_mul_ps(acc, scale);
    if (w.has_bias()) v = _mm512_add_ps(v, _mm512_loadu_ps(w.bias() + n));
    _mm512_mask_storeu_ps(y + n, out, v);
  }
};

// f32 of 16 int64 in order, given as two halves.
inline __m512 FloatOfHalves(__m512i low, __m512i high) {
  return _mm512_insertf32x8(_mm512_castps256_ps512(_mm512_cvtepi64_ps(low)),
                            _mm512_cvtepi64_ps(high), 1);
}
// f32 of 16 int64, given as those of the even and of the odd lanes.
inline __m512 FloatOfEvenOdd(__m512i even, __m512i odd) {
  const __m512i order = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  return _mm512_permutex2var_ps(_mm512_castps256_ps512(_mm512_cvtepi64_ps(even)), order,
                                _mm512_castps256_ps512(_mm512_cvtepi64_ps(odd)));
}

int64_t SumOf(const QuantizedRows& x, size_t r, size_t padded_k) {
  int64_t sum = 0;
  for (size_t g = 0; g < padded_k / 32; ++g) sum += x.block_sum(r)[g];
  return sum;
}

// acc = 256*hi + lo - correction as 16 int64, to f32.
inline __m512 CombinePlanes(__m512i hi, __m512i lo, int64_t correction) {
  const auto half = [&](__m256i h, __m256i l) {
    const __m512i wide =
        _mm512_add_epi64(_mm512_slli_epi64(_mm512_cvtepi32_epi64(h), 8), _mm512_cvtepi32_epi64(l));
    return _mm512_sub_epi64(wide, _mm512_set1_epi64(correction));
  };
  return FloatOfHalves(half(_mm512_castsi512_si256(hi), _mm512_castsi512_si256(lo)),
                       half(_mm512_extracti64x4_epi64(hi, 1), _mm512_extracti64x4_epi64(lo, 1)));
}

template <size_t R>
void GroupW8(const uint8_t* p, const QuantizedRows& x, size_t r, const Epilogue& finish, float* y,
             size_t y_stride) {
  // More sets of accumulators hide the latency of vpdpbusd where there are few rows.
  constexpr size_t kSets = R == 1 ? 4 : R == 2 ? 2 : 1;
  __m512i hi[R][kSets], lo[R][kSets];
  const int8_t* xh[R];
  const int8_t* xl[R];
  for (size_t i = 0; i < R; ++i) {
    xh[i] = x.hi(r + i);
    xl[i] = x.lo(r + i);
    for (size_t s = 0; s < kSets; ++s) hi[i][s] = lo[i][s] = _mm512_setzero_si512();
  }
  const size_t padded_k = finish.w.padded_k();
  for (size_t k = 0; k < padded_k; k += 16, p += 4 * kLine) {
#pragma GCC unroll 4
    for (size_t j = 0; j < 4; ++j) {
      const __m512i w = LoadLine(p + j * kLine);
#pragma GCC unroll 4
      for (size_t i = 0; i < R; ++i) {
        hi[i][j % kSets] = _mm512_dpbusd_epi32(hi[i][j % kSets], w, Quad(xh[i] + k + 4 * j));
        lo[i][j % kSets] = _mm512_dpbusd_epi32(lo[i][j % kSets], w, Quad(xl[i] + k + 4 * j));
      }
    }
  }
  for (size_t i = 0; i < R; ++i) {
    for (size_t s = 1; s < kSets; ++s) {
      hi[i][0] = _mm512_add_epi32(hi[i][0], hi[i][s]);
      lo[i][0] = _mm512_add_epi32(lo[i][0], lo[i][s]);
    }
    const int64_t correction = 128 * SumOf(x, r + i, padded_k);
    finish(CombinePlanes(hi[i][0], lo[i][0], correction), x.scale(r + i), y + (r + i) * y_stride);
  }
}

// w = 256*(wh - 128) + wl, x = 256*xh + xl: four byte products, whose sums meet as int64.
template <size_t R>
void GroupW16(const uint8_t* p, const QuantizedRows& x, size_t r, const Epilogue& finish, float* y,
              size_t y_stride) {
  __m512i hh[R], hl[R], lh[R], ll[R];  // weight plane, activation plane
  const int8_t* xh[R];
  const int8_t* xl[R];
  for (size_t i = 0; i < R; ++i) {
    xh[i] = x.hi(r + i);
    xl[i] = x.lo(r + i);
    hh[i] = hl[i] = lh[i] = ll[i] = _mm512_setzero_si512();
  }
  const size_t padded_k = finish.w.padded_k();
  for (size_t k = 0; k < padded_k; k += 4, p += 2 * kLine) {
    const __m512i wl = LoadLine(p);
    const __m512i wh = LoadLine(p + kLine);
#pragma GCC unroll 4
    for (size_t i = 0; i < R; ++i) {
      const __m512i h = Quad(xh[i] + k);
      const __m512i l = Quad(xl[i] + k);
      hh[i] = _mm512_dpbusd_epi32(hh[i], wh, h);
      hl[i] = _mm512_dpbusd_epi32(hl[i], wh, l);
      lh[i] = _mm512_dpbusd_epi32(lh[i], wl, h);
      ll[i] = _mm512_dpbusd_epi32(ll[i], wl, l);
    }
  }
  for (size_t i = 0; i < R; ++i) {
    const __m512i correction = _mm512_set1_epi64(128 * 256 * SumOf(x, r + i, padded_k));
    const auto half = [&](__m256i a, __m256i b, __m256i c, __m256i d) {
      const __m512i middle = _mm512_add_epi64(_mm512_cvtepi32_epi64(b), _mm512_cvtepi32_epi64(c));
      const __m512i sum = _mm512_add_epi64(
          _mm512_slli_epi64(_mm512_cvtepi32_epi64(a), 16),
          _mm512_add_epi64(_mm512_slli_epi64(middle, 8), _mm512_cvtepi32_epi64(d)));
      return _mm512_sub_epi64(sum, correction);
    };
    const __m512i low = half(_mm512_castsi512_si256(hh[i]), _mm512_castsi512_si256(hl[i]),
                             _mm512_castsi512_si256(lh[i]), _mm512_castsi512_si256(ll[i]));
    const __m512i high =
        half(_mm512_extracti64x4_epi64(hh[i], 1), _mm512_extracti64x4_epi64(hl[i], 1),
             _mm512_extracti64x4_epi64(lh[i], 1), _mm512_extracti64x4_epi64(ll[i], 1));
    finish(FloatOfHalves(low, high), x.scale(r + i), y + (r + i) * y_stride);
  }
}

// Per block of 32: S = sum of code*x in int32, then acc += D*(S - offset*sumx) + M*sumx in int64,
// even and odd lanes apart since vpmuldq multiplies every second one.
template <size_t R, bool kNibbles, bool kHasM, bool kHasOffset>
void GroupWB(const uint8_t* p, const QuantizedRows& x, size_t r, const Epilogue& finish, float* y,
             size_t y_stride) {
  __m512i even[R], odd[R];
  const int8_t* xh[R];
  const int8_t* xl[R];
  const int32_t* sums[R];
  for (size_t i = 0; i < R; ++i) {
    xh[i] = x.hi(r + i);
    xl[i] = x.lo(r + i);
    sums[i] = x.block_sum(r + i);
    even[i] = odd[i] = _mm512_setzero_si512();
  }
  const __m512i low_nibble = _mm512_set1_epi8(15);
  const int32_t offset = finish.w.code_offset();
  const size_t blocks = finish.w.padded_k() / 32;
  constexpr size_t kInts = (kNibbles || kHasM ? 2 : 1) * kLine;
  for (size_t g = 0; g < blocks; ++g) {
    const __m512i D = LoadLine(p);
    const __m512i D_odd = _mm512_srli_epi64(D, 32);
    const __m512i M = kHasM ? LoadLine(p + kLine) : D;
    const __m512i M_odd = _mm512_srli_epi64(M, 32);
    p += kInts;
    __m512i hi[R], lo[R];
    for (size_t i = 0; i < R; ++i) hi[i] = lo[i] = _mm512_setzero_si512();
    if constexpr (kNibbles) {
#pragma GCC unroll 4
      for (size_t j = 0; j < 4; ++j) {
        const __m512i both = LoadLine(p + j * kLine);
        const __m512i first = _mm512_and_si512(both, low_nibble);
        const __m512i second = _mm512_and_si512(_mm512_srli_epi16(both, 4), low_nibble);
#pragma GCC unroll 4
        for (size_t i = 0; i < R; ++i) {
          const size_t k = g * 32 + 4 * j;
          hi[i] = _mm512_dpbusd_epi32(hi[i], first, Quad(xh[i] + k));
          lo[i] = _mm512_dpbusd_epi32(lo[i], first, Quad(xl[i] + k));
          hi[i] = _mm512_dpbusd_epi32(hi[i], second, Quad(xh[i] + k + 16));
          lo[i] = _mm512_dpbusd_epi32(lo[i], second, Quad(xl[i] + k + 16));
        }
      }
      p += 4 * kLine;
    } else {
#pragma GCC unroll 8
      for (size_t j = 0; j < 8; ++j) {
        const __m512i w = LoadLine(p + j * kLine);
#pragma GCC unroll 4
        for (size_t i = 0; i < R; ++i) {
          const size_t k = g * 32 + 4 * j;
          hi[i] = _mm512_dpbusd_epi32(hi[i], w, Quad(xh[i] + k));
          lo[i] = _mm512_dpbusd_epi32(lo[i], w, Quad(xl[i] + k));
        }
      }
      p += 8 * kLine;
    }
#pragma GCC unroll 4
    for (size_t i = 0; i < R; ++i) {
      __m512i S = _mm512_add_epi32(_mm512_slli_epi32(hi[i], 8), lo[i]);
      if constexpr (kHasOffset) S = _mm512_sub_epi32(S, _mm512_set1_epi32(offset * sums[i][g]));
      even[i] = _mm512_add_epi64(even[i], _mm512_mul_epi32(D, S));
      odd[i] = _mm512_add_epi64(odd[i], _mm512_mul_epi32(D_odd, _mm512_srli_epi64(S, 32)));
      if constexpr (kHasM) {
        const __m512i sum = _mm512_set1_epi32(sums[i][g]);
        even[i] = _mm512_add_epi64(even[i], _mm512_mul_epi32(M, sum));
        odd[i] = _mm512_add_epi64(odd[i], _mm512_mul_epi32(M_odd, sum));
      }
    }
  }
  for (size_t i = 0; i < R; ++i) {
    finish(FloatOfEvenOdd(even[i], odd[i]), x.scale(r + i), y + (r + i) * y_stride);
  }
}

template <size_t R, bool kNibbles>
void GroupBlocks(const uint8_t* p, const QuantizedRows& x, size_t r, const Epilogue& finish,
                 float* y, size_t y_stride) {
  const bool offset = finish.w.code_offset() != 0;
  if (finish.w.has_m()) {
    offset ? GroupWB<R, kNibbles, true, true>(p, x, r, finish, y, y_stride)
           : GroupWB<R, kNibbles, true, false>(p, x, r, finish, y, y_stride);
  } else {
    offset ? GroupWB<R, kNibbles, false, true>(p, x, r, finish, y, y_stride)
           : GroupWB<R, kNibbles, false, false>(p, x, r, finish, y, y_stride);
  }
}

template <size_t R>
void Group(const uint8_t* p, const QuantizedRows& x, size_t r, const Epilogue& finish, float* y,
           size_t y_stride) {
  switch (finish.w.kind()) {
    case Kind::kW8:
      return GroupW8<R>(p, x, r, finish, y, y_stride);
    case Kind::kW16:
      return GroupW16<R>(p, x, r, finish, y, y_stride);
    case Kind::kWB4:
      return GroupBlocks<R, true>(p, x, r, finish, y, y_stride);
    case Kind::kWB8:
      return GroupBlocks<R, false>(p, x, r, finish, y, y_stride);
  }
}

}  // namespace

void Avx512Linear(const PackedMatrix& w, const QuantizedRows& x, size_t r0, size_t r1, size_t n0,
                  size_t n1, float* y, size_t y_stride) {
  CHECK(x.K() == w.K() && n0 % 16 == 0 && n1 <= w.N() && r1 <= x.rows());
  for (size_t n = n0; n < n1; n += 16) {
    const size_t outputs = std::min<size_t>(16, n1 - n);
    const Epilogue finish{w, n, static_cast<__mmask16>((1u << outputs) - 1)};
    const uint8_t* p = w.group(n / 16);
    size_t r = r0;
    for (; r + kRowsAtOnce <= r1; r += kRowsAtOnce) Group<4>(p, x, r, finish, y, y_stride);
    if (r1 - r == 3) {
      Group<3>(p, x, r, finish, y, y_stride);
    } else if (r1 - r == 2) {
      Group<2>(p, x, r, finish, y, y_stride);
    } else if (r1 - r == 1) {
      Group<1>(p, x, r, finish, y, y_stride);
    }
  }
}

}  // namespace verbatim::kernels::cpu
