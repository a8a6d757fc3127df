// Row operations written once over a vector type V, instantiated by avx2.cc and avx512.cc. Each
// does per element what numerics.h does per scalar; a last partial vector goes through a padded
// copy. `static`, as numerics.h says.
//
// V has: kLanes, Float (the register), Load, Store, Set, Add, Sub, Mul, Div, Min, Max, Rint, and
// what is commented below.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/numerics.h"
#include "kernels/ops.h"

namespace verbatim::kernels::cpu {

template <typename V>
static inline typename V::Float LoadPart(const float* x, size_t n) {
  alignas(64) float buffer[V::kLanes] = {};
  std::copy(x, x + n, buffer);
  return V::Load(buffer);
}
template <typename V>
static inline void StorePart(float* y, size_t n, typename V::Float v) {
  alignas(64) float buffer[V::kLanes];
  V::Store(buffer, v);
  std::copy(buffer, buffer + n, y);
}
template <typename V>
static inline typename V::Float LoadUpTo(const float* x, size_t left) {
  return left >= V::kLanes ? V::Load(x) : LoadPart<V>(x, left);
}
template <typename V>
static inline void StoreUpTo(float* y, size_t left, typename V::Float v) {
  if (left >= V::kLanes) {
    V::Store(y, v);
  } else {
    StorePart<V>(y, left, v);
  }
}

// y[i] = f(x[i]) and y[i] = f(a[i], b[i]).
template <typename V, typename F>
static inline void Map(const float* x, size_t n, float* y, F f) {
  for (size_t i = 0; i < n; i += V::kLanes) {
    StoreUpTo<V>(y + i, n - i, f(LoadUpTo<V>(x + i, n - i)));
  }
}
template <typename V, typename F>
static inline void Map(const float* a, const float* b, size_t n, float* y, F f) {
  for (size_t i = 0; i < n; i += V::kLanes) {
    StoreUpTo<V>(y + i, n - i, f(LoadUpTo<V>(a + i, n - i), LoadUpTo<V>(b + i, n - i)));
  }
}

// V::AddExponent(p, n): bits(p) + (int(n) << 23). V::KeepWhereAtLeast(p, x, lo): p where x >= lo,
// else 0.
template <typename V>
static inline typename V::Float VectorExp2(typename V::Float x0) {
  const auto x = V::Max(V::Min(x0, V::Set(126.0f)), V::Set(-125.0f));
  const auto n = V::Rint(x);
  const auto f = V::Sub(x, n);
  auto p = V::Add(V::Mul(V::Set(kExp2C5), f), V::Set(kExp2C4));
  p = V::Add(V::Mul(p, f), V::Set(kExp2C3));
  p = V::Add(V::Mul(p, f), V::Set(kExp2C2));
  p = V::Add(V::Mul(p, f), V::Set(kExp2C1));
  p = V::Add(V::Mul(p, f), V::Set(kExp2C0));
  return V::KeepWhereAtLeast(V::AddExponent(p, n), x0, -125.0f);
}

// V::MaxBits(m, x): unsigned maximum with the magnitude bits of x; V::ReduceMaxBits(m).
template <typename V>
static inline uint32_t VectorMaxMagnitude(const float* x, size_t n) {
  auto m = V::ZeroBits();
  for (size_t i = 0; i < n; i += V::kLanes) m = V::MaxBits(m, LoadUpTo<V>(x + i, n - i));
  return V::ReduceMaxBits(m);
}

// V::StoreInt16(q, v): rint(v) as kLanes int16.
template <typename V>
static bool VectorQuantize(const float* x, size_t K, int qmax, QuantizedRow out) {
  const uint32_t max = VectorMaxMagnitude<V>(x, K);
  const bool ok = max < kFaultBits;
  const QuantizeStep step = StepOf(max, qmax);
  *out.scale = step.scale;
  const size_t padded = (K + 63) / 64 * 64;
  if (step.r == 0.0f) {
    std::memset(out.q, 0, padded * sizeof(int16_t));
  } else {
    const auto r = V::Set(step.r);
    size_t k = 0;
    for (; k < K; k += V::kLanes) V::StoreInt16(out.q + k, V::Mul(LoadUpTo<V>(x + k, K - k), r));
    for (; k < padded; k += V::kLanes) V::StoreInt16(out.q + k, V::Set(0.0f));
  }
  for (size_t k = 0; k < padded; ++k) out.lo[k] = static_cast<int8_t>(out.q[k]);
  for (size_t k = 0; k < padded; ++k) out.hi[k] = static_cast<int8_t>((out.q[k] + 128) >> 8);
  for (size_t g = 0; g < padded / 32; ++g) {
    int32_t sum = 0;
    for (size_t k = 0; k < 32; ++k) sum += out.q[g * 32 + k];
    out.block_sum[g] = sum;
  }
  return ok;
}

// V::AddSquares(acc, v): adds rint(v)^2 to 64-bit lanes; V::ReduceSquares(acc).
template <typename V>
static bool VectorRmsNorm(const float* x, const float* gain, float eps, size_t K, float* y) {
  const uint32_t max = VectorMaxMagnitude<V>(x, K);
  if (max >= kFaultBits) {
    std::fill(y, y + K, 0.0f);
    return false;
  }
  const QuantizeStep step = StepOf(max, kQ16);
  auto acc = V::ZeroSquares();
  const auto r = V::Set(step.r);
  for (size_t k = 0; k < K; k += V::kLanes) {
    acc = V::AddSquares(acc, V::Mul(LoadUpTo<V>(x + k, K - k), r));
  }
  const float ms =
      (FloatOf(V::ReduceSquares(acc)) / static_cast<float>(K)) * (step.scale * step.scale);
  const auto inv = V::Set(1.0f / std::sqrt(ms + eps));
  Map<V>(x, gain, K, y, [&](auto a, auto g) { return V::Mul(V::Mul(a, inv), g); });
  return true;
}

template <typename V>
static bool VectorKvStore(const KvTileLayout& layout, uint8_t* tile, size_t slot, const float* k,
                          const float* v,
                          void (*store_key)(const KvTileLayout&, uint8_t*, size_t, const int16_t*,
                                            float, const int16_t*, float)) {
  const size_t D = layout.head_dim;
  const uint32_t max_k = VectorMaxMagnitude<V>(k, D);
  const uint32_t max_v = VectorMaxMagnitude<V>(v, D);
  const bool ok = max_k < kFaultBits && max_v < kFaultBits;
  const QuantizeStep step_k = StepOf(ok ? max_k : 0, layout.qmax());
  const QuantizeStep step_v = StepOf(ok ? max_v : 0, layout.qmax());
  alignas(64) int16_t qk[KvTileLayout::kMaxHeadDim + V::kLanes] = {};
  alignas(64) int16_t qv[KvTileLayout::kMaxHeadDim + V::kLanes] = {};
  for (size_t d = 0; d < D && ok; d += V::kLanes) {
    V::StoreInt16(qk + d, V::Mul(LoadUpTo<V>(k + d, D - d), V::Set(step_k.r)));
    V::StoreInt16(qv + d, V::Mul(LoadUpTo<V>(v + d, D - d), V::Set(step_v.r)));
  }
  store_key(layout, tile, slot, qk, step_k.scale, qv, step_v.scale);
  return ok;
}

template <typename V>
static void VectorSwiGlu(const float* gate, const float* up, size_t n, float* y) {
  Map<V>(gate, up, n, y, [](auto g, auto u) {
    const auto e = VectorExp2<V>(V::Mul(V::Negate(g), V::Set(kLog2eF)));
    return V::Mul(V::Div(g, V::Add(V::Set(1.0f), e)), u);
  });
}

template <typename V>
static void VectorAdd(float* x, const float* y, size_t n) {
  Map<V>(x, y, n, x, [](auto a, auto b) { return V::Add(a, b); });
}

template <typename V>
static void VectorExp2Row(const float* x, size_t n, float* y) {
  Map<V>(x, n, y, [](auto v) { return VectorExp2<V>(v); });
}

template <typename V>
static bool VectorFinishLogits(float* logits, size_t n) {
  Map<V>(logits, n, logits, [](auto v) { return V::Add(v, V::Set(0.0f)); });
  return VectorMaxMagnitude<V>(logits, n) < kInfBits;
}

// The largest value first, then the first place that holds it: -0 and +0 are equal in both steps.
template <typename V>
static size_t VectorArgMax(const float* x, size_t n) {
  float max = x[0];
  size_t i = 0;
  if (n >= V::kLanes) {
    auto m = V::Load(x);
    for (i = V::kLanes; i + V::kLanes <= n; i += V::kLanes) m = V::Max(m, V::Load(x + i));
    alignas(64) float lanes[V::kLanes];
    V::Store(lanes, m);
    max = *std::max_element(lanes, lanes + V::kLanes);
  }
  for (; i < n; ++i) max = std::max(max, x[i]);
  for (i = 0; i + V::kLanes <= n && !V::AnyEqual(V::Load(x + i), max); i += V::kLanes) {
  }
  while (i + 1 < n && x[i] != max) ++i;
  return i;
}

// V::StoreInt32(p, v): rint(v) as kLanes int32.
template <typename V>
static void VectorSamplingWeights(const float* x, size_t n, float max, float ct, uint32_t* p) {
  const auto m = V::Set(max);
  const auto c = V::Set(ct);
  for (size_t i = 0; i < n; i += V::kLanes) {
    const auto e = VectorExp2<V>(V::Mul(V::Sub(LoadUpTo<V>(x + i, n - i), m), c));
    alignas(64) uint32_t buffer[V::kLanes];
    V::StoreInt32(buffer, V::Mul(e, V::Set(0x1p30f)));
    std::memcpy(p + i, buffer, std::min(V::kLanes, n - i) * sizeof(uint32_t));
  }
}

template <typename V>
static uint64_t VectorLogprobSum(const float* x, size_t n, float max) {
  const auto m = V::Set(max);
  const auto c = V::Set(kLog2eF);
  uint64_t sum = 0;
  for (size_t i = 0; i < n; i += V::kLanes) {
    const auto e = VectorExp2<V>(V::Mul(V::Sub(LoadUpTo<V>(x + i, n - i), m), c));
    alignas(64) float buffer[V::kLanes];
    V::Store(buffer, V::Rint(V::Mul(e, V::Set(0x1p40f))));
    const size_t left = std::min(V::kLanes, n - i);
    for (size_t j = 0; j < left; ++j) sum += static_cast<uint64_t>(static_cast<int64_t>(buffer[j]));
  }
  return sum;
}

}  // namespace verbatim::kernels::cpu
