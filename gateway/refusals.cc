#include "gateway/refusals.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "base/log.h"

namespace verbatim::gateway {

struct Refusals::State {
  std::mutex mutex;  // guards all of it
  double tokens = static_cast<double>(kBurst);
  int64_t filled_micros = 0;
  uint64_t waiting = 0;
  uint64_t unrecorded = 0;  // since the last entry
};

Refusals::Refusals(store::Ledger& ledger, Metrics& metrics, std::function<int64_t()> now)
    : ledger_(ledger), metrics_(metrics), now_(std::move(now)), state_(std::make_shared<State>()) {
  state_->filled_micros = now_();
}

bool Refusals::Take(uint64_t* unrecorded) {
  const std::lock_guard lock(state_->mutex);
  const int64_t now = now_();
  const double gained = static_cast<double>(now - state_->filled_micros) * 1e-6 * kPerSecond;
  state_->tokens = std::min(static_cast<double>(kBurst), state_->tokens + gained);
  state_->filled_micros = now;
  if (state_->tokens < 1 || state_->waiting >= kWaiting) {
    ++state_->unrecorded;
    return false;
  }
  state_->tokens -= 1;
  ++state_->waiting;
  *unrecorded = std::exchange(state_->unrecorded, 0);
  return true;
}

void Refusals::Offer(store::AppendRequest entry) {
  uint64_t unrecorded = 0;
  if (!Take(&unrecorded)) return metrics_.CountUnrecorded();
  if (unrecorded > 0) {
    entry.detail = json::Value::MakeObject();
    entry.detail.Set("unrecorded", unrecorded);
  }
  ledger_.AppendAsync(std::move(entry), [state = state_](Result<store::Appended> appended) {
    if (!appended.ok()) {
      LogError("a refusal could not be recorded: " + appended.error().message);
    }
    const std::lock_guard lock(state->mutex);
    --state->waiting;
  });
}

}  // namespace verbatim::gateway
