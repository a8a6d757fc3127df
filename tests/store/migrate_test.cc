// A folder of format 1, written here as the build of that format did, becomes one of format 2.
#include "store/migrate.h"

#include <gtest/gtest.h>

#include <map>

#include "store/rows.h"
#include "tests/store/ledger_fixture.h"

namespace verbatim::store {
namespace {

class MigrateTest : public LedgerFixture {
 protected:
  // A log with some entries and hits of two tenants, in format 1.
  void MakeFormat1(KvMemory& kv, Keyring& ring) {
    std::vector<std::pair<std::string, std::string>> rows;
    ASSERT_TRUE(kv.Scan(Table::kHit, "", "", [&](std::string_view key, std::string_view value) {
                    rows.emplace_back(key, value);
                    return true;
                  }).ok());
    for (const auto& [key, value] : rows) {
      const HitRow row = DecodeHitRow(value).value();
      HitKeyDeriver keys(ring.Get(row.slot).value());
      const std::string joined =
          OpenPart(keys.KeyOfRow(key), ReadU64(key), Part::kHit, row.sealed).value();
      const auto records = SplitHitRecords(joined, row.commitments.size()).value();
      kv.Tamper(Table::kHit, key, std::nullopt);
      for (size_t i = 0; i < records.size(); ++i) {
        const std::string one = HitKey(ReadU64(key), key.substr(8, 16),
                                       ReadU32(key.substr(24)) + static_cast<uint32_t>(i));
        std::string old;
        AppendU64(old, row.slot);
        old += AsBytes(row.commitments[i]);
        old += SealPart(keys.KeyOfRow(one), ReadU64(key), Part::kHit, records[i]);
        kv.Tamper(Table::kHit, one, old);
        const std::string id = ParseHitRecord(records[i])->request_id;
        kv.Tamper(Table::kReceipt, id, "H" + key.substr(8, 16) + one);
      }
    }
    kv.Tamper(Table::kMeta, kMetaFormat, "1");
  }

  // The folder of a log with hits, and its database in format 1.
  std::unique_ptr<KvMemory> Format1() {
    auto kv = std::make_unique<KvMemory>();
    {
      auto ledger = Open(kv.get());
      const uint64_t result = ledger->Append(Generated("q", "acme", "first"))->entry;
      std::vector<HitRequest> hits;
      for (int i = 0; i < 30; ++i) {
        hits.push_back(HitOf(result, "hit-" + std::to_string(i), i % 3 ? "acme" : "globex",
                             i % 2 ? "alice" : "bob"));
      }
      for (const Status& status : ledger->RecordHits(hits)) EXPECT_TRUE(status.ok());
      EXPECT_TRUE(ledger->Close().ok());
      for (const HitRequest& hit : hits) {
        const Receipt receipt = ledger->FindReceipt(hit.request_id).value();
        commitments_[hit.request_id] = receipt.hit->commitment;
      }
    }
    MakeFormat1(*kv, *Ring());
    return kv;
  }

  std::unique_ptr<Keyring> Ring() {
    const DataFolder folder = DataFolder::Unlocked(folder_.path());
    keys_ = LoadKeys(folder, "", false).value();
    return Keyring::Open(folder.keyring() + "/hits", "hits", *keys_.wrapper, false).value();
  }

  std::map<std::string, Digest> commitments_;
  Keys keys_;
};

TEST_F(MigrateTest, AnOldFolderIsMigratedAtItsStart) {
  const auto kv = Format1();
  auto ledger = Open(kv.get());
  for (const auto& [id, commitment] : commitments_) {
    const Receipt receipt = ledger->FindReceipt(id).value();
    ASSERT_TRUE(receipt.hit.has_value()) << id;
    EXPECT_EQ(receipt.hit->commitment, commitment) << id;
    EXPECT_EQ(Commitment(receipt.hit->salt, Sha256(receipt.hit->record)), commitment) << id;
  }
  EXPECT_EQ(ledger->FindReceipt("first")->entry, 1u);
  ASSERT_TRUE(ledger->RecordHit(HitOf(1, "new")).ok());
  ASSERT_TRUE(ledger->Close().ok());
  const FsckReport report = Check(*kv);
  EXPECT_TRUE(report.clean()) << Findings(report);
  EXPECT_EQ(report.hits, 31u);
}

// Every durable step fails once, in both ways, and a new start goes on from what is stored.
TEST_F(MigrateTest, AKillAtAnyStepLosesNothing) {
  const auto original = Format1();
  const auto ring = Ring();
  for (const KvMemory::Fault fault :
       {KvMemory::Fault::kNotPersisted, KvMemory::Fault::kPersistedButReported}) {
    int n = 1;
    for (bool failed = true; failed; ++n) {
      SCOPED_TRACE(n);
      ASSERT_LT(n, 100);
      auto kv = original->Clone();
      kv->FailCommit(n, fault);
      MigrationOptions options;
      options.rows_a_step = 7;
      failed = !Migrate(*kv, *ring, options).ok();
      auto restarted = kv->Clone();
      ASSERT_TRUE(Migrate(*restarted, *ring, options).ok());
      EXPECT_EQ(restarted->Get(Table::kMeta, kMetaFormat).value(), kFormatVersion);
      const FsckReport report = Check(*restarted);
      EXPECT_TRUE(report.clean()) << Findings(report);
      EXPECT_EQ(report.hits, 30u);
    }
    EXPECT_GT(n, 10);  // begin, hits, receipts, end
  }
}

TEST_F(MigrateTest, ADamagedRowEndsItAndChangesNothing) {
  const auto kv = Format1();
  const auto ring = Ring();
  std::string key, value;
  ASSERT_TRUE(kv->Scan(Table::kHit, "", "", [&](std::string_view k, std::string_view v) {
                  key = k, value = v;
                  return false;
                }).ok());
  value.back() ^= 1;
  kv->Tamper(Table::kHit, key, value);
  const Result<std::unique_ptr<Ledger>> opened = TryOpen(kv.get());
  ASSERT_FALSE(opened.ok());
  EXPECT_EQ(opened.error().code, Code::kCorrupt);
  EXPECT_EQ(kv->Get(Table::kHit, key).value(), value);
}

TEST_F(MigrateTest, AnUnknownFormatIsRefused) {
  for (const char* format : {"3", "0", "1>3", "", "2 "}) {
    const auto kv = Format1();
    kv->Tamper(Table::kMeta, kMetaFormat, format);
    const Result<std::unique_ptr<Ledger>> opened = TryOpen(kv.get());
    ASSERT_FALSE(opened.ok()) << format;
    EXPECT_EQ(opened.error().code, Code::kFailedPrecondition);
    EXPECT_EQ(opened.error().message.find("the database has format"), 0u) << opened.error().message;
    TemporaryFolder next;
    std::swap(folder_, next);
  }
}

}  // namespace
}  // namespace verbatim::store
