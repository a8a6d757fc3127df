// The bundle's own files: what is not exactly as it is written is refused.
#include "audit/bundle.h"

#include <gtest/gtest.h>

#include "base/crypto.h"
#include "base/json.h"

namespace verbatim::audit {
namespace {

BundleIndex Index() {
  BundleIndex index;
  index.origin = "verbatim/test";
  index.size = 10;
  index.from = 2;
  index.to = 5;
  index.tenants = {std::string(32, 'a'), std::string(32, 'b')};
  index.checkpoints = {3, 7};
  index.timestamps = {10};
  index.entries = {{1, RecordState::kWithheld, ""},
                   {2, RecordState::kIncluded, std::string(32, 's')},
                   {4, RecordState::kErased, ""}};
  index.files = {{"README.txt", Sha256("x")}};
  return index;
}

TEST(BundleIndex, ReadsBack) {
  const std::string bytes = EncodeIndex(Index());
  const Result<BundleIndex> index = ParseIndex(bytes);
  ASSERT_TRUE(index.ok()) << index.error().message;
  EXPECT_EQ(EncodeIndex(*index), bytes);
  EXPECT_EQ(index->entries[1].salt, std::string(32, 's'));
}

TEST(Keys, ReadBackAndWhatCannotBeIsRefused) {
  const auto vkey = [](const char* name, char seed) {
    return store::FormatVerifierKey(
        store::MakeVerifierKey(name, Ed25519PublicKey(std::string(32, seed))));
  };
  const std::string a = vkey("log", 'a'), b = vkey("log", 'b'), other = vkey("other", 'b');
  const std::string good = "0 " + a + "\n9 " + b + "\n";
  const Result<std::vector<store::LogKey>> keys = ParseKeys(good);
  ASSERT_TRUE(keys.ok()) << keys.error().message;
  EXPECT_EQ(keys->back().from, 9u);
  EXPECT_EQ(EncodeKeys(*keys), good);
  const std::string bad[] = {"",
                             "0 " + a + "\n",
                             good + "\n",
                             good.substr(0, good.size() - 1),
                             "1 " + a + "\n9 " + b + "\n",
                             "0 " + a + "\n0 " + b + "\n",
                             "0 " + a + "\n09 " + b + "\n",
                             "0 " + a + "\n+9 " + b + "\n",
                             "0 " + a + "\n9  " + b + "\n",
                             "0 " + a + "\n9" + b + "\n",
                             "0 " + a + "\n9 " + other + "\n",
                             "0 " + a + "\n9 " + b + " \n",
                             "0 " + a + "\n18446744073709551616 " + b + "\n"};
  for (const std::string& text : bad) EXPECT_FALSE(ParseKeys(text).ok()) << text;
}

TEST(BundleIndex, WhatCannotBeIsRefused) {
  const std::string good = EncodeIndex(Index());
  const std::pair<const char*, const char*> changes[] = {
      {"\"version\":1", "\"version\":2"},
      {"\"version\":1", "\"version\":1.0"},
      {"\"size\":10", "\"size\":5"},
      {"\"size\":10", "\"size\":\"10\""},
      {"\"size\":10", "\"size\":-10"},
      {"\"size\":10", "\"size\":99999999999999999999"},
      {"\"from\":2", "\"from\":6"},
      {"\"to\":5", "\"to\":10"},
      {"\"payloads\":true", "\"payloads\":1"},
      {"[3,7]", "[7,3]"},
      {"[3,7]", "[3,3]"},
      {"[3,7]", "[3,10]"},
      {"[3,7]", "[3, 7]"},
      {"{\"entry\":4,", "{\"entry\":2,"},
      {"{\"entry\":4,", "{\"entry\":40,"},
      {"\"erased\"", "\"gone\""},
      {"\"erased\"", "\"included\""},
      {"\"withheld\"}", "\"withheld\",\"salt\":\"\"}"},
      {"\"tenants\":[\"aa", "\"tenants\":[\"cc"},
      {"\"tenants\":[\"aa", "\"tenants\":[\"AA"},
      {"\"origin\"", "\"more\":1,\"origin\""},
      {"\"files\":{", "\"files\":{\"a\":\"b\","},
  };
  for (const auto& [from, to] : changes) {
    std::string bytes = good;
    const size_t at = bytes.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    bytes.replace(at, std::string(from).size(), to);
    EXPECT_FALSE(ParseIndex(bytes).ok()) << from << " -> " << to;
  }
  for (size_t cut = 0; cut < good.size(); ++cut) EXPECT_FALSE(ParseIndex(good.substr(0, cut)).ok());
}

TEST(HitLine, ReadsBackWithAndWithoutItsRecord) {
  HitLine hit{3,
              Sha256("c"),
              {Sha256("a"), Sha256("b")},
              "{\"a\":\"\\u0001\xC3\xA9\"}",
              std::string(32, '\xFF')};
  for (int i = 0; i < 2; ++i) {
    std::string line = EncodeHit(hit);
    ASSERT_EQ(line.back(), '\n');
    line.pop_back();
    const Result<HitLine> parsed = ParseHit(line);
    ASSERT_TRUE(parsed.ok()) << parsed.error().message;
    EXPECT_EQ(parsed->record, hit.record);
    EXPECT_EQ(EncodeHit(*parsed), line + "\n");
    EXPECT_FALSE(ParseHit(line + " ").ok());
    EXPECT_FALSE(ParseHit("{\"x\":1," + line.substr(1)).ok());
    hit.record.reset();
    hit.salt.clear();
  }
}

TEST(Hashes, AreLinesOfBase64) {
  const std::vector<Digest> hashes = {Sha256("a"), Sha256("b")};
  const std::string text = EncodeHashes(hashes);
  EXPECT_EQ(ParseHashes(text).value(), hashes);
  EXPECT_TRUE(ParseHashes("").value().empty());
  EXPECT_FALSE(ParseHashes(text.substr(0, text.size() - 1)).ok());
  EXPECT_FALSE(ParseHashes("\n" + text).ok());
  EXPECT_FALSE(ParseHashes("YQ==\n").ok());
}

}  // namespace
}  // namespace verbatim::audit
