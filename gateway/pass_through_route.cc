#include "gateway/pass_through_route.h"

#include <string>
#include <utility>
#include <variant>

#include "base/json.h"
#include "gateway/access.h"
#include "gateway/access_log.h"
#include "gateway/admission.h"
#include "gateway/answerer.h"
#include "gateway/in_flight.h"
#include "gateway/runs.h"

namespace verbatim::gateway {

namespace asio = boost::asio;

namespace {

// A caller's list of models holds here too: for the "model" of a JSON object, whatever the
// request's content type says it is.
std::optional<HttpError> CheckModel(const Call& call) {
  const policies::Tenants& tenants = call.in_force->tenants;
  if (!HasModelList(tenants, call.principal)) return std::nullopt;
  if (call.body.find_first_not_of(" \t\r\n") == std::string::npos) return std::nullopt;
  if (FindHeader(call.headers, "content-type").starts_with("multipart/")) return std::nullopt;
  auto body = json::Parse(call.body);
  const std::string_view coding = FindHeader(call.headers, "content-encoding");
  if (!body || !(coding.empty() || coding == "identity")) {
    return HttpError{
        .status = 400,
        .message =
            "The body is no plain JSON, so that its model is not known to be one "
            "that you may use" +
            (body ? "; send it without a content-encoding." : ": " + body.error().message),
        .code = "invalid_json"};
  }
  const json::Value* model = body->Find("model");
  if (!model) return std::nullopt;
  if (!model->is_string()) {
    return HttpError{.status = 400,
                     .message = "You must provide a model parameter as a string.",
                     .param = "model",
                     .code = "invalid_type"};
  }
  if (MayUseModel(tenants, call.principal, model->as_string())) return std::nullopt;
  return NoSuchModel(model->as_string());
}

}  // namespace

asio::awaitable<void> PassThroughRoute::Serve(std::shared_ptr<Call> call, const Request& http,
                                              ResponseSink& sink) {
  const std::shared_ptr<Ticket> ticket = std::make_shared<Ticket>();
  if (auto error = Prepare(*call, http, ticket)) {
    co_return (void) co_await SendError(sink, *std::move(error));
  }
  call->decision.mode = policies::Mode::kBypass;
  auto seat = in_flight_.JoinOrLead("", 0, [&] { return std::make_shared<Flight>(call); });
  auto run = [this, call,
              ticket](std::shared_ptr<Flight> flight) -> asio::awaitable<std::unique_ptr<Settled>> {
    co_await runs_.RunOnce(*call, flight);
    co_return std::make_unique<Settled>(SettledBy(flight->end()));
  };
  co_await runs_.Lead("", seat->flight(), run, {});
  Outcome outcome;
  (void)co_await answerer_.Follow(*call, *seat, sink, outcome);
  AccessNotes notes;
  notes.cache = outcome.cache;
  notes.upstream = UpstreamOf(*call->prepared);
  sink.Note(notes);
}

std::optional<HttpError> PassThroughRoute::Prepare(Call& call, const Request& http,
                                                   const std::shared_ptr<Ticket>& ticket) const {
  const std::shared_ptr<const UpstreamBackend>& upstream = call.in_force->pass_through;
  if (!upstream) {
    return HttpError{.status = 404,
                     .message = "Unknown request URL: " + http.method + " " + http.path +
                                ". Please check the URL for typos.",
                     .code = "unknown_url"};
  }
  if (call.decision.mode == policies::Mode::kReplay) {
    return HttpError{.status = 504,
                     .message =
                         "This mode serves recorded answers only, and of what passes through "
                         "nothing is recorded.",
                     .type = "replay_miss",
                     .code = "not_recorded",
                     .headers = {{"x-should-retry", "false"}}};
  }
  Allowance allowance = admission_.Admit(call.principal);
  if (allowance.refusal) return std::move(allowance.refusal);
  call.limit_headers = std::move(allowance.headers);
  *ticket = std::move(allowance.ticket);
  call.ticket = ticket;
  if (auto error = CheckModel(call)) return error;
  authenticator_.EraseOwn(call.headers);
  const PrepareOptions options{.headers = &call.headers, .query = call.query, .body = call.body};
  auto prepared = upstream->PreparePassThrough(http.method, "/" + http.params.at(0), options);
  if (auto* refused = std::get_if<HttpError>(&prepared)) return std::move(*refused);
  call.prepared = std::get<std::shared_ptr<const PreparedRequest>>(std::move(prepared));
  return std::nullopt;
}

}  // namespace verbatim::gateway
