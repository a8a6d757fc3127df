// The tree and its proofs against vectors that others published.
#include "store/merkle.h"

#include <gtest/gtest.h>

#include <map>

#include "base/crypto.h"
#include "tests/store/vectors.h"

namespace verbatim::store {
namespace {

// Vectors hold texts of other lengths where a hash is wrong; such a text is some other hash here.
Digest HashOf(const json::Value& base64) {
  const std::string bytes = Base64Decode(base64.as_string()).value();
  return bytes.size() == 32 ? ToDigest(bytes) : Sha256(bytes);
}

std::vector<Digest> PathOf(const json::Value* list) {
  std::vector<Digest> path;
  if (list->is_null()) return path;
  for (const json::Value& hash : list->items()) path.push_back(HashOf(hash));
  return path;
}

uint64_t Number(const json::Value& object, const char* name) {
  return object.Find(name)->AsUint64().value();
}

// A tree of "leaf 0", "leaf 1", ... with its stored nodes.
class Tree {
 public:
  explicit Tree(uint64_t size) {
    for (uint64_t i = 0; i < size; ++i) {
      std::vector<Node> completed;
      range_.Append(LeafHash("leaf " + std::to_string(i)), &completed);
      for (const Node& node : completed) nodes_[{node.level, node.index}] = node.hash;
      roots_.push_back(range_.Root());
    }
  }
  NodeReader reader() const {
    return [this](unsigned level, uint64_t index) -> Result<Digest> {
      const auto node = nodes_.find({level, index});
      if (node == nodes_.end()) return Error{Code::kNotFound, "no such node"};
      return node->second;
    };
  }
  const Digest& root(uint64_t size) const { return roots_.at(size - 1); }
  const CompactRange& range() const { return range_; }

