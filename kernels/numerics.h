// The element-wise arithmetic of numerics.md, one scalar function per formula, for host and device.
// Every written operation is rounded once: compile with -ffp-contract=off (CUDA: -fmad=false
// -ftz=false -prec-div=true -prec-sqrt=true), never with fast-math.
//
// Functions are `static`: files compiled for different instruction sets each keep their own copy,
// so the linker can never hand AVX-512 code to a machine without it.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#ifdef __CUDACC__
#define VERBATIM_HD __host__ __device__
#else
#define VERBATIM_HD
#endif

namespace verbatim::kernels {

inline constexpr int kQ16 = 32639;  // 127 * 257
inline constexpr int kQ8 = 127;
inline constexpr uint32_t kTinyBits = 0x0f800000;   // 2^-96: below, a vector counts as zero
inline constexpr uint32_t kFaultBits = 0x5d800000;  // 2^60: from here on Quantize faults
inline constexpr uint32_t kInfBits = 0x7f800000;
inline constexpr uint32_t kMagnitudeMask = 0x7fffffff;
inline constexpr float kLog2eF = 0x1.715476p+0f;  // 3fb8aa3b
inline constexpr double kLog2e = 0x1.71547652b82fep+0;
inline constexpr double kLn2 = 0x1.62e42fefa39efp-1;
inline constexpr double kTwoPi = 0x1.921fb54442d18p+2;
inline constexpr double kInv2Pi = 0x1.45f306dc9c883p-3;
inline constexpr uint64_t kDigestA = 0x9e3779b97f4a7c15;
inline constexpr uint64_t kDigestB = 0xd1b54a32d192ed03;

VERBATIM_HD static inline uint32_t BitsOf(float x) {
  uint32_t b;
  memcpy(&b, &x, sizeof b);
  return b;
}
VERBATIM_HD static inline float FromBits(uint32_t b) {
  float x;
  memcpy(&x, &b, sizeof x);
  return x;
}

// (2) 2^x.
inline constexpr float kExp2C0 = 1.0f;
inline constexpr float kExp2C1 = 0x1.62e42ap-1f;   // 3f317215
inline constexpr float kExp2C2 = 0x1.ebf9c2p-3f;   // 3e75fce1
inline constexpr float kExp2C3 = 0x1.c6b6d8p-5f;   // 3d635b6c
inline constexpr float kExp2C4 = 0x1.3ce8aep-7f;   // 3c1e7457
inline constexpr float kExp2C5 = 0x1.5bda58p-10f;  // 3aaded2c
VERBATIM_HD static inline float Exp2(float x) {
  if (!(x >= -125.0f)) return 0.0f;
  x = x < 126.0f ? x : 126.0f;
  const float n = rintf(x);
  const float f = x - n;
  float p = kExp2C5;
  p = p * f;
  p = p + kExp2C4;
  p = p * f;
  p = p + kExp2C3;
  p = p * f;
  p = p + kExp2C2;
  p = p * f;
  p = p + kExp2C1;
  p = p * f;
  p = p + kExp2C0;
  return FromBits(BitsOf(p) + (static_cast<uint32_t>(static_cast<int32_t>(n)) << 23));
}

// (3) Given the largest magnitude of a row as bits; a fault counts as zero here and is the
// caller's.
struct QuantizeStep {
  float r;      // q = rint(x * r)
  float scale;  // x is about q * scale
};
VERBATIM_HD static inline QuantizeStep StepOf(uint32_t max_bits, int qmax) {
  if (max_bits < kTinyBits || max_bits >= kFaultBits) return {0.0f, 0.0f};
  const float a = FromBits(max_bits);
  const float q = static_cast<float>(qmax);
  return {q / a, a / q};
}
VERBATIM_HD static inline int32_t QuantizeOne(float x, float r) {
  return static_cast<int32_t>(rintf(x * r));
}

// (1) f32(i): one rounding to nearest even.
VERBATIM_HD static inline float FloatOf(int64_t i) { return static_cast<float>(i); }

// (9) SwiGLU.
VERBATIM_HD static inline float SwiGlu(float gate, float up) {
  const float e = Exp2((-gate) * kLog2eF);
  return (gate / (1.0f + e)) * up;
}

// (10) The finaliser of the digest sums and one logit's part of them.
VERBATIM_HD static inline uint64_t Fin(uint64_t z) {
  z ^= z >> 30;
  z *= 0xbf58476d1ce4e5b9;
  z ^= z >> 27;
  z *= 0x94d049bb133111eb;
  z ^= z >> 31;
  return z;
}
VERBATIM_HD static inline uint64_t DigestTerm(uint64_t index, float x, uint64_t key) {
  return Fin(((index << 32) | BitsOf(x)) ^ key);
}

// (7.1) f64 logarithm and power from + - * / alone. b > 0.
static inline double Log2d(double b) {
  int e = 0;
  const double m = std::frexp(b, &e) * 2.0;  // in [1, 2)
  const double t = (m - 1.0) / (m + 1.0);
  const double u = t * t;
  double s = 1.0 / 47.0;
  for (int k = 22; k >= 0; --k) {
    s = s * u;
    s = s + 1.0 / (2.0 * k + 1.0);
  }
  return static_cast<double>(e - 1) + ((2.0 * t) * s) * kLog2e;
}
static inline double Exp2d(double y) {
  const double k = std::rint(y);
  const double z = (y - k) * kLn2;
  double p = 1.0;
  for (int n = 20; n >= 1; --n) {
    p = p * (z / n);
    p = p + 1.0;
  }
  return std::ldexp(p, static_cast<int>(k));
}

// (7.2) cos and sin of a phase, 2^64 to the turn; magnitude: yarn's, else 1.
struct CosSinPair {
  float cos, sin;
};
VERBATIM_HD static inline CosSinPair CosSinOfPhase(uint64_t phase, double magnitude) {
  constexpr double kS[] = {0x1p+0,
                           -0x1.5555555555555p-3,
                           0x1.1111111111111p-7,
                           -0x1.a01a01a01a01ap-13,
                           0x1.71de3a556c734p-19,
                           -0x1.ae64567f544e4p-26,
                           0x1.6124613a86d09p-33,
                           -0x1.ae7f3e733b81fp-41,
                           0x1.952c77030ad4ap-49};
  constexpr double kC[] = {0x1p+0,
                           -0x1p-1,
                           0x1.5555555555555p-5,
                           -0x1.6c16c16c16c17p-10,
                           0x1.a01a01a01a01ap-16,
                           -0x1.27e4fb7789f5cp-22,
                           0x1.1eed8eff8d898p-29,
                           -0x1.93974a8c07c9dp-37,
                           0x1.ae7f3e733b81fp-45};
  const uint64_t quad = (phase + (uint64_t{1} << 61)) >> 62;
  const int64_t r = static_cast<int64_t>(phase - (quad << 62));
  const double x = (static_cast<double>(r) * 0x1p-64) * kTwoPi;
  const double u = x * x;
  double s = kS[8];
  double c = kC[8];
  for (int k = 7; k >= 0; --k) {
    s = s * u;
    s = s + kS[k];
    c = c * u;
    c = c + kC[k];
  }
  s = s * x;
  double co = quad == 0 ? c : quad == 1 ? -s : quad == 2 ? -c : s;
  double si = quad == 0 ? s : quad == 1 ? c : quad == 2 ? -s : -c;
  if (magnitude != 1.0) {
    co = co * magnitude;
    si = si * magnitude;
  }
  return {static_cast<float>(co), static_cast<float>(si)};
}

// (8) c = f32(LOG2E / sqrt(D)).
static inline float AttentionScale(size_t head_dim) {
  return static_cast<float>(kLog2e / std::sqrt(static_cast<double>(head_dim)));
}

}  // namespace verbatim::kernels
