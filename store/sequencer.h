// The one thread that gives entries their place. It takes what waits, seals it, and commits all of
// it in one synced batch; after a failed commit it lets the database say what is stored, and goes
// on from there.
//
// Threads: Push and the getters from any thread; callbacks run on the sequencer's thread.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "store/hits.h"
#include "store/ledger.h"
#include "store/reader.h"

namespace verbatim::store {

// A request whose record's bytes and digests are made.
struct PreparedAppend {
  AppendRequest request;
  std::string record_bytes;
  Digest record_digest{};
  Ledger::AppendCallback done;
  std::string pseudonym;  // where it is not that of record.tenant: a batch of hits
  std::string hit_batch;  // HitBatchKey of the batch whose leaf this is
};
// Checks the request against the format's rules and makes its record (kInvalid says what is wrong).
Result<PreparedAppend> PrepareAppend(AppendRequest request, Ledger::AppendCallback done);

class Sequencer {
 public:
  struct Options {
    std::string origin, manifest;
    int64_t hit_interval_micros = 0;
    std::function<int64_t()> now;
    // Called after every commit with the tree's new state, before the callbacks.
    std::function<void(const TreeState&)> committed;
    // Called after a recovery with what the database holds; an error keeps the ledger failed.
    std::function<Status(const TreeState&)> recovered;
  };

  Sequencer(Kv& kv, const Keys& keys, Keyring& ring, Hits& hits, const Reader& reader,
            Options options, TreeState state, std::vector<ClosedBatch> unfinished);
  ~Sequencer();

  void Start();
  void Push(PreparedAppend append);
  // After a failed commit elsewhere on the same Kv.
  void RequestRecovery() { failed_ = true; }
  bool failed() const { return failed_; }
  void WakeForHits();
  uint64_t size() const { return size_; }

  // Commits what waits, the open hits and then `last`, and ends the thread.
  void Stop(PreparedAppend last);

 private:
  struct Group;
  void Run();
  std::vector<PreparedAppend> Take();
  void CommitGroup(std::vector<PreparedAppend> appends);
  Status AddHitBatches(Group& group);
  Status AddClockJump(Group& group);
  Result<Appended> Place(Group& group, const PreparedAppend& append);
  Result<bool> IsFirstResult(const Group& group, const std::string& index_key) const;
  Status CheckReceiptOwner(const Group& group, const std::string& request_id,
                           const std::string& pseudonym) const;
  Result<uint64_t> NextSequence(const Group& group, const std::string& pseudonym) const;
  Result<SlotKeys> KeysOf(uint64_t entry);
  Status Recover();

  Kv& kv_;
  const Keys& keys_;
  Keyring& ring_;
  Hits& hits_;
  const Reader& reader_;
  const Options options_;

  // The sequencer's thread alone.
  TreeState state_;
  std::string state_bytes_;
  int64_t last_clock_ = 0;
  std::vector<ClosedBatch> closed_batches_;              // wait for their leaves
  std::unordered_map<std::string, uint64_t> sequences_;  // by pseudonym, as committed
  int64_t interval_end_ = 0;   // monotonic; of the open hits; 0 where there are none
  int64_t next_recovery_ = 0;  // monotonic; not before

  std::atomic<uint64_t> size_;
  std::atomic<bool> failed_ = false;
  std::mutex mutex_;  // guards queue_, stopping_ and wake_
  std::condition_variable changed_;
  std::deque<PreparedAppend> queue_;
  bool stopping_ = false, wake_ = false;
  std::thread thread_;
};

}  // namespace verbatim::store
