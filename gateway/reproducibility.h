// How often answers came out equal when they were asked for again: counts per upstream and model of
// the verifications that compared two answers, with a Wilson score interval. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/json.h"

namespace verbatim::store {
class Ledger;
struct Leaf;
}  // namespace verbatim::store

namespace verbatim::gateway {

struct Interval {
  double low = 0, high = 1;
};
// Wilson (1927): the score interval of a binomial proportion at 95 % (z = 1.959963984540054),
// without continuity correction. No trials: 0 to 1.
Interval WilsonInterval(uint64_t successes, uint64_t trials);

// What the leaf of a `verified` or `diverged` entry says of where the answer came from: sets
// "upstream" ("" for the embedded engine) and "model" in `detail`, which becomes an object.
void SetOrigin(json::Value& detail, std::string_view upstream, std::string_view model);

class Reproducibility {
 public:
  // Entries of the ledger that Rebuild reads at most, the newest ones.
  static constexpr uint64_t kMaxScan = uint64_t{1} << 18;
  // Pairs of upstream and model that are told apart; further ones count as ("other", "other").
  static constexpr size_t kMaxRows = 1024;

  Reproducibility() = default;
  ~Reproducibility();
  Reproducibility(const Reproducibility&) = delete;
  Reproducibility& operator=(const Reproducibility&) = delete;

  void Count(std::string_view upstream, std::string_view model, bool equal);

  // Counts what the ledger's newest kMaxScan entries say, on a thread of its own. Call once, before
  // the first Count; the ledger outlives this.
  void Rebuild(const store::Ledger& ledger);
  void WaitUntilRebuilt();

  struct Row {
    std::string upstream, model;
    uint64_t equal = 0, diverged = 0;
    double rate = 0;  // equal of both
    Interval interval;
  };
  std::vector<Row> Rows() const;  // by upstream, then model
  // {"upstreams":[{"upstream","model","equal","diverged","rate","low","high"}],"complete":bool};
  // complete: the ledger's part has been read.
  json::Value ToJson() const;

 private:
  void CountLeaf(const store::Leaf& leaf);

  mutable std::mutex mutex_;  // guards counts_
  std::map<std::pair<std::string, std::string>, std::pair<uint64_t, uint64_t>> counts_;
  std::atomic<bool> rebuilt_ = true, stop_ = false;
  std::thread scan_;
};

}  // namespace verbatim::gateway
