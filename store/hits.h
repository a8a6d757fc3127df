// Hits between their serving and their leaf: each is a row of its own, written unsynced before the
// answer's last byte; an interval's rows of one tenant become one leaf with their RFC 6962 root.
//
// Threads: Record from any thread; CloseInterval and the rest from the sequencer's thread.
#pragma once

#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "store/ledger.h"
#include "store/reader.h"

namespace verbatim::store {

// (interval, tenant) whose rows wait for their leaf.
struct ClosedBatch {
  std::string key;           // HitBatchKey
  int64_t from = 0, to = 0;  // first and last serving; 0 where a crash lost them
};

class Hits {
 public:
  Hits(Kv& kv, const Keys& keys, Keyring& ring, const Reader& reader)
      : kv_(kv), keys_(keys), ring_(ring), reader_(reader) {}

  // After opening the database: batches that a crash left open, and counters past them.
  Result<std::vector<ClosedBatch>> Restore();

  // Writes the hit's row and receipt. A failure leaves it unknown whether they are stored; the
  // row's number is used again.
  Status Record(const HitRequest& hit, int64_t now);

  // Ends the open interval.
  std::vector<ClosedBatch> CloseInterval();
  HitCounters counters() const;  // the open interval, the first free slot

 private:
  struct OpenBatch {
    uint32_t count = 0;
    int64_t from = 0, to = 0;
    std::map<std::string, uint64_t> slots;  // by subject
  };

  Kv& kv_;
  const Keys& keys_;
  Keyring& ring_;
  const Reader& reader_;
  mutable std::mutex mutex_;  // guards everything below, and is held while a row is written
  HitCounters next_;
  std::map<std::string, OpenBatch> open_;  // by pseudonym bytes
};

}  // namespace verbatim::store
