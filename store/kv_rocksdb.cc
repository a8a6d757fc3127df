#include "store/kv_rocksdb.h"

#include <rocksdb/cache.h>
#include <rocksdb/db.h>
#include <rocksdb/file_checksum.h>
#include <rocksdb/filter_policy.h>
#include <rocksdb/options.h>
#include <rocksdb/slice_transform.h>
#include <rocksdb/table.h>
#include <rocksdb/utilities/checkpoint.h>
#include <rocksdb/version.h>
#include <rocksdb/write_batch.h>

#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <filesystem>
#include <mutex>
#include <shared_mutex>

#include "base/log.h"

namespace verbatim::store {
namespace {

constexpr uint64_t kSpareBytes = uint64_t{16} << 20;
constexpr size_t kProtectionBytes = 8;  // per key, in memory, from batch to memtable
const char kPayloadFamily[] = "payload";

Error ToError(const rocksdb::Status& status, const std::string& folder) {
  const std::string text = "database " + folder + ": " + status.ToString();
  if (status.IsNoSpace()) {
    return {Code::kIo, text + "; free some space on that disk, the server then goes on by itself"};
  }
  const bool file_is_gone = status.ToString().find("No such file") != std::string::npos;
  if (status.IsCorruption() || status.IsPathNotFound() || file_is_gone) {
    return {Code::kCorrupt, text + "; verbatim fsck says what is damaged, a backup restores it"};
  }
  if (status.IsIOError() && status.ToString().find("No space left") != std::string::npos) {
    return {Code::kIo, text + "; free some space on that disk, the server then goes on by itself"};
  }
  return {Code::kIo, text + "; check the disk and the folder's permissions"};
}

// Tables share two column families: small rows in the default one, sealed blobs (which neither
// compress nor want to be rewritten by compaction) in "payload" with blob files.
bool IsPayload(Table table) { return table == Table::kRecord || table == Table::kPayload; }

std::string RowKey(Table table, std::string_view key) {
  std::string row(1, static_cast<char>(table));
  row.append(key);
  return row;
}

rocksdb::Slice ToSlice(std::string_view bytes) { return {bytes.data(), bytes.size()}; }

// RocksDB's warnings go to our log. Its own log file would stand in the data folder, where a full
// disk makes writing it abort the process (an assertion of WritableFileWriter after a failed
// append).
class RocksDbLogger : public rocksdb::Logger {
 public:
  // While quiet: what making a new database says of the files that it does not find.
  explicit RocksDbLogger(bool quiet)
      : rocksdb::Logger(rocksdb::InfoLogLevel::ERROR_LEVEL), quiet_(quiet) {}
  void SetQuiet(bool quiet) { quiet_ = quiet; }
  using rocksdb::Logger::Logv;
  void Logv(const char* format, va_list arguments) override {
    if (quiet_) return;
    char line[512];
    std::vsnprintf(line, sizeof(line), format, arguments);
    LogWarning(std::string("database: ") + line);
  }

 private:
  std::atomic<bool> quiet_;
};

rocksdb::DBOptions DatabaseOptions(std::shared_ptr<RocksDbLogger> log) {
  rocksdb::DBOptions options;
  options.create_if_missing = true;
  options.create_missing_column_families = true;
  options.paranoid_checks = true;
  options.track_and_verify_wals_in_manifest = true;
  // Point-in-time recovery would drop acknowledged entries behind a corrupt record; this refuses.
  options.wal_recovery_mode = rocksdb::WALRecoveryMode::kTolerateCorruptedTailRecords;
  options.file_checksum_gen_factory = rocksdb::GetFileChecksumGenCrc32cFactory();
  options.max_total_wal_size = uint64_t{256} << 20;
  options.max_open_files = 256;
  options.info_log = std::move(log);
  options.info_log_level = rocksdb::InfoLogLevel::ERROR_LEVEL;
  options.max_background_jobs = 2;
  return options;
}

rocksdb::ColumnFamilyOptions FamilyOptions(bool payload, std::shared_ptr<rocksdb::Cache> cache) {
  rocksdb::ColumnFamilyOptions options;
  options.paranoid_file_checks = true;
  options.memtable_protection_bytes_per_key = kProtectionBytes;
  options.write_buffer_size = size_t{32} << 20;
  // Most rows are sealed: compressing them is tried where they come to rest, not at every flush.
  options.compression_per_level = {rocksdb::kNoCompression, rocksdb::kNoCompression,
                                   payload ? rocksdb::kNoCompression : rocksdb::kLZ4Compression};
  // Rows of one table come nearly in order: each is put beside the one before it.
  options.memtable_insert_with_hint_prefix_extractor.reset(rocksdb::NewFixedPrefixTransform(1));
  // Most look-ups are for what is not there: results and request ids that are new.
  if (!payload) {
    options.memtable_whole_key_filtering = true;
    options.memtable_prefix_bloom_size_ratio = 0.02;
  } else {
    options.enable_blob_files = true;
    options.min_blob_size = 1024;
  }
  rocksdb::BlockBasedTableOptions table;
  table.block_cache = std::move(cache);
  table.filter_policy.reset(rocksdb::NewBloomFilterPolicy(10));
  options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  return options;
}

class KvRocksDb : public Kv {
 public:
  KvRocksDb(std::string folder, KvAccess access)
      : folder_(std::move(folder)),
        access_(access),
        cache_(rocksdb::NewLRUCache(size_t{64} << 20)) {}

