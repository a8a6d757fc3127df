// Every row of a small ledger, damaged in every way: fsck names it, and nothing ever stops the
// process that reads it.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <fstream>

#include "store/control.h"
#include "store/rows.h"
#include "tests/store/ledger_fixture.h"

namespace verbatim::store {
namespace {

struct Row {
  Table table;
  std::string key, value;
};

constexpr Table kTables[] = {Table::kMeta,    Table::kLeaf,    Table::kNode,    Table::kRecord,
                             Table::kPayload, Table::kIndex,   Table::kReceipt, Table::kTenant,
                             Table::kHit,     Table::kHitBatch};

std::string Flip(std::string bytes, size_t at) {
  bytes.at(at) = static_cast<char>(bytes.at(at) ^ 1);
  return bytes;
}

void Overwrite(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

class DamageTest : public LedgerFixture {
 protected:
  // Entries: 0 started, 1 to 4 of two tenants, 5 and 6 their hits, 7 stopped.
  void SetUp() override {
    LedgerOptions options;
    options.hit_interval_micros = 60'000'000;
    auto ledger = Open(&kv_, std::move(options));
    for (const auto& [request, tenant] : {std::pair("q1", "acme"), std::pair("q2", "acme"),
                                          std::pair("q3", "other"), std::pair("q4", "acme")}) {
      CHECK(ledger->Append(Generated(request, tenant, request)).ok());
    }
    CHECK(ledger->RecordHit(HitOf(1, "hit-0")).ok());
    CHECK(ledger->RecordHit(HitOf(2, "hit-1", "acme", "bob")).ok());
    CHECK(ledger->RecordHit(HitOf(3, "hit-2", "other")).ok());
    CHECK(ledger->Close().ok());
    checkpoint_ = ReadFile(folder_.path() + "/checkpoint").value();
    keys_ = LoadKeys(DataFolder::Unlocked(folder_.path()), "", false).value();
    for (const auto& [name, ring] : {std::pair("entries", &entries_), std::pair("hits", &hits_)}) {
      *ring =
          Keyring::Open(folder_.path() + "/keyring/" + name, name, *keys_.wrapper, false).value();
    }
    for (const Table table : kTables) {
      CHECK(kv_.Scan(table, "", "",
                     [&](std::string_view key, std::string_view value) {
                       rows_.push_back({table, std::string(key), std::string(value)});
                       return true;
                     })
                .ok());
    }
  }

  void ExpectNamed(const KvMemory& damaged, const std::string& what) {
    const Result<FsckReport> report =
        CheckLedger(Reader(damaged, keys_, *entries_, *hits_), checkpoint_, {.unused_keys = false});
    ASSERT_TRUE(report.ok()) << what << ": " << report.error().message;
    EXPECT_FALSE(report->clean()) << what;
    const std::string text = json::Serialize(ToJson(*report));
    EXPECT_TRUE(json::Parse(text).ok()) << what;
    EXPECT_EQ(text.find('\x1B'), std::string::npos) << what;
  }

  // Opens a ledger over the rows and asks it for everything. Whatever comes, it comes back.
  void ReadAll(KvMemory* kv) {
    Result<std::unique_ptr<Ledger>> opened = TryOpen(kv);
    if (opened.ok()) {
      const Ledger& ledger = **opened;
      for (uint64_t entry = 0; entry < 9; ++entry) {
        (void)ledger.Entry(entry, true).ok();
        (void)ledger.Proof(entry).ok();
      }
      for (const char* request : {"q1", "q2", "q3", "q4"}) {
        (void)ledger.Lookup("acme", FingerprintOf(request)).ok();
      }
      for (const char* id : {"q1", "q3", "q4", "hit-0", "hit-1", "hit-2", "stray"}) {
        (void)ledger.FindReceipt(id).ok();
      }
      (void)(*opened)->Append(Generated("q5", "acme", "q5")).ok();
      (void)(*opened)->RecordHit(HitOf(1, "hit-0")).ok();
      (void)(*opened)->Close().ok();
    } else {
      EXPECT_FALSE(opened.error().message.empty());
    }
    Overwrite(folder_.path() + "/checkpoint", checkpoint_);
  }

  std::string Name(const Row& row) {
    return "table " + std::to_string(static_cast<int>(row.table)) + ", key " + HexEncode(row.key);
  }

  KvMemory kv_;
  Keys keys_;
  std::unique_ptr<Keyring> entries_, hits_;
  std::string checkpoint_;
  std::vector<Row> rows_;
};

TEST_F(DamageTest, FsckNamesEveryChangeOfEveryRow) {
  ASSERT_GT(rows_.size(), 60u);
  for (const Row& row : rows_) {
    const auto changed = [&](const std::string& how, std::optional<std::string> value) {
      const auto damaged = kv_.Clone();
      damaged->Tamper(row.table, row.key, std::move(value));
      ExpectNamed(*damaged, Name(row) + ": " + how);
    };
    changed("gone", std::nullopt);
    changed("longer", row.value + "x");
    const size_t size = row.value.size();
    for (const size_t length : {size_t{0}, size_t{1}, size / 2, size - 1}) {
      if (length < size) changed("cut to " + std::to_string(length), row.value.substr(0, length));
    }
    const size_t step = std::max<size_t>(size / 4, 1);
    for (size_t at = 0; at < size; at += step) {
      changed("bit at " + std::to_string(at), Flip(row.value, at));
    }
    changed("last bit", Flip(row.value, size - 1));
    for (const std::string& key : {row.key.substr(1), row.key.substr(0, row.key.size() - 1),
                                   row.key + "x", Flip(row.key, 0)}) {
      const auto moved = kv_.Clone();
      moved->Tamper(row.table, row.key, std::nullopt);
      moved->Tamper(row.table, key, row.value);
      ExpectNamed(*moved, Name(row) + ": under the key " + HexEncode(key));
    }
  }
}

TEST_F(DamageTest, FsckNamesStrayRowsOfEveryTable) {
  for (const Table table : kTables) {
    for (const size_t length : {0, 7, 8, 9, 16, 24, 28, 32}) {
      for (const char fill : {'\0', '\xFF'}) {
        for (const size_t bytes : {8, 40}) {
          const Row stray{table, std::string(length, fill), std::string(bytes, '\0')};
          const bool taken = std::any_of(rows_.begin(), rows_.end(), [&](const Row& row) {
            return row.table == table && row.key == stray.key;
          });
          if (taken) continue;
          const auto damaged = kv_.Clone();
          damaged->Tamper(table, stray.key, stray.value);
          ExpectNamed(*damaged, Name(stray) + " of " + std::to_string(bytes) + " bytes");
        }
      }
    }
  }
}

TEST_F(DamageTest, FsckNamesWellFormedRowsWithImpossibleContents) {
  const auto leaf = [&](const char* member, json::Value value) {
    json::Value object = json::Parse(kv_.Get(Table::kLeaf, EntryKey(2)).value().value()).value();
    object.Set(member, std::move(value));
    return json::Canonical(object);
  };
  const Row cases[] = {
      {Table::kLeaf, EntryKey(2), leaf("tenant", "acme")},
      {Table::kLeaf, EntryKey(2), leaf("tenant", std::string(32, 'A'))},
      {Table::kLeaf, EntryKey(2), leaf("tenant", std::string(30, 'a'))},
      {Table::kLeaf, EntryKey(2), leaf("model", std::string(63, 'a'))},
      {Table::kLeaf, EntryKey(2), leaf("manifest", std::string(64, 'g'))},
      {Table::kLeaf, EntryKey(2), leaf("detail", json::Value(7))},
      {Table::kLeaf, EntryKey(2), leaf("time", "9999-99-99T99:99:99.999999Z")},
      {Table::kLeaf, EntryKey(2), leaf("sequence", std::numeric_limits<uint64_t>::max())},
      {Table::kMeta, kMetaTree, std::string(7, '\0') + "\x08" + std::string(40, '\xFF')},
      {Table::kMeta, kMetaTree, std::string(16 + 64 * 32, '\xFF')},
      {Table::kMeta, kMetaInterval, std::string(16, '\xFF')},
      {Table::kMeta, kMetaInterval, EncodeHitCounters({1, 4096})},
      {Table::kTenant, PseudonymBytes(keys_.Pseudonym("acme")), std::string(8, '\xFF')},
      {Table::kReceipt, "stray", EncodeReceiptRow({std::string(16, 'x'), 2, ""})},
      {Table::kReceipt, "stray", EncodeReceiptRow({"", 0, std::string(28, 'x'), 0})},
      {Table::kReceipt, "\xFF\x1B[2J\n", "x"},
      {Table::kMeta, kMetaOrigin, "\x1B[2J"},
      {Table::kHit, std::string(28, '\xFF'), std::string(100, '\xFF')},
      {Table::kHitBatch, std::string(24, '\xFF'), EncodeU64(5)},
      {Table::kIndex, std::string(32, 'x'), std::string(8, '\xFF')},
  };
  for (const Row& row : cases) {
    const auto damaged = kv_.Clone();
    damaged->Tamper(row.table, row.key, row.value);
    ExpectNamed(*damaged, Name(row) + " is " + row.value);
    ReadAll(damaged.get());
  }
}

TEST_F(DamageTest, AnOpenLedgerReadsPastEveryDamage) {
  for (size_t i = 0; i < rows_.size(); ++i) {
    const auto& [table, key, value] = rows_[i];
    const size_t half = value.size() / 2;
    const std::optional<std::string> kinds[] = {std::nullopt, value.substr(0, half),
                                                Flip(value, half)};
    const auto damaged = kv_.Clone();
    damaged->Tamper(table, key, kinds[i % 3]);
    ReadAll(damaged.get());
  }
  for (const Table table : kTables) {
    for (const size_t length : {0, 28}) {
      const auto damaged = kv_.Clone();
      damaged->Tamper(table, std::string(length, '\xFF'), std::string(40, '\xFF'));
      ReadAll(damaged.get());
    }
  }
}

// A tree state that does not fit the tree would sign a history that never was.
TEST_F(DamageTest, ATreeStateOfAnotherTreeIsRefused) {
  const std::string state = kv_.Get(Table::kMeta, kMetaTree).value().value();
  for (const size_t at : {7, 15, 16, 47}) {  // size, time, hash
    const auto damaged = kv_.Clone();
    damaged->Tamper(Table::kMeta, kMetaTree, Flip(state, at));
    const Result<std::unique_ptr<Ledger>> opened = TryOpen(damaged.get());
    ASSERT_FALSE(opened.ok()) << "byte " << at;
    EXPECT_TRUE(opened.error().code == Code::kCorrupt) << opened.error().message;
  }
}

// Whose receipt it is decides who may read the entry.
TEST_F(DamageTest, AReceiptNeverLeadsToAnotherTenantsEntry) {
  const auto damaged = kv_.Clone();
  const std::string acme = PseudonymBytes(keys_.Pseudonym("acme"));
  damaged->Tamper(Table::kReceipt, "q1", EncodeReceiptRow({acme, 3, ""}));
  damaged->Tamper(Table::kReceipt, "q2", EncodeReceiptRow({acme, 99, ""}));
  damaged->Tamper(Table::kReceipt, "hit-0", kv_.Get(Table::kReceipt, "hit-2").value());
  auto ledger = Open(damaged.get());
  for (const char* id : {"q1", "q2", "hit-0"}) {
    const Result<Receipt> receipt = ledger->FindReceipt(id);
    ASSERT_FALSE(receipt.ok()) << id;
    EXPECT_EQ(receipt.error().code, Code::kCorrupt) << receipt.error().message;
  }
  EXPECT_TRUE(ledger->FindReceipt("q4").ok());
}

TEST_F(DamageTest, DamagedFilesAreErrors) {
  for (const char* name : {"/checkpoint", "/keys/log.key", "/keys/wrapping.key",
                           "/keyring/entries/00000000.keys", "/keyring/hits/00000000.keys"}) {
    const std::string path = folder_.path() + name;
    const std::string bytes = ReadFile(path).value();
    std::vector<std::string> variants;
    for (const size_t length : {0, 1, 16, 24, 31, 32, 33, 92, 200}) {
      variants.push_back(bytes.substr(0, std::min(length, bytes.size() / 2)));
    }
    for (size_t at = 0; at < std::min<size_t>(bytes.size(), 100); at += 9) {
      variants.push_back(bytes);
      variants.back()[at] = static_cast<char>(~variants.back()[at]);
    }
    for (const std::string& variant : variants) {
      Overwrite(path, variant);
      const Result<Keys> keys = LoadKeys(DataFolder::Unlocked(folder_.path()), "", false);
      if (keys.ok()) {
        const auto ring = [&](const char* of) {
          return Keyring::Open(folder_.path() + "/keyring/" + of, of, *keys->wrapper, false)
              .value();
        };
        const auto entries = ring("entries"), hits = ring("hits");
        const Reader reader(kv_, *keys, *entries, *hits);
        const std::string checkpoint = ReadFile(folder_.path() + "/checkpoint").value();
        EXPECT_FALSE(CheckLedger(reader, checkpoint, {.unused_keys = false})->clean())
            << name << ", " << HexEncode(variant.substr(0, 100));
        const auto copy = kv_.Clone();
        EXPECT_FALSE(TryOpen(copy.get()).ok() && std::string(name) == "/checkpoint");
      }
      Overwrite(folder_.path() + "/checkpoint", checkpoint_);
    }
    Overwrite(path, bytes);
  }
  EXPECT_TRUE(Check(kv_).clean());
}

class ControlTest : public LedgerFixture {};

// A socket of this path, as a server or a client.
int Socket(const std::string& path, sockaddr_un* address) {
  address->sun_family = AF_UNIX;
  CHECK(path.size() < sizeof(address->sun_path));
  std::copy(path.begin(), path.end() + 1, address->sun_path);
  return ::socket(AF_UNIX, SOCK_STREAM, 0);
}

TEST_F(ControlTest, AServersAnswerMayBeAnything) {
  ASSERT_TRUE(DataFolder::Open(folder_.path()).ok());
  sockaddr_un address{};
  const int listener = Socket(folder_.path() + "/control.sock", &address);
  ASSERT_EQ(::bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  ASSERT_EQ(::listen(listener, 1), 0);
  for (const std::string& answer : {std::string(5000, 'x'), std::string("\n"), std::string(),
                                    std::string("ok\n"), std::string("ok tmp/snapshot-0/../..\n"),
                                    std::string("ok tmp/snapshot-") + std::string(5000, '0'),
                                    std::string("error no space\n")}) {
    std::thread server([&] {
      const int client = ::accept(listener, nullptr, nullptr);
      char command[64];
      EXPECT_GT(::read(client, command, sizeof(command)), 0);
      EXPECT_EQ(::send(client, answer.data(), answer.size(), MSG_NOSIGNAL), ssize_t(answer.size()));
      ::close(client);
    });
    const Result<SnapshotLease> lease =
        SnapshotLease::Request(DataFolder::Unlocked(folder_.path()));
    server.join();
    ASSERT_FALSE(lease.ok()) << answer.substr(0, 40);
    EXPECT_EQ(lease.error().code, Code::kUnavailable);
  }
  ::close(listener);
}

TEST_F(ControlTest, AClientMayWriteAnything) {
  auto ledger = Open(nullptr);
  sockaddr_un address{};
  for (const std::string& line : {std::string(20000, 'x'), std::string(300, '\n'),
                                  std::string("snapshot"), std::string("\0\xFF\n", 3)}) {
    const int client = Socket(folder_.path() + "/control.sock", &address);
    ASSERT_EQ(::connect(client, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    (void)!::send(client, line.data(), line.size(), MSG_NOSIGNAL);
    ::close(client);
  }
  const Result<FsckReport> report = Fsck(folder_.path(), {});
  ASSERT_TRUE(report.ok()) << report.error().message;
  EXPECT_TRUE(report->snapshot && report->clean()) << Findings(*report);
}

}  // namespace
}  // namespace verbatim::store
