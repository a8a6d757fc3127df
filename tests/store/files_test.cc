// Every kind of file of a data folder, with one bit of it turned; and the options of the database
// that finding such damage rests on.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <rocksdb/db.h>
#include <rocksdb/options.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <vector>

#include "store/kv_rocksdb.h"
#include "store/life.h"
#include "tests/store/ledger_fixture.h"

namespace verbatim::store {
namespace {

namespace fs = std::filesystem;

// What a turned bit in a file of this kind must lead to.
enum class Damage {
  kFound,    // fsck names it, or cannot go on and says why
  kNothing,  // nothing of the log rests on the file
};
struct FileKind {
  const char* pattern;  // of its path in the data folder
  Damage damage;
};
const FileKind kKinds[] = {
    {"db/[0-9]+\\.sst", Damage::kFound},
    {"db/[0-9]+\\.blob", Damage::kFound},
    {"db/[0-9]+\\.log", Damage::kFound},
    {"db/MANIFEST-[0-9]+", Damage::kFound},
    {"db/CURRENT", Damage::kFound},
    // RocksDB writes them and does not read them back: the options are the program's.
    {"db/OPTIONS-[0-9]+", Damage::kNothing},
    {"db/IDENTITY", Damage::kNothing},
    {"db/LOCK", Damage::kNothing},
    {"LOCK", Damage::kNothing},
    {"keyring/(entries|hits)/[0-9a-f]+\\.keys", Damage::kFound},
    {"keys/log\\.key", Damage::kFound},
    {"keys/wrapping\\.key", Damage::kFound},
    {"keys/index\\.key", Damage::kFound},
    {"keys/tenant\\.key", Damage::kFound},
    {"checkpoint", Damage::kFound},
    {"erasures", Damage::kFound},
};

class FilesTest : public LedgerFixture {
 protected:
  // Two lives of a ledger, so that tables, blobs and a log have entries.
  void Live() {
    for (int life = 0; life < 2; ++life) {
      const auto ledger = Open(nullptr);
      for (int i = 0; i < 20; ++i) {
        const std::string name = std::to_string(life) + "-" + std::to_string(i);
        AppendRequest append = Generated(name, "acme", "id-" + name);
        append.response = name + RandomBytes(3000);
        const Appended appended = ledger->Append(std::move(append)).value();
        ASSERT_TRUE(ledger->RecordHit(HitOf(appended.entry, "hit-" + name)).ok());
        if (i != 3) continue;
        LifeCommand shred;
        shred.verb = LifeCommand::Verb::kShred;
        shred.entries = {appended.entry, appended.entry};
        shred.reason = "article 17";
        shred.authority = "privacy office";
        shred.by = "test";
        ASSERT_EQ(ledger->Apply(shred).value().outcome, "ok");
      }
      ASSERT_TRUE(ledger->Close().ok());
    }
  }

  std::vector<std::string> Files() const {
    std::vector<std::string> files;
    for (const auto& file : fs::recursive_directory_iterator(folder_.path())) {
      if (!file.is_regular_file()) continue;
      files.push_back(fs::relative(file.path(), folder_.path()));
    }
    std::sort(files.begin(), files.end());
    return files;
  }

  static const FileKind* KindOf(const std::string& file) {
    for (const FileKind& kind : kKinds) {
      if (std::regex_match(file, std::regex(kind.pattern))) return &kind;
    }
    return nullptr;
  }

  // The bytes of the newest OPTIONS file, by "SECTION/name".
  std::map<std::string, std::string> DatabaseOptions() const {
    std::string newest;
    for (const std::string& file : Files()) {
      if (file.starts_with("db/OPTIONS-")) newest = std::max(newest, file);
    }
    std::map<std::string, std::string> options;
    std::ifstream in(folder_.path() + "/" + newest);
    std::string section;
    for (std::string line; std::getline(in, line);) {
      line.erase(0, line.find_first_not_of(" \t"));
      if (line.starts_with("[")) section = line.substr(1, line.find(']') - 1);
      const size_t equals = line.find('=');
      if (equals == line.npos) continue;
      options[section + "/" + line.substr(0, equals)] = line.substr(equals + 1);
    }
    return options;
  }

