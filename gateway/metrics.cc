#include "gateway/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <initializer_list>
#include <mutex>
#include <set>
#include <shared_mutex>
#include <unordered_map>
#include <utility>

#include "base/check.h"

namespace verbatim::gateway {

namespace {

using Boundaries = prometheus::Histogram::BucketBoundaries;

constexpr char kOther[] = "other";
constexpr size_t kMaxValues = 64;    // of one label
constexpr size_t kMaxSeries = 2048;  // of one metric

const Boundaries kSeconds = {0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25,
                             0.5,    1,     2.5,    5,     10,   30,    60,   120};
const Boundaries kEntries = {1, 2, 4, 8, 16, 32, 64, 128, 256};

// OpenTelemetry semantic conventions, docs/gen-ai/gen-ai-metrics.md.
const Boundaries kGenAiDuration = {0.01, 0.02, 0.04, 0.08,  0.16,  0.32,  0.64,
                                   1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92};
const Boundaries kGenAiFirstToken = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1,
                                     0.25,  0.5,   0.75, 1.0,  2.5,  5.0,  7.5,  10.0};
const Boundaries kGenAiPerToken = {0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2,
                                   0.3,  0.4,   0.5,  0.75,  1.0, 2.5};
const Boundaries kGenAiTokens = {1,     4,     16,     64,      256,     1024,     4096,
                                 16384, 65536, 262144, 1048576, 4194304, 16777216, 67108864};

// Well-known values of gen_ai.operation.name, where there is one.
std::string_view OperationName(std::string_view endpoint) {
  if (endpoint.ends_with("/count_tokens")) return "count_tokens";
  if (endpoint.ends_with("/chat/completions") || endpoint.ends_with("/messages") ||
      endpoint.ends_with("/responses")) {
    return "chat";
  }
  if (endpoint.ends_with("/completions")) return "text_completion";
  if (endpoint.ends_with("/embeddings")) return "embeddings";
  return kOther;
}

struct TextHash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
};

// A metric's series by their labels' values: found with one hash and a shared lock, where the
// library would build a map (and a histogram) for each look-up. Labels of the value "" are left
// out.
template <typename T>
class SeriesOf {
 public:
  using Make = std::function<T&(const prometheus::Labels&)>;
  SeriesOf(std::vector<std::string> labels, Make make)
      : labels_(std::move(labels)), seen_(labels_.size()), make_(std::move(make)) {}

  T& operator()(std::initializer_list<std::string_view> values) {
    const std::string key = Key(values);
    {
      const std::shared_lock lock(mutex_);
      if (const auto at = series_.find(key); at != series_.end()) return *at->second;
    }
    return Add(values);
  }

 private:
  template <typename Values>
  static std::string Key(const Values& values) {
    std::string key;
    for (const std::string_view value : values) key.append(value).push_back('\xFF');
    return key;
  }

  T& Add(std::initializer_list<std::string_view> given) {
    CHECK(given.size() == labels_.size());
    const std::unique_lock lock(mutex_);
    std::vector<std::string_view> values = given;
    for (size_t i = 0; i < values.size(); ++i) {
      const bool known = values[i].empty() || seen_[i].contains(values[i]);
      if (!known && (seen_[i].size() >= kMaxValues || series_.size() >= kMaxSeries)) {
        values[i] = kOther;
      }
    }
    const std::string key = Key(values);
    if (const auto at = series_.find(key); at != series_.end()) return *at->second;
    prometheus::Labels labels;
    for (size_t i = 0; i < values.size(); ++i) {
      if (values[i].empty()) continue;
      seen_[i].emplace(values[i]);
      labels.emplace(labels_[i], values[i]);
    }
    T& made = make_(labels);
    series_.emplace(key, &made);
    return made;
  }

  const std::vector<std::string> labels_;
  std::shared_mutex mutex_;  // guards everything below
  std::vector<std::set<std::string, std::less<>>> seen_;
  std::unordered_map<std::string, T*, TextHash, std::equal_to<>> series_;
  const Make make_;
};

// What every answered request with the same labels counts in: found together.
struct AnsweredSeries {
  prometheus::Counter& requests;
  prometheus::Histogram& duration;
  prometheus::Histogram& server_duration;
};

using Counters = SeriesOf<prometheus::Counter>;
using Histograms = SeriesOf<prometheus::Histogram>;

