// The KV cache: a fixed number of pages, each with the keys and values of 64 consecutive positions
// of one sequence for all layers and KV heads. Pages are taken and given back by the engine's
// thread alone; the workers of a forward pass write and read their bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "kernels/kv_tile.h"

namespace verbatim::engine {

class KvCache {
 public:
  static constexpr size_t kPageTokens = kernels::KvTileLayout::kKeys;

  // Reserves room for `tokens` positions, rounded up to pages; the system provides the memory as
  // pages are first used. kInvalid where it is more than is available now, with the size that would
  // fit.
  static Result<KvCache> Create(const kernels::KvTileLayout& layout, uint32_t layers,
                                uint32_t kv_heads, uint64_t tokens);
  ~KvCache();
  KvCache(KvCache&& other) noexcept;
  KvCache& operator=(KvCache&&) = delete;

  // Takes pages until `pages` covers `tokens` positions. False, with nothing taken, where too few
  // are free. The bytes of a fresh page are those of its last user, which no kernel lets reach a
  // result.
  bool Grow(std::vector<uint8_t*>& pages, uint64_t tokens);
  // Gives all of them back.
  void Release(std::vector<uint8_t*>& pages);

  size_t page_count() const { return page_count_; }
  size_t page_bytes() const { return page_bytes_; }
  // Pages by number, from 0.
  uint8_t* PageAt(size_t index) const { return memory_ + index * page_bytes_; }
  size_t IndexOf(const uint8_t* page) const {
    return static_cast<size_t>(page - memory_) / page_bytes_;
  }
  size_t free_pages() const { return free_.size(); }
  uint64_t capacity_tokens() const { return page_count_ * kPageTokens; }
  const kernels::KvTileLayout& layout() const { return layout_; }
  // From a page's start to the tile of a layer and KV head.
  size_t TileOffset(uint32_t layer, uint32_t kv_head) const {
    return (size_t{layer} * kv_heads_ + kv_head) * layout_.bytes();
  }

 private:
  KvCache() = default;
  kernels::KvTileLayout layout_;
  uint32_t kv_heads_ = 0;
  uint8_t* memory_ = nullptr;
  size_t bytes_ = 0;
  size_t page_bytes_ = 0;
  size_t page_count_ = 0;
  std::vector<uint8_t*> free_;  // taken from the back: what was used last is used first
};

}  // namespace verbatim::engine
