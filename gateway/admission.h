// What a request may take of its caller's limits, what it took, and what metrics and access log say
// of it. Thread-safe.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <memory>
#include <optional>

#include "gateway/answerer.h"
#include "gateway/http.h"
#include "gateway/in_flight.h"
#include "gateway/limits.h"
#include "gateway/recorder.h"

namespace verbatim::gateway {

class Metrics;
class Refusals;

class Admission {
 public:
  // All outlive it. limiter: null where there are no limits.
  Admission(Limiter* limiter, Refusals& refusals, Metrics& metrics)
      : limiter_(limiter), refusals_(refusals), metrics_(metrics) {}

  // One request of the caller's limits, or why not. The tokens are taken where a run begins.
  Allowance Admit(const Principal& principal) const;

  // What the run may take of the tokens of whoever leads it; who joins takes none.
  std::optional<HttpError> Reserve(const Call& call) const;

  // Answers what is over a limit. It costs the client nothing, so what it may cost the disk is
  // bounded (refusals.h).
  boost::asio::awaitable<void> TurnAway(Call& call, const HttpError& over, ResponseSink& sink,
                                        Outcome& outcome) const;

  // What the run took in the end.
  static void Settle(Ticket& ticket, const Settled& settled);

  // Metrics and access log.
  void Account(Endpoint endpoint, const Request& http, ResponseSink& sink,
               const Outcome& outcome) const;

 private:
  Limiter* const limiter_;
  Refusals& refusals_;
  Metrics& metrics_;
};

}  // namespace verbatim::gateway
