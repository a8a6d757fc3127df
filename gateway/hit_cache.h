// Stored results that were served lately, decrypted and checked, in memory: what a hit serves
// without reading the store. Bounded by bytes; the least recently served go first. What an entry
// holds never changes; what may no longer be served (renewed, erased, quarantined) is forgotten by
// Forget, and stays forgotten. Any thread may call anything here.
//
// The memory holds answers in the clear, as the process does while it serves them; the store on
// disk stays encrypted. `server.limits.hit_memory_bytes` bounds it; 0 turns it off.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>

#include "base/bytes.h"
#include "base/result.h"
#include "store/ledger.h"
#include "store/ranges.h"

namespace verbatim::gateway {

// Immutable once it is here.
using SharedResult = std::shared_ptr<const store::StoredResult>;

class HitCache {
 public:
  // `ledger` outlives it. bytes: of results held; 0: none.
  HitCache(const store::Ledger& ledger, uint64_t bytes) : ledger_(ledger), limit_(bytes) {}

  // As Ledger::Lookup: from memory, or from the store and then kept. Null where there is none.
  Result<SharedResult> Lookup(std::string_view name_space, const Digest& fingerprint);
  // From memory only; null where it is not there.
  SharedResult Find(std::string_view name_space, const Digest& fingerprint);

  // The entry's answer is not served from memory any more. Call it after the store has stopped to
  // give the entry out; a look-up that began before keeps nothing.
  void Forget(uint64_t entry);
  void Forget(const store::Ranges& entries);

  uint64_t bytes() const;  // held now, as estimated

 private:
  struct Held {
    std::string key;
    SharedResult result;
    uint64_t bytes = 0;
  };
  void Keep(std::string key, SharedResult result, uint64_t generation);
  void Drop(std::list<Held>::iterator held);

  const store::Ledger& ledger_;
  const uint64_t limit_;
  mutable std::mutex mutex_;                                                // guards what follows
  std::list<Held> held_;                                                    // newest use first
  std::unordered_map<std::string_view, std::list<Held>::iterator> by_key_;  // into Held::key
  uint64_t bytes_ = 0;
  uint64_t generation_ = 0;  // how often something was forgotten
};

}  // namespace verbatim::gateway
