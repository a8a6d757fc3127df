// Requests that were refused on their HTTP form alone, on their way into the ledger.
//
// Such a refusal costs a client almost nothing, so what it may cost the disk is bounded: after a
// burst of kBurst, kPerSecond entries a second of less than 2 KiB each (so 32 KiB/s, 2.8 GB a day,
// whoever tries), and at most kWaiting that are not durable yet. What is beyond that leaves no
// entry of its own: it is counted in a metric, and the next entry's leaf says how many were left
// out (detail: {"unrecorded": n}). Thread-safe; may be destroyed while entries wait.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "base/clock.h"
#include "gateway/metrics.h"
#include "store/ledger.h"

namespace verbatim::gateway {

class Refusals {
 public:
  static constexpr uint64_t kBurst = 256;
  static constexpr uint64_t kPerSecond = 16;
  static constexpr uint64_t kWaiting = 64;

  // Ledger and metrics outlive it, and the ledger's callbacks the metrics. `now`: monotonic
  // microseconds; tests set it.
  Refusals(store::Ledger& ledger, Metrics& metrics, std::function<int64_t()> now = MonotonicMicros);

  // Appends the entry, or counts it as unrecorded. Does not wait for the disk.
  void Offer(store::AppendRequest entry);

 private:
  struct State;
  bool Take(uint64_t* unrecorded);

  store::Ledger& ledger_;
  Metrics& metrics_;
  std::function<int64_t()> now_;
  std::shared_ptr<State> state_;  // shared with the callbacks of entries that wait
};

}  // namespace verbatim::gateway
