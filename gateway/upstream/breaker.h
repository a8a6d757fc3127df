// A circuit breaker: an upstream that is down is left alone for a while, so that clients hear so at
// once and it can recover. Any thread may call it; times are microseconds of a monotonic clock.
//
// Closed until, within a window, `failures` calls failed and at least as many as succeeded; then
// open: nobody is let through for `open_micros`; then half open: one call at a time is let through,
// and its outcome closes or opens the circuit again.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <optional>

namespace verbatim::gateway {

struct BreakerOptions {
  uint64_t failures = 10;  // 0: never opens
  int64_t window_micros = 30'000'000;
  int64_t open_micros = 10'000'000;
};

class CircuitBreaker {
 public:
  enum class State { kClosed, kOpen, kHalfOpen };
  // What a call says of the upstream's health. A refusal of one request (4xx) is healthy.
  enum class Outcome {
    kHealthy,
    kUnhealthy,
    kUnknown,  // cancelled before anything was known
  };
  // Of a call that was let through; goes back with its outcome, exactly once.
  struct Ticket {
    uint64_t period = 0;
  };

  explicit CircuitBreaker(const BreakerOptions& options);

  std::optional<Ticket> Enter(int64_t now);
  void Leave(Ticket ticket, Outcome outcome, int64_t now);

  // Until a call may be let through: 0 where it is now.
  int64_t OpenFor(int64_t now) const;
  State state(int64_t now) const;

 private:
  static constexpr int64_t kBuckets = 10;
  struct Bucket {
    int64_t number = -1;  // of the time that it counts: time / (window / kBuckets)
    uint64_t healthy = 0, unhealthy = 0;
  };

  void Open(int64_t now);
  State StateAt(int64_t now) const;

  const BreakerOptions options_;
  mutable std::mutex mutex_;  // guards everything below
  State state_ = State::kClosed;
  uint64_t period_ = 0;  // counts changes of state: a ticket of an earlier one says nothing
  int64_t opened_ = 0;
  bool probing_ = false;  // half open, and a call is under way
  std::array<Bucket, kBuckets> buckets_{};
};

}  // namespace verbatim::gateway
