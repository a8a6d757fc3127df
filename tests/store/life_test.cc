// Holds, erasure and pruning: what they refuse, what they destroy, and what stays provable.
#include "store/life.h"

#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <map>

#include "store/carry.h"
#include "store/control.h"
#include "store/rows.h"
#include "tests/store/ledger_fixture.h"

namespace verbatim::store {
namespace {

namespace fs = std::filesystem;
using Verb = LifeCommand::Verb;

LifeCommand Command(Verb verb) {
  LifeCommand command;
  command.verb = verb;
  command.reason = "article 17 request";
  command.authority = "privacy office 2026-113";
  command.by = "test";
  return command;
}
LifeCommand OfEntry(Verb verb, uint64_t entry) {
  LifeCommand command = Command(verb);
  command.entries = {entry, entry};
  return command;
}
LifeCommand OfSubject(Verb verb, const std::string& subject, const std::string& tenant = "acme") {
  LifeCommand command = Command(verb);
  command.subject = subject;
  command.tenant = tenant;
  return command;
}
LifeCommand PruneBefore(uint64_t entry) {
  LifeCommand command = Command(Verb::kPrune);
  command.before = entry;
  return command;
}
AppendRequest Kept(const std::string& request, uint64_t seconds) {
  AppendRequest append = Generated(request);
  append.record.extra = json::Object{{"retention_seconds", seconds}};
  return append;
}

class LifeTest : public LedgerFixture {
 protected:
  std::string path(const std::string& name) const { return folder_.path() + "/" + name; }
  LedgerOptions Clocked() {
    LedgerOptions options;
    options.now = [this] { return now_; };
    options.hit_interval_micros = 60'000'000;
    return options;
  }
  static uint64_t Append(Ledger& ledger, AppendRequest request) {
    return ledger.Append(std::move(request)).value().entry;
  }
  void ExpectClean(const Kv& kv) {
    const FsckReport report = Check(kv);
    EXPECT_TRUE(report.clean()) << Findings(report);
  }
  // The keyring as it is on the disk now, by another reader than the ledger's own.
  std::unique_ptr<Keyring> Ring(const std::string& name) {
    keys_ = LoadKeys(DataFolder::Unlocked(folder_.path()), "", false).value();
    return Keyring::Open(path("keyring/") + name, name, *keys_.wrapper, false).value();
  }
  // The bytes in the keyring that seal this slot's keys.
  std::string SealedRow(const std::string& ring, uint64_t slot) {
    const std::string file =
        ReadFile(path("keyring/") + ring + "/" + (slot < 4096 ? "00000000" : "00000001") + ".keys")
            .value();
    return file.substr(file.size() - (4096 - slot % 4096) * 92, 92);
  }
  // Every file of the data folder whose bytes hold `secret`.
  std::vector<std::string> FilesWith(const std::string& secret) const {
    std::vector<std::string> found;
    for (const fs::directory_entry& file : fs::recursive_directory_iterator(folder_.path())) {
      if (!file.is_regular_file()) continue;
      const Result<std::string> bytes = ReadFile(file.path());
      // The open ledger replaces its checkpoint meanwhile.
      if (!bytes.ok() && !file.exists()) continue;
      if (bytes.value().find(secret) != std::string::npos) found.push_back(file.path());
    }
    return found;
  }
  Keys keys_;
  int64_t now_ = 1'796'054'400'000'000;
};

TEST_F(LifeTest, AHoldRefusesErasureUntilItIsReleased) {
  KvMemory kv;
  auto ledger = Open(&kv);
  const uint64_t entry = Append(*ledger, Generated("q"));
  const uint64_t other = Append(*ledger, Generated("r"));
  ASSERT_EQ(ledger->Apply(OfEntry(Verb::kHold, entry)).value().outcome, "ok");
  const LifeReport refused = ledger->Apply(OfEntry(Verb::kShred, entry)).value();
  EXPECT_EQ(refused.outcome, "held");
  EXPECT_EQ(refused.held, 1u);
  const EntryView said = ledger->Entry(*refused.entry, true).value();
  EXPECT_EQ(said.leaf.kind, Kind::kErased);
  EXPECT_EQ(said.leaf.outcome, "held");
  EXPECT_EQ(said.record->extra.Find("authority")->as_string(), "privacy office 2026-113");
  EXPECT_TRUE(ledger->Lookup("acme", FingerprintOf("q")).value().has_value());

  // Another selector is no release of it, and another entry is not held.
  EXPECT_EQ(ledger->Apply(OfEntry(Verb::kRelease, other)).error().code, Code::kNotFound);
  EXPECT_EQ(ledger->Apply(OfEntry(Verb::kShred, other)).value().entries, 1u);
  ledger.reset();
  ledger = Open(&kv);  // a hold survives a restart
  EXPECT_EQ(ledger->Apply(OfEntry(Verb::kShred, entry)).value().outcome, "held");
  EXPECT_EQ(ledger->Apply(OfEntry(Verb::kRelease, entry)).value().entries, 1u);
  EXPECT_EQ(ledger->Apply(OfEntry(Verb::kShred, entry)).value().outcome, "ok");
  EXPECT_FALSE(ledger->Lookup("acme", FingerprintOf("q")).value().has_value());
  // Again: there is nothing left to do.
  EXPECT_FALSE(ledger->Apply(OfEntry(Verb::kShred, entry)).value().entry.has_value());
  ASSERT_TRUE(ledger->Close().ok());
  ExpectClean(kv);
}

TEST_F(LifeTest, AnErasedResultIsMadeAgainAndItsProofStays) {
  KvMemory kv;
  auto ledger = Open(&kv);
  const uint64_t first = Append(*ledger, Generated("q", "acme", "id-1"));
  // Beside the first: it serves no hits while that is there.
  EXPECT_FALSE(ledger->Append(Generated("q")).value().serves_hits);
  const EntryProof before = WaitForProof(*ledger, first);
  ASSERT_TRUE(ledger->Apply(OfEntry(Verb::kShred, first)).ok());
  EXPECT_FALSE(ledger->Entry(first, true).value().record.has_value());
  EXPECT_EQ(ledger->FindReceipt("id-1").value().entry, first);
  const EntryProof proof = WaitForProof(*ledger, first);
  EXPECT_EQ(proof.leaf_hash, before.leaf_hash);
  const Appended again = ledger->Append(Generated("q")).value();
  EXPECT_TRUE(again.serves_hits);
  EXPECT_EQ(ledger->Lookup("acme", FingerprintOf("q")).value()->entry, again.entry);
  ASSERT_TRUE(ledger->Close().ok());
  ExpectClean(kv);
}

TEST_F(LifeTest, RetentionRefusesErasureUntilItsEnd) {
  KvMemory kv;
  auto ledger = Open(&kv, Clocked());
  const uint64_t kept = Append(*ledger, Kept("q", 3600));
  const uint64_t free = Append(*ledger, Generated("r"));
  LifeCommand both = Command(Verb::kShred);
  both.entries = {kept, free};
  LifeReport report = ledger->Apply(both).value();
  EXPECT_EQ(report.outcome, "retained");
  EXPECT_EQ(report.retained, 1u);
  EXPECT_TRUE(ledger->Entry(free, true).value().record.has_value());
  both.partial = true;
  report = ledger->Apply(both).value();
  EXPECT_EQ(report.outcome, "ok");
  EXPECT_EQ(report.entries, 1u);
  EXPECT_TRUE(ledger->Entry(kept, true).value().record.has_value());
  EXPECT_FALSE(ledger->Entry(free, true).value().record.has_value());
  now_ += 3'599'000'000;
  EXPECT_EQ(ledger->Apply(OfEntry(Verb::kShred, kept)).value().outcome, "retained");
  now_ += 1'000'000;
  EXPECT_EQ(ledger->Apply(OfEntry(Verb::kShred, kept)).value().outcome, "ok");
  ASSERT_TRUE(ledger->Close().ok());
  ExpectClean(kv);
}

TEST_F(LifeTest, ASubjectsKeysAreInNoFileAnyMore) {
  std::vector<std::string> secrets;
  std::vector<uint64_t> alices;
  {
    auto ledger = Open(nullptr, Clocked());
    for (int i = 0; i < 3; ++i) {
      alices.push_back(Append(*ledger, Generated("a" + std::to_string(i))));
      AppendRequest bobs = Generated("b" + std::to_string(i));
      bobs.record.subject = "bob";
      Append(*ledger, std::move(bobs));
    }
    std::vector<HitRequest> hits;
    for (int i = 0; i < 6; ++i) {
      hits.push_back(HitOf(alices[0], "hit-" + std::to_string(i), "acme", i % 2 ? "alice" : "bob"));
      hits.push_back(HitOf(alices[0], "other-" + std::to_string(i), "globex", "alice"));
    }
    for (const Status& status : ledger->RecordHits(hits)) ASSERT_TRUE(status.ok());
    // Alice's keys: of her entries, and of her slot (the first: tenants and subjects in order).
    for (const uint64_t entry : alices) {
      const SlotKeys keys = Ring("entries")->Get(entry).value();
      secrets.insert(secrets.end(), {keys.key, keys.salt, SealedRow("entries", entry)});
    }
    const SlotKeys slot = Ring("hits")->Get(0).value();
    secrets.insert(secrets.end(), {slot.key, slot.salt, SealedRow("hits", 0)});
    ASSERT_EQ(FilesWith(secrets.back()).size(), 1u);
    Ranges forgotten;
    ledger->OnErased([&](const Ranges& entries) {
      // What is told is no hit any more.
      EXPECT_FALSE(ledger->Lookup("acme", FingerprintOf("a0")).value().has_value());
      forgotten = entries;
    });
    const LifeReport report = ledger->Apply(OfSubject(Verb::kShred, "alice")).value();
    EXPECT_EQ(report.outcome, "ok");
    EXPECT_EQ(report.entries, 3u);
    EXPECT_EQ(report.hits_slots, 1u);
    EXPECT_EQ(forgotten.count(), 3u);
    for (const std::string& secret : secrets) EXPECT_TRUE(FilesWith(secret).empty());
    // The entry does not name her.
    const EntryView said = ledger->Entry(*report.entry, true).value();
    EXPECT_EQ(EncodeRecord(*said.record).find("alice"), std::string::npos);

    for (int i = 0; i < 6; ++i) {
      const Receipt receipt = ledger->FindReceipt("hit-" + std::to_string(i)).value();
      ASSERT_TRUE(receipt.entry && receipt.hit);
      EXPECT_EQ(receipt.hit->erased, i % 2 == 1);
      EXPECT_EQ(receipt.hit->record.empty(), i % 2 == 1);
      const Digest root = HexDecodeDigest(ledger->Entry(*receipt.entry, false)
                                              ->leaf.detail.Find("hits")
                                              ->Find("root")
                                              ->as_string())
                              .value();
      EXPECT_TRUE(VerifyInclusion(receipt.hit->number, receipt.hit->count,
                                  LeafHash(AsBytes(receipt.hit->commitment)), receipt.hit->path,
                                  root)
                      .ok());
      EXPECT_FALSE(ledger->FindReceipt("other-" + std::to_string(i)).value().hit->erased);
    }
    // Her next hit has other keys.
    ASSERT_TRUE(ledger->RecordHit(HitOf(alices[0] + 1, "later", "acme", "alice")).ok());
    EXPECT_FALSE(ledger->FindReceipt("later").value().hit->erased);
  }
  for (const std::string& secret : secrets) EXPECT_TRUE(FilesWith(secret).empty());
  const FsckReport report = Fsck(folder_.path(), {.deep = true}).value();
  EXPECT_TRUE(report.clean()) << Findings(report);
  EXPECT_EQ(report.erased, 3u);
}

TEST_F(LifeTest, WhatBelongsToAnEntryGoesWithIt) {
  KvMemory kv;
  auto ledger = Open(&kv);
  AppendRequest intent = Generated("q");
  intent.kind = Kind::kIntent;
  intent.opens_intent = true;
  intent.record.serves_hits = false;
  intent.response.clear();
  const uint64_t asked = Append(*ledger, std::move(intent));
  AppendRequest answer = Generated("q");
  answer.closes_intent = asked;
  const uint64_t answered = Append(*ledger, std::move(answer));
  AppendRequest again = Generated("q");
  again.kind = Kind::kDiverged;
  again.record.serves_hits = false;
  again.record.subject.clear();
  again.references.push_back({"verifies", answered});
  const uint64_t diverged = Append(*ledger, std::move(again));
  const uint64_t other = Append(*ledger, Generated("r"));
  const LifeReport report = ledger->Apply(OfEntry(Verb::kShred, answered)).value();
  EXPECT_EQ(report.entries, 3u);
  for (const uint64_t entry : {asked, answered, diverged}) {
    EXPECT_FALSE(ledger->Entry(entry, true).value().record.has_value()) << entry;
  }
  EXPECT_TRUE(ledger->Entry(other, true).value().record.has_value());
  ASSERT_TRUE(ledger->Close().ok());
  ExpectClean(kv);
}

// The entry is stored, the keys are not destroyed yet: the next start does it.
TEST_F(LifeTest, AKillAfterTheEntryIsCompletedAtTheNextStart) {
  for (const bool prune : {false, true}) {
    SCOPED_TRACE(prune);
    TemporaryFolder place;
    std::swap(folder_, place);
    KvMemory kv;
    const auto kept = [&] { return path("keyring-before"); };
    uint64_t entry = 0, erased = 0;
    std::string sealed;
    std::vector<std::tuple<Table, std::string, std::string>> rows;
    {
      auto ledger = Open(&kv, Clocked());
      erased = Append(*ledger, Generated("q"));
      sealed = SealedRow("entries", erased);
      ASSERT_TRUE(ledger->RecordHit(HitOf(erased, "hit")).ok());
      LifeCommand note = Command(Verb::kBackup);  // ends the interval of the hit
      note.backup = path("nowhere");
      ASSERT_TRUE(ledger->Apply(note).ok());
      fs::copy(path("keyring"), kept(), fs::copy_options::recursive);
      for (const Table table : {Table::kRecord, Table::kPayload, Table::kHit}) {
        ASSERT_TRUE(kv.Scan(table, "", "", [&](std::string_view key, std::string_view value) {
                        rows.emplace_back(table, key, value);
                        return true;
                      }).ok());
      }
      entry = *ledger->Apply(prune ? PruneBefore(erased + 2) : OfSubject(Verb::kShred, "alice"))
                   .value()
                   .entry;
      ASSERT_TRUE(ledger->Close().ok());
    }
    fs::remove_all(path("keyring"));
    fs::rename(kept(), path("keyring"));
    fs::remove(path("erasures"));
    std::ofstream(path("keyring/entries/00000000.keys.new")) << sealed;  // of a torn write
    for (const auto& [table, key, value] : rows) kv.Tamper(table, key, value);
    kv.Tamper(Table::kMeta, kMetaErasing + EntryKey(entry), "");
    ExpectClean(kv);  // half-way is no damage
    auto ledger = Open(&kv, Clocked());
    EXPECT_FALSE(ledger->Entry(erased, true).value().record.has_value());
    EXPECT_TRUE(ledger->FindReceipt("hit").value().hit->erased);
    EXPECT_TRUE(FilesWith(sealed).empty());
    EXPECT_FALSE(kv.Get(Table::kMeta, kMetaErasing + EntryKey(entry)).value().has_value());
    EXPECT_NE(ReadFile(path("erasures")).value().find("\"entry\":" + std::to_string(entry)),
              std::string::npos);
    ASSERT_TRUE(ledger->Close().ok());
    ExpectClean(kv);
  }
}

// Each commit of an erasure fails once, in each way; a restart and a second try come to the same.
TEST_F(LifeTest, EveryWriteOfAnErasureFailsOnce) {
  for (const KvMemory::Fault fault :
       {KvMemory::Fault::kNotPersisted, KvMemory::Fault::kPersistedButReported}) {
    for (int n = 1; n <= 3; ++n) {
      SCOPED_TRACE(n);
      TemporaryFolder place;
      std::swap(folder_, place);
      KvMemory kv;
      uint64_t entry = 0;
      {
        auto ledger = Open(&kv, Clocked());
        entry = Append(*ledger, Generated("q"));
        ASSERT_TRUE(ledger->RecordHit(HitOf(entry, "hit")).ok());
        kv.FailCommit(n, fault);
        EXPECT_FALSE(ledger->Apply(OfSubject(Verb::kShred, "alice")).ok());
        ledger->Close().ok();
      }
      ASSERT_TRUE(kv.Recover().ok());
      auto ledger = Open(&kv, Clocked());
      ASSERT_TRUE(ledger->Apply(OfSubject(Verb::kShred, "alice")).ok());
      EXPECT_FALSE(ledger->Entry(entry, true).value().record.has_value());
      EXPECT_TRUE(ledger->FindReceipt("hit").value().hit->erased);
      ASSERT_TRUE(ledger->Close().ok());
      ExpectClean(kv);
    }
  }
}

TEST_F(LifeTest, PruningVerifiesAsPrunedAndTheSameRowsRemovedOtherwiseFail) {
  KvMemory kv;
  uint64_t before = 0, held = 0, kept = 0, after = 0, hits = 0;
  {
    auto ledger = Open(&kv, Clocked());
    const uint64_t first = Append(*ledger, Generated("q0", "acme", "id-0"));
    held = Append(*ledger, Generated("q1"));
    kept = Append(*ledger, Kept("q2", 1'000'000));
    ASSERT_TRUE(ledger->RecordHit(HitOf(first, "hit")).ok());
    ASSERT_TRUE(ledger->Apply(OfEntry(Verb::kHold, held)).ok());
    LifeCommand note = Command(Verb::kBackup);  // ends the interval of the hit
    note.backup = path("nowhere");
    ASSERT_TRUE(ledger->Apply(note).ok());
    hits = *ledger->FindReceipt("hit").value().entry;
    now_ += 5'000'000;
    after = Append(*ledger, Generated("q3"));
    before = after;
    LifeCommand by_time = Command(Verb::kPrune);
    by_time.before_time = now_ - 1;
    const LifeReport report = ledger->Apply(by_time).value();
    EXPECT_EQ(report.before, before);
    EXPECT_EQ(report.entries, 2u);  // the first, and the batch of hits
    EXPECT_EQ(report.held, 1u);
    EXPECT_EQ(report.retained, 1u);
    EXPECT_EQ(report.backups_not_reached, std::vector<std::string>{path("nowhere")});
    EXPECT_FALSE(kv.Get(Table::kRecord, EntryKey(first)).value().has_value());
    EXPECT_FALSE(ledger->Entry(first, true).value().record.has_value());
    EXPECT_FALSE(ledger->Lookup("acme", FingerprintOf("q0")).value().has_value());
    EXPECT_TRUE(ledger->Entry(held, true).value().record.has_value());
    EXPECT_TRUE(ledger->Entry(kept, true).value().record.has_value());
    EXPECT_TRUE(ledger->Lookup("acme", FingerprintOf("q3")).value().has_value());
    EXPECT_EQ(ledger->FindReceipt("id-0").value().entry, first);
    EXPECT_TRUE(ledger->FindReceipt("hit").value().hit->erased);
    EXPECT_FALSE(ledger->Apply(by_time).value().entry.has_value());  // once
    ASSERT_TRUE(ledger->Close().ok());
  }
  const FsckReport report = Check(kv);
  EXPECT_TRUE(report.clean()) << Findings(report);
  EXPECT_EQ(report.pruned_before, before);

  struct Case {
    const char* name;
    std::function<void(KvMemory&)> damage;
  };
  const std::string row_key = HitKey(0, std::string(16, '\0'), 0);
  const std::vector<Case> cases = {
      {"the record of what was kept",
       [&](auto& db) { db.Tamper(Table::kRecord, EntryKey(held), std::nullopt); }},
      {"a record after it",
       [&](auto& db) { db.Tamper(Table::kRecord, EntryKey(after), std::nullopt); }},
      {"a payload after it",
       [&](auto& db) {
         db.Tamper(Table::kPayload, PayloadKey(after, Part::kResponse), std::nullopt);
       }},
      {"a pruned leaf", [&](auto& db) { db.Tamper(Table::kLeaf, EntryKey(hits), std::nullopt); }},
      {"the rows of pruned hits",
       [&](auto& db) {
         std::string key;
         ASSERT_TRUE(db.Scan(Table::kHit, "", "", [&](std::string_view k, std::string_view) {
                         key = k;
                         return false;
                       }).ok());
         db.Tamper(Table::kHit, key, std::nullopt);
       }},
      {"the hold",
       [&](auto& db) {
         std::string key;
         ASSERT_TRUE(db.Scan(Table::kMeta, "hold/", "", [&](std::string_view k, std::string_view) {
                         key = k;
                         return false;
                       }).ok());
         db.Tamper(Table::kMeta, key, std::nullopt);
       }},
  };
  for (const Case& c : cases) {
    const auto damaged = kv.Clone();
    c.damage(*damaged);
    EXPECT_FALSE(Check(*damaged).clean()) << c.name;
  }
}

// Keys that go without an entry are damage, and so are keys that stay although one says otherwise.
TEST_F(LifeTest, FsckNamesKeysThatAreGoneOrThereAgainstTheEntries) {
  KvMemory kv;
  uint64_t erased = 0, other = 0;
  {
    auto ledger = Open(&kv);
    erased = Append(*ledger, Generated("q"));
    other = Append(*ledger, Generated("r"));
    fs::copy(path("keyring"), path("before"), fs::copy_options::recursive);
    ASSERT_TRUE(ledger->Apply(OfEntry(Verb::kShred, erased)).ok());
    ASSERT_TRUE(ledger->Close().ok());
  }
  ExpectClean(kv);
  Ranges slots;
  slots.Add(other);
  ASSERT_TRUE(Ring("entries")->Erase(slots).ok());
  FsckReport report = Check(kv);
  ASSERT_EQ(report.findings.size(), 1u) << Findings(report);
  EXPECT_EQ(report.findings[0].entry, other);
  fs::remove_all(path("keyring"));
  fs::rename(path("before"), path("keyring"));
  report = Check(kv);
  ASSERT_EQ(report.findings.size(), 1u) << Findings(report);
  EXPECT_EQ(report.findings[0].entry, erased);
}

TEST_F(LifeTest, ARunningServerCarriesItOutAndWaitsForReaders) {
  auto ledger = Open(nullptr);
  const uint64_t entry = Append(*ledger, Generated("q"));
  const DataFolder folder = DataFolder::Unlocked(folder_.path());
  const std::string line = "records " + json::Canonical(ToJson(OfEntry(Verb::kShred, entry)));
  {
    const auto lease = SnapshotLease::Request(folder);
    ASSERT_TRUE(lease.ok()) << lease.error().message;
    const auto busy = LifeReportFromAnswer(AskServer(folder, line).value());
    ASSERT_FALSE(busy.ok());
    EXPECT_EQ(busy.error().code, Code::kUnavailable);
  }
  const LifeReport report = CarryOut(folder_.path(), OfEntry(Verb::kShred, entry), nullptr).value();
  EXPECT_EQ(report.entries, 1u);
  EXPECT_EQ(report.outcome, "ok");
  EXPECT_EQ(ledger->Entry(*report.entry, true)->record->extra.Find("by")->as_string(),
            "uid " + std::to_string(::getuid()));
  LifeCommand unreasoned = OfEntry(Verb::kShred, entry);
  unreasoned.reason.clear();
  const auto refused = LifeReportFromAnswer(
      AskServer(folder, "records " + json::Canonical(ToJson(unreasoned))).value());
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, Code::kInvalid);
}

TEST(RangesTest, AddsMergesAndReadsBack) {
  Ranges ranges;
  for (const uint64_t n : {5, 1, 3, 9, 4, 10, 2, 0}) ranges.Add(n);
  EXPECT_EQ(json::Canonical(ranges.ToJson()), "[[0,5],[9,10]]");
  ranges.Add(4, 20);
  EXPECT_EQ(json::Canonical(ranges.ToJson()), "[[0,20]]");
  EXPECT_EQ(ranges.count(), 21u);
  EXPECT_TRUE(ranges.Contains(20));
  EXPECT_FALSE(ranges.Contains(21));
  for (const char* bad : {"[[1,0]]", "[[0,1],[2,3]]", "[[0,1],[1,3]]", "[1]", "[[1]]", "{}",
                          "[[0,9223372036854775807]]"}) {
    EXPECT_FALSE(Ranges::FromJson(json::Parse(bad).value()).ok()) << bad;
  }
}

}  // namespace
}  // namespace verbatim::store
