// Metrics that are read when they are asked for: of the ledger, of reproducibility, of the access
// log.
#pragma once

namespace verbatim::store {
class Ledger;
}

namespace verbatim::gateway {

class AccessLog;
class Metrics;
class Reproducibility;

// All of them are read until Metrics::Render is no longer called.
void AddLedgerGauges(Metrics& metrics, const store::Ledger& ledger);
void AddReproducibilityGauges(Metrics& metrics, const Reproducibility& reproducibility);
void AddAccessLogCounters(Metrics& metrics, const AccessLog& log);

}  // namespace verbatim::gateway
