#include "engine/bpe.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <queue>

namespace verbatim::engine {
namespace {

uint64_t Key(int32_t left, int32_t right) {
  return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
}

// Words of up to this many bytes are merged by scanning for the best pair each time.
constexpr size_t kShort = 32;

void MergeShort(const MergeTable& table, std::span<const int32_t> symbols,
                std::vector<int32_t>& out) {
  int32_t ids[kShort];
  Merge merges[kShort];  // of ids[i] and ids[i + 1]
  size_t n = symbols.size();
  std::copy(symbols.begin(), symbols.end(), ids);
  for (size_t i = 0; i + 1 < n; ++i) merges[i] = table.Find(ids[i], ids[i + 1]);
  while (n > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < n; ++i) {
      if (merges[i].rank < merges[best].rank) best = i;
    }
    if (merges[best].rank == UINT32_MAX) break;
    ids[best] = merges[best].result;
    std::copy(ids + best + 2, ids + n, ids + best + 1);
    if (best + 2 < n) std::copy(merges + best + 2, merges + n - 1, merges + best + 1);
    --n;
    if (best > 0) merges[best - 1] = table.Find(ids[best - 1], ids[best]);
    if (best + 1 < n) merges[best] = table.Find(ids[best], ids[best + 1]);
  }
  for (size_t i = 0; i < n; ++i) {
    if (ids[i] >= 0) out.push_back(ids[i]);
  }
}

// A pair that could be merged when it was queued; stale where its symbols have changed since.
struct Candidate {
  uint32_t rank;
  uint32_t left;  // index of the left symbol
  int32_t left_id, right_id, result;
  bool operator>(const Candidate& other) const {
    return rank != other.rank ? rank > other.rank : left > other.left;
  }
};

void MergeLong(const MergeTable& table, std::span<const int32_t> symbols,
               std::vector<int32_t>& out) {
  constexpr uint32_t kNone = UINT32_MAX;
  constexpr int32_t kGone = -2;
  const auto n = static_cast<uint32_t>(symbols.size());
  std::vector<int32_t> ids(symbols.begin(), symbols.end());
  std::vector<uint32_t> previous(n), next(n);
  for (uint32_t i = 0; i < n; ++i) {
    previous[i] = i == 0 ? kNone : i - 1;
    next[i] = i + 1 == n ? kNone : i + 1;
  }
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue;
  const auto offer = [&](uint32_t left) {
    if (left == kNone || next[left] == kNone) return;
    const Merge merge = table.Find(ids[left], ids[next[left]]);
    if (merge.rank == UINT32_MAX) return;
    queue.push({merge.rank, left, ids[left], ids[next[left]], merge.result});
  };
  for (uint32_t i = 0; i < n; ++i) offer(i);
  while (!queue.empty()) {
    const Candidate c = queue.top();
    queue.pop();
    const uint32_t right = next[c.left];
    if (ids[c.left] != c.left_id || right == kNone || ids[right] != c.right_id) continue;
    ids[c.left] = c.result;
    ids[right] = kGone;
    next[c.left] = next[right];
    if (next[right] != kNone) previous[next[right]] = c.left;
    offer(previous[c.left]);
    offer(c.left);
  }
  for (uint32_t i = 0; i != kNone; i = next[i]) {
    if (ids[i] >= 0) out.push_back(ids[i]);
  }
}

}  // namespace

MergeTable::MergeTable(size_t count)
    : slots_(std::bit_ceil(std::max<size_t>(16, count * 2))), mask_(slots_.size() - 1) {}

size_t MergeTable::Start(uint64_t key) const {
  key *= 0x9E3779B97F4A7C15u;
  return (key ^ (key >> 32)) & mask_;
}

void MergeTable::Insert(int32_t left, int32_t right, Merge merge) {
  const uint64_t key = Key(left, right);
  size_t i = Start(key);
  while (slots_[i].key != UINT64_MAX) {
    if (slots_[i].key == key) return;
    i = (i + 1) & mask_;
  }
  slots_[i] = {key, merge};
}

Merge MergeTable::Find(int32_t left, int32_t right) const {
  if (left < 0 || right < 0) return {};
  const uint64_t key = Key(left, right);
  for (size_t i = Start(key); slots_[i].key != UINT64_MAX; i = (i + 1) & mask_) {
    if (slots_[i].key == key) return slots_[i].merge;
  }
  return {};
}

void MergeWord(const MergeTable& table, std::span<const int32_t> symbols,
               std::vector<int32_t>& out) {
  if (symbols.empty()) return;
  if (symbols.size() <= kShort) {
    MergeShort(table, symbols, out);
  } else {
    MergeLong(table, symbols, out);
  }
}

}  // namespace verbatim::engine
