#include "gateway/pipeline.h"

#include <atomic>
#include <boost/asio/post.hpp>
#include <boost/asio/thread_pool.hpp>
#include <mutex>
#include <utility>

#include "base/clock.h"
#include "gateway/admission.h"
#include "gateway/answerer.h"
#include "gateway/hit_cache.h"
#include "gateway/in_flight.h"
#include "gateway/manifest.h"
#include "gateway/metrics.h"
#include "gateway/model_list.h"
#include "gateway/nearest.h"
#include "gateway/pass_through_route.h"
#include "gateway/preparation.h"
#include "gateway/recorder.h"
#include "gateway/refusals.h"
#include "gateway/request_memo.h"
#include "gateway/runs.h"
#include "gateway/verifier.h"
#include "gateway/wakeup.h"

namespace verbatim::gateway {

namespace asio = boost::asio;
using policies::Mode;
using store::Kind;

namespace {

constexpr int kThreads = 2;                      // for large requests and answers
constexpr size_t kLargeBody = size_t{32} << 10;  // decoded beside the connection's thread

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

}  // namespace

struct Pipeline::State {
  explicit State(PipelineOptions o);

  // The life of a request, and of the run that it may lead.
  asio::awaitable<void> Generate(Endpoint endpoint, const Request& http, ResponseSink& sink,
                                 Outcome& outcome);

  std::shared_ptr<Call> Accept(Endpoint endpoint, const Request& http) const {
    return AcceptCall(endpoint, http, in_force(), manifest);
  }
  std::optional<Digest> MemoKey(Endpoint endpoint, const Request& http) const;
  struct Recalled {
    std::shared_ptr<const RequestMemo::Known> hit;
    SharedResult result;
  };
  Recalled Recall(const std::optional<Digest>& memo_key, const Request& http);
  void Remember(const std::optional<Digest>& memo_key, const Call& call, const SharedResult& result,
                std::shared_ptr<const HitAnswer> answer);
  std::string FlightKey(const Call& call) const;
  static std::shared_ptr<Flight> NewFlight(const std::shared_ptr<Call>& call);
  template <typename F>
  asio::awaitable<std::optional<HttpError>> Beside(F work);  // on a thread of the pool

