// The life of a request: from decoded HTTP to an answer that is in the ledger (pipeline.cc,
// Generate).
//
// A Pipeline joins policy, backends, ledger and verifier. Its handlers are coroutines on the
// server's executors; the runs themselves live on threads of the pipeline's own, so that they go on
// while anyone waits, whoever began them. Construct, add the routes to the server's router, serve,
// drain the server, then Drain and destroy. Thread-safe after construction.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "gateway/backend.h"
#include "gateway/catalog.h"
#include "gateway/http.h"

namespace verbatim::policies {
struct Policy;
}
namespace verbatim::store {
class Ledger;
}

namespace verbatim::gateway {

class Metrics;
struct Manifest;

struct PipelineOptions {
  std::shared_ptr<const policies::Policy> policy;
  store::Ledger* ledger = nullptr;  // outlives the pipeline
  Metrics* metrics = nullptr;       // outlives the pipeline
  Catalog catalog;
  const Manifest* manifest = nullptr;  // outlives the pipeline
  std::string key_secret;              // of the policy's key_secret, resolved; "": none
  // Not empty: the software lock of the policy does not hold, and this says why. Every generation
  // is refused with it (503), with an entry.
  std::string locked;
  // Answers that may wait to be executed again; more are dropped, and counted.
  size_t verify_queue = 64;
};

class Pipeline {
 public:
  explicit Pipeline(PipelineOptions options);
  // Drains, cancelling whatever still runs.
  ~Pipeline();
  Pipeline(const Pipeline&) = delete;
  Pipeline& operator=(const Pipeline&) = delete;

  // Puts manifest and policy into the ledger, as an entry of the server's own: outcome "ok", or
  // "software_lock" where the lock does not hold. Where the newest such entry already says the same
  // (and neither is locked) nothing is added; one that stands more than 2^18 entries back counts as
  // none. Blocks; once, before serving.
  Status RecordConfiguration();

  // POST /v1/chat/completions, POST /v1/completions, GET /v1/models, GET /v1/models/{}. And what
  // the server refuses by itself on the generation routes leaves an entry here (refusals.h).
  void AddRoutes(Router& router);

  // True while generation is served: no software lock, not draining, at least one model.
  bool Serving() const;

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
