#include "gateway/pipeline.h"

#include <atomic>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/thread_pool.hpp>
#include <exception>
#include <mutex>
#include <utility>

#include "base/clock.h"
#include "base/crypto.h"
#include "base/log.h"
#include "gateway/access.h"
#include "gateway/access_log.h"
#include "gateway/answerer.h"
#include "gateway/fingerprint.h"
#include "gateway/hit_cache.h"
#include "gateway/in_flight.h"
#include "gateway/manifest.h"
#include "gateway/metrics.h"
#include "gateway/nearest.h"
#include "gateway/recorder.h"
#include "gateway/refusals.h"
#include "gateway/request_memo.h"
#include "gateway/traceparent.h"
#include "gateway/verifier.h"
#include "gateway/wakeup.h"

namespace verbatim::gateway {

namespace asio = boost::asio;
using policies::Mode;
using store::Kind;

namespace {

constexpr int kThreads = 2;                      // for runs' coroutines and for large requests
constexpr uint64_t kOpenLengthTokens = 1024;     // expected where a request names no length
constexpr size_t kLargeBody = size_t{32} << 10;  // decoded beside the connection's thread

// A run's coroutine has no caller: what it throws ends the program.
void Rethrow(std::exception_ptr e) {
  if (e) std::rethrow_exception(e);
}

HttpError NotRecorded(const store::Ledger& ledger, const Call& call) {
  return {.status = 504,
          .message = "No recorded answer has this request's fingerprint " +
                     HexEncode(*call.fingerprint) +
                     ", and this mode serves recorded answers only. " +
                     DescribeNearest(ledger, call) + "Record it first, in mode record.",
          .type = "replay_miss",
          .code = "not_recorded",
          .headers = {{"x-should-retry", "false"}}};
}

bool NamesLength(const json::Value& body) {
  for (const char* field : {"max_tokens", "max_completion_tokens", "max_output_tokens"}) {
    const json::Value* v = body.Find(field);
    if (v && !v->is_null()) return true;
  }
  return false;
}

bool ServesHits(const Call& call) {
  const Mode mode = call.decision.mode;
  return mode == Mode::kRecord || mode == Mode::kReplay || mode == Mode::kVerify;
}

uint64_t AgeSeconds(const store::StoredResult& hit) {
  return static_cast<uint64_t>(std::max<int64_t>(0, NowMicros() - hit.leaf.time) / 1'000'000);
}

// Too old for the policy: what is run now takes its place.
bool Expired(const Call& call, const store::StoredResult& hit) {
  const uint64_t bound = call.decision.hits.max_age_seconds;
  return bound > 0 && call.prepared->external() && AgeSeconds(hit) > bound;
}

bool Fresh(const Call& call, const store::StoredResult& hit) {
  return !Expired(call, hit) && (!call.cache.max_age || AgeSeconds(hit) <= *call.cache.max_age);
}

}  // namespace

// How a run ended, after whatever stood in for the backend that was asked first.
struct Ended {
  RunEnd end;
  std::optional<uint64_t> intent;  // that stands in the ledger and has to be closed
  int64_t micros = 0;
};

struct Pipeline::State {
  explicit State(PipelineOptions o);

  // The life of a request, and of the run that it may lead.
  asio::awaitable<void> Generate(Endpoint endpoint, const Request& http, ResponseSink& sink,
                                 Outcome& outcome);

  // Its steps. Those that return an error have left no trace of it yet.
  std::shared_ptr<Call> Accept(Endpoint endpoint, const Request& http) const;
  std::optional<HttpError> Admit(Call& call, const std::shared_ptr<Ticket>& ticket) const;
  std::optional<Digest> MemoKey(Endpoint endpoint, const Request& http) const;
  SharedResult Recall(const std::optional<Digest>& memo_key, Call& call);
  void Remember(const std::optional<Digest>& memo_key, const Call& call);
  std::optional<HttpError> Decode(Call& call, json::Value& body) const;
  std::optional<HttpError> Decide(Call& call, const json::Value& body) const;
  std::optional<HttpError> Prepare(Call& call) const;
  void TakeFingerprint(Call& call) const;
  std::string FlightKey(const Call& call) const;
  static std::shared_ptr<Flight> NewFlight(const std::shared_ptr<Call>& call);
  std::optional<HttpError> Reserve(const Call& call) const;
  asio::awaitable<void> TurnAway(Call& call, HttpError over, ResponseSink& sink, Outcome& outcome);
  asio::awaitable<Ended> Run(std::shared_ptr<Flight> flight);
  asio::awaitable<RunEnd> RunOnce(const Call& call, std::shared_ptr<Flight> flight);
  std::shared_ptr<const Call> StandIn(const Call& call, size_t& next) const;
  asio::awaitable<Settled> Commit(const Flight& flight, Ended ended,
                                  std::optional<uint64_t> renews);
  static void Settle(Ticket& ticket, const Settled& settled);
  void Sample(const Flight& flight, const Settled& settled, std::optional<uint64_t> compare_with);

