#include "engine/kv_cache.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "base/check.h"
#include "engine/memory.h"

namespace verbatim::engine {

Result<KvCache> KvCache::Create(const kernels::KvTileLayout& layout, uint32_t layers,
                                uint32_t kv_heads, uint64_t tokens) {
  KvCache cache;
  cache.layout_ = layout;
  cache.kv_heads_ = kv_heads;
  cache.page_count_ = (tokens + kPageTokens - 1) / kPageTokens;
  cache.page_bytes_ = size_t{layers} * kv_heads * layout.bytes();
  CHECK(cache.page_count_ > 0 && cache.page_bytes_ > 0);
  const uint64_t available = AvailableMemory();
  const uint64_t most_pages = available / cache.page_bytes_;
  if (cache.page_count_ > most_pages) {
    return Error{Code::kInvalid,
                 "a KV cache of " + std::to_string(tokens) + " tokens takes " +
                     std::to_string(cache.page_count_ * cache.page_bytes_ >> 20) + " MiB, and " +
                     std::to_string(available >> 20) + " MiB are available; at most " +
                     std::to_string(most_pages * kPageTokens) + " tokens fit (kv_tokens)"};
  }
  cache.bytes_ = cache.page_count_ * cache.page_bytes_;
  void* memory = mmap(nullptr, cache.bytes_, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    return Error{Code::kInvalid, "cannot reserve " + std::to_string(cache.bytes_ >> 20) +
                                     " MiB for the KV cache (" + std::strerror(errno) +
                                     "); choose fewer KV tokens"};
  }
  cache.memory_ = static_cast<uint8_t*>(memory);
  for (size_t i = cache.page_count_; i-- > 0;) {
    cache.free_.push_back(cache.memory_ + i * cache.page_bytes_);
  }
  return cache;
}

KvCache::KvCache(KvCache&& other) noexcept
    : layout_(other.layout_),
      kv_heads_(other.kv_heads_),
      memory_(std::exchange(other.memory_, nullptr)),
      bytes_(other.bytes_),
      page_bytes_(other.page_bytes_),
      page_count_(other.page_count_),
      free_(std::move(other.free_)) {}

KvCache::~KvCache() {
  if (memory_ != nullptr) munmap(memory_, bytes_);
}

bool KvCache::Grow(std::vector<uint8_t*>& pages, uint64_t tokens) {
  const size_t want = (tokens + kPageTokens - 1) / kPageTokens;
  if (want <= pages.size()) return true;
  if (want - pages.size() > free_.size()) return false;
  while (pages.size() < want) {
    pages.push_back(free_.back());
    free_.pop_back();
  }
  return true;
}

void KvCache::Release(std::vector<uint8_t*>& pages) {
  for (; !pages.empty(); pages.pop_back()) free_.push_back(pages.back());
  CHECK(free_.size() <= page_count_);
}

}  // namespace verbatim::engine