  void RecordRefused(const Request& http, const HttpError& error);
  asio::awaitable<void> Handle(Endpoint endpoint, const Request& http, ResponseSink& sink);

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
  const Admission admission;
  Runs runs;
  PassThroughRoute pass_through;
  asio::thread_pool pool{kThreads};  // joined before what runs there goes away
};

Pipeline::State::State(PipelineOptions o)
    : options(std::move(o)),
      manifest(HexEncode(options.manifest->digest)),
      in_force_now(Seal(options.in_force, *options.manifest)),
      ledger(*options.ledger),
      metrics(*options.metrics),
      in_flight({.unread = options.stream_buffer_bytes, .all = options.replies_total_bytes}),
      results(ledger, options.hit_memory_bytes / 4 * 3),
      memo(options.hit_memory_bytes / 4),
      verifier(options.ledger, options.metrics, options.verify_queue, options.on_compared),
      answerer(ledger, verifier, manifest),
      refusals(ledger, metrics,
               {.interval_micros = options.refusal_interval_micros, .manifest = manifest}),
      admission(options.limiter, refusals, metrics),
      runs({.pool = &pool,
            .in_flight = &in_flight,
            .ledger = &ledger,
            .metrics = &metrics,
            .results = &results,
            .verifier = &verifier,
            .answerer = &answerer,
            .authenticator = options.authenticator,
            .generate_traceparent = options.generate_traceparent}),
      pass_through(options.authenticator, admission, in_flight, runs, answerer) {
  ledger.OnErased([this](const store::Ranges& entries) { results.Forget(entries); });
  metrics.AddGauge("runs_in_flight", "Runs that someone waits for",
                   [this] { return static_cast<double>(in_flight.size()); });
  metrics.AddGauge("replies_held_bytes", "Held of upstreams' replies that are being made",
                   [this] { return static_cast<double>(in_flight.held()); });
  metrics.AddGauge("verify_backlog", "Answers that wait to be executed again",
                   [this] { return static_cast<double>(verifier.backlog()); });
}

// The life of a request, and of the run that it may lead: nine steps.
asio::awaitable<void> Pipeline::State::Generate(Endpoint endpoint, const Request& http,
                                                ResponseSink& sink, Outcome& outcome) {
  // 1. Accept: the server has read the request whole and knows who asks.
  Allowance allowance = admission.Admit(http.principal);
  const std::optional<Digest> memo_key = MemoKey(endpoint, http);
  std::optional<HttpError> error;
  // A request equal to one that was a hit goes to its result at once.
  if (Recalled known = Recall(memo_key, http); known.result && !allowance.refusal) {
    error = co_await answerer.ServeHit(known.hit->call, http.id, known.result, known.hit->answer,
                                       allowance.headers, sink, outcome);
    if (!error) co_return;
  }
  const std::shared_ptr<Call> call = Accept(endpoint, http);
  outcome.answered = call;
  if (error) co_return co_await answerer.Refuse(*call, Kind::kFailed, *error, sink, outcome);
  if (allowance.refusal) {
    co_return co_await admission.TurnAway(*call, *allowance.refusal, sink, outcome);
  }
  call->limit_headers = std::move(allowance.headers);
  const auto ticket = std::make_shared<Ticket>(std::move(allowance.ticket));
  call->ticket = ticket;
  auto check = [this, call]() -> std::optional<HttpError> {
    // 2. Decode: the endpoint's JSON, with the fields that nobody here knows.
    json::Value body;
    if (auto bad = DecodeCall(*call, body)) return bad;

    // 3. Decide: what policy makes of it, and what the backend makes of that.
    if (auto bad = DecideCall(*call, body)) return bad;
    return PrepareCall(options.authenticator, *call);
  };
  if (call->body.size() < kLargeBody) {
    error = check();
  } else {
    error = co_await Beside(check);
  }
  if (error) {
    co_return co_await answerer.Refuse(*call, Kind::kRefused, *error, sink, outcome);
  }

  // 4. Fingerprint.
  TakeFingerprint(*call);

  for (;;) {
    // 5. Look up.
    const uint64_t epoch = in_flight.Epoch();
    std::optional<uint64_t> compare_with, renews;
    if (ServesHits(*call)) {
      auto hit = results.Lookup(call->decision.name_space, call->ResultKey());
      if (!hit.ok()) {
        error = StoreFailed(hit.error());
        co_return co_await answerer.Refuse(*call, Kind::kFailed, *error, sink, outcome);
      }
      if (*hit && call->cache.no_cache) compare_with = (*hit)->entry;
      if (*hit && IsExpired(*call, **hit)) renews = (*hit)->entry;
      if (*hit && !call->cache.no_cache && IsFresh(*call, **hit)) {
        auto answer = answerer.AnswerOf(call, **hit);
        if (!answer.ok()) {
          error = StoreFailed(answer.error());
        } else if (*answer) {
          Remember(memo_key, *call, *hit, *answer);
          error = co_await answerer.ServeHit(call, call->id, *hit, *answer, call->limit_headers,
                                             sink, outcome);
          if (!error) co_return;
        }
        if (error) co_return co_await answerer.Refuse(*call, Kind::kFailed, *error, sink, outcome);
        if (NarrowToForm(*call)) continue;
      }
      if (call->decision.mode == Mode::kReplay) {
        auto refuse = [this, call] { return std::optional(NotRecorded(ledger, *call)); };
        error = co_await Beside(refuse);
        co_return co_await answerer.Refuse(*call, Kind::kRefused, *error, sink, outcome);
      }
    }

    // 6. Join or lead: identical requests in flight run once.
    const std::string key = FlightKey(*call);
    std::optional<HttpError> over;
    auto make = [&] {
      const bool full = call->prepared->external() && in_flight.Full();
      over = full ? RepliesFull() : admission.Reserve(*call);
      return over ? nullptr : NewFlight(call);
    };
    auto seat = in_flight.JoinOrLead(key, epoch, make);
    if (over) co_return co_await admission.TurnAway(*call, *over, sink, outcome);
    if (!seat) continue;
    if (seat->leads()) {
      // The rest is the leader's, and goes on without this client while anyone waits.
      auto lead = [this, renews, ticket](
                      std::shared_ptr<Flight> flight) -> asio::awaitable<std::unique_ptr<Settled>> {
        // 7. Run: events reach everyone who waits as they come; the last one is held back.
        std::unique_ptr<Ended> ended = co_await runs.Run(flight);

        // 8. Commit: record, leaf and tree state; then the rest of the answer may leave.
        auto settled = co_await runs.Commit(*flight, std::move(ended), renews);
        Admission::Settle(*ticket, *settled);
        co_return settled;
      };
      // 9. Sample: a draw decides whether this answer is executed again.
      auto sample = [this, compare_with](const Flight& flight, const Settled& settled) {
        runs.Sample(flight, settled, compare_with);
      };
      co_await runs.Lead(key, seat->flight(), lead, sample);
    }
    const bool answered = co_await answerer.Follow(*call, *seat, sink, outcome);
    if (answered) co_return;
    NarrowToForm(*call);
  }
}

// Of what is worth remembering.
std::optional<Digest> Pipeline::State::MemoKey(Endpoint endpoint, const Request& http) const {
  if (options.hit_memory_bytes == 0 || http.body.size() >= kLargeBody) return std::nullopt;
  return RequestMemo::KeyOf(endpoint, http);
}

// What an equal request was given and still gets; no result where all of it has to be done.
Pipeline::State::Recalled Pipeline::State::Recall(const std::optional<Digest>& memo_key,
                                                  const Request& http) {
  Recalled recalled;
  if (memo_key) recalled.hit = memo.Find(*memo_key, *in_force(), http.principal);
  if (!recalled.hit) return recalled;
  const Call& call = *recalled.hit->call;
  SharedResult result = results.Find(call.decision.name_space, call.ResultKey());
  const bool same = result && recalled.hit->WasGiven(result) && IsFresh(call, *result);
  if (same) recalled.result = std::move(result);
  return recalled;
}

void Pipeline::State::Remember(const std::optional<Digest>& memo_key, const Call& call,
                               const SharedResult& result,
                               std::shared_ptr<const HitAnswer> answer) {
  const Mode mode = call.decision.mode;
  const bool only_looks_up = mode == Mode::kRecord || mode == Mode::kReplay;
  if (!memo_key || !only_looks_up || call.decision.strict_hits) return;
  memo.Remember(*memo_key, call, result, std::move(answer));
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
  if (!call.variant.empty()) key += "\n" + call.variant;
  return key;
}

std::shared_ptr<Flight> Pipeline::State::NewFlight(const std::shared_ptr<Call>& call) {
  call->head.created = NowMicros() / 1'000'000;
  return std::make_shared<Flight>(call);
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
  admission.Account(endpoint, http, sink, outcome);
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

Pipeline::Pipeline(PipelineOptions options) : state_(std::make_unique<State>(std::move(options))) {}

Pipeline::~Pipeline() {
  state_->ledger.OnErased(nullptr);
  Drain();
}

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
  for (const char* method : {"GET", "POST", "PUT", "PATCH", "DELETE"}) {
    router.Add({.method = method,
                .pattern = "/v1/{*}",
                .roles = client,
                .handler =
                    [state](const Request& http, ResponseSink& sink) {
                      // No endpoint is recorded for it: any stands for them.
                      std::shared_ptr<Call> call = state->Accept(Endpoint::kEmbeddings, http);
                      return state->pass_through.Serve(std::move(call), http, sink);
                    },
                .any_content = true});
  }
  router.OnRefused(
      [state](const Request& http, const HttpError& error) { state->RecordRefused(http, error); });
  using ModelHandler = asio::awaitable<void> (*)(const InForce&, const Request&, ResponseSink&);
  const auto models = [&](std::string pattern, ModelHandler handler) {
    router.Add({"GET", std::move(pattern), client,
                [state, handler](const Request& http, ResponseSink& sink) -> asio::awaitable<void> {
                  const std::shared_ptr<const InForce> now = state->in_force();
                  co_await handler(*now, http, sink);
                }});
  };
  for (const std::string root : {"/v1", "/openai/v1", "/openai"}) {
    models(root + "/models", ListModels);
    models(root + "/models/{}", ShowModel);
  }
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
  state_->runs.WaitUntilEmpty();
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