  template <typename F>
  asio::awaitable<std::optional<HttpError>> Beside(F work);  // on a thread of the pool

  void RecordRefused(const Request& http, const HttpError& error);
  asio::awaitable<void> Handle(Endpoint endpoint, const Request& http, ResponseSink& sink);
  asio::awaitable<void> PassThrough(const Request& http, ResponseSink& sink);
  void Account(Endpoint endpoint, const Request& http, ResponseSink& sink,
               const Outcome& outcome) const;
  std::string ModelJson(const ServedModel& model) const;
  asio::awaitable<void> ListModels(const Request& http, ResponseSink& sink) const;
  asio::awaitable<void> ShowModel(const Request& http, ResponseSink& sink) const;

  std::shared_ptr<const InForce> in_force() const {
    const std::lock_guard lock(in_force_mutex);
    return in_force_now;
  }

  const PipelineOptions options;      // but for in_force
  const std::string manifest;         // digest in hex
  mutable std::mutex in_force_mutex;  // guards in_force_now
  std::shared_ptr<const InForce> in_force_now;
  store::Ledger& ledger;
  Metrics& metrics;
  std::atomic<bool> draining = false;
  InFlight in_flight;
  HitCache results;
  RequestMemo memo;
  Verifier verifier;
  Answerer answerer;
  Refusals refusals;
  asio::thread_pool pool{kThreads};
};

Pipeline::State::State(PipelineOptions o)
    : options(std::move(o)),
      manifest(HexEncode(options.manifest->digest)),
      in_force_now(Seal(options.in_force, *options.manifest)),
      ledger(*options.ledger),
      metrics(*options.metrics),
      results(ledger, options.hit_memory_bytes / 4 * 3),
      memo(options.hit_memory_bytes / 4),
      verifier(options.ledger, options.metrics, options.verify_queue, options.on_compared),
      answerer(ledger, verifier),
      refusals(ledger, metrics,
               {.interval_micros = options.refusal_interval_micros, .manifest = manifest}) {
  metrics.AddGauge("runs_in_flight", "Runs that someone waits for",
                   [this] { return static_cast<double>(in_flight.size()); });
  metrics.AddGauge("verify_backlog", "Answers that wait to be executed again",
                   [this] { return static_cast<double>(verifier.backlog()); });
}

// The life of a request, and of the run that it may lead: nine steps.
asio::awaitable<void> Pipeline::State::Generate(Endpoint endpoint, const Request& http,
                                                ResponseSink& sink, Outcome& outcome) {
  // 1. Accept: the server has read the request whole and knows who asks.
  const std::shared_ptr<Call> call = Accept(endpoint, http);
  outcome.answered = call;
  const std::shared_ptr<Ticket> ticket = std::make_shared<Ticket>();
  if (auto over = Admit(*call, ticket)) {
    co_return co_await TurnAway(*call, *std::move(over), sink, outcome);
  }
  // A request equal to one that was a hit goes to its result at once.
  const std::optional<Digest> memo_key = MemoKey(endpoint, http);
  if (SharedResult hit = Recall(memo_key, *call)) {
    const bool served = co_await answerer.ServeHit(call, std::move(hit), sink, outcome);
    if (served) co_return;
  }
  auto check = [this, call]() -> std::optional<HttpError> {
    // 2. Decode: the endpoint's JSON, with the fields that nobody here knows.
    json::Value body;
    if (auto error = Decode(*call, body)) return error;

    // 3. Decide: what policy makes of it, and what the backend makes of that.
    if (auto error = Decide(*call, body)) return error;
    return Prepare(*call);
  };
  std::optional<HttpError> error;
  if (call->body.size() < kLargeBody) {
    error = check();
  } else {
    error = co_await Beside(check);
  }
  if (error) {
    co_return co_await answerer.Refuse(*call, Kind::kRefused, *std::move(error), sink, outcome);
  }

  // 4. Fingerprint.
  TakeFingerprint(*call);

  for (bool alone = false;;) {
    // 5. Look up.
    const uint64_t epoch = in_flight.Epoch();
    std::optional<uint64_t> compare_with, renews;
    if (ServesHits(*call)) {
      auto hit = results.Lookup(call->decision.name_space, *call->fingerprint);
      if (!hit.ok()) {
        HttpError failed = StoreFailed(hit.error());
        co_return co_await answerer.Refuse(*call, Kind::kFailed, failed, sink, outcome);
      }
      if (*hit && call->cache.no_cache) compare_with = (*hit)->entry;
      if (*hit && Expired(*call, **hit)) renews = (*hit)->entry;
      if (*hit && !call->cache.no_cache && Fresh(*call, **hit)) {
        Remember(memo_key, *call);
        const bool served = co_await answerer.ServeHit(call, *hit, sink, outcome);
        if (served) co_return;
        alone = true;
      }
      if (call->decision.mode == Mode::kReplay) {
        auto refuse = [this, call] { return std::optional(NotRecorded(ledger, *call)); };
        error = co_await Beside(refuse);
        co_return co_await answerer.Refuse(*call, Kind::kRefused, *std::move(error), sink, outcome);
      }
    }

    // 6. Join or lead: identical requests in flight run once.
    std::string key = FlightKey(*call);
    // Those whose form cannot be had of the others' answer run by themselves, together.
    if (alone && !key.empty()) key += call->request.stream ? "\nstream" : "\nplain";
    std::optional<HttpError> over;
    auto make = [&] { return (over = Reserve(*call)) ? nullptr : NewFlight(call); };
    auto seat = in_flight.JoinOrLead(key, epoch, make);
    if (over) co_return co_await TurnAway(*call, *std::move(over), sink, outcome);
    if (!seat) continue;
    if (seat->leads()) {
      // The rest is the leader's, and goes on without this client while anyone waits.
      auto lead = [this, key, compare_with, renews, ticket,
                   flight = seat->flight()]() -> asio::awaitable<void> {
        // 7. Run: events reach everyone who waits as they come; the last one is held back.
        Ended ended = co_await Run(flight);

        // 8. Commit: record, leaf and tree state; then the rest of the answer may leave.
        Settled settled = co_await Commit(*flight, std::move(ended), renews);
        Settle(*ticket, settled);
        in_flight.Finish(key, flight, settled);

        // 9. Sample: a draw decides whether this answer is executed again.
        Sample(*flight, settled, compare_with);
      };
      asio::co_spawn(pool, std::move(lead), Rethrow);
    }
    const bool answered = co_await answerer.Follow(*call, *seat, sink, outcome);
    if (answered) co_return;
    alone = true;
  }
}

std::shared_ptr<Call> Pipeline::State::Accept(Endpoint endpoint, const Request& http) const {
  auto call = std::make_shared<Call>();
  call->endpoint = endpoint;
  call->id = http.id;
  call->body = http.body;
  call->headers = http.headers;
  call->query = http.query;
  if (!http.params.empty()) call->deployment = http.params.front();
  call->principal = http.principal;
  call->received_micros = http.received_micros;
  call->cache = ParseCacheControl(http.Header("cache-control"));
  call->manifest = manifest;
  call->in_force = in_force();
  call->decision.mode = call->in_force->policy.mode;
  return call;
}

// One request of the caller's limits; the tokens are taken where a run begins.
std::optional<HttpError> Pipeline::State::Admit(Call& call,
                                                const std::shared_ptr<Ticket>& ticket) const {
  if (!options.limiter) return std::nullopt;
  auto admission = options.limiter->Admit(call.principal, 0, NowMicros());
  if (admission.refusal) return admission.refusal;
  call.limit_headers = std::move(admission.headers);
  *ticket = std::move(admission.ticket);
  call.ticket = ticket;
  return std::nullopt;
}

// Of what is worth remembering.
std::optional<Digest> Pipeline::State::MemoKey(Endpoint endpoint, const Request& http) const {
  if (options.hit_memory_bytes == 0 || http.body.size() >= kLargeBody) return std::nullopt;
  return RequestMemo::KeyOf(endpoint, http);
}

// The result of an equal request, and `call` as that one was once it had its fingerprint; or null,
// where all of it has to be done.
SharedResult Pipeline::State::Recall(const std::optional<Digest>& memo_key, Call& call) {
  const std::shared_ptr<const Call> known = memo_key ? memo.Find(*memo_key, call) : nullptr;
  if (!known) return nullptr;
  SharedResult hit = results.Find(known->decision.name_space, *known->fingerprint);
  if (!hit || !Fresh(*known, *hit)) return nullptr;
  RequestMemo::Resume(*known, call);
  return hit;
}

void Pipeline::State::Remember(const std::optional<Digest>& memo_key, const Call& call) {
  const Mode mode = call.decision.mode;
  const bool only_looks_up = mode == Mode::kRecord || mode == Mode::kReplay;
  if (memo_key && only_looks_up && !call.decision.strict_hits) memo.Remember(*memo_key, call);
}

std::optional<HttpError> Pipeline::State::Decode(Call& call, json::Value& body) const {
  auto parsed = ParseBody(call.body);
  if (auto* error = std::get_if<HttpError>(&parsed)) return std::move(*error);
  body = std::get<json::Value>(std::move(parsed));
  // Azure's clients name the model in the path.
  if (!call.deployment.empty()) body.Set("model", call.deployment);
  const json::Value* model = body.Find("model");
  if (!model || !model->is_string() || model->as_string().empty()) {
    return HttpError{.status = 400,
                     .message = "You must provide a model parameter, as a string.",
                     .param = "model",
                     .code = model ? "invalid_type" : "missing_required_parameter"};
  }
  call.request.model = model->as_string();
  call.backend = call.first_backend = call.in_force->catalog.Find(call.request.model);
  if (!call.backend || !MayUseModel(call.in_force->tenants, call.principal, call.request.model)) {
    return NoSuchModel(call.request.model);
  }
  call.length_is_open = !NamesLength(body);
  auto request = call.backend->Decode(call.endpoint, body);
  if (auto* error = std::get_if<HttpError>(&request)) return std::move(*error);
  call.request = std::get<GenerationRequest>(std::move(request));
  return std::nullopt;
}

std::optional<HttpError> Pipeline::State::Decide(Call& call, const json::Value& body) const {
  const InForce& in_force = *call.in_force;
  if (!in_force.locked.empty()) {
    return HttpError{.status = 503,
                     .message = "This server does not serve: " + in_force.locked,
                     .type = "server_error",
                     .code = "software_lock",
                     .headers = {{"x-should-retry", "false"}}};
  }
  const policies::Caller caller{call.principal.tenant, call.principal.subject,
                                call.principal.key_id, call.principal.groups};
  call.decision = policies::Decide(in_force.policy, caller, EndpointPath(call.endpoint), body,
                                   call.body.size());
  if (call.decision.refusal) {
    const policies::Refusal& refusal = *call.decision.refusal;
    // What is too large to be answered is too large to be kept.
    if (refusal.code == "limit_exceeded") call.cache.no_store = true;
    return HttpError{
        .status = 400, .message = refusal.message, .param = refusal.param, .code = refusal.code};
  }
  if (call.cache.only_if_cached && ServesHits(call)) call.decision.mode = Mode::kReplay;
  // Whoever must have every answer in the ledger has it there with its payload.
  if (call.decision.strict_hits) call.cache.no_store = false;
  if (call.decision.changed.empty()) return std::nullopt;

  auto request = call.backend->Decode(call.endpoint, call.decision.request);
  if (auto* error = std::get_if<HttpError>(&request)) return std::move(*error);
  call.request = std::get<GenerationRequest>(std::move(request));
  return std::nullopt;
}

std::optional<HttpError> Pipeline::State::Prepare(Call& call) const {
  options.authenticator.EraseOwn(call.headers);
  auto prepared = call.backend->Prepare(call.request, {.clock_micros = call.received_micros,
                                                       .length_is_open = call.length_is_open,
                                                       .headers = &call.headers,
                                                       .query = call.query,
                                                       .body = call.body});
  if (auto* error = std::get_if<HttpError>(&prepared)) return std::move(*error);
  call.prepared = std::get<std::shared_ptr<const PreparedRequest>>(std::move(prepared));
  return std::nullopt;
}

void Pipeline::State::TakeFingerprint(Call& call) const {
  const std::string endpoint(EndpointPath(call.endpoint));
  const Envelope envelope{.name_space = call.decision.name_space,
                          .endpoint = endpoint,
                          .request = call.decision.request,
                          .identity = call.prepared->identity(),
                          .extra = call.in_force->extra_key};
  call.fingerprint = Fingerprint(envelope, call.in_force->key_secret);
  call.seed = call.request.seed ? *call.request.seed : DerivedSeed(envelope);
  call.head = HeadOf(call.request, AnswerId(endpoint, *call.fingerprint),
                     call.prepared->system_fingerprint());
}

// Empty where the request must run by itself: nobody joins it.
std::string Pipeline::State::FlightKey(const Call& call) const {
  if (!ServesHits(call) || call.cache.no_cache || call.cache.no_store) return "";
  std::string key = call.decision.name_space + "\n" + HexEncode(*call.fingerprint);
  // A stream without usage cannot be given to a client who asked for it.
  const bool may_lack = call.prepared->external() && !call.prepared->requests_usage();
  if (call.request.include_usage && may_lack) key += "\nusage";
  // Nor does one client learn here what another one's credentials came to.
  key += "\n" + call.prepared->credentials_digest();
  return key;
}

std::shared_ptr<Flight> Pipeline::State::NewFlight(const std::shared_ptr<Call>& call) {
  call->head.created = NowMicros() / 1'000'000;
  return std::make_shared<Flight>(call);
}

// Over a limit. It costs the client nothing, so what it may cost the disk is bounded (refusals.h).
asio::awaitable<void> Pipeline::State::TurnAway(Call& call, HttpError over, ResponseSink& sink,
                                                Outcome& outcome) {
  call.cache.no_store = true;
  refusals.Offer(UnansweredEntry(call, Kind::kRefused, CauseOf(over), &over, 0));
  outcome.status = over.status;
  outcome.error = CauseOf(over);
  (void)co_await SendError(sink, std::move(over));
}

// What the run may take of the tokens of whoever leads it; who joins takes none.
std::optional<HttpError> Pipeline::State::Reserve(const Call& call) const {
  const std::shared_ptr<Ticket> ticket = call.ticket.lock();
  if (!ticket) return std::nullopt;
  const uint64_t estimate =
      EstimateTokens(call.decision.request, call.body.size(), kOpenLengthTokens);
  return options.limiter->Reserve(*ticket, estimate, NowMicros());
}

// At the backend that the request names, or, where that cannot answer now, at those that may stand
// in for it. An upstream learns nothing before the intent is in the ledger.
asio::awaitable<Ended> Pipeline::State::Run(std::shared_ptr<Flight> flight) {
  std::shared_ptr<const Call> call = flight->call();
  Ended ended;
  const int64_t began = MonotonicMicros();
  if (call->prepared->external()) {
    auto intent = co_await answerer.Append(IntentEntry(*call));
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
    std::shared_ptr<const Call> other = StandIn(*call, next);
    if (!other) break;
    tried.Append(ended.end.report);
    metrics.CountFallback(UpstreamOf(*call->prepared), UpstreamOf(*other->prepared));
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

asio::awaitable<RunEnd> Pipeline::State::RunOnce(const Call& call, std::shared_ptr<Flight> flight) {
  RunOptions run{.seed = call.seed};
  if (call.prepared->external()) {
    AddTraceHeaders(call.headers, options.generate_traceparent, RandomBytes(kTraceRandomBytes),
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

// The next of the upstreams that may answer instead, as a request of its own: what it answers has
// its own fingerprint. `next` counts the ones that were looked at. Null where none is left.
std::shared_ptr<const Call> Pipeline::State::StandIn(const Call& call, size_t& next) const {
  const std::vector<std::string> fallbacks = call.first_backend->fallbacks();
  while (next < fallbacks.size()) {
    const std::string& id = fallbacks[next++];
    auto other = std::make_shared<Call>(call);
    other->backend = call.in_force->catalog.Upstream(id);
    if (!other->backend || other->backend == call.backend) continue;
    if (auto error = Prepare(*other)) {
      LogWarning(call.id + ": " + id + " cannot stand in: " + error->message);
      continue;
    }
    TakeFingerprint(*other);
    other->head.created = NowMicros() / 1'000'000;
    return other;
  }
  return nullptr;
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

asio::awaitable<Settled> Pipeline::State::Commit(const Flight& flight, Ended ended,
                                                 std::optional<uint64_t> renews) {
  const std::shared_ptr<const Call> call = flight.call();
  const RunEnd& end = ended.end;
  Settled settled;
  store::AppendRequest entry;
  const bool complete = end.outcome == RunEnd::Outcome::kComplete;
  const bool answered = complete || end.outcome == RunEnd::Outcome::kIncomplete;
  if (answered) {
    entry = GeneratedEntry(*call, flight.transcript(), end, ended.micros);
    settled.output_digest = Sha256(entry.response);
    settled.redacted = entry.record.extra.Find("redacted") != nullptr;
    if (!call->KeepsPayload()) DropPayload(entry);
  } else if (end.outcome == RunEnd::Outcome::kCancelled) {
    settled.error = {.status = 503, .message = "The run was cancelled.", .code = "cancelled"};
    entry = UnansweredEntry(*call, Kind::kCancelled, "client_gone", nullptr, flight.Generated());
    AddReport(entry, end);
  } else {
    settled.error = end.error;
    const Kind kind = end.error.status < 500 ? Kind::kRefused : Kind::kFailed;
    entry = UnansweredEntry(*call, kind, end.cause, &end.error, flight.Generated());
    AddReport(entry, end);
  }
  CountTokens(*call, flight, end, settled);
  entry.closes_intent = ended.intent;
  // A fallback's answer has another fingerprint.
  if (entry.record.serves_hits && call->backend == call->first_backend) entry.renews = renews;

  const int64_t began = MonotonicMicros();
  auto appended = co_await answerer.Append(std::move(entry));
  metrics.CountCommit(appended.ok(), static_cast<double>(MonotonicMicros() - began) * 1e-6);
  if (!appended.ok()) {
    settled.error = RecordingFailed();
  } else if (answered) {
    if (renews && appended->serves_hits) results.Forget(*renews);
    settled.committed = true;
    settled.complete = complete;
    settled.broken = end.broken;
    settled.entry = appended->entry;
  }
  co_return settled;
}

void Pipeline::State::Settle(Ticket& ticket, const Settled& settled) {
  if (settled.tokens_known) {
    ticket.Settle(settled.prompt_tokens + settled.output_tokens, NowMicros());
  } else {
    ticket.SettleReserved(NowMicros());
  }
}

void Pipeline::State::Sample(const Flight& flight, const Settled& settled,
                             std::optional<uint64_t> compare_with) {
  const std::shared_ptr<const Call> call = flight.call();
  if (!settled.entry || !settled.complete || !call->KeepsPayload()) return;
  if (settled.redacted) return;   // what was answered is not what is kept
  if (!call->MayReuse()) return;  // another answer would be right, too
  if (Verifier::Draw(call->decision.verify_rate)) {
    verifier.Offer({.entry = *settled.entry,
                    .call = call,
                    .head = call->head,
                    .form = FormOf(call->request),
                    .output_digest = settled.output_digest,
                    .recorded = flight.transcript()});
  }
  if (!compare_with || call->backend != call->first_backend) return;
  auto stored = LoadRecorded(ledger, *compare_with, call);
  if (!stored.ok()) {
    LogError("entry " + std::to_string(*compare_with) + ": " + stored.error().message);
    return;
  }
  stored->again = Verification::Again{flight.transcript(), *settled.entry};
  verifier.Offer(*std::move(stored));
}

template <typename F>
asio::awaitable<std::optional<HttpError>> Pipeline::State::Beside(F work) {
  co_return co_await AwaitCallback<std::optional<HttpError>>(
      [&](std::function<void(std::optional<HttpError>)> done) {
        asio::post(pool, [work, done = std::move(done)] { done(work()); });
      });
}

asio::awaitable<void> Pipeline::State::Handle(Endpoint endpoint, const Request& http,
                                              ResponseSink& sink) {
  Outcome outcome;
  co_await Generate(endpoint, http, sink, outcome);
  Account(endpoint, http, sink, outcome);
}

// Metrics and access log.
void Pipeline::State::Account(Endpoint endpoint, const Request& http, ResponseSink& sink,
                              const Outcome& outcome) const {
  AccessNotes notes;
  notes.cache = outcome.cache;
  notes.entry = outcome.entry;
  notes.pending = outcome.pending;
  if (const Call* call = outcome.answered.get()) {
    notes.model = call->request.model;
    if (call->prepared) notes.upstream = UpstreamOf(*call->prepared);
    if (call->fingerprint) notes.fingerprint = HexEncode(*call->fingerprint);
  }
  if (auto trace = TraceOf(http.headers)) notes.trace_id = TraceIdText(*trace);
  sink.Note(notes);
  metrics.CountAnswered({.endpoint = EndpointPath(endpoint),
                         .cache = outcome.cache,
                         .status = outcome.status,
                         .model = notes.model,
                         .provider = notes.upstream,
                         .error_type = outcome.error,
                         .seconds = static_cast<double>(NowMicros() - http.received_micros) * 1e-6,
                         .first_token_seconds = outcome.first_token_seconds,
                         .prompt_tokens = outcome.prompt_tokens,
                         .output_tokens = outcome.output_tokens});
}

// Whatever is no endpoint of ours, where policy lets it through: to an upstream and back, as it
// comes, without an entry.
asio::awaitable<void> Pipeline::State::PassThrough(const Request& http, ResponseSink& sink) {
  const std::shared_ptr<Call> call = Accept(Endpoint::kEmbeddings, http);
  const std::shared_ptr<const UpstreamBackend>& upstream = call->in_force->pass_through;
  if (!upstream) {
    HttpError unknown{.status = 404,
                      .message = "Unknown request URL: " + http.method + " " + http.path +
                                 ". Please check the URL for typos.",
                      .code = "unknown_url"};
    co_return (void) co_await SendError(sink, std::move(unknown));
  }
  const std::shared_ptr<Ticket> ticket = std::make_shared<Ticket>();
  auto error = Admit(*call, ticket);
  if (!error) {
    options.authenticator.EraseOwn(call->headers);
    const PrepareOptions prepare{
        .headers = &call->headers, .query = call->query, .body = call->body};
    auto prepared = upstream->PreparePassThrough(http.method, http.path.substr(3), prepare);
    if (auto* refused = std::get_if<HttpError>(&prepared)) {
      error = *std::move(refused);
    } else {
      call->prepared = std::get<std::shared_ptr<const PreparedRequest>>(std::move(prepared));
    }
  }
  if (error) co_return (void) co_await SendError(sink, *std::move(error));

  call->decision.mode = Mode::kBypass;
  auto seat = in_flight.JoinOrLead("", 0, [&] { return std::make_shared<Flight>(call); });
  auto lead = [this, call, ticket, flight = seat->flight()]() -> asio::awaitable<void> {
    const RunEnd end = co_await RunOnce(*call, flight);
    Settled settled;
    settled.committed =
        end.outcome == RunEnd::Outcome::kComplete || end.outcome == RunEnd::Outcome::kIncomplete;
    settled.complete = end.outcome == RunEnd::Outcome::kComplete;
    settled.broken = end.broken;
    settled.error = end.error;
    in_flight.Finish("", flight, settled);
  };
  asio::co_spawn(pool, std::move(lead), Rethrow);
  Outcome outcome;
  (void)co_await answerer.Follow(*call, *seat, sink, outcome);
  AccessNotes notes;
  notes.cache = outcome.cache;
  notes.upstream = UpstreamOf(*call->prepared);
  sink.Note(notes);
}

// What the server refused before Generate saw it.
void Pipeline::State::RecordRefused(const Request& http, const HttpError& error) {
  metrics.CountRefused(error.status);
  const std::optional<Endpoint> endpoint = EndpointOfPath(http.path);
  // Nobody's, or nothing that could have been answered: counted, so that nobody can fill the log.
  if (!endpoint || http.principal.tenant.empty()) return refusals.Count(error.status);
  metrics.CountRequest(EndpointPath(*endpoint), "none", error.status);
  const std::shared_ptr<Call> call = Accept(*endpoint, http);
  call->cache.no_store = true;  // no payload: nothing of it was checked
  const bool hung_up = error.status == 499;
  refusals.Offer(UnansweredEntry(*call, hung_up ? Kind::kCancelled : Kind::kRefused,
                                 hung_up ? "client_gone" : CauseOf(error), &error, 0));
}

std::string Pipeline::State::ModelJson(const ServedModel& model) const {
  return "{\"id\":" + json::Quote(model.name) +
         ",\"object\":\"model\",\"created\":" + std::to_string(model.created) +
         ",\"owned_by\":" + json::Quote(model.owner) + "}";
}

asio::awaitable<void> Pipeline::State::ListModels(const Request& http, ResponseSink& sink) const {
  std::string body = "{\"object\":\"list\",\"data\":[";
  const std::shared_ptr<const InForce> now = in_force();
  for (const ServedModel& model : now->catalog.List()) {
    if (!MayUseModel(now->tenants, http.principal, model.name)) continue;
    if (body.back() != '[') body += ",";
    body += ModelJson(model);
  }
  body += "]}";
  Headers headers;
  (void)co_await sink.SendWhole(200, std::move(headers), std::move(body));
}

asio::awaitable<void> Pipeline::State::ShowModel(const Request& http, ResponseSink& sink) const {
  const std::shared_ptr<const InForce> now = in_force();
  for (const ServedModel& model : now->catalog.List()) {
    if (model.name != http.params.at(0)) continue;
    if (!MayUseModel(now->tenants, http.principal, model.name)) continue;
    Headers headers;
    (void)co_await sink.SendWhole(200, std::move(headers), ModelJson(model));
    co_return;
  }
  HttpError error = NoSuchModel(http.params.at(0));
  (void)co_await SendError(sink, std::move(error));
}

Pipeline::Pipeline(PipelineOptions options) : state_(std::make_unique<State>(std::move(options))) {}

Pipeline::~Pipeline() { Drain(); }

Status Pipeline::RecordConfiguration() {
  const std::shared_ptr<const InForce> now = state_->in_force();
  const Manifest& manifest = *state_->options.manifest;
  if (now->locked.empty() && ConfigurationIsRecorded(state_->ledger, *now, manifest)) return {};
  auto appended = state_->ledger.Append(ConfigurationEntry(*now, manifest));
  return appended.ok() ? Status() : Status(appended.error());
}

std::shared_ptr<const InForce> Pipeline::in_force() const { return state_->in_force(); }

Status Pipeline::Replace(InForce in_force) {
  const Manifest& manifest = *state_->options.manifest;
  std::shared_ptr<const InForce> next = Seal(std::move(in_force), manifest);
  auto appended = state_->ledger.Append(ConfigurationEntry(*next, manifest));
  if (!appended.ok()) return appended.error();
  const std::lock_guard lock(state_->in_force_mutex);
  state_->in_force_now.swap(next);
  return {};
}

void Pipeline::AddRoutes(Router& router) {
  State* state = state_.get();
  const auto client = static_cast<uint8_t>(Role::kClient);
  for (const InboundRoute& route : InboundRoutes()) {
    router.Add({"POST", std::string(route.pattern), client,
                [state, route](const Request& http, ResponseSink& sink) {
                  return state->Handle(route.endpoint, http, sink);
                }});
  }
  for (const char* method : {"GET", "POST"}) {
    router.Add({.method = method,
                .pattern = "/v1/{*}",
                .roles = client,
                .handler = [state](const Request& http,
                                   ResponseSink& sink) { return state->PassThrough(http, sink); },
                .any_content = true});
  }
  router.OnRefused(
      [state](const Request& http, const HttpError& error) { state->RecordRefused(http, error); });
  router.Add({"GET", "/v1/models", client, [state](const Request& http, ResponseSink& sink) {
                return state->ListModels(http, sink);
              }});
  router.Add({"GET", "/v1/models/{}", client, [state](const Request& http, ResponseSink& sink) {
                return state->ShowModel(http, sink);
              }});
}

std::string Pipeline::NotServing() const {
  const std::shared_ptr<const InForce> now = state_->in_force();
  if (!now->locked.empty()) return now->locked;
  if (state_->draining) return "the server is shutting down";
  return now->catalog.empty() ? "no model is served" : "";
}

void Pipeline::Drain() {
  state_->draining = true;
  state_->verifier.Stop();
  state_->in_flight.CancelAll();
  state_->in_flight.WaitUntilEmpty();
  state_->pool.join();
  state_->refusals.Close();
}

size_t Pipeline::runs_in_flight() const { return state_->in_flight.size(); }
size_t Pipeline::verify_backlog() const { return state_->verifier.backlog(); }

std::string Pipeline::Overload() const {
  if (state_->answerer.ledger_fails()) return "the ledger takes no entries";
  if (verify_backlog() < state_->options.verify_queue) return "";
  return "too many answers wait to be executed again";
}

}  // namespace verbatim::gateway
