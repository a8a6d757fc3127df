#include "store/merkle.h"

#include <bit>
#include <string>

#include "base/crypto.h"

namespace verbatim::store {
namespace {

// The largest power of two below n (n >= 2): where RFC 6962 splits a tree of n leaves.
uint64_t SplitPoint(uint64_t n) { return std::bit_floor(n - 1); }

// Root of leaves [begin, begin + size), begin a multiple of the subtree's width.
Result<Digest> SubtreeRoot(uint64_t begin, uint64_t size, const NodeReader& read) {
  if (std::has_single_bit(size)) {
    const unsigned level = static_cast<unsigned>(std::countr_zero(size));
    return read(level, begin >> level);
  }
  const uint64_t split = SplitPoint(size);
  Result<Digest> left = SubtreeRoot(begin, split, read);
  if (!left.ok()) return left;
  Result<Digest> right = SubtreeRoot(begin + split, size - split, read);
  if (!right.ok()) return right;
  return NodeHash(*left, *right);
}

Status AppendSubtreeRoot(uint64_t begin, uint64_t size, const NodeReader& read,
                         std::vector<Digest>* path) {
  Result<Digest> root = SubtreeRoot(begin, size, read);
  if (!root.ok()) return root.error();
  path->push_back(*root);
  return {};
}

// RFC 6962 2.1.1 PATH(m, D[n]) over leaves [begin, begin + size).
Status Path(uint64_t index, uint64_t begin, uint64_t size, const NodeReader& read,
            std::vector<Digest>* path) {
  if (size == 1) return {};
  const uint64_t split = SplitPoint(size);
  const bool left = index < split;
  Status inner = left ? Path(index, begin, split, read, path)
                      : Path(index - split, begin + split, size - split, read, path);
  if (!inner.ok()) return inner;
  return left ? AppendSubtreeRoot(begin + split, size - split, read, path)
              : AppendSubtreeRoot(begin, split, read, path);
}

// RFC 6962 2.1.2 SUBPROOF(m, D[n], whole).
Status SubProof(uint64_t first, uint64_t begin, uint64_t size, bool whole, const NodeReader& read,
                std::vector<Digest>* path) {
  if (first == size) return whole ? Status() : AppendSubtreeRoot(begin, size, read, path);
  const uint64_t split = SplitPoint(size);
  if (first <= split) {
    Status inner = SubProof(first, begin, split, whole, read, path);
    if (!inner.ok()) return inner;
    return AppendSubtreeRoot(begin + split, size - split, read, path);
  }
  Status inner = SubProof(first - split, begin + split, size - split, false, read, path);
  if (!inner.ok()) return inner;
  return AppendSubtreeRoot(begin, split, read, path);
}

Error Bad(const std::string& what) { return {Code::kCorrupt, "proof does not hold: " + what}; }

}  // namespace

Digest LeafHash(std::string_view data) {
  Sha256Stream stream;
  stream.Update(std::string_view("\x00", 1));
  stream.Update(data);
  return stream.Finish();
}

Digest NodeHash(const Digest& left, const Digest& right) {
  char bytes[65];
  bytes[0] = 1;
  std::copy(left.begin(), left.end(), bytes + 1);
  std::copy(right.begin(), right.end(), bytes + 33);
  return Sha256({bytes, sizeof(bytes)});
}

Digest EmptyRoot() { return Sha256(""); }

Result<CompactRange> CompactRange::Restore(uint64_t size, std::vector<Digest> hashes) {
  if (hashes.size() != static_cast<size_t>(std::popcount(size))) {
    return Error{Code::kCorrupt, "the stored tree state has the wrong number of hashes"};
  }
  CompactRange range;
  range.size_ = size;
  range.hashes_ = std::move(hashes);
  return range;
}

Digest CompactRange::Root() const {
  if (hashes_.empty()) return EmptyRoot();
  Digest root = hashes_.back();
  for (size_t i = hashes_.size() - 1; i-- > 0;) root = NodeHash(hashes_[i], root);
  return root;
}

void CompactRange::Append(const Digest& leaf_hash, std::vector<Node>* completed) {
  Node node{0, size_, leaf_hash};
  if (completed) completed->push_back(node);
  while (node.index & 1) {
    node = {node.level + 1, node.index >> 1, NodeHash(hashes_.back(), node.hash)};
    hashes_.pop_back();
    if (completed) completed->push_back(node);
  }
  hashes_.push_back(node.hash);
  ++size_;
}

Result<Digest> RootAt(uint64_t size, const NodeReader& read) {
  if (size == 0) return EmptyRoot();
  return SubtreeRoot(0, size, read);
}

Result<std::vector<Digest>> InclusionProof(uint64_t index, uint64_t size, const NodeReader& read) {
  if (index >= size) {
    return Error{Code::kInvalid, "entry " + std::to_string(index) + " is not in a tree of " +
                                     std::to_string(size) + " entries"};
  }
  std::vector<Digest> path;
  if (Status made = Path(index, 0, size, read, &path); !made.ok()) return made.error();
  return path;
}

Result<std::vector<Digest>> ConsistencyProof(uint64_t first, uint64_t second,
                                             const NodeReader& read) {
  if (first > second) {
    return Error{Code::kInvalid, "the first tree is larger than the second"};
  }
  std::vector<Digest> path;
  if (first == 0) return path;
  if (Status made = SubProof(first, 0, second, true, read, &path); !made.ok()) return made.error();
  return path;
}

Digest RootOf(std::span<const Digest> leaf_hashes) {
  CompactRange range;
  for (const Digest& hash : leaf_hashes) range.Append(hash, nullptr);
  return range.Root();
}

std::vector<Digest> PathIn(std::span<const Digest> leaf_hashes, uint64_t index) {
  CHECK(index < leaf_hashes.size());
  std::vector<Digest> path;
  uint64_t size = leaf_hashes.size();
  while (size > 1) {
    const uint64_t split = SplitPoint(size);
    if (index < split) {
      path.push_back(RootOf(leaf_hashes.subspan(split)));
      leaf_hashes = leaf_hashes.first(split);
    } else {
      path.push_back(RootOf(leaf_hashes.first(split)));
      leaf_hashes = leaf_hashes.subspan(split);
      index -= split;
    }
    size = leaf_hashes.size();
  }
  return {path.rbegin(), path.rend()};
}

Status VerifyInclusion(uint64_t index, uint64_t size, const Digest& leaf_hash,
                       std::span<const Digest> path, const Digest& root) {
  if (index >= size) return Bad("the entry's index is not below the tree's size");
  uint64_t node = index, last = size - 1;
  Digest hash = leaf_hash;
  for (const Digest& sibling : path) {
    if (last == 0) return Bad("the path is too long");
    if ((node & 1) || node == last) {
      hash = NodeHash(sibling, hash);
      while (!(node & 1) && node != 0) {
        node >>= 1;
        last >>= 1;
      }
    } else {
      hash = NodeHash(hash, sibling);
    }
    node >>= 1;
    last >>= 1;
  }
  if (last != 0) return Bad("the path is too short");
  if (hash != root) return Bad("the path leads to another root");
  return {};
}

Status VerifyConsistency(uint64_t first, uint64_t second, std::span<const Digest> path,
                         const Digest& first_root, const Digest& second_root) {
  if (first == 0) return Bad("the first tree is empty");
  if (first > second) return Bad("the first tree is larger than the second");
  if (first == second) {
    if (!path.empty()) return Bad("the path is too long");
    if (first_root != second_root) return Bad("two roots for one size");
    return {};
  }
  if (path.empty()) return Bad("the path is empty");
  uint64_t node = first - 1, last = second - 1;
  while (node & 1) {
    node >>= 1;
    last >>= 1;
  }
  // Where the first tree is one complete subtree, its root starts the path and is not sent.
  Digest old_hash = first_root, new_hash = first_root;
  if (!std::has_single_bit(first)) {
    old_hash = new_hash = path.front();
    path = path.subspan(1);
  }
  for (const Digest& sibling : path) {
    if (last == 0) return Bad("the path is too long");
    if ((node & 1) || node == last) {
      old_hash = NodeHash(sibling, old_hash);
      new_hash = NodeHash(sibling, new_hash);
      while (!(node & 1) && node != 0) {
        node >>= 1;
        last >>= 1;
      }
    } else {
      new_hash = NodeHash(new_hash, sibling);
    }
    node >>= 1;
    last >>= 1;
  }
  if (last != 0) return Bad("the path is too short");
  if (old_hash != first_root) return Bad("the path leads to another first root");
  if (new_hash != second_root) return Bad("the path leads to another second root");
  return {};
}

}  // namespace verbatim::store
