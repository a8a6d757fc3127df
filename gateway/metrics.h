// Numbers about the running gateway, in the Prometheus text format (/metrics). Labels hold only
// names from the configuration and fixed words: never a tenant's data, and a bounded number of
// them. Any thread may call anything here.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace verbatim::gateway {

class Metrics {
 public:
  Metrics();
  ~Metrics();
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;

  // A request was answered. cache: hit, miss, shared, observed, bypass or none; status: of HTTP.
  void CountRequest(std::string_view endpoint, std::string_view cache, int status);
  // The server refused a request before its handler saw it; the status keeps labels few.
  void CountRefused(int status);
  // A refusal that left no entry, because too many came at once.
  void CountUnrecorded();
  // Seconds from a request's header to its last byte, and to the first token sent.
  void ObserveDuration(std::string_view cache, double seconds);
  void ObserveFirstToken(std::string_view cache, double seconds);
  void CountTokens(uint64_t prompt, uint64_t generated);
  // outcome: equal, diverged, failed, dropped.
  void CountVerification(std::string_view outcome);
  void CountCommit(bool ok, double seconds);

  // A number that is read when it is asked for. Names without the "verbatim_" prefix. `read` must
  // stay valid until Render is no longer called.
  void AddGauge(std::string name, std::string help, std::function<double()> read);

  std::string Render();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace verbatim::gateway
