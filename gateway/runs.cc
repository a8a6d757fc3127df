#include "gateway/runs.h"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/thread_pool.hpp>
#include <exception>
#include <utility>
#include <variant>

#include "base/clock.h"
#include "base/crypto.h"
#include "base/log.h"
#include "gateway/answerer.h"
#include "gateway/hit_cache.h"
#include "gateway/metrics.h"
#include "gateway/preparation.h"
#include "gateway/traceparent.h"
#include "gateway/verifier.h"

namespace verbatim::gateway {

namespace asio = boost::asio;
using store::Kind;

namespace {

// A run's coroutine has no caller: what it throws ends the program.
void Rethrow(std::exception_ptr e) {
  if (e) std::rethrow_exception(e);
}

// What the run took, whatever became of it.
void CountTokens(const Call& call, const Flight& flight, const RunEnd& end, Settled& settled) {
  if (!call.prepared->external()) {
    settled.output_tokens = flight.Generated();
    const bool ran = end.outcome != RunEnd::Outcome::kFailed || settled.output_tokens > 0;
    settled.prompt_tokens = ran ? call.prepared->prompt_tokens() : 0;
    return;
  }
  settled.prompt_tokens = end.reply.prompt_tokens;
  settled.output_tokens = end.reply.completion_tokens;
  // An error of the upstream's cost nothing; all else that reached it did.
  settled.tokens_known =
      end.outcome == RunEnd::Outcome::kFailed || settled.prompt_tokens + settled.output_tokens > 0;
}

}  // namespace

Settled SettledBy(const RunEnd& end) {
  Settled settled;
  settled.complete = end.outcome == RunEnd::Outcome::kComplete;
  settled.committed = settled.complete || end.outcome == RunEnd::Outcome::kIncomplete;
  settled.broken = end.broken;
  settled.error = end.error;
  return settled;
}

void Runs::Lead(std::string key, std::shared_ptr<Flight> flight, Work work, After after) {
  auto lead = [this, key = std::move(key), flight = std::move(flight), work = std::move(work),
               after = std::move(after)]() -> asio::awaitable<void> {
    const Settled settled = co_await work(flight);
    options_.in_flight->Finish(key, flight, settled);
    if (after) after(*flight, settled);
  };
  asio::co_spawn(*options_.pool, std::move(lead), Rethrow);
}

asio::awaitable<Ended> Runs::Run(std::shared_ptr<Flight> flight) {
  std::shared_ptr<const Call> call = flight->call();
  Ended ended;
  const int64_t began = MonotonicMicros();
  if (call->prepared->external()) {
    auto intent = co_await options_.answerer->Append(IntentEntry(*call));
    if (!intent.ok()) {
      ended.end = {.outcome = RunEnd::Outcome::kFailed, .error = RecordingFailed()};
      ended.end.cause = CauseOf(ended.end.error);
      co_return ended;
    }
    ended.intent = intent->entry;
  }
  json::Value tried = json::Value::MakeArray();
  for (size_t next = 0;;) {
    ended.end = co_await RunOnce(*call, flight);
    if (ended.end.outcome != RunEnd::Outcome::kFailed || !ended.end.elsewhere) break;
    std::shared_ptr<const Call> other = StandIn(options_.authenticator, *call, next);
    if (!other) break;
    tried.Append(ended.end.report);
    options_.metrics->CountFallback(UpstreamOf(*call->prepared), UpstreamOf(*other->prepared));
    flight->Retry(other);
    call = std::move(other);
  }
  if (!tried.items().empty()) {
    if (!ended.end.report.is_object()) ended.end.report = json::Value::MakeObject();
    ended.end.report.Set("stands_in_for", std::move(tried));
  }
  ended.micros = MonotonicMicros() - began;
  co_return ended;
}

asio::awaitable<RunEnd> Runs::RunOnce(const Call& call, std::shared_ptr<Flight> flight) {
  RunOptions run{.seed = call.seed};
  if (call.prepared->external()) {
    AddTraceHeaders(call.headers, options_.generate_traceparent, RandomBytes(kTraceRandomBytes),
                    run.headers);
  }
  auto started = call.prepared->Start(run, Flight::Observe(flight));
  if (auto* error = std::get_if<HttpError>(&started)) {
    RunEnd refused{.outcome = RunEnd::Outcome::kFailed, .error = *error};
    refused.cause = CauseOf(*error);
    co_return refused;
  }
  flight->Attach(std::get<std::unique_ptr<gateway::Run>>(std::move(started)));

  co_return co_await flight->WaitForRun();
}

asio::awaitable<Settled> Runs::Commit(const Flight& flight, Ended ended,
                                      std::optional<uint64_t> renews) {
  const std::shared_ptr<const Call> call = flight.call();
  const RunEnd& end = ended.end;
  Settled settled = SettledBy(end);
  store::AppendRequest entry;
  if (settled.committed) {
    entry = GeneratedEntry(*call, flight.transcript(), end, ended.micros);
    settled.output_digest = Sha256(entry.response);
    settled.redacted = entry.record.extra.Find("redacted") != nullptr;
    if (!call->KeepsPayload()) DropPayload(entry);
  } else if (end.outcome == RunEnd::Outcome::kCancelled) {
    settled.error = {.status = 503, .message = "The run was cancelled.", .code = "cancelled"};
    entry = UnansweredEntry(*call, Kind::kCancelled, "client_gone", nullptr, flight.Generated());
    AddReport(entry, end);
  } else {
    const Kind kind = end.error.status < 500 ? Kind::kRefused : Kind::kFailed;
    entry = UnansweredEntry(*call, kind, end.cause, &end.error, flight.Generated());
    AddReport(entry, end);
  }
  CountTokens(*call, flight, end, settled);
  entry.closes_intent = ended.intent;
  // A fallback's answer has another fingerprint.
  if (entry.record.serves_hits && call->backend == call->first_backend) entry.renews = renews;

  const int64_t began = MonotonicMicros();
  auto appended = co_await options_.answerer->Append(std::move(entry));
  options_.metrics->CountCommit(appended.ok(),
                                static_cast<double>(MonotonicMicros() - began) * 1e-6);
  if (!appended.ok()) {
    settled.committed = settled.complete = settled.broken = false;
    settled.error = RecordingFailed();
  } else if (settled.committed) {
    if (renews && appended->serves_hits) options_.results->Forget(*renews);
    settled.entry = appended->entry;
  }
  co_return settled;
}

void Runs::Sample(const Flight& flight, const Settled& settled,
                  std::optional<uint64_t> compare_with) {
  const std::shared_ptr<const Call> call = flight.call();
  if (!settled.entry || !settled.complete || !call->KeepsPayload()) return;
  if (settled.redacted) return;   // what was answered is not what is kept
  if (!call->MayReuse()) return;  // another answer would be right, too
  if (Verifier::Draw(call->decision.verify_rate)) {
    options_.verifier->Offer({.entry = *settled.entry,
                              .call = call,
                              .head = call->head,
                              .form = FormOf(call->request),
                              .output_digest = settled.output_digest,
                              .recorded = flight.transcript()});
  }
  if (!compare_with || call->backend != call->first_backend) return;
  auto stored = LoadRecorded(*options_.ledger, *compare_with, call);
  if (!stored.ok()) {
    LogError("entry " + std::to_string(*compare_with) + ": " + stored.error().message);
    return;
  }
  stored->again = Verification::Again{flight.transcript(), *settled.entry};
  options_.verifier->Offer(*std::move(stored));
}

}  // namespace verbatim::gateway
