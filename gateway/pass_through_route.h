// Whatever is no endpoint of ours, where policy lets it through: to an upstream and back, as it
// comes, without an entry. Which paths those are: upstream/pass_through.h. Thread-safe.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <memory>
#include <optional>
#include <utility>

#include "gateway/auth.h"
#include "gateway/http.h"
#include "gateway/recorder.h"

namespace verbatim::gateway {

class Admission;
class Answerer;
class InFlight;
class Runs;

class PassThroughRoute {
 public:
  // All outlive it. The credentials that are the authenticator's own never go upstream.
  PassThroughRoute(Authenticator authenticator, const Admission& admission, InFlight& in_flight,
                   Runs& runs, Answerer& answerer)
      : authenticator_(std::move(authenticator)),
        admission_(admission),
        in_flight_(in_flight),
        runs_(runs),
        answerer_(answerer) {}

  // call: of AcceptCall, for `http`.
  boost::asio::awaitable<void> Serve(std::shared_ptr<Call> call, const Request& http,
                                     ResponseSink& sink);

 private:
  // What goes upstream, with one request of the caller's limits in `ticket`; or why nothing does.
  std::optional<HttpError> Prepare(Call& call, const Request& http,
                                   const std::shared_ptr<Ticket>& ticket) const;

  const Authenticator authenticator_;
  const Admission& admission_;
  InFlight& in_flight_;
  Runs& runs_;
  Answerer& answerer_;
};

}  // namespace verbatim::gateway
