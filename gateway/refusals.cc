#include "gateway/refusals.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <utility>

#include "base/log.h"

namespace verbatim::gateway {

// What one interval saw.
struct RefusalCounts {
  std::map<int, uint64_t> by_status;  // of those that are nobody's
  uint64_t unrecorded = 0;            // of those that are somebody's
  int64_t from = 0, to = 0;           // wall clock, of the first and last

  bool empty() const { return by_status.empty() && unrecorded == 0; }
  void Note() {
    to = NowMicros();
    if (from == 0) from = to;
  }
  void Add(const RefusalCounts& other) {
    if (other.empty()) return;
    for (const auto& [status, count] : other.by_status) by_status[status] += count;
    unrecorded += other.unrecorded;
    from = from == 0 ? other.from : std::min(from, other.from);
    to = std::max(to, other.to);
  }
};

struct Refusals::State {
  std::mutex mutex;  // guards all of it
  std::condition_variable changed;
  double tokens = static_cast<double>(kBurst);
  int64_t filled_micros = 0;
  uint64_t waiting = 0;
  RefusalCounts counts;  // since the last leaf
  bool stopping = false;
};

Refusals::Refusals(store::Ledger& ledger, Metrics& metrics, RefusalOptions options)
    : ledger_(ledger),
      metrics_(metrics),
      options_(std::move(options)),
      state_(std::make_shared<State>()) {
  state_->filled_micros = options_.now();
  thread_ = std::thread([this] { Run(); });
}

Refusals::~Refusals() { Close(); }

bool Refusals::Take() {
  const std::lock_guard lock(state_->mutex);
  const int64_t now = options_.now();
  const double gained = static_cast<double>(now - state_->filled_micros) * 1e-6 * kPerSecond;
  state_->tokens = std::min(static_cast<double>(kBurst), state_->tokens + gained);
  state_->filled_micros = now;
  if (state_->tokens < 1 || state_->waiting >= kWaiting) {
    const bool first = state_->counts.empty();
    ++state_->counts.unrecorded;
    state_->counts.Note();
    if (first) state_->changed.notify_all();
    return false;
  }
  state_->tokens -= 1;
  ++state_->waiting;
  return true;
}

void Refusals::Offer(store::AppendRequest entry) {
  if (!Take()) return metrics_.CountUnrecorded();
  ledger_.AppendAsync(std::move(entry), [state = state_](Result<store::Appended> appended) {
    if (!appended.ok()) {
      LogError("a refusal could not be recorded: " + appended.error().message);
    }
    const std::lock_guard lock(state->mutex);
    --state->waiting;
  });
}

void Refusals::Count(int status) {
  metrics_.CountUnrecorded();
  const std::lock_guard lock(state_->mutex);
  const bool first = state_->counts.empty();
  ++state_->counts.by_status[status];
  state_->counts.Note();
  if (first) state_->changed.notify_all();
}

void Refusals::Close() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->stopping = true;
    state_->changed.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

// An interval begins with the first refusal that is counted in it.
void Refusals::Run() {
  std::unique_lock lock(state_->mutex);
  for (bool last = false; !last;) {
    state_->changed.wait(lock, [&] { return state_->stopping || !state_->counts.empty(); });
    state_->changed.wait_for(lock, std::chrono::microseconds(options_.interval_micros),
                             [&] { return state_->stopping; });
    last = state_->stopping;
    const RefusalCounts counts = std::exchange(state_->counts, {});
    if (counts.empty()) continue;
    lock.unlock();
    const bool committed = Commit(counts);
    lock.lock();
    if (!committed) state_->counts.Add(counts);
  }
}

bool Refusals::Commit(const RefusalCounts& counts) {
  uint64_t count = 0;
  json::Value by_status = json::Value::MakeObject();
  for (const auto& [status, n] : counts.by_status) {
    by_status.Set(std::to_string(status), n);
    count += n;
  }
  store::AppendRequest entry;
  entry.kind = store::Kind::kRefused;
  entry.outcome = count > 0 ? "unauthenticated" : "unrecorded";
  entry.manifest = options_.manifest;
  entry.detail = json::Value::MakeObject();
  entry.detail.Set("from", FormatTime(counts.from));
  entry.detail.Set("to", FormatTime(counts.to));
  if (count > 0) {
    entry.detail.Set("count", count);
    entry.detail.Set("status", std::move(by_status));
  }
  if (counts.unrecorded > 0) entry.detail.Set("unrecorded", counts.unrecorded);
  const Result<store::Appended> appended = ledger_.Append(std::move(entry));
  if (!appended.ok()) {
    LogError("the refusals of an interval could not be recorded: " + appended.error().message);
  }
  return appended.ok();
}

}  // namespace verbatim::gateway
