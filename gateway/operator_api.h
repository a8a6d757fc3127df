// The API for operators and auditors: receipts, entries, manifest, metrics, health, and the log.
// What it returns is enough for an independent script to check an entry: leaf bytes, leaf hash,
// inclusion path, tree size and signed checkpoint.
#pragma once

#include <functional>
#include <string>

#include "gateway/http.h"

namespace verbatim::store {
class Ledger;
}

namespace verbatim::gateway {

class Metrics;
class Reproducibility;
struct Manifest;

struct OperatorApiOptions {
  store::Ledger* ledger = nullptr;  // these three outlive the server
  const Manifest* manifest = nullptr;
  Metrics* metrics = nullptr;
  const Reproducibility* reproducibility = nullptr;  // likewise; null: there is no such route
  // Empty while generation is served, else why it is not ("the model is still being loaded").
  std::function<std::string()> not_serving;
  // The same for whoever spreads load: also not empty while answers are served that would better
  // be served elsewhere. Empty function: as not_serving.
  std::function<std::string()> not_ready;
  bool open_log = false;  // LogApiOptions
};

// GET /verbatim/v1/receipts/{request id}: status, entry and everything to check it; "pending" while
//       a hit's interval is open (?wait=SECONDS, 10 at most, waits for it).
// GET /verbatim/v1/entries/{n}: leaf and record; request and answer with ?payload=1 only, which
//       leaves an entry of its own (kind "viewed").
// GET /verbatim/v1/reproducibility: per upstream and model, how often answers came out equal again
//       (reproducibility.h).
// GET /verbatim/v1/manifest, /metrics, /healthz (200 once generation is served), /readyz (also 503
//       while the verifier's queue is full or the ledger takes no entries).
// And those of log_api.h.
void AddOperatorRoutes(Router& router, OperatorApiOptions options);

}  // namespace verbatim::gateway
