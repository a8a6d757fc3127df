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
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "store/hits.h"
#include "store/intents.h"
#include "store/ledger.h"
#include "store/prepared_append.h"
#include "store/reader.h"

namespace verbatim::store {

class Sequencer {
 public:
  struct Options {
    std::string origin, manifest;
    int64_t hit_interval_micros = 0;
    int64_t heartbeat_micros = 0;  // 0: no heartbeats
    std::function<int64_t()> now;
    // Called after every commit with the tree's new state, before the callbacks.
    std::function<void(const TreeState&)> committed;
    std::function<void(int64_t micros, size_t entries)> on_commit;  // LedgerOptions
    // Called after a recovery with what the database holds; an error keeps the ledger failed.
    std::function<Status(const TreeState&)> recovered;
  };

  Sequencer(Kv& kv, const Keys& keys, Keyring& ring, Hits& hits, const Reader& reader,
            Options options, TreeState state, std::vector<ClosedBatch> unfinished,
            const std::vector<OpenIntent>& open_intents);
  ~Sequencer();

  void Start();
  void Push(PreparedAppend append);
  // After a failed commit elsewhere on the same Kv. Begins at once.
  void RequestRecovery();
  bool failed() const { return failed_; }
  void WakeForHits();
  uint64_t size() const { return size_; }
  uint64_t open_intents() const { return open_intents_; }

  // Commits what waits, the open hits and then `last`, and ends the thread.
  void Stop(PreparedAppend last);

 private:
  struct Group;
  void Run();
  std::vector<PreparedAppend> Take();
  void CommitGroup(std::vector<PreparedAppend> appends);
  Result<ClosedBatch::Sum> SumOf(const ClosedBatch& closed) const;
  Status AddHitBatches(Group& group);
  Status AddClockJump(Group& group);
  void AddNotSent(Group& group);
  Result<std::string> LogKeysWith(const std::string& vkey, uint64_t from) const;
  Result<Appended> Place(Group& group, const PreparedAppend& append);
  // The entry that hits of this key serve by now.
  Result<std::optional<uint64_t>> ResultNow(const Group& group, const std::string& index_key) const;
  Status CheckReceiptOwner(const Group& group, const std::string& request_id,
                           const std::string& pseudonym) const;
  Status CheckOpenIntent(const Group& group, uint64_t intent, const std::string& pseudonym) const;
  Result<uint64_t> NextSequence(const Group& group, const std::string& pseudonym) const;
  Result<SlotKeys> KeysOf(uint64_t entry);
  const std::string& PseudonymOf(const std::string& tenant);
  void PrepareNext();
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
  std::vector<ClosedBatch> closed_batches_;  // wait for their leaves
  // Intents that are stored although their commit was reported as failed: nothing was sent.
  std::vector<OpenIntent> not_sent_;
  std::unordered_map<std::string, std::string> pseudonyms_;  // by tenant, of the last few
  std::unordered_map<std::string, uint64_t> sequences_;      // by pseudonym, as committed
  std::unordered_map<uint64_t, std::string> intents_;  // open ones, as committed: pseudonym bytes
  std::optional<std::pair<uint64_t, SlotKeys>> next_keys_;  // of the entry that comes next
  int64_t interval_end_ = 0;   // monotonic; of the open hits; 0 where there are none
  int64_t next_recovery_ = 0;  // monotonic; not before
  int64_t heartbeat_due_ = 0;  // monotonic; where nothing is committed before

  std::atomic<uint64_t> size_, open_intents_;
  std::atomic<bool> failed_ = false;
  std::mutex mutex_;  // guards queue_, stopping_ and wake_
  std::condition_variable changed_;
  std::deque<PreparedAppend> queue_;
  bool stopping_ = false, wake_ = false;
  std::thread thread_;
};

}  // namespace verbatim::store
