#include "gateway/runs.h"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/thread_pool.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <condition_variable>
#include <exception>
#include <mutex>
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

// Bytes of a request or an answer that keep a thread busy for longer than a hop to another takes.
constexpr size_t kLarge = size_t{32} << 10;

// A run's coroutine has no caller: what it throws ends the program.
void Rethrow(std::exception_ptr e) {
  if (e) std::rethrow_exception(e);
}

// About as many as an entry of it has.
size_t BytesOf(const Transcript& transcript) {
  return transcript.trace.events.size() * sizeof(TokenPiece::digest) + transcript.body.size();
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

RunEnd NotRecorded() {
  RunEnd end{.outcome = RunEnd::Outcome::kFailed, .error = RecordingFailed()};
  end.cause = CauseOf(end.error);
  return end;
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

// How many lead.
struct Leaders {
  std::mutex mutex;  // guards what follows
  std::condition_variable emptied;
  size_t count = 0;
};

namespace {

// One of them, from beginning to end.
class Leader {
 public:
  Leader(std::shared_ptr<Leaders> all) : all_(std::move(all)) {
    const std::lock_guard lock(all_->mutex);
    ++all_->count;
  }
  ~Leader() {
    const std::lock_guard lock(all_->mutex);
    if (--all_->count == 0) all_->emptied.notify_all();
  }
  Leader(const Leader&) = delete;
  Leader& operator=(const Leader&) = delete;

 private:
  const std::shared_ptr<Leaders> all_;
};

// What one does, and with what; counted until all of it is gone.
struct Leading {
  const Leader leader;
  const std::string key;
  const std::shared_ptr<Flight> flight;
  const Runs::Work work;
  const Runs::After after;
};

}  // namespace

Runs::Runs(RunsOptions options)
    : options_(std::move(options)), leaders_(std::make_shared<Leaders>()) {}

asio::awaitable<void> Runs::Lead(std::string key, std::shared_ptr<Flight> flight, Work work,
                                 After after) {
  asio::any_io_executor where = co_await asio::this_coro::executor;
  if (flight->call()->body.size() >= kLarge) where = options_.pool->get_executor();
  auto leading = std::make_unique<Leading>(leaders_, std::move(key), std::move(flight),
                                           std::move(work), std::move(after));
  auto lead = [this, leading = std::move(leading)]() -> asio::awaitable<void> {
    const std::unique_ptr<Settled> settled = co_await leading->work(leading->flight);
    options_.in_flight->Finish(leading->key, leading->flight, *settled);
    if (leading->after) leading->after(*leading->flight, *settled);
  };
  asio::co_spawn(where, std::move(lead), Rethrow);
}

void Runs::WaitUntilEmpty() {
  std::unique_lock lock(leaders_->mutex);
  leaders_->emptied.wait(lock, [this] { return leaders_->count == 0; });
}

asio::awaitable<std::unique_ptr<Ended>> Runs::Run(std::shared_ptr<Flight> flight) {
  std::shared_ptr<const Call> call = flight->call();
  auto ended = std::make_unique<Ended>();
  const int64_t began = MonotonicMicros();
  if (call->prepared->external()) {
    const Result<uint64_t> intent = co_await AppendIntent(*call);
    const uint64_t seconds = call->decision.break_glass_seconds;
    if (intent.ok()) {
      ended->intent = *intent;
    } else if (!options_.answerer->break_glass().Opens(intent.error(), seconds)) {
      ended->end = NotRecorded();
      co_return ended;
    }
  }
  json::Value tried = json::Value::MakeArray();
  for (size_t next = 0; call;) {
    co_await RunOnce(*call, flight);
    call = Next(*flight, next, tried, *ended);
  }
  if (!ended->stored) ended->end = flight->end();
  if (!tried.items().empty()) {
    if (!ended->end.report.is_object()) ended->end.report = json::Value::MakeObject();
    ended->end.report.Set("stands_in_for", std::move(tried));
  }
  ended->micros = MonotonicMicros() - began;
  co_return ended;
}

// What a fallback answered before, in the form that its call asks for.
SharedResult Runs::FindStored(Call& call) const {
  if (!ServesHits(call) || call.cache.no_cache) return nullptr;
  do {
    auto hit = options_.results->Lookup(call.decision.name_space, call.ResultKey());
    if (!hit.ok()) LogError("the store failed: " + hit.error().message);
    if (!hit.ok() || !*hit || !IsFresh(call, **hit)) return nullptr;
    if (RenderStored(call, **hit)) return *hit;
  } while (NarrowToForm(call));
  return nullptr;
}

asio::awaitable<Result<uint64_t>> Runs::AppendIntent(const Call& call) {
  auto intent = co_await options_.answerer->Append(IntentEntry(call));
  if (!intent.ok()) co_return intent.error();
  co_return intent->entry;
}

std::shared_ptr<const Call> Runs::Next(Flight& flight, size_t& next, json::Value& tried,
                                       Ended& ended) {
  const RunEnd end = flight.end();
  if (end.outcome != RunEnd::Outcome::kFailed || !end.elsewhere) return nullptr;
  const std::shared_ptr<const Call> call = flight.call();
  const std::shared_ptr<Call> other = StandIn(options_.authenticator, *call, next);
  if (!other) return nullptr;
  tried.Append(end.report);
  ended.stored = FindStored(*other);
  flight.Retry(other);
  if (ended.stored) return nullptr;
  options_.metrics->CountFallback(UpstreamOf(*call->prepared), UpstreamOf(*other->prepared));
  return other;
}

asio::awaitable<void> Runs::RunOnce(const Call& call, std::shared_ptr<Flight> flight) {
  RunOptions run{.seed = call.seed, .tenant = call.principal.tenant};
  if (call.prepared->external()) {
    AddTraceHeaders(call.headers, options_.generate_traceparent, RandomBytes(kTraceRandomBytes),
                    run.headers);
  }
  const RunObserver observer = Flight::Observe(flight);
  auto started = call.prepared->Start(run, observer);
  if (auto* error = std::get_if<HttpError>(&started)) {
    RunEnd refused{.outcome = RunEnd::Outcome::kFailed, .error = std::move(*error)};
    refused.cause = CauseOf(refused.error);
    observer.on_end(std::move(refused));
  } else {
    flight->Attach(std::get<std::unique_ptr<gateway::Run>>(std::move(started)));
  }
  return flight->WaitForRun();
}

asio::awaitable<std::unique_ptr<Settled>> Runs::Commit(const Flight& flight,
                                                       std::unique_ptr<Ended> ended,
                                                       std::optional<uint64_t> renews) {
  const bool answered = SettledBy(ended->end).committed;
  if (!answered || ended->stored || BytesOf(flight.transcript()) < kLarge) {
    co_return co_await Record(flight, std::move(ended), renews);
  }
  auto record = Record(flight, std::move(ended), renews);
  co_return co_await asio::co_spawn(*options_.pool, std::move(record), asio::use_awaitable);
}

asio::awaitable<std::unique_ptr<Settled>> Runs::Record(const Flight& flight,
                                                       std::unique_ptr<Ended> ended,
                                                       std::optional<uint64_t> renews) {
  const std::shared_ptr<const Call> call = flight.call();
  const RunEnd& end = ended->end;
  Settled settled = SettledBy(end);
  store::AppendRequest entry;
  if (ended->stored) {
    entry = StandInHitEntry(*call, *ended->stored, end);
    settled.stored = ended->stored;
    settled.output_digest = ended->stored->record.output_digest.value_or(Digest{});
  } else if (settled.committed) {
    entry = GeneratedEntry(*call, flight.transcript(), end, ended->micros);
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
  if (!ended->stored) CountTokens(*call, flight, end, settled);
  entry.closes_intent = ended->intent;
  // A fallback's answer has another fingerprint.
  if (entry.record.serves_hits && call->backend == call->first_backend) entry.renews = renews;

  const int64_t began = MonotonicMicros();
  auto appended = co_await options_.answerer->Append(std::move(entry));
  options_.metrics->CountCommit(appended.ok(),
                                static_cast<double>(MonotonicMicros() - began) * 1e-6);
  const uint64_t seconds = call->decision.break_glass_seconds;
  const bool unrecorded = !appended.ok() && settled.committed &&
                          options_.answerer->break_glass().Answers(appended.error(), seconds);
  if (!appended.ok() && !unrecorded) {
    settled.committed = settled.complete = settled.broken = false;
    settled.error = RecordingFailed();
  } else if (appended.ok() && settled.committed) {
    if (renews && appended->serves_hits) options_.results->Forget(*renews);
    settled.entry = ended->stored ? ended->stored->entry : appended->entry;
  }
  co_return std::make_unique<Settled>(std::move(settled));
}

void Runs::Sample(const Flight& flight, const Settled& settled,
                  std::optional<uint64_t> compare_with) {
  const std::shared_ptr<const Call> call = flight.call();
  if (settled.stored || !settled.entry || !settled.complete || !call->KeepsPayload()) return;
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
  asio::post(*options_.pool, [this, call, other = *compare_with,
                              again = Verification::Again{flight.transcript(), *settled.entry}] {
    auto stored = LoadRecorded(*options_.ledger, other, call);
    if (!stored.ok()) {
      LogError("entry " + std::to_string(other) + ": " + stored.error().message);
      return;
    }
    stored->again = again;
    options_.verifier->Offer(*std::move(stored));
  });
}

}  // namespace verbatim::gateway
