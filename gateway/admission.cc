#include "gateway/admission.h"

#include <utility>

#include "base/clock.h"
#include "gateway/access_log.h"
#include "gateway/metrics.h"
#include "gateway/refusals.h"
#include "gateway/traceparent.h"

namespace verbatim::gateway {

namespace asio = boost::asio;
using store::Kind;

namespace {

constexpr uint64_t kOpenLengthTokens = 1024;  // expected where a request names no length

}  // namespace

Allowance Admission::Admit(const Principal& principal) const {
  if (!limiter_) return {};
  return limiter_->Admit(principal, 0, NowMicros());
}

asio::awaitable<void> Admission::TurnAway(Call& call, const HttpError& over, ResponseSink& sink,
                                          Outcome& outcome) const {
  call.cache.no_store = true;
  refusals_.Offer(UnansweredEntry(call, Kind::kRefused, CauseOf(over), &over, 0));
  outcome.status = over.status;
  outcome.error = CauseOf(over);
  HttpError answer = over;
  (void)co_await SendError(sink, std::move(answer));
}

std::optional<HttpError> Admission::Reserve(const Call& call) const {
  const std::shared_ptr<Ticket> ticket = call.ticket.lock();
  if (!ticket) return std::nullopt;
  const uint64_t estimate =
      EstimateTokens(call.decision.request, call.body.size(), kOpenLengthTokens);
  return limiter_->Reserve(*ticket, estimate, NowMicros());
}

void Admission::Settle(Ticket& ticket, const Settled& settled) {
  if (settled.tokens_known) {
    ticket.Settle(settled.prompt_tokens + settled.output_tokens, NowMicros());
  } else {
    ticket.SettleReserved(NowMicros());
  }
}

void Admission::Account(Endpoint endpoint, const Request& http, ResponseSink& sink,
                        const Outcome& outcome) const {
  const Call* call = outcome.answered.get();
  const std::string_view model = call ? std::string_view(call->request.model) : "";
  const std::string upstream = call && call->prepared ? UpstreamOf(*call->prepared) : "";
  if (sink.TakesNotes()) {
    AccessNotes notes;
    notes.model = model;
    notes.upstream = upstream;
    notes.cache = outcome.cache;
    notes.entry = outcome.entry;
    notes.pending = outcome.pending;
    if (call && call->fingerprint) notes.fingerprint = HexEncode(*call->fingerprint);
    if (auto trace = TraceOf(http.headers)) notes.trace_id = TraceIdText(*trace);
    sink.Note(notes);
  }
  metrics_.CountAnswered({.endpoint = EndpointPath(endpoint),
                          .cache = outcome.cache,
                          .status = outcome.status,
                          .model = model,
                          .provider = upstream,
                          .error_type = outcome.error,
                          .seconds = static_cast<double>(NowMicros() - http.received_micros) * 1e-6,
                          .first_token_seconds = outcome.first_token_seconds,
                          .prompt_tokens = outcome.prompt_tokens,
                          .output_tokens = outcome.output_tokens});
}

}  // namespace verbatim::gateway
