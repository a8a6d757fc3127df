#include "gateway/gauges.h"

#include <vector>

#include "gateway/access_log.h"
#include "gateway/metrics.h"
#include "gateway/reproducibility.h"
#include "store/ledger.h"

namespace verbatim::gateway {

void AddLedgerGauges(Metrics& metrics, const store::Ledger& ledger) {
  metrics.AddGauge("ledger_entries", "Durable entries of the log",
                   [&ledger] { return static_cast<double>(ledger.Size()); });
  metrics.AddGauge("ledger_open_intents", "Requests at upstreams that have no end in the log yet",
                   [&ledger] { return static_cast<double>(ledger.OpenIntents()); });
  metrics.AddGauge("ledger_unpublished_entries",
                   "Durable entries that no published checkpoint covers yet",
                   [&ledger] { return static_cast<double>(ledger.Lag().entries); });
  metrics.AddGauge("ledger_unpublished_seconds",
                   "How long the oldest entry that no published checkpoint covers has waited",
                   [&ledger] { return static_cast<double>(ledger.Lag().oldest_micros) * 1e-6; });
}

void AddReproducibilityGauges(Metrics& metrics, const Reproducibility& reproducibility) {
  using Row = Reproducibility::Row;
  const auto add = [&](const char* name, const char* help, double (*value)(const Row&)) {
    metrics.AddTable(name, help, {"upstream", "model"}, [&reproducibility, value] {
      std::vector<Metrics::Row> rows;
      for (const Row& row : reproducibility.Rows()) {
        rows.push_back({{row.upstream.empty() ? "verbatim" : row.upstream, row.model}, value(row)});
      }
      return rows;
    });
  };
  add("reproducibility_rate", "Share of verifications whose second answer was equal",
      [](const Row& row) { return row.rate; });
  add("reproducibility_low", "Lower end of the rate's Wilson score interval, 95 %",
      [](const Row& row) { return row.interval.low; });
  add("reproducibility_high", "Upper end of the rate's Wilson score interval, 95 %",
      [](const Row& row) { return row.interval.high; });
}

void AddAccessLogCounters(Metrics& metrics, const AccessLog& log) {
  metrics.AddCounter("access_log_dropped_total",
                     "Lines of the access log that its target did not take",
                     [&log] { return static_cast<double>(log.dropped()); });
}

}  // namespace verbatim::gateway
