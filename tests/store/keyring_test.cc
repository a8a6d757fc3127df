#include "store/keyring.h"

#include <gtest/gtest.h>

#include <map>

#include "store/data_folder.h"
#include "tests/store/ledger_fixture.h"

namespace verbatim::store {
namespace {

TEST(Keyring, KeysStayAcrossReopeningAndSegments) {
  TemporaryFolder place;
  const auto wrapper = MakeKeyWrapper(std::string(32, 'w'));
  std::map<uint64_t, SlotKeys> seen;
  {
    const auto ring = Keyring::Open(place.path("ring"), "entries", *wrapper, true).value();
    EXPECT_EQ(ring->End(), 0u);
    EXPECT_EQ(ring->Get(0).error().code, Code::kNotFound);
    ASSERT_TRUE(ring->Prepare(4096).ok());
    EXPECT_EQ(ring->End(), 8192u);
    for (const uint64_t slot : {0, 1, 4095, 4096, 8191}) seen[slot] = ring->Get(slot).value();
  }
  const auto ring = Keyring::Open(place.path("ring"), "entries", *wrapper, false).value();
  EXPECT_EQ(ring->End(), 8192u);
  for (const auto& [slot, keys] : seen) {
    EXPECT_EQ(ring->Get(slot)->key, keys.key);
    EXPECT_EQ(ring->Get(slot)->salt, keys.salt);
    EXPECT_EQ(keys.key.size(), 32u);
    EXPECT_NE(keys.key, keys.salt);
  }
  EXPECT_NE(seen[0].key, seen[1].key);
  // No key stands in the file.
  const std::string bytes = ReadFile(ring->SegmentPath(0)).value();
  EXPECT_EQ(bytes.find(seen[0].key), std::string::npos);
  EXPECT_EQ(bytes.find(seen[0].salt), std::string::npos);
}

TEST(Keyring, AnotherWrappingKeyOrRingDoesNotOpenIt) {
  TemporaryFolder place;
  const auto wrapper = MakeKeyWrapper(std::string(32, 'w'));
  ASSERT_TRUE(
      Keyring::Open(place.path("ring"), "entries", *wrapper, true).value()->Prepare(0).ok());
  const auto other = MakeKeyWrapper(std::string(32, 'x'));
  EXPECT_EQ(
      Keyring::Open(place.path("ring"), "entries", *other, false).value()->Get(0).error().code,
      Code::kCorrupt);
  EXPECT_EQ(Keyring::Open(place.path("ring"), "hits", *wrapper, false).value()->Get(0).error().code,
            Code::kCorrupt);
}

}  // namespace
}  // namespace verbatim::store
