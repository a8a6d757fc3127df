// Who has which pages of the KV cache. A page that was filled with 64 known tokens is remembered by
// them and by the page before it, so that a later sequence, or one that runs at the same time, that
// begins with the same tokens takes it over instead of computing it again; it holds the same bits
// either way. Pages that nobody uses stay until their place is needed, those unused for longest go
// first.
//
// A page is found by the SHA-256 of its token ids and of the page before it, and taken only if
// these are equal themselves. Of the engine's thread alone.
#pragma once

#include <cstdint>
#include <list>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/bytes.h"
#include "engine/kv_cache.h"

namespace verbatim::engine {

class PrefixCache {
 public:
  static constexpr size_t kPageTokens = KvCache::kPageTokens;

  // The pages of one sequence, for its positions from 0 on. Those that may be shared are full and
  // never written again.
  struct Pages {
    explicit Pages(uint64_t of_scope = 0) : scope(of_scope), last_known(of_scope) {}
    uint64_t scope;
    std::vector<uint8_t*> bytes;  // of each page
    size_t known = 0;             // how many of the first ones are remembered
    uint64_t last_known;          // id of the last of these, or of the scope
  };

  // keeps: false: nothing is remembered, and what is shared is what Fork shares.
  PrefixCache(KvCache& cache, bool keeps);

  // For sequences that see the pages of their own kind only (a tenant's).
  uint64_t ScopeId(const std::string& name);

  // How many of the first `limit` tokens are in remembered pages, and how many of these pages are
  // in use, so that they take no room.
  struct Found {
    size_t tokens = 0, pages_in_use = 0;
  };
  Found Find(uint64_t scope, std::span<const int32_t> tokens, size_t limit) const;

  // Takes over remembered pages that go on where `pages` ends, whole ones within the first `limit`
  // tokens. Pages that a sequence already has count only if all of them are remembered. Returns how
  // many tokens are covered by remembered pages.
  size_t Extend(Pages& pages, std::span<const int32_t> tokens, size_t limit);

  // Takes pages until they cover `tokens` positions, where need be in the place of remembered ones
  // that nobody uses. False, with nothing taken, where too few are left.
  bool Grow(Pages& pages, size_t tokens);

  // The first `computed` tokens are in `pages`: remembers those pages that are full. One that is
  // remembered already, with another's bytes, is taken in its place.
  void Remember(Pages& pages, std::span<const int32_t> tokens, size_t computed);

  // `to`, empty, begins with the same `computed` positions: full pages are shared, the rest is
  // copied. False, with nothing taken, where there is no page for it.
  bool Fork(const Pages& from, size_t computed, Pages& to);

  void Release(Pages& pages);

  size_t available() const { return cache_.free_pages() + idle_.size(); }  // pages
  size_t remembered() const { return index_.size(); }

 private:
  struct Page {
    uint32_t users = 0;
    uint32_t children = 0;  // remembered pages that follow it
    uint64_t id = 0;        // where remembered; never used twice
    uint64_t parent = 0;    // id of the page before it, or of the scope
    uint32_t parent_page = 0;
    Digest key{};
    std::vector<int32_t> tokens;  // where remembered
    std::list<uint32_t>::iterator idle{};
  };
  struct KeyHash {
    size_t operator()(const Digest& d) const;
  };
  static constexpr uint32_t kNone = UINT32_MAX;

  uint32_t IndexOf(const uint8_t* page) const;
  static Digest KeyOf(uint64_t parent, std::span<const int32_t> tokens);
  // key: KeyOf(parent, tokens).
  uint32_t Lookup(const Digest& key, uint64_t parent, std::span<const int32_t> tokens) const;
  void Use(uint32_t page);
  void Evict();

  KvCache& cache_;
  const bool keeps_;
  std::vector<Page> pages_;
  std::unordered_map<Digest, uint32_t, KeyHash> index_;
  std::list<uint32_t> idle_;  // remembered, without users; those unused for longest first
  std::unordered_map<std::string, uint64_t> scopes_;
  uint64_t next_id_ = 1;
};

}  // namespace verbatim::engine
