// What a failing ledger does where policy says `on_ledger_failure: break_glass`: for a bounded time
// answers are given although no entry could be made of them. How many is counted, and as soon as
// the ledger takes entries again it gets one, signed like all, that says so.
//
// Threads: every method may be called from any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>

#include "base/clock.h"
#include "store/ledger.h"

namespace verbatim::gateway {

class BreakGlass {
 public:
  // `ledger` outlives it. manifest: digest in hex, for the entry.
  BreakGlass(store::Ledger& ledger, std::string manifest,
             std::function<int64_t()> monotonic = MonotonicMicros)
      : ledger_(ledger), manifest_(std::move(manifest)), monotonic_(std::move(monotonic)) {}

  // The ledger gave this error just now. True: it could not write (kIo), for less than `seconds` by
  // now (0: never true), so that the request may go on without it.
  bool Opens(const Error& error, uint64_t seconds);
  // The same, and counts an answer that is given without an entry.
  bool Answers(const Error& error, uint64_t seconds);
  // The ledger took something. Makes the entry of the gap, where there was one; does not wait.
  void Worked();
  uint64_t unrecorded() const;  // answers of the gap so far

 private:
  struct Gap {
    uint64_t answers = 0;
    int64_t from = 0, to = 0;  // wall clock, of the answers
  };
  void Log(const Gap& gap);

  store::Ledger& ledger_;
  const std::string manifest_;
  const std::function<int64_t()> monotonic_;
  std::atomic<bool> failing_ = false;  // what follows has something to say
  mutable std::mutex mutex_;           // guards what follows
  int64_t failing_since_ = 0;          // monotonic; 0: it works
  Gap gap_;
};

}  // namespace verbatim::gateway
