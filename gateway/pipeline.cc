#include "gateway/pipeline.h"

#include <atomic>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/thread_pool.hpp>
#include <exception>
#include <utility>

#include "base/clock.h"
#include "base/crypto.h"
#include "base/log.h"
#include "gateway/answerer.h"
#include "gateway/fingerprint.h"
#include "gateway/in_flight.h"
#include "gateway/manifest.h"
#include "gateway/metrics.h"
#include "gateway/nearest.h"
#include "gateway/recorder.h"
#include "gateway/refusals.h"
#include "gateway/verifier.h"
#include "gateway/wakeup.h"

namespace verbatim::gateway {

namespace asio = boost::asio;
using policies::Mode;
using store::Kind;

namespace {

constexpr int kThreads = 2;                      // for runs' coroutines and for large requests
constexpr size_t kLargeBody = size_t{32} << 10;  // decoded beside the connection's thread

// How far back the last configuration is looked for: about a second's reading.
constexpr uint64_t kConfigurationScan = uint64_t{1} << 18;

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

bool Fresh(const Call& call, const store::StoredResult& hit) {
  const auto age =
      static_cast<uint64_t>(std::max<int64_t>(0, NowMicros() - hit.leaf.time) / 1'000'000);
  const uint64_t bound = call.decision.hits.max_age_seconds;
  if (bound > 0 && age > bound && call.prepared->external()) return false;
  return !call.cache.max_age || age <= *call.cache.max_age;
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
  std::optional<HttpError> Decode(Call& call, json::Value& body) const;
  std::optional<HttpError> Decide(Call& call, const json::Value& body) const;
  std::optional<HttpError> Prepare(Call& call) const;
  void TakeFingerprint(Call& call) const;
  std::string FlightKey(const Call& call) const;
  static std::shared_ptr<Flight> NewFlight(const std::shared_ptr<Call>& call);
  asio::awaitable<Ended> Run(std::shared_ptr<Flight> flight);
  asio::awaitable<RunEnd> RunOnce(const Call& call, std::shared_ptr<Flight> flight);
  std::shared_ptr<const Call> StandIn(const Call& call, size_t& next) const;
  asio::awaitable<Settled> Commit(const Flight& flight, Ended ended);
  void Sample(const Flight& flight, const Settled& settled, std::optional<uint64_t> compare_with);

  template <typename F>
  asio::awaitable<std::optional<HttpError>> Beside(F work);  // on a thread of the pool

  void RecordRefused(const Request& http, const HttpError& error);
  bool ConfigurationIsRecorded() const;
  asio::awaitable<void> Handle(Endpoint endpoint, const Request& http, ResponseSink& sink);
  std::string ModelJson(const ServedModel& model) const;
  asio::awaitable<void> ListModels(ResponseSink& sink) const;
  asio::awaitable<void> ShowModel(const Request& http, ResponseSink& sink) const;

  const PipelineOptions options;
  const std::string manifest;       // digest in hex
  const std::string policy_digest;  // in hex
  const json::Value extra_key;
  store::Ledger& ledger;
  Metrics& metrics;
  std::atomic<bool> draining = false;
  InFlight in_flight;
  Verifier verifier;
  Answerer answerer;
  Refusals refusals;
  asio::thread_pool pool{kThreads};
};

Pipeline::State::State(PipelineOptions o)
    : options(std::move(o)),
      manifest(HexEncode(options.manifest->digest)),
      policy_digest(HexEncode(PolicyDigest(*options.policy))),
      extra_key(options.locked.empty() ? ExtraKey(*options.policy, options.manifest->value)
                                       : json::Value()),
      ledger(*options.ledger),
      metrics(*options.metrics),
      verifier(options.ledger, options.metrics, options.verify_queue),
      answerer(ledger, metrics, verifier),
      refusals(ledger, metrics) {
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
    std::optional<uint64_t> compare_with;
    if (ServesHits(*call)) {
      auto hit = ledger.Lookup(call->decision.name_space, *call->fingerprint);
      if (!hit.ok()) {
        HttpError failed = StoreFailed(hit.error());
        co_return co_await answerer.Refuse(*call, Kind::kFailed, failed, sink, outcome);
      }
      if (*hit && call->cache.no_cache) compare_with = (*hit)->entry;
      if (*hit && !call->cache.no_cache && Fresh(*call, **hit)) {
        const bool served = co_await answerer.ServeHit(call, **std::move(hit), sink, outcome);
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
    const std::string key = alone ? "" : FlightKey(*call);
    auto seat = in_flight.JoinOrLead(key, epoch, [&] { return NewFlight(call); });
    if (!seat) continue;
    if (seat->leads()) {
      // The rest is the leader's, and goes on without this client while anyone waits.
      auto lead = [this, key, compare_with, flight = seat->flight()]() -> asio::awaitable<void> {
        // 7. Run: events reach everyone who waits as they come; the last one is held back.
        Ended ended = co_await Run(flight);

        // 8. Commit: record, leaf and tree state; then the rest of the answer may leave.
        Settled settled = co_await Commit(*flight, std::move(ended));
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
  call->policy_digest = policy_digest;
  call->decision.mode = options.policy->mode;
  return call;
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
  call.backend = call.first_backend = options.catalog.Find(model->as_string());
  if (!call.backend) {
    return HttpError{.status = 404,
                     .message = "The model `" + model->as_string() +
                                "` does not exist here; GET /v1/models lists those that do.",
                     .param = "model",
                     .code = "model_not_found"};
  }
  call.length_is_open = !NamesLength(body);
  auto request = call.backend->Decode(call.endpoint, body);
  if (auto* error = std::get_if<HttpError>(&request)) return std::move(*error);
  call.request = std::get<GenerationRequest>(std::move(request));
  return std::nullopt;
}

std::optional<HttpError> Pipeline::State::Decide(Call& call, const json::Value& body) const {
  if (!options.locked.empty()) {
    return HttpError{.status = 503,
                     .message = "This server does not serve: " + options.locked,
                     .type = "server_error",
                     .code = "software_lock",
                     .headers = {{"x-should-retry", "false"}}};
  }
  const policies::Caller caller{call.principal.tenant, call.principal.subject,
                                call.principal.key_id};
  call.decision = policies::Decide(*options.policy, caller, EndpointPath(call.endpoint), body,
                                   call.body.size());
  if (call.decision.refusal) {
    const policies::Refusal& refusal = *call.decision.refusal;
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
                          .extra = extra_key};
  call.fingerprint = Fingerprint(envelope, options.key_secret);
  call.seed = call.request.seed ? *call.request.seed : DerivedSeed(envelope);
  call.head = HeadOf(call.request, AnswerId(endpoint, *call.fingerprint),
                     call.prepared->system_fingerprint());
}

// Empty where the request must run by itself: nobody joins it.
std::string Pipeline::State::FlightKey(const Call& call) const {
  if (!ServesHits(call) || call.cache.no_cache || call.cache.no_store) return "";
  std::string key = call.decision.name_space + "\n" + HexEncode(*call.fingerprint);
  // A stream without usage cannot be given to a client who asked for it.
  if (call.request.include_usage && call.prepared->external()) key += "\nusage";
  return key;
}

std::shared_ptr<Flight> Pipeline::State::NewFlight(const std::shared_ptr<Call>& call) {
  call->head.created = NowMicros() / 1'000'000;
  return std::make_shared<Flight>(call);
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
  auto started = call.prepared->Start({.seed = call.seed}, Flight::Observe(flight));
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
    other->backend = options.catalog.Upstream(id);
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

asio::awaitable<Settled> Pipeline::State::Commit(const Flight& flight, Ended ended) {
  const std::shared_ptr<const Call> call = flight.call();
  const RunEnd& end = ended.end;
  Settled settled;
  store::AppendRequest entry;
  const bool complete = end.outcome == RunEnd::Outcome::kComplete;
  const bool answered = complete || end.outcome == RunEnd::Outcome::kIncomplete;
  if (answered) {
    entry = GeneratedEntry(*call, flight.transcript(), end, ended.micros);
    settled.output_digest = Sha256(entry.response);
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
  entry.closes_intent = ended.intent;

  const int64_t began = MonotonicMicros();
  auto appended = co_await answerer.Append(std::move(entry));
  metrics.CountCommit(appended.ok(), static_cast<double>(MonotonicMicros() - began) * 1e-6);
  if (!appended.ok()) {
    settled.error = RecordingFailed();
  } else if (answered) {
    settled.committed = true;
    settled.complete = complete;
    settled.broken = end.broken;
    settled.entry = appended->entry;
    const Trace& trace = flight.transcript().trace;
    const bool reply = flight.transcript().reply.has_value();
    metrics.CountTokens(reply ? end.reply.prompt_tokens : trace.prompt_tokens,
                        reply ? end.reply.completion_tokens : trace.Generated());
  }
  co_return settled;
}

void Pipeline::State::Sample(const Flight& flight, const Settled& settled,
                             std::optional<uint64_t> compare_with) {
  const std::shared_ptr<const Call> call = flight.call();
  if (!settled.committed || !settled.complete || !call->KeepsPayload()) return;
  if (Verifier::Draw(call->decision.verify_rate)) {
    verifier.Offer({.entry = settled.entry,
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
  stored->again = Verification::Again{flight.transcript(), settled.entry};
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
  metrics.CountRequest(EndpointPath(endpoint), outcome.cache, outcome.status);
  metrics.ObserveDuration(outcome.cache,
                          static_cast<double>(NowMicros() - http.received_micros) * 1e-6);
}

// What the server refused before Generate saw it.
void Pipeline::State::RecordRefused(const Request& http, const HttpError& error) {
  metrics.CountRefused(error.status);
  const std::optional<Endpoint> endpoint = EndpointOfPath(http.path);
  if (!endpoint) return;
  metrics.CountRequest(http.path, "none", error.status);
  const std::shared_ptr<Call> call = Accept(*endpoint, http);
  call->cache.no_store = true;  // no payload: nothing of it was checked
  const bool hung_up = error.status == 499;
  refusals.Offer(UnansweredEntry(*call, hung_up ? Kind::kCancelled : Kind::kRefused,
                                 hung_up ? "client_gone" : CauseOf(error), &error, 0));
}

bool Pipeline::State::ConfigurationIsRecorded() const {
  const uint64_t size = ledger.Size();
  for (uint64_t n = size; n > 0 && size - n < kConfigurationScan; --n) {
    auto view = ledger.Entry(n - 1, false);
    if (!view.ok()) return false;
    const store::Leaf& leaf = view->leaf;
    if (leaf.kind != Kind::kConfiguration) continue;
    const json::Value* policy = leaf.detail.Find("policy");
    return leaf.outcome == "ok" && leaf.manifest == manifest && policy && policy->is_string() &&
           policy->as_string() == policy_digest;
  }
  return false;
}

std::string Pipeline::State::ModelJson(const ServedModel& model) const {
  return "{\"id\":" + json::Quote(model.name) +
         ",\"object\":\"model\",\"created\":" + std::to_string(model.created) +
         ",\"owned_by\":" + json::Quote(model.owner) + "}";
}

asio::awaitable<void> Pipeline::State::ListModels(ResponseSink& sink) const {
  std::string body = "{\"object\":\"list\",\"data\":[";
  for (const ServedModel& model : options.catalog.models()) {
    if (body.back() != '[') body += ",";
    body += ModelJson(model);
  }
  body += "]}";
  Headers headers;
  (void)co_await sink.SendWhole(200, std::move(headers), std::move(body));
}

asio::awaitable<void> Pipeline::State::ShowModel(const Request& http, ResponseSink& sink) const {
  for (const ServedModel& model : options.catalog.models()) {
    if (model.name != http.params.at(0)) continue;
    Headers headers;
    (void)co_await sink.SendWhole(200, std::move(headers), ModelJson(model));
    co_return;
  }
  HttpError error{.status = 404,
                  .message = "The model `" + http.params.at(0) + "` does not exist here.",
                  .param = "model",
                  .code = "model_not_found"};
  (void)co_await SendError(sink, std::move(error));
}

Pipeline::Pipeline(PipelineOptions options) : state_(std::make_unique<State>(std::move(options))) {}

Pipeline::~Pipeline() { Drain(); }

Status Pipeline::RecordConfiguration() {
  if (state_->options.locked.empty() && state_->ConfigurationIsRecorded()) return {};
  store::AppendRequest entry;
  entry.kind = Kind::kConfiguration;
  entry.manifest = state_->manifest;
  entry.outcome = state_->options.locked.empty() ? "ok" : "software_lock";
  entry.detail = json::Value::MakeObject();
  entry.detail.Set("policy", state_->policy_digest);
  json::Value body = json::Value::MakeObject();
  body.Set("manifest", state_->options.manifest->value);
  body.Set("policy", ToJson(*state_->options.policy));
  if (!state_->options.locked.empty()) body.Set("locked", state_->options.locked);
  entry.response = json::Canonical(body);
  auto appended = state_->ledger.Append(std::move(entry));
  return appended.ok() ? Status() : Status(appended.error());
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
  router.OnRefused(
      [state](const Request& http, const HttpError& error) { state->RecordRefused(http, error); });
  router.Add({"GET", "/v1/models", client,
              [state](const Request&, ResponseSink& sink) { return state->ListModels(sink); }});
  router.Add({"GET", "/v1/models/{}", client, [state](const Request& http, ResponseSink& sink) {
                return state->ShowModel(http, sink);
              }});
}

bool Pipeline::Serving() const {
  return state_->options.locked.empty() && !state_->options.catalog.empty() && !state_->draining;
}

void Pipeline::Drain() {
  state_->draining = true;
  state_->verifier.Stop();
  state_->in_flight.CancelAll();
  state_->in_flight.WaitUntilEmpty();
  state_->pool.join();
}

size_t Pipeline::runs_in_flight() const { return state_->in_flight.size(); }
size_t Pipeline::verify_backlog() const { return state_->verifier.backlog(); }

std::string Pipeline::Overload() const {
  if (state_->answerer.ledger_fails()) return "the ledger takes no entries";
  if (verify_backlog() < state_->options.verify_queue) return "";
  return "too many answers wait to be executed again";
}

}  // namespace verbatim::gateway
