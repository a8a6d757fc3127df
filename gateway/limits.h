// Rate limits and budgets, per key and per tenant.
//
// Requests and tokens per minute are token buckets: a bucket holds a minute's worth, and refills
// evenly. A request takes one of each bucket when it is admitted, and its estimated tokens before
// it runs; once it is known what it took, the difference is settled, so that a bucket may be in
// debt. A budget is a number of tokens per day or month in UTC, and is never overspent by an
// admitted estimate. A hit takes a request, and no tokens.
//
//   Allowance a = limiter.Admit(principal, 0, NowMicros());          // every request, at once
//   if (a.refusal) ...                                               // 429
//   auto refusal = limiter.Reserve(a.ticket, estimate, NowMicros()); // before a run, after a miss
//   a.ticket.Settle(prompt_tokens + completion_tokens, NowMicros()); // after the run
//
// The ticket holds one of the concurrent places until it goes away. a.headers are for the answer.
//
// Spent budgets survive: they are written to a file each second where they changed, and at the end.
// After an unclean end a budget counts as spent what was reserved, and one hundredth more than was
// known to be, so that nobody gains by a crash. Thread-safe; nothing blocks on the disk.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/json.h"
#include "base/result.h"
#include "gateway/auth.h"
#include "gateway/http.h"
#include "policies/tenants.h"

namespace verbatim::gateway {

// What a request may take at most, roughly: its longest answer and a quarter of its bytes.
// `choices` times the length that it names (max_tokens and its other names), else `open_length`.
uint64_t EstimateTokens(const json::Value& request, uint64_t body_bytes, uint64_t open_length);

// A duration as the x-ratelimit-reset-* headers have it: "0s", "17ms", "8.64s", "6m0s", "1h2m3s".
std::string FormatReset(int64_t micros);

class Limiter;

// One admitted request. Movable; destroying it gives its place back, and what was reserved and not
// settled. Must not outlive the Limiter.
class Ticket {
 public:
  Ticket();
  ~Ticket();
  Ticket(Ticket&& other) noexcept;
  Ticket& operator=(Ticket&& other) noexcept;

  // The request took so many tokens, whatever was reserved. At most once; a ticket that is not
  // settled took none.
  void Settle(uint64_t tokens, int64_t now_micros);
  // The same where nobody knows how many: it took what was reserved.
  void SettleReserved(int64_t now_micros);

 private:
  friend class Limiter;
  struct Hold;
  std::unique_ptr<Hold> hold_;
};

// What Admit gives.
struct Allowance {
  // 429 where set, with retry-after and code rate_limit_exceeded or insufficient_quota; the ticket
  // is empty then. Its headers are complete.
  std::optional<HttpError> refusal;
  // x-ratelimit-{limit,remaining,reset}-{requests,tokens} of the limit that is nearest to its end;
  // none where there is no such limit.
  Headers headers;
  Ticket ticket;
};

class Limiter {
 public:
  // `budgets_file`: where spent budgets are kept; "": nowhere. What cannot be read there is an
  // error: a budget that nobody remembers is none.
  static Result<std::unique_ptr<Limiter>> Open(policies::Tenants tenants,
                                               const std::string& budgets_file);
  ~Limiter();
  Limiter(const Limiter&) = delete;
  Limiter& operator=(const Limiter&) = delete;

  // `now_micros`: NowMicros(). A clock that goes backwards refills nothing.
  Allowance Admit(const Principal& principal, uint64_t estimated_tokens, int64_t now_micros);

  // Further tokens for an admitted request: nothing, or the 429 and nothing is taken.
  std::optional<HttpError> Reserve(Ticket& ticket, uint64_t estimated_tokens, int64_t now_micros);

  // Told of each refusal: "key" or "tenant", and "requests", "concurrent", "tokens" or "budget".
  // Set before the first request; must not block, nor call back.
  void OnRefused(std::function<void(std::string_view scope, std::string_view limit)> callback);

  // Other limits from now on; what was used stays used.
  void Replace(policies::Tenants tenants);

  // Writes spent budgets now. The destructor does, too, and marks the file as cleanly ended.
  Status Save();

 private:
  friend class Ticket;
  struct State;
  explicit Limiter(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace verbatim::gateway
