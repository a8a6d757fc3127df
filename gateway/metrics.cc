#include "gateway/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <mutex>
#include <utility>
#include <vector>

namespace verbatim::gateway {

namespace {

const prometheus::Histogram::BucketBoundaries kSeconds = {
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120};

prometheus::Family<prometheus::Counter>& Counter(prometheus::Registry& registry, const char* name,
                                                 const char* help) {
  return prometheus::BuildCounter().Name(name).Help(help).Register(registry);
}

prometheus::Family<prometheus::Histogram>& Histogram(prometheus::Registry& registry,
                                                     const char* name, const char* help) {
  return prometheus::BuildHistogram().Name(name).Help(help).Register(registry);
}

}  // namespace

struct Metrics::State {
  prometheus::Registry registry;
  prometheus::Family<prometheus::Counter>& requests =
      Counter(registry, "verbatim_requests_total",
              "Generation requests answered, by endpoint, cache outcome and HTTP status");
  prometheus::Family<prometheus::Counter>& refused =
      Counter(registry, "verbatim_http_refused_total",
              "Requests to any path that were refused on their HTTP form, by HTTP status");
  prometheus::Counter& unrecorded =
      Counter(registry, "verbatim_refusals_unrecorded_total",
              "Refused generation requests without an entry, because too many came at once")
          .Add({});
  prometheus::Family<prometheus::Histogram>& duration =
      Histogram(registry, "verbatim_request_seconds",
                "From a request's header to the last byte of its answer, by cache outcome");
  prometheus::Family<prometheus::Histogram>& first_token =
      Histogram(registry, "verbatim_first_token_seconds",
                "From a request's header to the first token sent, by cache outcome");
  prometheus::Family<prometheus::Counter>& tokens = Counter(
      registry, "verbatim_tokens_total", "Tokens of answers that ran to their end, by kind");
  prometheus::Family<prometheus::Counter>& verifications =
      Counter(registry, "verbatim_verifications_total",
              "Answers executed again: equal, diverged, failed, or dropped from a full queue");
  prometheus::Family<prometheus::Counter>& commits = Counter(
      registry, "verbatim_commits_total", "Entries given to the ledger for answers, by result");
  prometheus::Family<prometheus::Histogram>& commit_seconds =
      Histogram(registry, "verbatim_commit_seconds", "What a durable entry takes");

  struct Reading {
    prometheus::Gauge* gauge;
    std::function<double()> read;
  };
  std::mutex mutex;  // guards readings
  std::vector<Reading> readings;
};

Metrics::Metrics() : state_(std::make_unique<State>()) {
  for (const char* outcome : {"equal", "diverged", "failed", "dropped"}) {
    state_->verifications.Add({{"outcome", outcome}});  // so that an alert can be set before any
  }
  for (const char* result : {"ok", "failed"}) state_->commits.Add({{"result", result}});
}

Metrics::~Metrics() = default;

void Metrics::CountRequest(std::string_view endpoint, std::string_view cache, int status) {
  state_->requests
      .Add({{"endpoint", std::string(endpoint)},
            {"cache", std::string(cache)},
            {"status", std::to_string(status)}})
      .Increment();
}

void Metrics::CountRefused(int status) {
  state_->refused.Add({{"status", std::to_string(status)}}).Increment();
}

void Metrics::CountUnrecorded() { state_->unrecorded.Increment(); }

void Metrics::ObserveDuration(std::string_view cache, double seconds) {
  state_->duration.Add({{"cache", std::string(cache)}}, kSeconds).Observe(seconds);
}

void Metrics::ObserveFirstToken(std::string_view cache, double seconds) {
  state_->first_token.Add({{"cache", std::string(cache)}}, kSeconds).Observe(seconds);
}

void Metrics::CountTokens(uint64_t prompt, uint64_t generated) {
  state_->tokens.Add({{"kind", "prompt"}}).Increment(static_cast<double>(prompt));
  state_->tokens.Add({{"kind", "generated"}}).Increment(static_cast<double>(generated));
}

void Metrics::CountVerification(std::string_view outcome) {
  state_->verifications.Add({{"outcome", std::string(outcome)}}).Increment();
}

void Metrics::CountCommit(bool ok, double seconds) {
  state_->commits.Add({{"result", ok ? "ok" : "failed"}}).Increment();
  state_->commit_seconds.Add({}, kSeconds).Observe(seconds);
}

void Metrics::AddGauge(std::string name, std::string help, std::function<double()> read) {
  prometheus::Gauge& gauge = prometheus::BuildGauge()
                                 .Name("verbatim_" + name)
                                 .Help(std::move(help))
                                 .Register(state_->registry)
                                 .Add({});
  std::lock_guard lock(state_->mutex);
  state_->readings.push_back({&gauge, std::move(read)});
}

std::string Metrics::Render() {
  std::lock_guard lock(state_->mutex);
  for (const auto& reading : state_->readings) reading.gauge->Set(reading.read());
  return prometheus::TextSerializer().Serialize(state_->registry.Collect());
}

}  // namespace verbatim::gateway
