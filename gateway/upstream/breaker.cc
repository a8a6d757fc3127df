#include "gateway/upstream/breaker.h"

#include <algorithm>

namespace verbatim::gateway {

CircuitBreaker::CircuitBreaker(const BreakerOptions& options) : options_(options) {}

CircuitBreaker::State CircuitBreaker::StateAt(int64_t now) const {
  if (state_ == State::kOpen && now - opened_ >= options_.open_micros) return State::kHalfOpen;
  return state_;
}

CircuitBreaker::State CircuitBreaker::state(int64_t now) const {
  const std::lock_guard lock(mutex_);
  return StateAt(now);
}

int64_t CircuitBreaker::OpenFor(int64_t now) const {
  const std::lock_guard lock(mutex_);
  if (StateAt(now) != State::kOpen) return 0;
  return options_.open_micros - (now - opened_);
}

std::optional<CircuitBreaker::Ticket> CircuitBreaker::Enter(int64_t now) {
  const std::lock_guard lock(mutex_);
  const State state = StateAt(now);
  if (state == State::kOpen) return std::nullopt;
  if (state == State::kHalfOpen) {
    if (state_ == State::kOpen) {
      state_ = State::kHalfOpen;
      ++period_;
    }
    if (probing_) return std::nullopt;
    probing_ = true;
  }
  return Ticket{period_};
}

void CircuitBreaker::Leave(Ticket ticket, Outcome outcome, int64_t now) {
  const std::lock_guard lock(mutex_);
  if (ticket.period != period_) return;
  if (state_ == State::kHalfOpen) {
    probing_ = false;
    if (outcome == Outcome::kUnhealthy) Open(now);
    if (outcome == Outcome::kHealthy) {
      state_ = State::kClosed;
      ++period_;
      buckets_.fill(Bucket());
    }
    return;
  }
  if (outcome == Outcome::kUnknown || options_.failures == 0) return;

  const int64_t number = now / std::max<int64_t>(1, options_.window_micros / kBuckets);
  Bucket& bucket = buckets_[static_cast<size_t>(number % kBuckets)];
  if (bucket.number != number) bucket = {.number = number};
  ++(outcome == Outcome::kHealthy ? bucket.healthy : bucket.unhealthy);

  uint64_t healthy = 0, unhealthy = 0;
  for (const Bucket& b : buckets_) {
    if (b.number <= number - kBuckets) continue;
    healthy += b.healthy;
    unhealthy += b.unhealthy;
  }
  if (unhealthy >= options_.failures && unhealthy >= healthy) Open(now);
}

void CircuitBreaker::Open(int64_t now) {
  state_ = State::kOpen;
  opened_ = now;
  ++period_;
  buckets_.fill(Bucket());
}

}  // namespace verbatim::gateway
