// Numbers about the running gateway, in the Prometheus text format (/metrics). Where
// OpenTelemetry's semantic conventions for generative AI name a metric
// (gen_ai.server.request.duration), it has that name in Prometheus' spelling, its attributes as
// labels, and its bucket boundaries; all others begin with verbatim_. docs/observability.md lists
// them.
//
// Labels hold only names from the configuration and fixed words: never a tenant's data. Their
// number is bounded here too: a model or upstream that is not configured (SetNames), and every
// value of a label beyond its first 64, counts as "other". Any thread may call anything here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace verbatim::gateway {

// A generation request whose answer has ended.
struct AnsweredRequest {
  std::string_view endpoint{};      // "/v1/chat/completions"
  std::string_view cache = "none";  // hit, miss, shared, observed, bypass or none
  int status = 0;                   // of HTTP; 499: the client went away
  std::string_view model{};         // as it is served here
  std::string_view provider{};      // the upstream's id; "": the embedded engine
  std::string_view error_type{};    // "": none; a short code, as the ledger's outcomes
  double seconds = 0;               // from the request's header to the answer's last byte
  double first_token_seconds = -1;  // to its first token; below 0: it is no stream, or had none
  uint64_t prompt_tokens = 0, output_tokens = 0;  // as far as known
};

// One try of a request at an upstream.
struct UpstreamAttempt {
  std::string_view upstream{};
  std::string_view model{};
  std::string_view endpoint{};
  // "": it answered with a complete answer; else a short code: connect, tls, timeout_first_byte,
  // status_429, incomplete, cancelled, breaker_open, ...
  std::string_view error_type{};
  double seconds = -1;  // to the end of the answer, or until it failed; below 0: not known
  bool retry = false;   // not the request's first one
};

class Metrics {
 public:
  Metrics();
  ~Metrics();
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;

  // The models and upstreams that labels may name; replaces those of before.
  void SetNames(std::vector<std::string> models, std::vector<std::string> upstreams);

  // A request was answered: counts it, its duration, first token, time per output token and (where
  // it was not a hit, nor shared) its tokens.
  void CountAnswered(const AnsweredRequest& request);

  // A request was answered. cache: hit, miss, shared, observed, bypass or none; status: of HTTP.
  void CountRequest(std::string_view endpoint, std::string_view cache, int status);
  // The server refused a request before its handler saw it; the status keeps labels few.
  void CountRefused(int status);
  // A refusal that left no entry, because too many came at once.
  void CountUnrecorded();
  // A request over a limit. scope: key, tenant; what: requests, tokens, budget, concurrency.
  void CountRateLimited(std::string_view scope, std::string_view what);
  // Seconds from a request's header to its last byte, and to the first token sent.
  void ObserveDuration(std::string_view cache, double seconds);
  void ObserveFirstToken(std::string_view cache, double seconds);
  void CountTokens(uint64_t prompt, uint64_t generated);
  // outcome: equal, diverged, failed, dropped.
  void CountVerification(std::string_view outcome);
  void CountCommit(bool ok, double seconds);
  // A synced commit of the ledger, and how many entries shared it.
  void ObserveLedgerCommit(double seconds, uint64_t entries);

  void CountUpstreamAttempt(const UpstreamAttempt& attempt);
  // from: the upstream that could not answer; to: the one asked next.
  void CountFallback(std::string_view from, std::string_view to);

  // A number that is read when it is asked for. Names without the "verbatim_" prefix. `read` must
  // stay valid until Render is no longer called.
  void AddGauge(std::string name, std::string help, std::function<double()> read);
  // The same for one that only grows; its name ends with _total.
  void AddCounter(std::string name, std::string help, std::function<double()> read);

  // Gauges of which there is one per row, read together. labels: their names; each row has as many
  // values.
  struct Row {
    std::vector<std::string> labels;
    double value = 0;
  };
  void AddTable(std::string name, std::string help, std::vector<std::string> labels,
                std::function<std::vector<Row>()> read);

  std::string Render();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace verbatim::gateway
