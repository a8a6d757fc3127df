// Hits in groups: one write, as if each had been recorded by itself.
#include <chrono>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "ledger_fixture.h"
#include "store/rows.h"

namespace verbatim::store {
namespace {

class HitsTest : public LedgerFixture {
 protected:
  std::unique_ptr<Ledger> OpenWithLongIntervals(Kv* kv, int64_t micros = 60'000'000) {
    LedgerOptions options;
    options.hit_interval_micros = micros;
    return Open(kv, std::move(options));
  }
};

TEST_F(HitsTest, AGroupOfManyTenantsAndSubjectsIsRecordedWhole) {
  auto ledger = OpenWithLongIntervals(nullptr);
  const uint64_t result = ledger->Append(Generated("q"))->entry;
  std::vector<HitRequest> group;
  for (int i = 0; i < 40; ++i) {
    group.push_back(HitOf(result, "hit-" + std::to_string(i), i % 4 ? "acme" : "globex",
                          i % 3 ? "alice" : "bob"));
    group.back().new_request_id = i % 2 == 0;
  }
  for (const Status& status : ledger->RecordHits(group)) EXPECT_TRUE(status.ok());
  EXPECT_FALSE(ledger->FindReceipt("hit-7")->entry.has_value());  // pending
  ASSERT_TRUE(ledger->Close().ok());

  std::map<std::pair<uint64_t, bool>, uint64_t> counts;  // of the leaves, of alice or bob
  for (int i = 0; i < 40; ++i) {
    SCOPED_TRACE(i);
    const Receipt receipt = ledger->FindReceipt("hit-" + std::to_string(i)).value();
    ASSERT_TRUE(receipt.entry && receipt.hit);
    const Leaf leaf = ledger->Entry(*receipt.entry, false)->leaf;
    EXPECT_EQ(leaf.tenant, ledger->Pseudonym(i % 4 ? "acme" : "globex"));
    EXPECT_EQ(receipt.hit->count, i % 4 ? 30u : 10u);
    const Digest root =
        HexDecodeDigest(leaf.detail.Find("hits")->Find("root")->as_string()).value();
    EXPECT_TRUE(VerifyInclusion(receipt.hit->number, receipt.hit->count,
                                LeafHash(AsBytes(receipt.hit->commitment)), receipt.hit->path, root)
                    .ok());
    // Each subject's in the order of the group, alice's first.
    uint64_t& next = counts[{*receipt.entry, i % 3 != 0}];
    if (next == 0 && i % 3 == 0) next = i % 4 ? 20 : 6;
    EXPECT_EQ(receipt.hit->number, next++);
  }
  ledger.reset();
  const FsckReport report = Fsck(folder_.path(), {}).value();
  EXPECT_TRUE(report.clean()) << Findings(report);
  EXPECT_EQ(report.hits, 40u);
}

TEST_F(HitsTest, WhatIsWrongWithOneIsNoOthers) {
  KvMemory kv;
  auto ledger = OpenWithLongIntervals(&kv);
  const uint64_t result = ledger->Append(Generated("q", "acme", "taken"))->entry;
  std::vector<HitRequest> group = {
      HitOf(result, "a"),           HitOf(result, "taken", "globex"), HitOf(result, "b", "globex"),
      HitOf(result, "a", "globex"), HitOf(result, "b", "globex"),
  };
  std::vector<Status> statuses = ledger->RecordHits(group);
  EXPECT_TRUE(statuses[0].ok());
  EXPECT_EQ(statuses[1].error().code, Code::kAlreadyExists);  // an entry's
  EXPECT_TRUE(statuses[2].ok());
  EXPECT_EQ(statuses[3].error().code, Code::kAlreadyExists);  // of the same group
  EXPECT_TRUE(statuses[4].ok());                              // its own again

  group = {HitOf(result, "c"), HitOf(result + 100, "d"), HitOf(result, std::string(257, 'x')),
           HitOf(result, "e")};
  statuses = ledger->RecordHits(group);
  EXPECT_TRUE(statuses[0].ok());
  EXPECT_EQ(statuses[1].error().code, Code::kInvalid);
  EXPECT_EQ(statuses[2].error().code, Code::kInvalid);
  EXPECT_TRUE(statuses[3].ok());
  EXPECT_TRUE(ledger->RecordHits({}).empty());
  ledger.reset();
  const FsckReport report = Check(kv);
  EXPECT_TRUE(report.clean()) << Findings(report);
  EXPECT_EQ(report.hits, 5u);
}

TEST_F(HitsTest, AGroupWhoseWriteFailsIsRefusedWholeAndItsNumbersAreNotUsedAgain) {
  for (const KvMemory::Fault fault :
       {KvMemory::Fault::kNotPersisted, KvMemory::Fault::kPersistedButReported}) {
    SCOPED_TRACE(static_cast<int>(fault));
    TemporaryFolder place;
    std::swap(folder_, place);
    KvMemory kv;
    auto ledger = OpenWithLongIntervals(&kv, 200'000);  // the ledger's thread recovers after it
    const uint64_t result = ledger->Append(Generated("q"))->entry;
    ASSERT_TRUE(ledger->RecordHit(HitOf(result, "before")).ok());
    kv.FailCommit(1, fault);
    const std::vector<HitRequest> group = {HitOf(result, "x"), HitOf(result, "y")};
    for (const Status& status : ledger->RecordHits(group)) {
      EXPECT_EQ(status.error().code, Code::kIo);
    }
    Status later = Error{};
    for (int i = 0; i < 300 && !later.ok(); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      later = ledger->RecordHit(HitOf(result, "after"));
    }
    ASSERT_TRUE(later.ok());
    ASSERT_TRUE(ledger->Close().ok());
    EXPECT_TRUE(ledger->FindReceipt("before")->entry.has_value());
    EXPECT_TRUE(ledger->FindReceipt("after")->entry.has_value());
    EXPECT_NE(ledger->FindReceipt("before")->entry, ledger->FindReceipt("after")->entry);
    const bool stored = fault == KvMemory::Fault::kPersistedButReported;
    EXPECT_EQ(ledger->FindReceipt("x").ok(), stored);
    ledger.reset();
    const FsckReport report = Check(kv);
    EXPECT_TRUE(report.clean()) << Findings(report);
    EXPECT_EQ(report.hits, stored ? 4u : 2u);
    std::swap(folder_, place);
  }
}

TEST_F(HitsTest, GroupsOfManyThreadsShareAnInterval) {
  auto ledger = OpenWithLongIntervals(nullptr);
  const uint64_t result = ledger->Append(Generated("q"))->entry;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int round = 0; round < 25; ++round) {
        std::vector<HitRequest> group;
        for (int i = 0; i < 5; ++i) {
          group.push_back(HitOf(result, "hit-" + std::to_string(t) + "-" + std::to_string(round) +
                                            "-" + std::to_string(i)));
        }
        for (const Status& status : ledger->RecordHits(group)) CHECK(status.ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  ledger.reset();
  const FsckReport report = Fsck(folder_.path(), {}).value();
  EXPECT_TRUE(report.clean()) << Findings(report);
  EXPECT_EQ(report.hits, 500u);
}

// The record's text is written by hand: it must be what the canonical writer makes of the object.
TEST(HitRecordTest, ItsTextIsCanonicalJson) {
  const json::Value extra =
      json::Parse(R"({"include_usage":false,"form":"plain","é":[1.0,"\u0007"]})").value();
  const HitRecord records[] = {
      {},
      {Kind::kHit, "acme", "alice", "key-1", "req_1", 7, 1796054400000001, extra},
      {Kind::kJoined, "a\"c\\me", "ali\nce\x01", "ключ", "\xf0\x9f\x98\x80", UINT64_MAX, 1, {}},
  };
  for (const HitRecord& record : records) {
    const std::string text = record.extra.is_null() ? "" : json::Canonical(record.extra);
    const std::string bytes =
        EncodeHitRecord({record.kind, record.tenant, record.subject, record.key_id,
                         record.request_id, record.result, record.time, text});
    const Result<json::Value> value = json::Parse(bytes);
    ASSERT_TRUE(value.ok()) << bytes;
    EXPECT_EQ(json::Canonical(*value), bytes);
    const Result<HitRecord> back = ParseHitRecord(bytes);
    ASSERT_TRUE(back.ok()) << bytes;
    EXPECT_EQ(back->kind, record.kind);
    EXPECT_EQ(back->tenant, record.tenant);
    EXPECT_EQ(back->subject, record.subject);
    EXPECT_EQ(back->key_id, record.key_id);
    EXPECT_EQ(back->request_id, record.request_id);
    EXPECT_EQ(back->result, record.result);
    EXPECT_EQ(back->time, record.time);
    EXPECT_EQ(back->extra, record.extra);
  }
}

}  // namespace
}  // namespace verbatim::store
