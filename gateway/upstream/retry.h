// When a request is worth asking again, and how long to wait before that. Pure but for Backoff,
// which one run owns.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "gateway/http.h"

namespace verbatim::gateway {

// x-should-retry decides where it is "true" or "false"; else the status does: 408, 409, 429, 500,
// 502, 503, 504, 529.
bool WorthRetrying(int status, const Headers& headers);

// How long the upstream asks to wait, in microseconds from `now_micros` (UTC): retry-after-ms, else
// retry-after as seconds (a fraction is allowed) or as an HTTP date (RFC 9110 5.6.7; all three
// forms). At least 0 and at most a day; nothing where it does not say.
std::optional<int64_t> AskedDelay(const Headers& headers, int64_t now_micros);

// Waits with decorrelated jitter: each is drawn between `base` and three times the one before, and
// is at most `max`. `random` gives numbers of [0, 1).
class Backoff {
 public:
  Backoff(int64_t base_micros, int64_t max_micros, std::function<double()> random);

  // The next wait, or nothing where the upstream asks for a longer one than `max`: asking earlier
  // than it wants is of no use, and the client may rather go elsewhere.
  std::optional<int64_t> Next(std::optional<int64_t> asked);

 private:
  int64_t base_, max_, last_;
  std::function<double()> random_;
};

}  // namespace verbatim::gateway
