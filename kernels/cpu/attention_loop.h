// The part of attention that all instruction sets share: which keys of a tile are visible, and the
// ordered merge of tiles (numerics.md 8.1, 8.3). `static`, as numerics.h says.
#pragma once

#include <algorithm>

#include "kernels/numerics.h"
#include "kernels/ops.h"

namespace verbatim::kernels::cpu {

inline constexpr size_t kHeadsAtOnce = 4;
inline constexpr size_t kTileKeys = KvTileLayout::kKeys;
inline constexpr size_t kOutStride = KvTileLayout::kMaxHeadDim;

// Keys [begin, end) of tile t are visible.
struct VisibleKeys {
  size_t begin, end;
};
static inline uint64_t FirstVisible(const AttentionArgs& a) {
  return a.window == 0 || a.window > a.position ? 0 : a.position + 1 - a.window;
}
static inline VisibleKeys VisibleIn(const AttentionArgs& a, size_t t) {
  const uint64_t tile_begin = t * kTileKeys;
  const uint64_t first = std::max(FirstVisible(a), tile_begin);
  const uint64_t end = std::min(a.position + 1, tile_begin + kTileKeys);
  return {static_cast<size_t>(first - tile_begin), static_cast<size_t>(end - tile_begin)};
}

// Merge of one tile into the running state of a head, and the final division.
static inline void MergeTile(size_t dim, float& m, float& l, float* o, float m_t, float l_t,
                             const float* o_t) {
  const float top = std::max(m, m_t);
  const float al = Exp2(m - top);
  const float be = Exp2(m_t - top);
  l = (l * al) + (l_t * be);
  for (size_t d = 0; d < dim; ++d) o[d] = (o[d] * al) + (o_t[d] * be);
  m = top;
}

// tile(args, t, first_head, heads, m, l, o): up to four heads of one tile, o in rows of kOutStride.
template <typename Tile>
static inline void AttentionLoop(const AttentionArgs& a, float* out, Tile tile) {
  const size_t dim = a.layout.head_dim;
  alignas(64) float o[kHeadsAtOnce * kOutStride];
  alignas(64) float o_t[kHeadsAtOnce * kOutStride];
  float m[kHeadsAtOnce], l[kHeadsAtOnce], m_t[kHeadsAtOnce], l_t[kHeadsAtOnce];
  const size_t first = static_cast<size_t>(FirstVisible(a) / kTileKeys);
  const size_t last = static_cast<size_t>(a.position / kTileKeys);
  for (size_t h = 0; h < a.heads; h += kHeadsAtOnce) {
    const size_t heads = std::min(kHeadsAtOnce, a.heads - h);
    tile(a, first, h, heads, m, l, o);
    for (size_t t = first + 1; t <= last; ++t) {
      tile(a, t, h, heads, m_t, l_t, o_t);
      for (size_t i = 0; i < heads; ++i) {
        MergeTile(dim, m[i], l[i], o + i * kOutStride, m_t[i], l_t[i], o_t + i * kOutStride);
      }
    }
    for (size_t i = 0; i < heads; ++i) {
      const float inv = 1.0f / l[i];
      for (size_t d = 0; d < dim; ++d) out[(h + i) * dim + d] = o[i * kOutStride + d] * inv;
    }
  }
}

template <typename Tile>
static inline void AttentionOneTile(const AttentionArgs& a, size_t t, float* m, float* l, float* o,
                                    Tile tile) {
  const size_t dim = a.layout.head_dim;
  alignas(64) float o_t[kHeadsAtOnce * kOutStride];
  for (size_t h = 0; h < a.heads; h += kHeadsAtOnce) {
    const size_t heads = std::min(kHeadsAtOnce, a.heads - h);
    tile(a, t, h, heads, m + h, l + h, o_t);
    for (size_t i = 0; i < heads; ++i) {
      std::copy(o_t + i * kOutStride, o_t + i * kOutStride + dim, o + (h + i) * dim);
    }
  }
}

}  // namespace verbatim::kernels::cpu