SeriesOf<prometheus::Counter>::Make Counter(prometheus::Registry& registry, const char* name,
                                            const char* help) {
  auto& family = prometheus::BuildCounter().Name(name).Help(help).Register(registry);
  return [&family](const prometheus::Labels& labels) -> prometheus::Counter& {
    return family.Add(labels);
  };
}

Histograms::Make Histogram(prometheus::Registry& registry, const char* name, const char* help,
                           const Boundaries& boundaries) {
  auto& family = prometheus::BuildHistogram().Name(name).Help(help).Register(registry);
  return [&family, &boundaries](const prometheus::Labels& labels) -> prometheus::Histogram& {
    return family.Add(labels, boundaries);
  };
}

}  // namespace

struct Metrics::State {
  prometheus::Registry registry;

  // OpenTelemetry's.
  Histograms server_duration{
      {"gen_ai_operation_name", "gen_ai_provider_name", "gen_ai_request_model", "error_type"},
      Histogram(registry, "gen_ai_server_request_duration_seconds",
                "From a generation request's header to the last byte of its answer",
                kGenAiDuration)};
  Histograms server_first_token{
      {"gen_ai_operation_name", "gen_ai_provider_name", "gen_ai_request_model"},
      Histogram(registry, "gen_ai_server_time_to_first_token_seconds",
                "From a request's header to the first token of its streamed answer",
                kGenAiFirstToken)};
  Histograms server_per_token{
      {"gen_ai_operation_name", "gen_ai_provider_name", "gen_ai_request_model"},
      Histogram(registry, "gen_ai_server_time_per_output_token_seconds",
                "Time per output token after the first, of streamed answers", kGenAiPerToken)};
  Histograms token_usage{
      {"gen_ai_operation_name", "gen_ai_provider_name", "gen_ai_request_model",
       "gen_ai_token_type"},
      Histogram(registry, "gen_ai_client_token_usage",
                "Tokens of answers that were generated, input and output", kGenAiTokens)};
  Histograms client_duration{
      {"gen_ai_operation_name", "gen_ai_provider_name", "gen_ai_request_model", "error_type"},
      Histogram(registry, "gen_ai_client_operation_duration_seconds",
                "Tries at upstreams, to the end of the answer or the failure", kGenAiDuration)};

  Counters requests{{"endpoint", "cache", "status"},
                    Counter(registry, "verbatim_requests_total",
                            "Generation requests answered, by endpoint, cache outcome and HTTP "
                            "status")};
  Counters refused{{"status"},
                   Counter(registry, "verbatim_http_refused_total",
                           "Requests to any path that were refused on their HTTP form, by HTTP "
                           "status")};
  Counters unrecorded{{},
                      Counter(registry, "verbatim_refusals_unrecorded_total",
                              "Refused requests without an entry of their own, because they were "
                              "nobody's or too many came at once")};
  Counters rate_limited{{"scope", "limit"},
                        Counter(registry, "verbatim_rate_limited_total",
                                "Requests refused because a rate limit or budget was used up")};
  Histograms duration{{"cache"},
                      Histogram(registry, "verbatim_request_seconds",
                                "From a request's header to the last byte of its answer, by cache "
                                "outcome",
                                kSeconds)};
  Histograms first_token{{"cache"},
                         Histogram(registry, "verbatim_first_token_seconds",
                                   "From a request's header to the first token sent, by cache "
                                   "outcome",
                                   kSeconds)};
  Counters tokens{{"kind"},
                  Counter(registry, "verbatim_tokens_total",
                          "Tokens of answers that ran to their end, by kind")};
  Counters tokens_saved{{"kind"},
                        Counter(registry, "verbatim_tokens_saved_total",
                                "Tokens of answers that hits and joins served, by kind")};
  Counters verifications{{"outcome"},
                         Counter(registry, "verbatim_verifications_total",
                                 "Answers executed again: equal, diverged, failed, or dropped from "
                                 "a full queue")};
  Counters commits{{"result"},
                   Counter(registry, "verbatim_commits_total",
                           "Entries given to the ledger for answers, by result")};
  Histograms commit_seconds{
      {}, Histogram(registry, "verbatim_commit_seconds", "What a durable entry takes", kSeconds)};
  Histograms ledger_commit{
      {},
      Histogram(registry, "verbatim_ledger_commit_seconds",
                "The ledger's synced commits; several entries share one", kSeconds)};
  Histograms ledger_group{{},
                          Histogram(registry, "verbatim_ledger_commit_entries",
                                    "Entries that shared one synced commit", kEntries)};
  Counters upstream_attempts{
      {"upstream", "retry"},
      Counter(registry, "verbatim_upstream_attempts_total", "Tries of requests at upstreams")};
  Counters upstream_errors{{"upstream", "error_type"},
                           Counter(registry, "verbatim_upstream_errors_total",
                                   "Tries at upstreams that gave no complete answer, by cause")};
  Counters fallbacks{{"from", "to"},
                     Counter(registry, "verbatim_upstream_fallbacks_total",
                             "Requests that went on to another upstream")};