 private:
  CompactRange range_;
  std::map<std::pair<unsigned, uint64_t>, Digest> nodes_;
  std::vector<Digest> roots_;
};

TEST(Merkle, HashesAreThoseOfRfc6962) {
  VERBATIM_LOAD_VECTORS(vectors, "merkle/rfc6962-hash.json");
  for (const json::Value& v : vectors.items()) {
    const std::string what = v.Find("what")->as_string();
    Digest got = EmptyRoot();
    if (what == "leaf") got = LeafHash(v.Find("data")->as_string());
    if (what == "node") {
      // The vector's children are not 32 bytes long: the formula itself.
      got = Sha256("\x01" + v.Find("left")->as_string() + v.Find("right")->as_string());
    }
    EXPECT_EQ(HexEncode(got), v.Find("want")->as_string()) << what;
  }
  const Digest a = LeafHash("a"), b = LeafHash("b");
  EXPECT_EQ(NodeHash(a, b), Sha256("\x01" + std::string(AsBytes(a)) + std::string(AsBytes(b))));
}

TEST(Merkle, VerifierAgreesWithTransparencyDev) {
  VERBATIM_LOAD_VECTORS(vectors, "merkle/transparency-dev-merkle.json");
  size_t good = 0;
  for (const json::Value& v : vectors.Find("inclusion")->items()) {
    // Their library also refuses a leaf hash of no bytes, which a Digest cannot be.
    if (v.Find("leafHash")->as_string().empty()) continue;
    const Status status =
        VerifyInclusion(Number(v, "leafIdx"), Number(v, "treeSize"), HashOf(*v.Find("leafHash")),
                        PathOf(v.Find("proof")), HashOf(*v.Find("root")));
    EXPECT_EQ(status.ok(), !v.Find("wantErr")->as_bool()) << v.Find("file")->as_string();
    good += status.ok();
  }
  for (const json::Value& v : vectors.Find("consistency")->items()) {
    const Status status =
        VerifyConsistency(Number(v, "size1"), Number(v, "size2"), PathOf(v.Find("proof")),
                          HashOf(*v.Find("root1")), HashOf(*v.Find("root2")));
    EXPECT_EQ(status.ok(), !v.Find("wantErr")->as_bool()) << v.Find("file")->as_string();
    good += status.ok();
  }
  EXPECT_GE(good, 7u);
}

TEST(Merkle, RootsProofsAndTilesAtTileEdges) {
  VERBATIM_LOAD_VECTORS(vectors, "merkle/roots-leaf-n.json");
  const Tree tree(70000);
  for (const json::Value& v : vectors.Find("roots")->items()) {
    const uint64_t size = Number(v, "size");
    EXPECT_EQ(tree.root(size), HashOf(*v.Find("root"))) << size;
    EXPECT_EQ(RootAt(size, tree.reader()).value(), tree.root(size)) << size;
  }
  for (const json::Value& v : vectors.Find("inclusion")->items()) {
    const uint64_t size = Number(v, "size"), index = Number(v, "index");
    EXPECT_EQ(InclusionProof(index, size, tree.reader()).value(), PathOf(v.Find("proof")))
        << index << " of " << size;
  }
  for (const json::Value& v : vectors.Find("consistency")->items()) {
    const uint64_t first = Number(v, "size1"), second = Number(v, "size2");
    EXPECT_EQ(ConsistencyProof(first, second, tree.reader()).value(), PathOf(v.Find("proof")))
        << first << " to " << second;
  }
  for (const json::Value& v : vectors.Find("tiles")->items()) {
    unsigned level = 0, number = 0, width = 256;
    ASSERT_GE(std::sscanf(v.Find("tile")->as_string().c_str(), "tile/%u/%u.p/%u", &level, &number,
                          &width),
              2);
    std::string tile;
    for (uint64_t i = 0; i < width; ++i) {
      tile += AsBytes(tree.reader()(8 * level, uint64_t{number} * 256 + i).value());
    }
    EXPECT_EQ(HexEncode(Sha256(tile)), v.Find("sha256")->as_string())
        << v.Find("tile")->as_string();
  }
}

TEST(Merkle, EveryProofOfSmallTreesVerifiesAndNoneForAnotherPlace) {
  const Tree tree(70);
  for (uint64_t size = 1; size <= 70; ++size) {
    std::vector<Digest> leaves;
    for (uint64_t i = 0; i < size; ++i) leaves.push_back(LeafHash("leaf " + std::to_string(i)));
    EXPECT_EQ(RootOf(leaves), tree.root(size));
    for (uint64_t i = 0; i < size; ++i) {
      std::vector<Digest> path = InclusionProof(i, size, tree.reader()).value();
      EXPECT_EQ(path, PathIn(leaves, i));
      EXPECT_TRUE(VerifyInclusion(i, size, leaves[i], path, tree.root(size)).ok());
      EXPECT_EQ(VerifyInclusion((i + 1) % size, size, leaves[i], path, tree.root(size)).ok(),
                size == 1);
      // Every hash of a path counts, also those in its middle.
      for (Digest& hash : path) {
        hash[7] ^= 1;
        EXPECT_FALSE(VerifyInclusion(i, size, leaves[i], path, tree.root(size)).ok());
        hash[7] ^= 1;
      }
    }
    for (uint64_t first = 1; first <= size; ++first) {
      std::vector<Digest> path = ConsistencyProof(first, size, tree.reader()).value();
      EXPECT_TRUE(VerifyConsistency(first, size, path, tree.root(first), tree.root(size)).ok());
      for (Digest& hash : path) {
        hash[7] ^= 1;
        EXPECT_FALSE(VerifyConsistency(first, size, path, tree.root(first), tree.root(size)).ok());
        hash[7] ^= 1;
      }
    }
  }
}

TEST(Merkle, RestoreRefusesTheWrongNumberOfHashes) {
  const Tree tree(13);
  EXPECT_TRUE(CompactRange::Restore(13, tree.range().hashes()).ok());
  EXPECT_EQ(CompactRange::Restore(13, tree.range().hashes()).value().Root(), tree.root(13));
  EXPECT_FALSE(CompactRange::Restore(12, tree.range().hashes()).ok());
}

}  // namespace
}  // namespace verbatim::store
