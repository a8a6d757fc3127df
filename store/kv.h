// The store's one seam to the outside world: an ordered key-value store with atomic batches.
// RocksDB implements it for production (kv_rocksdb.h), memory for tests (kv_memory.h).
//
// Threads: every method may be called from any thread. Commit is atomic and isolated: readers see
// all of a batch or none of it, now and after a crash. A batch spans tables. Errors: kIo where the
// machine or the database failed (the message says what to do), kCorrupt where stored bytes fail
// their checksums, kFailedPrecondition where a precondition did not hold.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace verbatim::store {

// Key spaces. The numbers are part of the format (store/FORMAT.md) and never change.
enum class Table : uint8_t {
  kMeta = 1,       // format version, origin, tree state
  kLeaf = 2,       // entry -> leaf bytes
  kNode = 3,       // (level, index) -> hash of a complete subtree
  kRecord = 4,     // entry -> sealed record
  kPayload = 5,    // (entry, part) -> sealed request, response or trace
  kIndex = 6,      // blinded (namespace, fingerprint) -> entry
  kReceipt = 7,    // request id -> entry or hit
  kTenant = 8,     // tenant pseudonym -> that tenant's last sequence number
  kHit = 9,        // (tenant pseudonym, interval, number) -> commitment and sealed hit record
  kHitBatch = 10,  // (tenant pseudonym, interval) -> entry
  kIntent = 11,    // entry of an open intent -> tenant pseudonym
  kAnchor = 15     // (kind, size) -> what others say of the log's head of that size
};

// Writes that happen together or not at all, if all preconditions hold.
class Batch {
 public:
  struct Write {
    Table table;
    std::string key;
    std::optional<std::string> value;  // absent: delete
  };
  struct Precondition {
    Table table;
    std::string key;
    std::optional<std::string> value;  // the value that must be there; absent: no such key
  };

  void Put(Table table, std::string key, std::string value) {
    writes_.push_back({table, std::move(key), std::move(value)});
  }
  void Delete(Table table, std::string key) {
    writes_.push_back({table, std::move(key), std::nullopt});
  }
  void RequireAbsent(Table table, std::string key) {
    preconditions_.push_back({table, std::move(key), std::nullopt});
  }
  void RequireEquals(Table table, std::string key, std::string value) {
    preconditions_.push_back({table, std::move(key), std::move(value)});
  }
  const std::vector<Write>& writes() const { return writes_; }
  const std::vector<Precondition>& preconditions() const { return preconditions_; }
  bool empty() const { return writes_.empty(); }

 private:
  std::vector<Write> writes_;
  std::vector<Precondition> preconditions_;
};

class Kv {
 public:
  // False stops the scan.
  using Visitor = std::function<bool(std::string_view key, std::string_view value)>;

  virtual ~Kv() = default;

  virtual Result<std::optional<std::string>> Get(Table table, std::string_view key) const = 0;

  // Rows with begin <= key < end in the order of their bytes; an empty end means to the table's
  // end.
  virtual Status Scan(Table table, std::string_view begin, std::string_view end,
                      const Visitor& visit) const = 0;

  // durable: on disk when this returns ok. Not durable: survives a killed process, not a lost
  // machine. After kIo it is unknown whether the batch is stored; Recover() settles it.
  virtual Status Commit(const Batch& batch, bool durable) = 0;

  // After a failed Commit: makes reads show what is really stored, and that durable. Idempotent.
  virtual Status Recover() = 0;

  // A consistent copy of everything committed so far, in a directory that must not exist yet.
  virtual Status Snapshot(const std::string& directory) = 0;

  // Reads every file and compares it with its checksum (fsck --deep).
  virtual Status VerifyFiles() const = 0;
};

// The first key that is greater than every key with this prefix; empty where there is none.
std::string PrefixEnd(std::string_view prefix);

}  // namespace verbatim::store