  std::shared_mutex answered_mutex;  // guards answered
  std::unordered_map<std::string, AnsweredSeries, TextHash, std::equal_to<>> answered;
  prometheus::Counter& saved_prompt = tokens_saved({"prompt"});
  prometheus::Counter& saved_generated = tokens_saved({"generated"});

  std::shared_mutex names_mutex;  // guards models and upstreams
  std::set<std::string, std::less<>> models, upstreams;

  std::mutex mutex;  // guards everything below
  std::vector<std::function<void()>> readings;

  std::string_view Model(std::string_view name) {
    const std::shared_lock lock(names_mutex);
    return name.empty() || models.contains(name) ? name : kOther;
  }
  std::string_view Upstream(std::string_view name) {
    const std::shared_lock lock(names_mutex);
    return name.empty() || upstreams.contains(name) ? name : kOther;
  }
  std::string_view Provider(std::string_view upstream) {
    return upstream.empty() ? "verbatim" : Upstream(upstream);
  }

  AnsweredSeries Answered(const AnsweredRequest& request, std::string_view operation,
                          std::string_view provider, std::string_view model) {
    std::string key;
    for (const std::string_view part :
         {request.endpoint, request.cache, provider, model, request.error_type}) {
      key.append(part).push_back('\xFF');
    }
    key += static_cast<char>(request.status >> 8);
    key += static_cast<char>(request.status);
    {
      const std::shared_lock lock(answered_mutex);
      if (const auto at = answered.find(key); at != answered.end()) return at->second;
    }
    const AnsweredSeries series{
        requests({request.endpoint, request.cache, std::to_string(request.status)}),
        duration({request.cache}),
        server_duration({operation, provider, model, request.error_type})};
    const std::unique_lock lock(answered_mutex);
    if (answered.size() < kMaxSeries) answered.emplace(std::move(key), series);
    return series;
  }
};

Metrics::Metrics() : state_(std::make_unique<State>()) {
  State& s = *state_;
  // So that an alert can be set before there is any.
  for (const char* outcome : {"equal", "diverged", "failed", "dropped"}) s.verifications({outcome});
  for (const char* result : {"ok", "failed"}) s.commits({result});
  s.unrecorded({});
}

Metrics::~Metrics() = default;

void Metrics::SetNames(std::vector<std::string> models, std::vector<std::string> upstreams) {
  const std::unique_lock lock(state_->names_mutex);
  state_->models = {models.begin(), models.end()};
  state_->upstreams = {upstreams.begin(), upstreams.end()};
}

void Metrics::CountAnswered(const AnsweredRequest& request) {
  State& s = *state_;
  const std::string_view operation = OperationName(request.endpoint);
  const std::string_view model = s.Model(request.model);
  const std::string_view provider = s.Provider(request.provider);
  const AnsweredSeries series = s.Answered(request, operation, provider, model);
  series.requests.Increment();
  series.duration.Observe(request.seconds);
  series.server_duration.Observe(request.seconds);
  const auto output = static_cast<double>(request.output_tokens);
  if (request.first_token_seconds >= 0) {
    ObserveFirstToken(request.cache, request.first_token_seconds);
    s.server_first_token({operation, provider, model}).Observe(request.first_token_seconds);
    if (request.output_tokens > 1) {
      s.server_per_token({operation, provider, model})
          .Observe((request.seconds - request.first_token_seconds) / (output - 1));
    }
  }
  if (request.prompt_tokens == 0 && request.output_tokens == 0) return;
  const auto prompt = static_cast<double>(request.prompt_tokens);
  if (request.cache == "hit" || request.cache == "shared") {
    s.saved_prompt.Increment(prompt);
    s.saved_generated.Increment(output);
    return;
  }
  CountTokens(request.prompt_tokens, request.output_tokens);
  s.token_usage({operation, provider, model, "input"}).Observe(prompt);
  s.token_usage({operation, provider, model, "output"}).Observe(output);
}

void Metrics::CountRequest(std::string_view endpoint, std::string_view cache, int status) {
  state_->requests({endpoint, cache, std::to_string(status)}).Increment();
}