  static bool DamageIsFound(const std::string& folder) {
    const Result<FsckReport> report = Fsck(folder, {.deep = true});
    if (!report.ok()) {
      EXPECT_FALSE(report.error().message.empty());
      return true;
    }
    for (const FsckFinding& finding : report->findings) EXPECT_FALSE(finding.what.empty());
    return !report->clean();
  }
};

TEST_F(FilesTest, ATurnedBitInEveryKindOfFile) {
  ASSERT_NO_FATAL_FAILURE(Live());
  ASSERT_TRUE(Fsck(folder_.path(), {.deep = true})->clean());
  std::set<std::string> seen;
  TemporaryFolder copy;
  for (const std::string& file : Files()) {
    const FileKind* kind = KindOf(file);
    ASSERT_NE(kind, nullptr) << file << " is a kind of file that this test does not know: say what "
                             << "damage to it leads to";
    seen.insert(kind->pattern);
    const std::string bytes = ReadFile(folder_.path() + "/" + file).value();
    if (bytes.empty()) continue;
    for (const size_t at : {size_t{0}, bytes.size() / 3, bytes.size() / 2, bytes.size() - 1}) {
      SCOPED_TRACE(file + ", byte " + std::to_string(at) + " of " + std::to_string(bytes.size()));
      fs::remove_all(copy.path());
      fs::copy(folder_.path(), copy.path(), fs::copy_options::recursive);
      std::string damaged = bytes;
      damaged[at] = static_cast<char>(damaged[at] ^ 0x10);
      std::ofstream(copy.path() + "/" + file, std::ios::binary) << damaged;
      const bool found = DamageIsFound(copy.path());
      EXPECT_TRUE(found || kind->damage == Damage::kNothing);
      // And a server works on it or refuses; it does not fall over.
      Result<DataFolder> data = DataFolder::Open(copy.path());
      if (!data.ok()) continue;
      LedgerOptions options;
      options.control_socket = false;
      const auto ledger = Ledger::Open(std::move(*data), std::move(options));
      if (!ledger.ok()) {
        EXPECT_FALSE(ledger.error().message.empty());
      } else {
        EXPECT_TRUE((*ledger)->Close().ok() || found);
      }
    }
  }
  EXPECT_EQ(seen.size(), std::size(kKinds)) << "a kind of file was not made";
}

TEST_F(FilesTest, TheDatabasesOptions) {
  Open(nullptr)->Close().ok();
  const std::map<std::string, std::string> options = DatabaseOptions();
  const std::pair<const char*, const char*> want[] = {
      {"DBOptions/wal_recovery_mode", "kTolerateCorruptedTailRecords"},
      {"DBOptions/track_and_verify_wals_in_manifest", "true"},
      {"DBOptions/paranoid_checks", "true"},
      {"DBOptions/manual_wal_flush", "false"},
      {"CFOptions \"default\"/paranoid_file_checks", "true"},
      {"CFOptions \"payload\"/paranoid_file_checks", "true"},
      {"CFOptions \"default\"/memtable_protection_bytes_per_key", "8"},
      {"CFOptions \"payload\"/memtable_protection_bytes_per_key", "8"},
      {"CFOptions \"payload\"/enable_blob_files", "true"},
      // Neither may ever drop a row for its age or for want of space.
      {"CFOptions \"default\"/compaction_style", "kCompactionStyleLevel"},
      {"CFOptions \"payload\"/compaction_style", "kCompactionStyleLevel"},
      {"CFOptions \"default\"/compaction_filter", "nullptr"},
      {"CFOptions \"payload\"/compaction_filter", "nullptr"},
      {"CFOptions \"default\"/compaction_filter_factory", "nullptr"},
      {"CFOptions \"payload\"/compaction_filter_factory", "nullptr"},
  };
  for (const auto& [name, value] : want) {
    const auto option = options.find(name);
    ASSERT_TRUE(option != options.end()) << name;
    EXPECT_EQ(option->second, value) << name;
  }
  EXPECT_NE(options.at("DBOptions/file_checksum_gen_factory"), "nullptr");
}

// A log that is not the newest and lost its end: rows after it are of later batches, so starting
// would leave a hole. In the folder itself and in a copy that is only read.
TEST_F(FilesTest, ATruncatedOlderLogIsRefused) {
  const std::string folder = folder_.path("db");
  const auto put = [](Kv& kv, Table table, const std::string& key) {
    Batch batch;
    batch.Put(table, key, std::string(100, 'x'));
    ASSERT_TRUE(kv.Commit(batch, true).ok());
  };
  {
    const auto kv = OpenRocksDb(folder, KvAccess::kReadWrite).value();
    for (int i = 0; i < 50; ++i) {
      put(*kv, Table::kRecord, "r" + std::to_string(i));
      put(*kv, Table::kLeaf, "l" + std::to_string(i));
    }
  }
  {
    // One family's rows go to a table, the other's stay in the log that was: two logs.
    rocksdb::DBOptions options;
    options.track_and_verify_wals_in_manifest = true;
    options.avoid_flush_during_recovery = true;
    options.avoid_flush_during_shutdown = true;
    std::vector<rocksdb::ColumnFamilyHandle*> handles;
    rocksdb::DB* db = nullptr;
    ASSERT_TRUE(rocksdb::DB::Open(options, folder,
                                  {{rocksdb::kDefaultColumnFamilyName, {}}, {"payload", {}}},
                                  &handles, &db)
                    .ok());
    ASSERT_TRUE(db->Put(rocksdb::WriteOptions(), handles[1], "row", "in the older log").ok());
    rocksdb::WriteOptions synced;
    synced.sync = true;
    ASSERT_TRUE(db->Put(synced, handles[0], "row", "in the older log").ok());
    ASSERT_TRUE(db->Flush(rocksdb::FlushOptions(), handles[0]).ok());
    ASSERT_TRUE(db->Put(synced, handles[1], "row 2", "in the newer log").ok());
    for (auto* handle : handles) ASSERT_TRUE(db->DestroyColumnFamilyHandle(handle).ok());
    ASSERT_TRUE(db->Close().ok());
    delete db;
  }
  std::vector<std::string> logs;
  for (const auto& file : fs::directory_iterator(folder)) {
    if (file.path().extension() == ".log" && file.file_size() > 0) logs.push_back(file.path());
  }
  std::sort(logs.begin(), logs.end());
  ASSERT_GE(logs.size(), 2u);
  const std::string older = logs[logs.size() - 2];
  const std::string whole = folder_.path("whole");
  fs::copy(folder, whole, fs::copy_options::recursive);
  fs::resize_file(older, fs::file_size(older) - 20);
  for (const KvAccess access : {KvAccess::kReadOnly, KvAccess::kReadWrite}) {
    const auto opened = OpenRocksDb(folder, access);
    ASSERT_FALSE(opened.ok());
    EXPECT_EQ(opened.error().code, Code::kCorrupt) << opened.error().message;
  }
  EXPECT_TRUE(OpenRocksDb(whole, KvAccess::kReadWrite).ok());
}

}  // namespace
}  // namespace verbatim::store
