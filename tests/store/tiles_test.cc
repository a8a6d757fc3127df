// The log as others' tools read it: tlog-tiles, tlog-proof files and cosignatures, against bytes
// that others published.
#include "store/tiles.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "store/cosignature.h"
#include "store/rows.h"
#include "store/tlog_proof.h"
#include "tests/store/ledger_fixture.h"
#include "tests/store/vectors.h"

namespace verbatim::store {
namespace {

// Leaves and nodes in a Kv, as the sequencer writes them.
class TileFixture : public ::testing::Test {
 protected:
  void Add(const std::string& leaf) {
    Batch batch;
    batch.Put(Table::kLeaf, EntryKey(tree_.size()), leaf);
    std::vector<Node> completed;
    tree_.Append(LeafHash(leaf), &completed);
    for (const Node& node : completed) {
      batch.Put(Table::kNode, NodeKey(node.level, node.index), std::string(AsBytes(node.hash)));
    }
    CHECK(kv_.Commit(batch, false).ok());
  }
  Result<std::string> Tile(const std::string& path, uint64_t size) {
    Result<TilePath> tile = ParseTilePath(path);
    if (!tile.ok()) return tile.error();
    return reader().Tile(*tile, size);
  }
  Reader& reader() {
    if (!reader_) {
      const DataFolder folder = DataFolder::Open(folder_.path()).value();
      keys_ = LoadKeys(folder, "", true).value();
      ring_ = Keyring::Open(folder.path() + "/ring", "entries", *keys_.wrapper, true).value();
      reader_ = std::make_unique<Reader>(kv_, keys_, *ring_, *ring_);
    }
    return *reader_;
  }

