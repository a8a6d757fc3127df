// A Kv in memory that can fail on demand, for tests of what a failing disk does.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "store/kv.h"

namespace verbatim::store {

class KvMemory : public Kv {
 public:
  enum class Fault {
    kNone,
    kNotPersisted,         // the batch is lost and Commit says so
    kPersistedButReported  // the batch is stored and Commit reports a failure all the same
  };

  // The n-th Commit from now on (1 is the next) fails in this way; once. While failing, and until
  // Recover, every Commit fails as a database with a background error does.
  void FailCommit(int n, Fault fault);
  // The next n calls of Recover fail too.
  void FailRecover(int n);

  // What a machine that loses its power leaves: what was synced, and after it the first `unsynced`
  // of the batches that were not, as their order in a log has it. A new store without faults.
  std::unique_ptr<KvMemory> AfterPowerLoss(size_t unsynced) const;
  size_t Unsynced() const;
  // From now on a sync does nothing and says that it did: a disk that lies.
  void LoseSyncs();

  // For tests that damage rows. Put(nullopt) deletes.
  void Tamper(Table table, std::string_view key, std::optional<std::string> value);
  // A copy of all rows, in a new store without faults: what a restart finds.
  std::unique_ptr<KvMemory> Clone() const;

  Result<std::optional<std::string>> Get(Table table, std::string_view key) const override;
  Status Scan(Table table, std::string_view begin, std::string_view end,
              const Visitor& visit) const override;
  Status Commit(const Batch& batch, bool durable) override;
  Status Recover() override;
  // kUnsupported: there are no files.
  Status Snapshot(const std::string& directory) override;
  Status VerifyFiles() const override { return {}; }

 private:
  using Key = std::pair<Table, std::string>;
  using Rows = std::map<Key, std::string, std::less<>>;
  static void Write(Rows& rows, const std::vector<Batch::Write>& writes);
  void Sync();  // mutex_ is held

  mutable std::mutex mutex_;  // guards everything below
  Rows rows_;
  Rows synced_;  // without the batches that follow
  std::vector<std::vector<Batch::Write>> unsynced_;
  bool lose_syncs_ = false;
  int fail_in_ = 0;
  Fault fault_ = Fault::kNone;
  bool failed_ = false;
  int fail_recover_ = 0;
};

}  // namespace verbatim::store
