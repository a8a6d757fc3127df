#include "gateway/hit_cache.h"

#include <utility>

namespace verbatim::gateway {

namespace {

// Of the list's node, the map's, and what allocations round up.
constexpr uint64_t kOverhead = 512;

uint64_t BytesOf(const json::Value& v) {
  uint64_t bytes = sizeof(v);
  if (v.is_string()) bytes += v.as_string().size();
  if (v.is_array()) {
    for (const json::Value& item : v.items()) bytes += BytesOf(item);
  }
  if (v.is_object()) {
    for (const auto& [name, value] : v.members()) {
      bytes += sizeof(json::Member) + name.size() + BytesOf(value);
    }
  }
  return bytes;
}

uint64_t BytesOf(const store::StoredResult& result) {
  uint64_t bytes = sizeof(result) + result.response.size();
  const store::Record& record = result.record;
  for (const json::Value* part :
       {&result.leaf.detail, &record.backend, &record.parameters, &record.usage, &record.timings,
        &record.response, &record.extra}) {
    bytes += BytesOf(*part);
  }
  bytes += record.chain_heads.size() * sizeof(Digest);
  return bytes;
}

// Injective: the fingerprint's length is fixed.
std::string KeyOf(std::string_view name_space, const Digest& fingerprint) {
  std::string key(AsBytes(fingerprint));
  key += name_space;
  return key;
}

}  // namespace

Result<SharedResult> HitCache::Lookup(std::string_view name_space, const Digest& fingerprint) {
  if (SharedResult held = Find(name_space, fingerprint)) return held;
  uint64_t generation = 0;
  {
    std::lock_guard lock(mutex_);
    generation = generation_;
  }
  Result<std::optional<store::StoredResult>> stored = ledger_.Lookup(name_space, fingerprint);
  if (!stored.ok()) return stored.error();
  if (!*stored) return SharedResult();
  auto result = std::make_shared<const store::StoredResult>(**std::move(stored));
  Keep(KeyOf(name_space, fingerprint), result, generation);
  return SharedResult(std::move(result));
}

SharedResult HitCache::Find(std::string_view name_space, const Digest& fingerprint) {
  if (limit_ == 0) return nullptr;
  const std::string key = KeyOf(name_space, fingerprint);
  std::lock_guard lock(mutex_);
  const auto found = by_key_.find(key);
  if (found == by_key_.end()) return nullptr;
  held_.splice(held_.begin(), held_, found->second);
  return found->second->result;
}

void HitCache::Forget(uint64_t entry) {
  store::Ranges entries;
  entries.Add(entry);
  Forget(entries);
}

void HitCache::Forget(const store::Ranges& entries) {
  std::lock_guard lock(mutex_);
  ++generation_;
  for (auto held = held_.begin(); held != held_.end();) {
    const auto next = std::next(held);
    if (entries.Contains(held->result->entry)) Drop(held);
    held = next;
  }
}

uint64_t HitCache::bytes() const {
  std::lock_guard lock(mutex_);
  return bytes_;
}

// Whatever was forgotten since `generation` may be this one.
void HitCache::Keep(std::string key, SharedResult result, uint64_t generation) {
  const uint64_t bytes = BytesOf(*result) + key.size() + kOverhead;
  // One answer does not push out all others.
  if (bytes > limit_ / 4) return;
  std::lock_guard lock(mutex_);
  if (generation != generation_ || by_key_.contains(key)) return;
  held_.push_front({std::move(key), std::move(result), bytes});
  by_key_.emplace(held_.front().key, held_.begin());
  bytes_ += bytes;
  while (bytes_ > limit_) Drop(std::prev(held_.end()));
}

void HitCache::Drop(std::list<Held>::iterator held) {
  bytes_ -= held->bytes;
  by_key_.erase(held->key);
  held_.erase(held);
}

}  // namespace verbatim::gateway
