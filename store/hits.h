// Hits between their serving and their leaf: those of one subject that are recorded together are a
// row, written unsynced before the answers' last bytes; an interval's hits of one tenant become one
// leaf with their RFC 6962 root.
//
// Threads: Record from any thread; CloseInterval and the rest from the sequencer's thread.
#pragma once

#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "store/ledger.h"
#include "store/reader.h"

namespace verbatim::store {

// (interval, tenant) whose rows wait for their leaf.
struct ClosedBatch {
  std::string key;           // HitBatchKey
  int64_t from = 0, to = 0;  // first and last serving; 0 where a crash lost them
  // What its rows come to; nothing where only the database can tell (Reader::ReadBatch).
  struct Sum {
    uint64_t count = 0, slots_end = 0;
    Digest root{};
  };
  std::optional<Sum> sum{};
};

class Hits {
 public:
  Hits(Kv& kv, const Keys& keys, Keyring& ring, const Reader& reader)
      : kv_(kv), keys_(keys), ring_(ring), reader_(reader) {}

  // After opening the database: batches that a crash left open, and counters past them.
  Result<std::vector<ClosedBatch>> Restore();

  // Writes the rows and receipts of all these hits at once, in one unsynced batch; one status for
  // each. They are numbered by tenant and subject, then as they come. A failure leaves it unknown
  // whether they are stored, and ends the interval: their numbers are never used again, and what is
  // stored of them gets its leaf like any other hit.
  std::vector<Status> Record(std::span<const HitRequest> hits, int64_t now);

  // A commit of others failed: what the open batches hold, only the database can tell.
  void Distrust();
  // Ends the open interval. All batches that were closed since the last time.
  std::vector<ClosedBatch> CloseInterval();
  HitCounters counters() const;  // the open interval, the first free slot

 private:
  // Of one tenant in the open interval.
  struct OpenBatch {
    std::string pseudonym;  // 16 bytes
    uint32_t count = 0;
    int64_t from = 0, to = 0;
    std::optional<CompactRange> tree = CompactRange();  // over its rows; nothing after Distrust
    struct Slot {
      uint64_t number = 0;
      HitKeyDeriver keys;
    };
    std::map<std::string, Slot> slots;  // by subject
  };
  // A row of Table::kHit that is being made.
  struct NewRow {
    OpenBatch* batch = nullptr;
    OpenBatch::Slot* slot = nullptr;
    std::string key;
    HitRow values;
    std::vector<std::string> records;
    std::vector<size_t> hits;  // places in the group
  };
  // Request ids of a group whose rows are not written yet, each with its pseudonym.
  using RequestIds = std::map<std::string_view, std::string_view>;

  void EndInterval();
  OpenBatch& BatchOf(const std::string& tenant);
  Result<OpenBatch::Slot*> SlotOf(OpenBatch& batch, const std::string& subject);
  Status CheckRequestId(const HitRequest& hit, RequestIds& group);
  std::vector<size_t> Sorted(std::span<const HitRequest> hits, std::vector<Status>& statuses);
  Result<NewRow> OpenRow(const std::string& tenant, const std::string& subject);
  void AddToRow(NewRow& row, size_t hit, const Digest& digest, std::string record);

  Kv& kv_;
  const Keys& keys_;
  Keyring& ring_;
  const Reader& reader_;
  mutable std::mutex mutex_;  // guards everything below, and is held while a row is written
  HitCounters next_;
  std::map<std::string, OpenBatch> open_;  // by tenant
  std::vector<ClosedBatch> closed_;        // for CloseInterval
};

}  // namespace verbatim::store
