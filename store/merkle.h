// The RFC 6962 Merkle tree: hashing, an append that needs only the right edge (a compact range),
// and inclusion and consistency proofs from stored hashes of complete subtrees.
//
// A node (level, index) is the hash of the complete subtree over leaves [index << level,
// (index + 1) << level). Nodes of complete subtrees never change; a tlog-tile of 256 hashes at tile
// level L is the nodes (8L, 256N) ... (8L, 256N + 255).
// Values only; all functions may be called from any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/result.h"

namespace verbatim::store {

// RFC 6962 2.1: SHA-256(0x00 || data), SHA-256(0x01 || left || right), SHA-256("").
Digest LeafHash(std::string_view data);
Digest NodeHash(const Digest& left, const Digest& right);
Digest EmptyRoot();

struct Node {
  unsigned level = 0;
  uint64_t index = 0;
  Digest hash{};
};

// The right edge of a tree: the hashes of its maximal complete subtrees, largest first.
class CompactRange {
 public:
  CompactRange() = default;
  // kCorrupt where the number of hashes is not the number of one bits in size.
  static Result<CompactRange> Restore(uint64_t size, std::vector<Digest> hashes);

  uint64_t size() const { return size_; }
  const std::vector<Digest>& hashes() const { return hashes_; }
  Digest Root() const;

  // Adds a leaf's hash; `completed` gets every node that it completes, the leaf itself first.
  void Append(const Digest& leaf_hash, std::vector<Node>* completed);

 private:
  uint64_t size_ = 0;
  std::vector<Digest> hashes_;
};

// Reads the hash of a complete subtree.
using NodeReader = std::function<Result<Digest>(unsigned level, uint64_t index)>;

// Root of the first `size` leaves.
Result<Digest> RootAt(uint64_t size, const NodeReader& read);
// Path for leaf `index` in the tree of `size` leaves. kInvalid where index >= size.
Result<std::vector<Digest>> InclusionProof(uint64_t index, uint64_t size, const NodeReader& read);
// That the tree of `first` leaves is a prefix of that of `second`. kInvalid where first > second.
// Empty where first is 0 or equal to second.
Result<std::vector<Digest>> ConsistencyProof(uint64_t first, uint64_t second,
                                             const NodeReader& read);
// RFC 6962 tree over leaf hashes in memory, and a path in it.
Digest RootOf(std::span<const Digest> leaf_hashes);
std::vector<Digest> PathIn(std::span<const Digest> leaf_hashes, uint64_t index);

// ok, or kCorrupt with what does not fit (RFC 9162 2.1.3.2 and 2.1.4.2).
Status VerifyInclusion(uint64_t index, uint64_t size, const Digest& leaf_hash,
                       std::span<const Digest> path, const Digest& root);
// first = 0 is refused: a proof from the empty tree proves nothing.
Status VerifyConsistency(uint64_t first, uint64_t second, std::span<const Digest> path,
                         const Digest& first_root, const Digest& second_root);

}  // namespace verbatim::store
