#include "engine/prefix_cache.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/crypto.h"

namespace verbatim::engine {

PrefixCache::PrefixCache(KvCache& cache, bool keeps)
    : cache_(cache), keeps_(keeps), pages_(cache.page_count()) {}

size_t PrefixCache::KeyHash::operator()(const Digest& d) const {
  size_t h = 0;
  std::memcpy(&h, d.data(), sizeof(h));
  return h;
}

uint32_t PrefixCache::IndexOf(const uint8_t* page) const {
  return static_cast<uint32_t>(cache_.IndexOf(page));
}

uint64_t PrefixCache::ScopeId(const std::string& name) {
  const auto [at, is_new] = scopes_.try_emplace(name, next_id_);
  if (is_new) ++next_id_;
  return at->second;
}

Digest PrefixCache::KeyOf(uint64_t parent, std::span<const int32_t> tokens) {
  std::string bytes(sizeof(parent) + tokens.size_bytes(), '\0');
  std::memcpy(bytes.data(), &parent, sizeof(parent));
  std::memcpy(bytes.data() + sizeof(parent), tokens.data(), tokens.size_bytes());
  return Sha256(bytes);
}

uint32_t PrefixCache::Lookup(const Digest& key, uint64_t parent,
                             std::span<const int32_t> tokens) const {
  const auto at = index_.find(key);
  if (at == index_.end()) return kNone;
  const Page& page = pages_[at->second];
  const bool same = page.parent == parent && std::equal(tokens.begin(), tokens.end(),
                                                        page.tokens.begin(), page.tokens.end());
  return same ? at->second : kNone;
}

PrefixCache::Found PrefixCache::Find(uint64_t scope, std::span<const int32_t> tokens,
                                     size_t limit) const {
  Found found;
  limit = std::min(limit, tokens.size());
  for (uint64_t parent = scope; keeps_ && found.tokens + kPageTokens <= limit;) {
    const std::span<const int32_t> ids = tokens.subspan(found.tokens, kPageTokens);
    const uint32_t at = Lookup(KeyOf(parent, ids), parent, ids);
    if (at == kNone) break;
    parent = pages_[at].id;
    found.pages_in_use += pages_[at].users > 0;
    found.tokens += kPageTokens;
  }
  return found;
}

size_t PrefixCache::Extend(Pages& pages, std::span<const int32_t> tokens, size_t limit) {
  limit = std::min(limit, tokens.size());
  while (keeps_ && pages.known == pages.bytes.size() && (pages.known + 1) * kPageTokens <= limit) {
    const std::span<const int32_t> ids = tokens.subspan(pages.known * kPageTokens, kPageTokens);
    const uint32_t at = Lookup(KeyOf(pages.last_known, ids), pages.last_known, ids);
    if (at == kNone) break;
    Use(at);
    pages.bytes.push_back(cache_.PageAt(at));
    pages.last_known = pages_[at].id;
    ++pages.known;
  }
  return pages.known * kPageTokens;
}

void PrefixCache::Use(uint32_t page) {
  if (pages_[page].users++ == 0) idle_.erase(pages_[page].idle);
}

bool PrefixCache::Grow(Pages& pages, size_t tokens) {
  const size_t want = (tokens + kPageTokens - 1) / kPageTokens, have = pages.bytes.size();
  if (want <= have) return true;
  if (want - have > available()) return false;
  while (cache_.free_pages() < want - have) Evict();
  CHECK(cache_.Grow(pages.bytes, tokens));
  for (size_t i = have; i < want; ++i) pages_[IndexOf(pages.bytes[i])].users = 1;
  return true;
}

// A page's users are users of all pages before it, and leave those later: so what has been idle for
// longest is never followed by another page.
void PrefixCache::Evict() {
  Page& page = pages_[idle_.front()];
  CHECK(page.users == 0 && page.children == 0);
  if (page.parent_page != kNone) --pages_[page.parent_page].children;
  index_.erase(page.key);
  std::vector<uint8_t*> bytes{cache_.PageAt(idle_.front())};
  idle_.pop_front();
  page = Page{};
  cache_.Release(bytes);
}

void PrefixCache::Remember(Pages& pages, std::span<const int32_t> tokens, size_t computed) {
  while (keeps_ && (pages.known + 1) * kPageTokens <= computed) {
    const size_t i = pages.known;
    const std::span<const int32_t> ids = tokens.subspan(i * kPageTokens, kPageTokens);
    const uint32_t own = IndexOf(pages.bytes[i]);
    const Digest key = KeyOf(pages.last_known, ids);
    uint32_t at = Lookup(key, pages.last_known, ids);
    if (at == kNone) {
      at = own;
      Page& page = pages_[own];
      page.key = key;
      if (!index_.emplace(page.key, own).second) return;  // two contents of one key: this one waits
      page.id = next_id_++;
      page.parent = pages.last_known;
      page.parent_page = i == 0 ? kNone : IndexOf(pages.bytes[i - 1]);
      page.tokens.assign(ids.begin(), ids.end());
      if (i > 0) ++pages_[page.parent_page].children;
    } else if (at != own) {
      Use(at);
      std::vector<uint8_t*> unused{pages.bytes[i]};
      if (--pages_[own].users == 0) cache_.Release(unused);
      pages.bytes[i] = cache_.PageAt(at);
    }
    pages.last_known = pages_[at].id;
    ++pages.known;
  }
}

bool PrefixCache::Fork(const Pages& from, size_t computed, Pages& to) {
  CHECK(to.bytes.empty());
  const size_t full = computed / kPageTokens;
  if (computed % kPageTokens != 0 && available() == 0) return false;
  CHECK(from.known <= full && from.bytes.size() * kPageTokens >= computed);
  to.known = from.known;
  to.last_known = from.last_known;
  for (size_t i = 0; i < full; ++i) {
    to.bytes.push_back(from.bytes[i]);
    ++pages_[IndexOf(from.bytes[i])].users;
  }
  if (computed % kPageTokens == 0) return true;
  CHECK(Grow(to, computed));
  std::memcpy(to.bytes.back(), from.bytes[full], cache_.page_bytes());
  return true;
}

void PrefixCache::Release(Pages& pages) {
  std::vector<uint8_t*> unused;
  for (; !pages.bytes.empty(); pages.bytes.pop_back()) {
    const uint32_t at = IndexOf(pages.bytes.back());
    Page& page = pages_[at];
    CHECK(page.users > 0);
    if (--page.users > 0) continue;
    if (page.id == 0) {
      unused.push_back(pages.bytes.back());
    } else {
      page.idle = idle_.insert(idle_.end(), at);
    }
  }
  pages = Pages(pages.scope);
  cache_.Release(unused);
}

}  // namespace verbatim::engine