void Metrics::CountRefused(int status) { state_->refused({std::to_string(status)}).Increment(); }

void Metrics::CountUnrecorded() { state_->unrecorded({}).Increment(); }

void Metrics::CountRateLimited(std::string_view scope, std::string_view what) {
  state_->rate_limited({scope, what}).Increment();
}

void Metrics::ObserveDuration(std::string_view cache, double seconds) {
  state_->duration({cache}).Observe(seconds);
}

void Metrics::ObserveFirstToken(std::string_view cache, double seconds) {
  state_->first_token({cache}).Observe(seconds);
}

void Metrics::CountTokens(uint64_t prompt, uint64_t generated) {
  state_->tokens({"prompt"}).Increment(static_cast<double>(prompt));
  state_->tokens({"generated"}).Increment(static_cast<double>(generated));
}

void Metrics::CountVerification(std::string_view outcome) {
  state_->verifications({outcome}).Increment();
}

void Metrics::CountCommit(bool ok, double seconds) {
  state_->commits({ok ? "ok" : "failed"}).Increment();
  state_->commit_seconds({}).Observe(seconds);
}

void Metrics::ObserveLedgerCommit(double seconds, uint64_t entries) {
  state_->ledger_commit({}).Observe(seconds);
  state_->ledger_group({}).Observe(static_cast<double>(entries));
}

void Metrics::CountUpstreamAttempt(const UpstreamAttempt& attempt) {
  State& s = *state_;
  const std::string_view upstream = s.Upstream(attempt.upstream);
  s.upstream_attempts({upstream, attempt.retry ? "true" : "false"}).Increment();
  if (!attempt.error_type.empty()) s.upstream_errors({upstream, attempt.error_type}).Increment();
  if (attempt.seconds < 0) return;
  s.client_duration(
       {OperationName(attempt.endpoint), upstream, s.Model(attempt.model), attempt.error_type})
      .Observe(attempt.seconds);
}

void Metrics::CountFallback(std::string_view from, std::string_view to) {
  state_->fallbacks({state_->Upstream(from), state_->Upstream(to)}).Increment();
}

void Metrics::AddGauge(std::string name, std::string help, std::function<double()> read) {
  prometheus::Gauge& gauge = prometheus::BuildGauge()
                                 .Name("verbatim_" + name)
                                 .Help(std::move(help))
                                 .Register(state_->registry)
                                 .Add({});
  const std::lock_guard lock(state_->mutex);
  state_->readings.push_back([&gauge, read = std::move(read)] { gauge.Set(read()); });
}

void Metrics::AddCounter(std::string name, std::string help, std::function<double()> read) {
  CHECK(name.ends_with("_total"));
  prometheus::Counter& counter = prometheus::BuildCounter()
                                     .Name("verbatim_" + name)
                                     .Help(std::move(help))
                                     .Register(state_->registry)
                                     .Add({});
  const std::lock_guard lock(state_->mutex);
  state_->readings.push_back([&counter, read = std::move(read)] {
    const double more = read() - counter.Value();
    if (more > 0) counter.Increment(more);
  });
}

void Metrics::AddTable(std::string name, std::string help, std::vector<std::string> labels,
                       std::function<std::vector<Row>()> read) {
  auto& family = prometheus::BuildGauge()
                     .Name("verbatim_" + name)
                     .Help(std::move(help))
                     .Register(state_->registry);
  // What was shown last, so that a row that is gone is gone here too.
  auto shown = std::make_shared<std::vector<prometheus::Gauge*>>();
  const std::lock_guard lock(state_->mutex);
  state_->readings.push_back([&family, shown, labels = std::move(labels), read = std::move(read)] {
    for (prometheus::Gauge* gauge : *shown) family.Remove(gauge);
    shown->clear();
    for (const Row& row : read()) {
      CHECK(row.labels.size() == labels.size());
      prometheus::Labels named;
      for (size_t i = 0; i < labels.size(); ++i) named.emplace(labels[i], row.labels[i]);
      if (family.Has(named)) continue;
      prometheus::Gauge& gauge = family.Add(named);
      gauge.Set(row.value);
      shown->push_back(&gauge);
    }
  });
}

std::string Metrics::Render() {
  const std::lock_guard lock(state_->mutex);
  for (const auto& reading : state_->readings) reading();
  return prometheus::TextSerializer().Serialize(state_->registry.Collect());
}

}  // namespace verbatim::gateway
