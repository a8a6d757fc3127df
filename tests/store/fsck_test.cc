// Each kind of damage, one at a time: fsck names it and where it is.
#include "store/fsck.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>

#include "store/control.h"
#include "store/rows.h"
#include "tests/store/ledger_fixture.h"

namespace verbatim::store {
namespace {

std::string Flip(std::string bytes, size_t at) {
  bytes.at(at) = static_cast<char>(bytes.at(at) ^ 1);
  return bytes;
}

class FsckTest : public LedgerFixture {
 protected:
  // Entries: 0 started, 1 to 5 generated, 6 two hits, 7 stopped.
  void SetUp() override {
    LedgerOptions options;
    options.hit_interval_micros = 60'000'000;
    auto ledger = Open(&kv_, std::move(options));
    for (int i = 1; i <= 5; ++i) {
      const std::string request = std::string("q") + std::to_string(i);
      CHECK(ledger->Append(Generated(request, "acme", request))->entry == uint64_t(i));
    }
    CHECK(ledger->RecordHit(HitOf(1, "hit-0")).ok());
    CHECK(ledger->RecordHit(HitOf(2, "hit-1")).ok());
    CHECK(ledger->Close().ok());
    index_key_ = LoadKeys(DataFolder::Unlocked(folder_.path()), "", false)
                     .value()
                     .IndexKey("acme", FingerprintOf("q3"));
  }

  std::string Row(Table table, std::string_view key) { return kv_.Get(table, key).value().value(); }
  void FlipRow(KvMemory& kv, Table table, const std::string& key, size_t at) {
    kv.Tamper(table, key, Flip(Row(table, key), at));
  }
  std::string FirstHitKey() {
    std::string first;
    CHECK(kv_.Scan(Table::kHit, "", "",
                   [&](std::string_view key, std::string_view) {
                     first = key;
                     return false;
                   })
              .ok());
    return first;
  }

