// A KV cache of one layer and one sequence, as the engine would hold it: a page per 64 positions.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/aligned.h"
#include "kernels/ops.h"

namespace verbatim::kernels {

class TestCache {
 public:
  // Filled with a byte that would show (a NaN scale) if a key that was never stored were used.
  TestCache(KvTileLayout layout, size_t kv_heads, size_t keys)
      : layout_(layout),
        data_((keys + 63) / 64, AlignedVector<uint8_t>(layout.bytes() * kv_heads, 0xff)) {
    for (const auto& page : data_) pages_.push_back(page.data());
  }
  bool Store(const Ops& ops, size_t position, size_t kv_head, const float* k, const float* v) {
    uint8_t* tile = data_[position / 64].data() + kv_head * layout_.bytes();
    return ops.kv_store(layout_, tile, position % 64, k, v);
  }
  AttentionArgs Args(size_t kv_head, uint64_t position, float scale, const QuantizedRows& q,
                     size_t q_row, size_t heads, uint64_t window = 0) const {
    return {layout_, pages_.data(), kv_head * layout_.bytes(), position, window, scale, &q,
            q_row,   heads};
  }
  const std::vector<AlignedVector<uint8_t>>& data() const { return data_; }

 private:
  KvTileLayout layout_;
  std::vector<AlignedVector<uint8_t>> data_;
  std::vector<const uint8_t*> pages_;
};

}  // namespace verbatim::kernels
