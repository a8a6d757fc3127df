// The KV cache's unit: the keys and values of 64 consecutive positions, for one layer and KV head.
//
// A tile is a block of bytes that the engine allocates (64-byte aligned) and never looks into. A
// page of the cache is naturally one tile per (layer, KV head), one after the other, for 64
// positions of a sequence; attention takes the page pointers of a sequence and the offset of its
// tile in a page. Positions that were never stored may hold any bytes: no kernel lets them reach a
// result.
//
// Layout, with q = 256*hi + lo, lo = q & 255 and hi stored with 128 added (8-bit: only q + 128):
//   k scales f32[64], v scales f32[64],
//   K planes (lo, then hi): per 4 dimensions, 64 keys x 4 bytes: byte [(d/4)*256 + key*4 + d%4],
//   V planes (lo, then hi): per 4 keys, D x 4 bytes (D rounded up to 16):
//                           byte [(key/4)*4*D + d*4 + key%4].
#pragma once

#include <cstddef>
#include <cstdint>

namespace verbatim::kernels {

struct KvTileLayout {
  static constexpr size_t kKeys = 64;  // T of numerics.md 8.1: part of the numerics
  static constexpr size_t kMaxHeadDim = 256;

  size_t head_dim = 0;  // a multiple of 8, at most 256
  int bits = 16;        // 16 (KV16) or 8 (KV8)

  size_t padded_dim() const { return (head_dim + 15) / 16 * 16; }
  size_t planes() const { return bits == 16 ? 2 : 1; }
  int qmax() const { return bits == 16 ? 32639 : 127; }
  size_t k_plane_bytes() const { return kKeys * head_dim; }
  size_t v_plane_bytes() const { return kKeys * padded_dim(); }
  size_t k_offset() const { return 2 * kKeys * sizeof(float); }
  size_t v_offset() const { return k_offset() + planes() * k_plane_bytes(); }
  size_t bytes() const { return v_offset() + planes() * v_plane_bytes(); }  // a multiple of 64
};

}  // namespace verbatim::kernels
