// Which entries an `erased` or `pruned` entry says are gone (store/FORMAT.md, Leaf and Erasure).
// Values only; all functions may be called from any thread.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "store/ranges.h"
#include "store/records.h"

namespace verbatim::audit {

struct Erasure {
  uint64_t entry = 0;     // that says so
  store::Ranges entries;  // of `erased`
  uint64_t before = 0;    // of `pruned`: every tenant's entry below it, but for `kept`
  store::Ranges kept;

  bool Covers(uint64_t number, const store::Leaf& leaf) const {
    if (number >= entry) return false;
    if (entries.Contains(number)) return true;
    return number < before && !leaf.tenant.empty() && !kept.Contains(number);
  }
};

inline bool IsErasure(const store::Leaf& leaf) {
  const bool kind = leaf.kind == store::Kind::kErased || leaf.kind == store::Kind::kPruned;
  return kind && leaf.outcome == "ok";
}

// Of such a leaf. kInvalid where its detail is none.
inline Result<Erasure> ErasureOf(uint64_t entry, const store::Leaf& leaf) {
  Erasure erasure;
  erasure.entry = entry;
  const bool erased = leaf.kind == store::Kind::kErased;
  Result<store::Ranges> ranges =
      store::Ranges::FromMember(leaf.detail, erased ? "entries" : "kept");
  if (!ranges.ok()) return ranges.error();
  (erased ? erasure.entries : erasure.kept) = std::move(*ranges);
  if (erased) return erasure;
  const json::Value* before = leaf.detail.Find("before");
  if (!before || !before->AsUint64()) {
    return Error{Code::kInvalid, "its detail does not say what was pruned"};
  }
  erasure.before = *before->AsUint64();
  return erasure;
}

}  // namespace verbatim::audit
