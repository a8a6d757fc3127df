// Requests that were refused on their HTTP form alone, on their way into the ledger.
//
// Such a refusal costs a client almost nothing, so what it may cost the disk is bounded:
// - One that somebody authenticated made has an entry of its own (Offer): after a burst of kBurst,
//   kPerSecond entries a second of less than 2 KiB each (so 32 KiB/s, 2.8 GB a day, whoever tries),
//   and at most kWaiting that are not durable yet.
// - Whatever is beyond that, and every refusal of which nobody knows whose it was (Count: no valid
//   credential, a malformed request, an unknown path), is counted, and the counts of one interval
//   become one leaf: kind `refused`, outcome `unauthenticated`, or `unrecorded` where there were
//   only refusals of the first kind. Its detail: {"from", "to", "count", "status": {"401": n, ...}}
//   of the unauthenticated ones, and "unrecorded": n. So no number of requests without credentials
//   adds more than one leaf per interval. A failed commit's counts go into the next one.
//
// Thread-safe; may be destroyed while entries wait.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "base/clock.h"
#include "gateway/metrics.h"
#include "store/ledger.h"

namespace verbatim::gateway {

struct RefusalOptions {
  int64_t interval_micros = 60'000'000;
  std::string manifest{};                          // digest in hex, for the intervals' leaves
  std::function<int64_t()> now = MonotonicMicros;  // microseconds; tests set it
};

struct RefusalCounts;

class Refusals {
 public:
  static constexpr uint64_t kBurst = 256;
  static constexpr uint64_t kPerSecond = 16;
  static constexpr uint64_t kWaiting = 64;

  // Ledger and metrics outlive it, and the ledger's callbacks the metrics.
  Refusals(store::Ledger& ledger, Metrics& metrics, RefusalOptions options = {});
  ~Refusals();  // as Close

  // Appends the entry, or counts it as unrecorded. Does not wait for the disk.
  void Offer(store::AppendRequest entry);

  // Counts one that is nobody's. status: of HTTP; 499 where the client hung up.
  void Count(int status);

  // Commits the open interval's leaf, where it counts anything, and blocks until that is done.
  // What comes later is in metrics only. Idempotent. Call before the ledger closes.
  void Close();

 private:
  struct State;
  bool Take();
  void Run();
  bool Commit(const RefusalCounts& counts);

  store::Ledger& ledger_;
  Metrics& metrics_;
  const RefusalOptions options_;
  std::shared_ptr<State> state_;  // shared with the callbacks of entries that wait
  std::thread thread_;            // commits intervals
};

}  // namespace verbatim::gateway