  TemporaryFolder folder_;
  KvMemory kv_;
  CompactRange tree_;
  Keys keys_;
  std::unique_ptr<Keyring> ring_;
  std::unique_ptr<Reader> reader_;
};

TEST_F(TileFixture, TesserasFilesByteForByte) {
  VERBATIM_LOAD_VECTORS(keys, "merkle/tessera-log/KEYS.json");
  for (const json::Value& leaf : keys.Find("leaves")->items()) Add(leaf.as_string());
  const std::filesystem::path folder = VectorsFolder() + "/merkle/tessera-log/tile";
  size_t files = 0;
  for (const auto& file : std::filesystem::recursive_directory_iterator(folder)) {
    if (!file.is_regular_file()) continue;
    const std::string path = std::filesystem::relative(file.path(), folder).string();
    EXPECT_EQ(Tile(path, tree_.size()).value(), ReadFile(file.path().string()).value()) << path;
    ++files;
  }
  EXPECT_GE(files, 30u);
}

TEST_F(TileFixture, EdgesOfTiles) {
  VERBATIM_LOAD_VECTORS(vectors, "merkle/roots-leaf-n.json");
  for (uint64_t i = 0; i < 70'000; ++i) Add("leaf " + std::to_string(i));
  for (const json::Value& v : vectors.Find("tiles")->items()) {
    const std::string path = v.Find("tile")->as_string().substr(5);
    const uint64_t size = v.Find("size")->AsUint64().value();
    EXPECT_EQ(HexEncode(Sha256(Tile(path, size).value())), v.Find("sha256")->as_string()) << path;
  }
  const struct {
    uint64_t size;
    const char* path;
    size_t hashes;  // 0: there is none
  } cases[] = {
      {255, "0/000.p/255", 255},   {255, "0/000", 0},
      {255, "1/000.p/1", 0},       {256, "0/000", 256},
      {256, "1/000.p/1", 1},       {256, "0/001.p/1", 0},
      {257, "0/001.p/1", 1},       {257, "0/001.p/2", 0},
      {65536, "0/255", 256},       {65536, "1/000", 256},
      {65536, "2/000.p/1", 1},     {65536, "1/001.p/1", 0},
      {65535, "1/000.p/255", 255}, {65535, "1/000", 0},
      {65537, "0/256.p/1", 1},     {70000, "0/273.p/112", 112},
      {70000, "0/273.p/113", 0},   {70000, "1/001.p/17", 17},
      {70000, "2/000.p/1", 1},     {70000, "3/000.p/1", 0},
      {70000, "8/000.p/1", 0},     {70000, "63/000.p/1", 0},
      {0, "0/000.p/1", 0},         {70000, "0/x018/x446/x744/x073/x709/551", 0},
  };
  for (const auto& c : cases) {
    const Result<std::string> tile = Tile(c.path, c.size);
    if (c.hashes == 0) {
      EXPECT_FALSE(tile.ok()) << c.path << " of " << c.size;
    } else {
      EXPECT_EQ(tile.value().size(), 32 * c.hashes) << c.path << " of " << c.size;
    }
  }
  // Hash tiles are the hashes of the bundles' entries.
  for (const char* place : {"/000", "/255", "/256.p/1"}) {
    std::string hashes;
    const std::string bundle = Tile(std::string("entries") + place, 65537).value();
    for (std::string_view rest = bundle; !rest.empty();) {
      const size_t length = static_cast<uint8_t>(rest[0]) * 256u + static_cast<uint8_t>(rest[1]);
      hashes += AsBytes(LeafHash(rest.substr(2, length)));
      rest.remove_prefix(2 + length);
    }
    EXPECT_EQ(hashes, Tile(std::string("0") + place, 65537).value()) << place;
  }
  Batch damage;
  damage.Delete(Table::kNode, NodeKey(8, 3));
  ASSERT_TRUE(kv_.Commit(damage, false).ok());
  EXPECT_EQ(Tile("1/000", 65536).error().code, Code::kCorrupt);
}

TEST(TilePaths, OnlyTheOneSpelling) {
  for (const char* path :
       {"0/000", "63/255", "0/x001/x234/067", "0/x018/x446/x744/x073/x709/x551/615.p/1",
        "1/999.p/255", "entries/000", "entries/x001/000.p/3"}) {
    const Result<TilePath> tile = ParseTilePath(path);
    ASSERT_TRUE(tile.ok()) << path;
    EXPECT_EQ(FormatTilePath(*tile), path);
  }
  for (const char* path : {"",
                           "0",
                           "0/",
                           "/000",
                           "0/0",
                           "0/00",
                           "0/0000",
                           "0/1234067",
                           "0/x000/000",
                           "0/001/002",
                           "0/x001",
                           "0/x001/",
                           "0/x1/002",
                           "0/xx01/002",
                           "00/000",
                           "01/000",
                           "64/000",
                           "100/000",
                           "-1/000",
                           "+1/000",
                           "0/-01",
                           "0/+01",
                           "0/ 01",
                           "0/000.p",
                           "0/000.p/",
                           "0/000.p/0",
                           "0/000.p/05",
                           "0/000.p/256",
                           "0/000.p/-1",
                           "0/000.p/1/2",
                           "0/000.p/1.p/1",
                           "0/000/",
                           "0/000 ",
                           "0/000.p/1 ",
                           "0//000",
                           "../000",
                           "0/../000",
                           "entries",
                           "entries/",
                           "Entries/000",
                           "entries/x000/001",
                           "x/000",
                           "0/x018/x446/x744/x073/x709/x551/616",
                           "0/x001/x000/x000/x000/x000/x000/x000/000",
                           "0/00\xC3\xA9"}) {
    EXPECT_FALSE(ParseTilePath(path).ok()) << path;
  }
  VERBATIM_LOAD_VECTORS(vectors, "merkle/tile-path.json");
  for (const json::Value& v : vectors.Find("c2sp")->items()) {
    const std::string path = v.Find("path")->as_string().substr(5);
    EXPECT_EQ(ParseTilePath(path).ok(), v.Find("status")->AsUint64() == 200u) << path;
  }
  for (const json::Value& v : vectors.Find("widths")->items()) {
    const uint64_t size = v.Find("size")->AsUint64().value();
    TilePath tile;
    tile.level = static_cast<unsigned>(v.Find("level")->AsUint64().value());
    const uint64_t full = v.Find("full")->AsUint64().value();
    const uint64_t partial = v.Find("partial")->AsUint64().value();
    tile.index = full;
    EXPECT_FALSE(TreeHasTile(tile, size));
    for (tile.width = 1; tile.width < kTileWidth; ++tile.width) {
      EXPECT_EQ(TreeHasTile(tile, size), tile.width <= partial) << size << " " << tile.width;
    }
    if (full > 0) {
      tile.index = full - 1;
      EXPECT_TRUE(TreeHasTile(tile, size));
    }
  }
}

std::vector<CosignerKey> CosignersOf(const json::Value& list) {
  std::vector<CosignerKey> keys;
  for (const json::Value& key : list.items()) {
    keys.push_back(ParseCosignerKey(key.as_string()).value());
    EXPECT_EQ(FormatCosignerKey(keys.back()), key.as_string());
  }
  return keys;
}

TEST(Cosignatures, AreThoseOfOthers) {
  VERBATIM_LOAD_VECTORS(vectors, "merkle/cosignature.json");
  for (const json::Value& v : vectors.Find("notes")->items()) {
    const CosignerKey key = ParseCosignerKey(v.Find("vkey")->as_string()).value();
    std::string note = v.Find("note")->as_string();
    const auto opened = OpenCosignatures(note, {&key, 1}).value();
    ASSERT_EQ(opened.size(), 1u);
    EXPECT_EQ(opened[0].time, v.Find("time")->AsUint64().value());
    EXPECT_TRUE(note.ends_with("\n\n" + opened[0].line));
    note[note.find("\n300\n") + 1] = '4';
    EXPECT_EQ(OpenCosignatures(note, {&key, 1}).error().code, Code::kCorrupt);
  }
  for (const json::Value& v : vectors.Find("deterministic")->items()) {
    const std::string skey = v.Find("skey_published_test_only")->as_string();
    const CosignerKey key = ParseCosignerKey(v.Find("vkey_cosign")->as_string()).value();
    const std::string seed =
        Base64Decode(skey.substr(skey.rfind('+', skey.size() - 44) + 1)).value().substr(1);
    const std::string body = v.Find("body")->as_string();
    const uint64_t time = v.Find("time")->AsUint64().value();
    EXPECT_EQ(SignCosignature(key, seed, body, time), v.Find("line")->as_string());
    EXPECT_EQ(FormatCosignerKey(MakeCosignerKey(key.name, Ed25519PublicKey(seed))),
              FormatCosignerKey(key));
  }
  for (const json::Value& v : vectors.Find("vkeys")->items()) {
    EXPECT_EQ(ParseCosignerKey(v.Find("vkey")->as_string()).ok(), v.Find("ok")->as_bool());
  }
  // A log's key is no witness's.
  const std::string log = FormatVerifierKey(MakeVerifierKey("a", std::string(32, 'k')));
  EXPECT_EQ(ParseCosignerKey(log).error().code, Code::kUnsupported);
}

TEST(Cosignatures, WhatIsRefused) {
  const std::string seed(32, 'w'), text = "log\n1\n" + Base64Encode(std::string(32, 'r')) + "\n";
  const CosignerKey key = MakeCosignerKey("witness.example", Ed25519PublicKey(seed));
  const std::string line = SignCosignature(key, seed, text, 1'700'000'000);
  EXPECT_EQ(OpenCosignatures(text + "\n" + line, {&key, 1}).value().size(), 1u);
  EXPECT_EQ(OpenCosignatures(text + "\n" + line + line, {&key, 1}).value().size(), 1u);
  // Without a time, or over another text.
  EXPECT_FALSE(OpenCosignatures(text + "\n" + SignCosignature(key, seed, text, 0), {&key, 1}).ok());
  EXPECT_FALSE(OpenCosignatures("x" + text + "\n" + line, {&key, 1}).ok());
  const CosignerKey twice[] = {key, key};
  EXPECT_EQ(OpenCosignatures(text + "\n" + line, twice).error().code, Code::kInvalid);
  const CosignerKey other = MakeCosignerKey("witness.example", std::string(32, 'k'));
  EXPECT_TRUE(OpenCosignatures(text + "\n" + line, {&other, 1}).value().empty());
}

TEST(TlogProofs, ParseAndRefuseAsOthersDo) {
  VERBATIM_LOAD_VECTORS(vectors, "merkle/tlog-proof.json");
  for (const json::Value& v : vectors.Find("parse")->items()) {
    std::string text = v.Find("proof")->is_null()
                           ? "c2sp.org/tlog-proof@v1\nindex 0\n" + std::string(66'560, 'a') + "\n"
                           : v.Find("proof")->as_string();
    const Result<TlogProof> proof = ParseTlogProof(text);
    EXPECT_EQ(proof.ok(), v.Find("parses")->as_bool()) << v.Find("desc")->as_string();
    if (proof.ok()) {
      EXPECT_EQ(FormatTlogProof(*proof), text);
    }
  }
  const LogKey key{ParseVerifierKey(vectors.Find("log_vkey")->as_string()).value()};
  const std::vector<CosignerKey> witnesses = CosignersOf(*vectors.Find("cosigner_vkeys"));
  for (const json::Value& v : vectors.Find("full")->items()) {
    SCOPED_TRACE(v.Find("desc")->as_string());
    const Result<TlogProof> proof = ParseTlogProof(v.Find("proof")->as_string());
    const bool holds =
        proof.ok() &&
        VerifyTlogProof(*proof, v.Find("leaf_data")->as_string(), {&key, 1}, witnesses, 2).ok();
    EXPECT_EQ(holds, v.Find("verifies")->as_bool());
  }
  for (const char* text : {"index 01", "index ", "index +1", "index 18446744073709551616"}) {
    EXPECT_FALSE(ParseTlogProof("c2sp.org/tlog-proof@v1\n" + std::string(text) + "\n\nlog\n").ok())
        << text;
  }
}

}  // namespace
}  // namespace verbatim::store
