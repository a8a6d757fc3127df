// Byte-pair merging by rank, over token ids. Internal to the tokenizer.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace verbatim::engine {

// What two neighbours become. rank 0 is merged first.
struct Merge {
  uint32_t rank = UINT32_MAX;
  int32_t result = -1;
};

// An open-addressing table from pairs of ids to merges.
class MergeTable {
 public:
  explicit MergeTable(size_t count);
  // The first of two merges of one pair counts.
  void Insert(int32_t left, int32_t right, Merge merge);
  Merge Find(int32_t left, int32_t right) const;  // rank UINT32_MAX: no such merge

 private:
  struct Slot {
    uint64_t key = UINT64_MAX;
    Merge merge;
  };
  size_t Start(uint64_t key) const;
  std::vector<Slot> slots_;
  size_t mask_;
};

// Merges the lowest rank first, the leftmost of equals, until none is left, and appends the ids.
// Negative ids are gaps: they never merge and are left out. O(n log n) for n symbols.
void MergeWord(const MergeTable& table, std::span<const int32_t> symbols,
               std::vector<int32_t>& out);

}  // namespace verbatim::engine
