// The life of a request: from decoded HTTP to an answer that is in the ledger (pipeline.cc,
// Generate).
//
// A Pipeline joins policy, backends, ledger and verifier. Its handlers are coroutines on the
// server's executors; so are the runs themselves, which go on while anyone waits, whoever began
// them. Those executors outlive it. Construct, add the routes to the server's router, serve,
// drain the server, then Drain and destroy. Thread-safe after construction.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "gateway/backend.h"
#include "gateway/http.h"
#include "gateway/in_force.h"

namespace verbatim::store {
class Ledger;
}

namespace verbatim::gateway {

class Limiter;
class Metrics;
struct Manifest;

struct PipelineOptions {
  InForce in_force;
  store::Ledger* ledger = nullptr;  // these outlive the pipeline
  Metrics* metrics = nullptr;
  const Manifest* manifest = nullptr;
  Limiter* limiter = nullptr;   // null: no limits
  Authenticator authenticator;  // whose credentials never go upstream
  // Answers that may wait to be executed again; more are dropped, and counted.
  size_t verify_queue = 64;
  // Told of each verification that compared two answers: where from ("" the engine), and how.
  std::function<void(std::string_view upstream, std::string_view model, bool equal)> on_compared;
  int64_t refusal_interval_micros = 60'000'000;  // of the leaves that count refusals of nobody
  // Of results and requests that are held for hits (hit_cache.h, request_memo.h); 0: none.
  uint64_t hit_memory_bytes = uint64_t{64} << 20;
  // Of upstreams' replies while they are made (ReplyBounds).
  uint64_t stream_buffer_bytes = uint64_t{64} << 10;
  uint64_t replies_total_bytes = uint64_t{1} << 30;
  bool generate_traceparent = false;  // for upstreams, where a client sent none
};

class Pipeline {
 public:
  explicit Pipeline(PipelineOptions options);
  // Drains, cancelling whatever still runs.
  ~Pipeline();
  Pipeline(const Pipeline&) = delete;
  Pipeline& operator=(const Pipeline&) = delete;

  // Puts manifest and policy into the ledger, as an entry of the server's own (in_force.h). Where
  // the newest such entry already says the same (and neither is locked) nothing is added. Blocks;
  // once, before serving.
  Status RecordConfiguration();

  // From now on new requests live under this; those that have begun end under what they began
  // with. Its entry comes first: an error, and nothing has changed, where it cannot be recorded.
  Status Replace(InForce in_force);

  std::shared_ptr<const InForce> in_force() const;

  // POST on every route of endpoint.h; GET /v1/models, GET /v1/models/{} (and
  // Azure's paths of them); anything else under /v1
  // where policy passes it through. And what the server refuses by itself on the generation routes
  // leaves an entry here (refusals.h).
  void AddRoutes(Router& router);

  // Why no generation is served (the software lock, a drain, no model), or "".
  std::string NotServing() const;

  // Stops verifying, cancels runs that nobody waits for, and blocks until every run has its entry.
  // Call after the server has drained. Idempotent.
  void Drain();

  // Runs in flight now, and answers that wait to be executed again.
  size_t runs_in_flight() const;
  size_t verify_backlog() const;
  // Why load had better go elsewhere, or "": the verifier's queue is full, or the ledger took
  // nothing the last time (within five seconds).
  std::string Overload() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace verbatim::gateway