  ~KvRocksDb() override { CloseDatabase(); }

  Status OpenDatabase(KvAccess access) {
    const std::vector<rocksdb::ColumnFamilyDescriptor> families = {
        {rocksdb::kDefaultColumnFamilyName, FamilyOptions(false, cache_)},
        {kPayloadFamily, FamilyOptions(true, cache_)}};
    std::error_code unknown;
    const bool is_new = !std::filesystem::exists(folder_ + "/CURRENT", unknown) && !unknown;
    const auto log = std::make_shared<RocksDbLogger>(is_new);
    rocksdb::DB* db = nullptr;
    std::vector<rocksdb::ColumnFamilyHandle*> handles;
    const rocksdb::Status status =
        access == KvAccess::kReadOnly
            ? rocksdb::DB::OpenForReadOnly(DatabaseOptions(log), folder_, families, &handles, &db)
            : rocksdb::DB::Open(DatabaseOptions(log), folder_, families, &handles, &db);
    log->SetQuiet(false);
    if (!status.ok()) return ToError(status, folder_);
    db_.reset(db);
    default_ = handles[0];
    payload_ = handles[1];
    return {};
  }

  Result<std::optional<std::string>> Get(Table table, std::string_view key) const override {
    std::shared_lock lock(mutex_);
    if (!db_) return Closed();
    std::string value;
    const rocksdb::Status status =
        db_->Get(rocksdb::ReadOptions(), Family(table), RowKey(table, key), &value);
    if (status.IsNotFound()) return std::optional<std::string>();
    if (!status.ok()) return ToError(status, folder_);
    return std::optional<std::string>(std::move(value));
  }

  Status Scan(Table table, std::string_view begin, std::string_view end,
              const Visitor& visit) const override {
    std::shared_lock lock(mutex_);
    if (!db_) return Closed();
    const std::string limit =
        end.empty() ? std::string(1, static_cast<char>(table) + 1) : RowKey(table, end);
    const rocksdb::Slice upper(limit);
    rocksdb::ReadOptions options;
    options.iterate_upper_bound = &upper;
    options.fill_cache = false;
    std::unique_ptr<rocksdb::Iterator> row(db_->NewIterator(options, Family(table)));
    for (row->Seek(RowKey(table, begin)); row->Valid(); row->Next()) {
      const rocksdb::Slice key = row->key(), value = row->value();
      if (!visit({key.data() + 1, key.size() - 1}, {value.data(), value.size()})) return {};
    }
    if (!row->status().ok()) return ToError(row->status(), folder_);
    return {};
  }

  Status Commit(const Batch& batch, bool durable) override {
    // Preconditions and write are one step for other committers only where there are preconditions.
    std::unique_lock<std::mutex> precondition_lock(precondition_mutex_, std::defer_lock);
    if (!batch.preconditions().empty()) precondition_lock.lock();
    std::shared_lock lock(mutex_);
    if (!db_) return Closed();
    for (const Batch::Precondition& wanted : batch.preconditions()) {
      std::string value;
      const rocksdb::Status status = db_->Get(rocksdb::ReadOptions(), Family(wanted.table),
                                              RowKey(wanted.table, wanted.key), &value);
      if (!status.ok() && !status.IsNotFound()) return ToError(status, folder_);
      const bool holds = wanted.value ? status.ok() && value == *wanted.value : status.IsNotFound();
      if (!holds) {
        return Error{Code::kFailedPrecondition,
                     "database " + folder_ + " was changed by another writer; stop it"};
      }
    }
    rocksdb::WriteBatch writes(0, 0, kProtectionBytes, 0);
    for (const Batch::Write& write : batch.writes()) {
      const std::string key = RowKey(write.table, write.key);
      const rocksdb::Status status =
          write.value ? writes.Put(Family(write.table), key, ToSlice(*write.value))
                      : writes.Delete(Family(write.table), key);
      if (!status.ok()) return ToError(status, folder_);
    }
    rocksdb::WriteOptions options;
    options.sync = durable;
    const rocksdb::Status status = db_->Write(options, &writes);
    if (!status.ok()) return ToError(status, folder_);
    return {};
  }

