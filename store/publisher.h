// The thread that signs checkpoints: at most one per interval, over entries that are durable, kept
// in the data folder's file before anybody sees it, never two of one size.
//
// Threads: every method may be called from any thread.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "store/checkpoint.h"
#include "store/ledger.h"
#include "store/rows.h"

namespace verbatim::store {

class Publisher {
 public:
  // file: where the newest checkpoint is kept. newest: what it holds now, already verified, or ""
  // for a new log. ahead: called on this thread for each new size, for work that appends should not
  // wait for.
  Publisher(const Signer& signer, std::string file, int64_t interval_micros, std::string newest,
            uint64_t newest_size, std::function<void(uint64_t size)> ahead);
  ~Publisher();

  void Notify(const TreeState& durable);
  struct Published {
    std::string note;
    uint64_t size = 0;
  };
  Published newest() const;
  // What is durable and not in newest().
  LedgerLag lag() const;
  // No checkpoint is signed between the two (Stop signs none either); Pause waits for the one that
  // is being published. Once each in turn.
  void Pause();
  void Resume();
  // Publishes what is durable at once, and ends the thread.
  Status Stop();

 private:
  void Run();
  Status Publish(const CompactRange& tree);

  const Signer& signer_;
  const std::string file_;
  const int64_t interval_;
  const std::function<void(uint64_t)> ahead_;
  mutable std::mutex mutex_;  // guards everything below
  std::condition_variable changed_;
  Published published_;
  CompactRange durable_;
  int64_t waiting_since_ = 0;  // monotonic; of the oldest entry not published; 0 where none
  int64_t later_since_ = 0;    // likewise, of those that come after what is being published
  bool stopping_ = false;
  bool paused_ = false, publishing_ = false;
  bool idle_ = false;  // its thread waits for something to publish
  Status last_status_;
  std::thread thread_;
};

}  // namespace verbatim::store
