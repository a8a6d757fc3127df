// Linear with AVX2: weight bytes widened to int16, vpmaddwd with the int16 activations. A half line
// of 8 rows x 4 columns unpacks to two vectors of 2+2 rows; each 64-bit lane belongs to one row and
// holds the sums of its even and odd pairs of columns as two int32.
#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "kernels/cpu/avx2.h"
#include "kernels/numerics.h"

namespace verbatim::kernels::cpu {
namespace {

using Kind = PackedMatrix::Kind;

constexpr size_t kLine = 64;
constexpr size_t kVectors = 4;  // of 4 rows each: a group

// The rows of vector v are kFirstRow[v] + {0, 1, 4, 5}.
constexpr size_t kFirstRow[kVectors] = {0, 2, 8, 10};
constexpr size_t kRowStep[4] = {0, 1, 4, 5};

inline __m256i Load(const uint8_t* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}
// Four consecutive activations, once per 64-bit lane.
inline __m256i Quad(const int16_t* p) {
  int64_t v;
  std::memcpy(&v, p, sizeof v);
  return _mm256_set1_epi64x(v);
}
// The sum of a lane's two int32, in its low half.
inline __m256i PairSum(__m256i v) { return _mm256_add_epi32(v, _mm256_srli_epi64(v, 32)); }
// The low int32 of each lane as int64.
inline __m256i Widen(__m256i v) { return _mm256_mul_epi32(v, _mm256_set1_epi32(1)); }

// One line of unsigned bytes, or of byte pairs (low line, signed high line), as int16.
inline void Unpack(__m256i low0, __m256i high0, __m256i low1, __m256i high1, __m256i w[kVectors]) {
  w[0] = _mm256_unpacklo_epi8(low0, high0);
  w[1] = _mm256_unpackhi_epi8(low0, high0);
  w[2] = _mm256_unpacklo_epi8(low1, high1);
  w[3] = _mm256_unpackhi_epi8(low1, high1);
}

template <size_t R>
struct Sums {
  __m256i v[R][kVectors];
  Sums() {
    for (auto& row : v) {
      for (auto& x : row) x = _mm256_setzero_si256();
    }
  }
};

template <size_t R>
inline void MultiplyAdd(Sums<R>& s, const __m256i w[kVectors], const int16_t* const x[R],
                        size_t k) {
  for (size_t i = 0; i < R; ++i) {
    const __m256i quad = Quad(x[i] + k);
    for (size_t v = 0; v < kVectors; ++v) {
      s.v[i][v] = _mm256_add_epi32(s.v[i][v], _mm256_madd_epi16(w[v], quad));
    }
  }
}

template <size_t R>
void SumW8(const PackedMatrix& w, const uint8_t* p, const int16_t* const x[R], Sums<R>& acc) {
  const __m256i zero = _mm256_setzero_si256();
  constexpr size_t kChunk = 256;  // 64 steps of 2*255*32639, twice: below 2^31
  for (size_t k0 = 0; k0 < w.padded_k(); k0 += kChunk) {
    Sums<R> s;
    const size_t k1 = std::min(k0 + kChunk, w.padded_k());
    for (size_t k = k0; k < k1; k += 4, p += kLine) {
      __m256i q[kVectors];
      Unpack(Load(p), zero, Load(p + 32), zero, q);
      MultiplyAdd<R>(s, q, x, k);
    }
    for (size_t i = 0; i < R; ++i) {
      for (size_t v = 0; v < kVectors; ++v) {
        acc.v[i][v] = _mm256_add_epi64(acc.v[i][v], Widen(PairSum(s.v[i][v])));
      }
    }
  }
}

template <size_t R>
void SumW16(const PackedMatrix& w, const uint8_t* p, const int16_t* const x[R], Sums<R>& acc) {
  const __m256i sign = _mm256_set1_epi8(static_cast<char>(0x80));
  for (size_t k = 0; k < w.padded_k(); k += 4, p += 2 * kLine) {
    __m256i q[kVectors];
    Unpack(Load(p), _mm256_xor_si256(Load(p + kLine), sign), Load(p + 32),
           _mm256_xor_si256(Load(p + kLine + 32), sign), q);
    for (size_t i = 0; i < R; ++i) {
      const __m256i quad = Quad(x[i] + k);
      for (size_t v = 0; v < kVectors; ++v) {
        const __m256i pair = _mm256_madd_epi16(q[v], quad);  // |pair| < 2^31: widened at once
        const __m256i both = _mm256_add_epi64(Widen(pair), Widen(_mm256_srli_epi64(pair, 32)));
        acc.v[i][v] = _mm256_add_epi64(acc.v[i][v], both);
      }
    }
  }
}

// D or M of 16 rows, in the low halves of the lanes that hold those rows.
inline void LoadInts(const uint8_t* p, __m256i out[kVectors]) {
  const __m256i a = Load(p);
  const __m256i b = Load(p + 32);
  out[0] = _mm256_unpacklo_epi32(a, a);
  out[1] = _mm256_unpackhi_epi32(a, a);
  out[2] = _mm256_unpacklo_epi32(b, b);
  out[3] = _mm256_unpackhi_epi32(b, b);
}

template <size_t R, bool kNibbles>
void SumBlocks(const PackedMatrix& w, const uint8_t* p, const int16_t* const x[R],
               const int32_t* const sums[R], Sums<R>& acc) {
  const __m256i zero = _mm256_setzero_si256();
  const __m256i low_nibble = _mm256_set1_epi8(15);
  const bool stores_m = kNibbles || w.has_m();
  for (size_t g = 0; g < w.padded_k() / 32; ++g) {
    __m256i D[kVectors], M[kVectors];
    LoadInts(p, D);
    LoadInts(stores_m ? p + kLine : p, M);
    p += stores_m ? 2 * kLine : kLine;
    Sums<R> s;
    for (size_t j = 0; j < (kNibbles ? 4 : 8); ++j, p += kLine) {
      const __m256i a = Load(p);
      const __m256i b = Load(p + 32);
      __m256i q[kVectors];
      if constexpr (kNibbles) {
        Unpack(_mm256_and_si256(a, low_nibble), zero, _mm256_and_si256(b, low_nibble), zero, q);
        MultiplyAdd<R>(s, q, x, g * 32 + 4 * j);
        Unpack(_mm256_and_si256(_mm256_srli_epi16(a, 4), low_nibble), zero,
               _mm256_and_si256(_mm256_srli_epi16(b, 4), low_nibble), zero, q);
        MultiplyAdd<R>(s, q, x, g * 32 + 4 * j + 16);
      } else {
        Unpack(a, zero, b, zero, q);
        MultiplyAdd<R>(s, q, x, g * 32 + 4 * j);
      }
    }
    for (size_t i = 0; i < R; ++i) {
      const __m256i sum = _mm256_set1_epi32(sums[i][g]);
      const __m256i shift = _mm256_set1_epi32(w.code_offset() * sums[i][g]);
      for (size_t v = 0; v < kVectors; ++v) {
        const __m256i S = _mm256_sub_epi32(PairSum(s.v[i][v]), shift);
        acc.v[i][v] = _mm256_add_epi64(acc.v[i][v], _mm256_mul_epi32(D[v], S));
        if (w.has_m()) {
          acc.v[i][v] = _mm256_add_epi64(acc.v[i][v], _mm256_mul_epi32(M[v], sum));
        }
      }
    }
  }
}

template <size_t R>
void Group(const PackedMatrix& w, const QuantizedRows& x, size_t r, size_t n, size_t outputs,
           float* y, size_t y_stride) {
  const int16_t* q[R];
  const int32_t* sums[R];
  for (size_t i = 0; i < R; ++i) {
    q[i] = x.q(r + i);
    sums[i] = x.block_sum(r + i);
  }
  const uint8_t* p = w.group(n / 16);
  Sums<R> acc;
  int64_t code_offset = 0;  // still in the sums
  switch (w.kind()) {
    case Kind::kW8:
      SumW8<R>(w, p, q, acc);
      code_offset = 128;
      break;
    case Kind::kW16:
      SumW16<R>(w, p, q, acc);
      break;
    case Kind::kWB4:
      SumBlocks<R, true>(w, p, q, sums, acc);
      break;
    case Kind::kWB8:
      SumBlocks<R, false>(w, p, q, sums, acc);
      break;
  }
  for (size_t i = 0; i < R; ++i) {
    int64_t correction = 0;
    for (size_t g = 0; g < w.padded_k() / 32 && code_offset != 0; ++g) {
      correction += code_offset * sums[i][g];
    }
    const float sx = x.scale(r + i);
    for (size_t v = 0; v < kVectors; ++v) {
      alignas(32) int64_t lanes[4];
      _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), acc.v[i][v]);
      for (size_t j = 0; j < 4; ++j) {
        const size_t row = kFirstRow[v] + kRowStep[j];
        if (row >= outputs) continue;
        float out = FloatOf(lanes[j] - correction) * (sx * w.scale()[n + row]);
        if (w.has_bias()) out = out + w.bias()[n + row];
        y[(r + i) * y_stride + n + row] = out;
      }
    }
  }
}

}  // namespace

void Avx2Linear(const PackedMatrix& w, const QuantizedRows& x, size_t r0, size_t r1, size_t n0,
                size_t n1, float* y, size_t y_stride) {
  CHECK(x.K() == w.K() && n0 % 16 == 0 && n1 <= w.N() && r1 <= x.rows());
  for (size_t n = n0; n < n1; n += 16) {
    const size_t outputs = std::min<size_t>(16, n1 - n);
    size_t r = r0;
    for (; r + 2 <= r1; r += 2) Group<2>(w, x, r, n, outputs, y, y_stride);
    if (r < r1) Group<1>(w, x, r, n, outputs, y, y_stride);
  }
}

}  // namespace verbatim::kernels::cpu