  // Reading the log again is what tells which batches it holds, and writes them to synced tables.
  // Reads go on meanwhile as far as they can: nothing is closed before there is space for the
  // tables, and what does not open for writing opens for reading.
  Status Recover() override {
    std::unique_lock lock(mutex_);
    if (db_) {
      if (Status space = CheckSpace(); !space.ok()) return space;
    }
    CloseDatabase();
    const Status opened = OpenDatabase(access_);
    if (!opened.ok() && !OpenDatabase(KvAccess::kReadOnly).ok()) {
      LogError("database " + folder_ + " does not open, not even for reading");
    }
    return opened;
  }

  Status Snapshot(const std::string& directory) override {
    std::shared_lock lock(mutex_);
    if (!db_) return Closed();
    rocksdb::Checkpoint* made = nullptr;
    rocksdb::Status status = rocksdb::Checkpoint::Create(db_.get(), &made);
    if (!status.ok()) return ToError(status, folder_);
    const std::unique_ptr<rocksdb::Checkpoint> checkpoint(made);
    status = checkpoint->CreateCheckpoint(directory);
    if (!status.ok()) return ToError(status, folder_);
    return {};
  }

  Status VerifyFiles() const override {
    std::shared_lock lock(mutex_);
    if (!db_) return Closed();
    rocksdb::Status status = db_->VerifyFileChecksums(rocksdb::ReadOptions());
    if (status.ok()) status = db_->VerifyChecksum();
    if (!status.ok()) return ToError(status, folder_);
    return {};
  }

 private:
  rocksdb::ColumnFamilyHandle* Family(Table table) const {
    return IsPayload(table) ? payload_ : default_;
  }

  Error Closed() const {
    return {Code::kIo, "database " + folder_ + " could not be opened again after a failed write"};
  }

  // Room on the disk for what stands only in memory and log, and some more.
  Status CheckSpace() const {
    uint64_t needed = kSpareBytes;
    for (rocksdb::ColumnFamilyHandle* handle : {default_, payload_}) {
      uint64_t bytes = 0;
      if (db_->GetIntProperty(handle, "rocksdb.cur-size-all-mem-tables", &bytes)) needed += bytes;
    }
    std::error_code error;
    const std::filesystem::space_info space = std::filesystem::space(folder_, error);
    if (error || space.available >= needed) return {};
    return Error{Code::kIo, "the disk of " + folder_ + " is full: free " +
                                std::to_string((needed >> 20) + 1) +
                                " MB on it, the server then goes on by itself"};
  }

  void CloseDatabase() {
    if (!db_) return;
    for (rocksdb::ColumnFamilyHandle* handle : {default_, payload_}) {
      // A handle's status says nothing about the rows.
      db_->DestroyColumnFamilyHandle(handle).PermitUncheckedError();
    }
    db_.reset();
  }

  const std::string folder_;
  const KvAccess access_;
  const std::shared_ptr<rocksdb::Cache> cache_;
  std::mutex precondition_mutex_;    // held from check to write
  mutable std::shared_mutex mutex_;  // guards db_ and the handles; exclusive while reopening
  std::unique_ptr<rocksdb::DB> db_;
  rocksdb::ColumnFamilyHandle* default_ = nullptr;
  rocksdb::ColumnFamilyHandle* payload_ = nullptr;
};

}  // namespace

Result<std::unique_ptr<Kv>> OpenRocksDb(const std::string& folder, KvAccess access) {
  auto kv = std::make_unique<KvRocksDb>(folder, access);
  if (Status opened = kv->OpenDatabase(access); !opened.ok()) return opened.error();
  return std::unique_ptr<Kv>(std::move(kv));
}

std::string RocksDbVersion() { return rocksdb::GetRocksVersionAsString(); }

}  // namespace verbatim::store