  KvMemory kv_;
  std::string index_key_;
};

bool Names(const FsckReport& report, const std::string& kind, std::optional<uint64_t> entry) {
  for (const FsckFinding& finding : report.findings) {
    if (finding.kind == kind && finding.entry == entry) return true;
  }
  return false;
}

TEST_F(FsckTest, AGoodLedgerIsClean) {
  const FsckReport report = Check(kv_);
  EXPECT_TRUE(report.clean()) << Findings(report);
  EXPECT_EQ(report.entries, 8u);
  EXPECT_EQ(report.hits, 2u);
  EXPECT_EQ(report.checkpoint_size, 8u);
}

TEST_F(FsckTest, NamesEachDamagedRow) {
  const std::string state = Row(Table::kMeta, kMetaTree);
  const std::string hit = FirstHitKey();
  struct Case {
    const char* what;
    const char* kind;
    std::optional<uint64_t> entry;
    std::function<void(KvMemory&)> damage;
  };
  const Case cases[] = {
      {"leaf bit", "leaf", 3, [&](KvMemory& kv) { FlipRow(kv, Table::kLeaf, EntryKey(3), 40); }},
      {"leaf bit: node", "node", 3,
       [&](KvMemory& kv) { FlipRow(kv, Table::kLeaf, EntryKey(3), 40); }},
      {"leaf bit: checkpoint", "checkpoint", std::nullopt,
       [&](KvMemory& kv) { FlipRow(kv, Table::kLeaf, EntryKey(3), 40); }},
      {"leaf gone", "leaf", 2,
       [&](KvMemory& kv) { kv.Tamper(Table::kLeaf, EntryKey(2), std::nullopt); }},
      {"leaf of another entry", "leaf", 2,
       [&](KvMemory& kv) { kv.Tamper(Table::kLeaf, EntryKey(2), Row(Table::kLeaf, EntryKey(1))); }},
      {"tail gone", "leaf", 7,
       [&](KvMemory& kv) { kv.Tamper(Table::kLeaf, EntryKey(7), std::nullopt); }},
      {"leaf too many", "leaf", 8,
       [&](KvMemory& kv) { kv.Tamper(Table::kLeaf, EntryKey(8), Row(Table::kLeaf, EntryKey(7))); }},
      {"record bit", "record", 4,
       [&](KvMemory& kv) { FlipRow(kv, Table::kRecord, EntryKey(4), 30); }},
      {"record gone", "record", 4,
       [&](KvMemory& kv) { kv.Tamper(Table::kRecord, EntryKey(4), std::nullopt); }},
      {"record of another entry", "record", 4,
       [&](KvMemory& kv) {
         kv.Tamper(Table::kRecord, EntryKey(4), Row(Table::kRecord, EntryKey(5)));
       }},
      {"record too many", "record", 9,
       [&](KvMemory& kv) {
         kv.Tamper(Table::kRecord, EntryKey(9), Row(Table::kRecord, EntryKey(5)));
       }},
      {"request bit", "payload", 2,
       [&](KvMemory& kv) { FlipRow(kv, Table::kPayload, PayloadKey(2, Part::kRequest), 15); }},
      {"response bit", "payload", 2,
       [&](KvMemory& kv) { FlipRow(kv, Table::kPayload, PayloadKey(2, Part::kResponse), 15); }},
      {"trace gone", "payload", 5,
       [&](KvMemory& kv) {
         kv.Tamper(Table::kPayload, PayloadKey(5, Part::kTrace), std::nullopt);
       }},
      {"response as trace", "payload", 5,
       [&](KvMemory& kv) {
         kv.Tamper(Table::kPayload, PayloadKey(5, Part::kTrace),
                   Row(Table::kPayload, PayloadKey(5, Part::kResponse)));
       }},
      {"payload nobody names", "payload", 0,
       [&](KvMemory& kv) { kv.Tamper(Table::kPayload, PayloadKey(0, Part::kTrace), "x"); }},
      {"index points elsewhere", "index", 4,
       [&](KvMemory& kv) { kv.Tamper(Table::kIndex, index_key_, EncodeU64(4)); }},
      {"index beyond the end", "index", 99,
       [&](KvMemory& kv) { kv.Tamper(Table::kIndex, index_key_, EncodeU64(99)); }},
      {"index row gone", "index", 3,
       [&](KvMemory& kv) { kv.Tamper(Table::kIndex, index_key_, std::nullopt); }},
      {"index of nothing", "index", 3,
       [&](KvMemory& kv) { kv.Tamper(Table::kIndex, Flip(index_key_, 0), EncodeU64(3)); }},
      {"receipt elsewhere", "receipt", 3,
       [&](KvMemory& kv) { kv.Tamper(Table::kReceipt, "q3", Row(Table::kReceipt, "q2")); }},
      {"receipt gone", "receipt", 3,
       [&](KvMemory& kv) { kv.Tamper(Table::kReceipt, "q3", std::nullopt); }},
      {"node bit", "node", 3, [&](KvMemory& kv) { FlipRow(kv, Table::kNode, NodeKey(1, 1), 5); }},
      {"node gone", "node", 3,
       [&](KvMemory& kv) { kv.Tamper(Table::kNode, NodeKey(2, 0), std::nullopt); }},
      {"node too many", "node", std::nullopt,
       [&](KvMemory& kv) { kv.Tamper(Table::kNode, NodeKey(9, 0), std::string(32, 'x')); }},
      {"tree state bit", "tree", std::nullopt,
       [&](KvMemory& kv) { FlipRow(kv, Table::kMeta, kMetaTree, 20); }},
      {"tree state gone", "tree", std::nullopt,
       [&](KvMemory& kv) { kv.Tamper(Table::kMeta, kMetaTree, std::nullopt); }},
      {"tree state behind", "checkpoint", 7,
       [&](KvMemory& kv) {
         TreeState behind = DecodeTreeState(state).value();
         CompactRange tree;
         for (uint64_t i = 0; i < 7; ++i) {
           tree.Append(LeafHash(Row(Table::kLeaf, EntryKey(i))), nullptr);
         }
         behind.tree = tree;
         kv.Tamper(Table::kMeta, kMetaTree, EncodeTreeState(behind));
       }},
      {"tenant's counter", "tenant", std::nullopt,
       [&](KvMemory& kv) {
         CHECK(kv_.Scan(Table::kTenant, "", "",
                        [&](std::string_view key, std::string_view) {
                          kv.Tamper(Table::kTenant, key, EncodeU64(3));
                          return true;
                        })
                   .ok());
       }},
      {"hit bit", "hit", std::nullopt, [&](KvMemory& kv) { FlipRow(kv, Table::kHit, hit, 60); }},
      {"hit's commitment", "hit", 6, [&](KvMemory& kv) { FlipRow(kv, Table::kHit, hit, 20); }},
      {"hit gone", "hit", 6, [&](KvMemory& kv) { kv.Tamper(Table::kHit, hit, std::nullopt); }},
      {"format version", "meta", std::nullopt,
       [&](KvMemory& kv) { kv.Tamper(Table::kMeta, kMetaFormat, "7"); }},
  };
  for (const Case& c : cases) {
    const auto damaged = kv_.Clone();
    c.damage(*damaged);
    const FsckReport report = Check(*damaged);
    EXPECT_TRUE(Names(report, c.kind, c.entry))
        << c.what << ": want " << c.kind << " " << (c.entry ? std::to_string(*c.entry) : "-")
        << ", got:\n"
        << Findings(report);
  }
}

TEST_F(FsckTest, NamesEachDamagedFile) {
  const std::string segment = folder_.path() + "/keyring/entries/00000000.keys";
  const std::string checkpoint = folder_.path() + "/checkpoint";
  const std::string segment_bytes = ReadFile(segment).value();
  const std::string checkpoint_bytes = ReadFile(checkpoint).value();
  constexpr size_t kRow = 92, kHeader = 32 + 60;
  ASSERT_EQ(segment_bytes.size(), kHeader + 4096 * kRow);
  struct Case {
    const char* what;
    std::string file, bytes;
    const char* kind;
    std::optional<uint64_t> entry;
  };
  std::string erased = segment_bytes;
  erased.replace(kHeader + 5 * kRow, kRow, kRow, '\0');
  const Case cases[] = {
      {"row", segment, Flip(segment_bytes, kHeader + 4 * kRow + 50), "keyring", 4},
      {"row not used yet", segment, Flip(segment_bytes, kHeader + 3000 * kRow + 50), "keyring",
       std::nullopt},
      {"row of zeros without an erasure", segment, erased, "keyring", 5},
      {"segment's key", segment, Flip(segment_bytes, 40), "keyring", 0},
      {"segment cut short", segment, segment_bytes.substr(0, 5000), "keyring", 0},
      {"signature", checkpoint, Flip(checkpoint_bytes, checkpoint_bytes.size() - 20), "checkpoint",
       std::nullopt},
      {"root", checkpoint, Flip(checkpoint_bytes, checkpoint_bytes.find('\n') + 5), "checkpoint",
       std::nullopt},
      {"empty checkpoint", checkpoint, "", "checkpoint", std::nullopt},
  };
  for (const Case& c : cases) {
    ASSERT_TRUE(WriteFileDurably(c.file, c.bytes).ok());
    const FsckReport report = Check(kv_);
    EXPECT_TRUE(Names(report, c.kind, c.entry)) << c.what << ", got:\n" << Findings(report);
    ASSERT_TRUE(WriteFileDurably(segment, segment_bytes).ok());
    ASSERT_TRUE(WriteFileDurably(checkpoint, checkpoint_bytes).ok());
  }
  std::filesystem::remove(checkpoint);
  EXPECT_TRUE(Names(Check(kv_), "checkpoint", std::nullopt));
}

TEST_F(FsckTest, DamagedResultsAreNotServed) {
  const auto damaged = kv_.Clone();
  FlipRow(*damaged, Table::kPayload, PayloadKey(3, Part::kResponse), 20);
  FlipRow(*damaged, Table::kRecord, EntryKey(4), 20);
  auto ledger = Open(damaged.get());
  EXPECT_EQ(ledger->Lookup("acme", FingerprintOf("q3")).error().code, Code::kCorrupt);
  EXPECT_EQ(ledger->Lookup("acme", FingerprintOf("q4")).error().code, Code::kCorrupt);
  EXPECT_TRUE(ledger->Lookup("acme", FingerprintOf("q5")).value().has_value());
}

class FsckFolderTest : public LedgerFixture {};

TEST_F(FsckFolderTest, RunsBesideAServerUnderLoad) {
  auto ledger = Open(nullptr);
  std::atomic<bool> stop = false;
  std::thread load([&] {
    for (int i = 0; !stop; ++i) CHECK(ledger->Append(Generated(std::to_string(i))).ok());
  });
  for (int i = 0; i < 5; ++i) {
    const Result<FsckReport> report = Fsck(folder_.path(), {.deep = true});
    EXPECT_TRUE(report.ok()) << report.error().message;
    EXPECT_TRUE(report.ok() && report->snapshot);
    EXPECT_TRUE(report.ok() && report->clean()) << Findings(*report);
  }
  stop = true;
  load.join();
  for (int i = 0; i < 1000 && !std::filesystem::is_empty(folder_.path() + "/tmp"); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path() + "/tmp"));
}

TEST_F(FsckFolderTest, ADeadClientsSnapshotIsDeleted) {
  auto ledger = Open(nullptr);
  const pid_t child = ::fork();
  if (child == 0) {
    const auto lease = SnapshotLease::Request(DataFolder::Unlocked(folder_.path()));
    ::_exit(lease.ok() && std::filesystem::exists(lease->path() + "/db/CURRENT") ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 0);
  for (int i = 0; i < 1000 && !std::filesystem::is_empty(folder_.path() + "/tmp"); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path() + "/tmp"));
}

TEST_F(FsckFolderTest, LongPathsAndForeignFilesAreFine) {
  const std::string path = folder_.path(std::string(120, 'd')) + "/" + std::string(120, 'e');
  Result<DataFolder> folder = DataFolder::Open(path);
  ASSERT_TRUE(folder.ok()) << folder.error().message;
  ASSERT_TRUE(WriteFileDurably(path + "/notes.txt", "mine").ok());
  std::filesystem::create_directory(path + "/lost+found");
  auto ledger = Ledger::Open(std::move(*folder), {});
  ASSERT_TRUE(ledger.ok()) << ledger.error().message;
  ASSERT_TRUE(WriteFileDurably(path + "/keyring/entries/readme", "mine").ok());
  const Result<FsckReport> beside = Fsck(path, {});
  ASSERT_TRUE(beside.ok()) << beside.error().message;
  EXPECT_TRUE(beside->clean()) << Findings(*beside);
  ledger->reset();
  EXPECT_TRUE(Fsck(path, {})->clean());
  EXPECT_EQ(ReadFile(path + "/notes.txt").value(), "mine");
}

TEST_F(FsckFolderTest, WhereThereIsNoLedgerItSaysSoAndMakesNothing) {
  const Result<FsckReport> report = Fsck(folder_.path("nothing"), {});
  ASSERT_FALSE(report.ok());
  EXPECT_EQ(report.error().code, Code::kNotFound);
  EXPECT_FALSE(std::filesystem::exists(folder_.path("nothing")));
}

TEST_F(FsckFolderTest, AFlippedBitInADatabaseFileIsNamed) {
  Open(nullptr)->Close().ok();
  // Opened again, what the log held is in table files.
  Open(nullptr)->Close().ok();
  bool flipped = false;
  for (const auto& file : std::filesystem::directory_iterator(folder_.path() + "/db")) {
    if (file.path().extension() != ".sst") continue;
    const std::string bytes = ReadFile(file.path().string()).value();
    ASSERT_TRUE(WriteFileDurably(file.path().string(), Flip(bytes, bytes.size() / 3)).ok());
    flipped = true;
  }
  ASSERT_TRUE(flipped);
  const Result<FsckReport> report = Fsck(folder_.path(), {.deep = true});
  ASSERT_TRUE(report.ok()) << report.error().message;
  EXPECT_FALSE(report->clean());
}

TEST_F(FsckFolderTest, ADatabaseThatDoesNotOpenIsDamage) {
  Open(nullptr)->Close().ok();
  Open(nullptr)->Close().ok();
  const std::string current = folder_.path() + "/db/CURRENT";
  std::string table;
  for (const auto& file : std::filesystem::directory_iterator(folder_.path() + "/db")) {
    if (file.path().extension() == ".sst") table = file.path().string();
  }
  ASSERT_FALSE(table.empty());
  for (const std::string& lost : {table, current}) {
    const std::string bytes = ReadFile(lost).value();
    std::filesystem::remove(lost);
    const Result<FsckReport> report = Fsck(folder_.path(), {});
    ASSERT_TRUE(report.ok()) << lost << ": " << report.error().message;
    EXPECT_TRUE(Names(*report, "database", std::nullopt)) << Findings(*report);
    ASSERT_TRUE(WriteFileDurably(lost, bytes).ok());
  }
}

TEST_F(FsckFolderTest, ASnapshotOutlivesItsServerForWhoReadsIt) {
  auto ledger = Open(nullptr);
  std::optional<SnapshotLease> lease =
      SnapshotLease::Request(DataFolder::Unlocked(folder_.path())).value();
  const std::string path = lease->path();
  ledger.reset();
  EXPECT_TRUE(std::filesystem::exists(path + "/db/CURRENT"));
  ledger = Open(nullptr);
  EXPECT_TRUE(std::filesystem::exists(path + "/db/CURRENT")) << "the next server deleted it";
  lease.reset();
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST_F(FsckFolderTest, WaitsForAServerThatStops) {
  auto ledger = Open(nullptr);
  ledger.reset();
  std::optional<DataFolder> stopping = DataFolder::Open(folder_.path()).value();
  std::thread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    stopping.reset();
  });
  const Result<FsckReport> report = Fsck(folder_.path(), {});
  later.join();
  ASSERT_TRUE(report.ok()) << report.error().message;
  EXPECT_TRUE(report->clean());
}

}  // namespace
}  // namespace verbatim::store
