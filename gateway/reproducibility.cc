#include "gateway/reproducibility.h"

#include <algorithm>
#include <cmath>

#include "base/log.h"
#include "store/ledger.h"

namespace verbatim::gateway {
namespace {

constexpr double kZ = 1.959963984540054;  // the normal distribution's 97.5 % quantile

}  // namespace

Interval WilsonInterval(uint64_t successes, uint64_t trials) {
  if (trials == 0) return {};
  const auto n = static_cast<double>(trials);
  const double p = static_cast<double>(successes) / n;
  const double center = p + kZ * kZ / (2 * n);
  const double half = kZ * std::sqrt(p * (1 - p) / n + kZ * kZ / (4 * n * n));
  const double scale = 1 + kZ * kZ / n;
  // At the ends the exact bounds are 0 and 1; rounding must not leave them.
  return {successes == 0 ? 0 : std::max(0.0, (center - half) / scale),
          successes == trials ? 1 : std::min(1.0, (center + half) / scale)};
}

void SetOrigin(json::Value& detail, std::string_view upstream, std::string_view model) {
  if (!detail.is_object()) detail = json::Value::MakeObject();
  detail.Set("upstream", upstream);
  detail.Set("model", model);
}

Reproducibility::~Reproducibility() {
  stop_ = true;
  if (scan_.joinable()) scan_.join();
}

void Reproducibility::Count(std::string_view upstream, std::string_view model, bool equal) {
  const std::lock_guard lock(mutex_);
  auto key = std::pair(std::string(upstream), std::string(model));
  if (counts_.size() >= kMaxRows && !counts_.contains(key)) key = {"other", "other"};
  auto& [equals, differences] = counts_[std::move(key)];
  ++(equal ? equals : differences);
}

void Reproducibility::CountLeaf(const store::Leaf& leaf) {
  if (leaf.kind != store::Kind::kVerified && leaf.kind != store::Kind::kDiverged) return;
  const json::Value* upstream = leaf.detail.Find("upstream");
  const json::Value* model = leaf.detail.Find("model");
  if (!upstream || !upstream->is_string() || !model || !model->is_string()) return;
  Count(upstream->as_string(), model->as_string(), leaf.kind == store::Kind::kVerified);
}

void Reproducibility::Rebuild(const store::Ledger& ledger) {
  const uint64_t size = ledger.Size();
  rebuilt_ = false;
  scan_ = std::thread([this, &ledger, size] {
    for (uint64_t n = size - std::min(size, kMaxScan); n < size && !stop_; ++n) {
      const Result<store::EntryView> view = ledger.Entry(n, false);
      if (view.ok()) {
        CountLeaf(view->leaf);
      } else {
        LogWarning("reproducibility: entry " + std::to_string(n) + ": " + view.error().message);
      }
    }
    rebuilt_ = true;
  });
}

void Reproducibility::WaitUntilRebuilt() {
  if (scan_.joinable()) scan_.join();
}

std::vector<Reproducibility::Row> Reproducibility::Rows() const {
  std::vector<Row> rows;
  const std::lock_guard lock(mutex_);
  for (const auto& [key, counts] : counts_) {
    const auto [equal, diverged] = counts;
    const uint64_t both = equal + diverged;
    rows.push_back({key.first, key.second, equal, diverged,
                    static_cast<double>(equal) / static_cast<double>(both),
                    WilsonInterval(equal, both)});
  }
  return rows;
}

json::Value Reproducibility::ToJson() const {
  json::Value list = json::Value::MakeArray();
  for (const Row& row : Rows()) {
    json::Value v = json::Value::MakeObject();
    v.Set("upstream", row.upstream);
    v.Set("model", row.model);
    v.Set("equal", row.equal);
    v.Set("diverged", row.diverged);
    v.Set("rate", row.rate);
    v.Set("low", row.interval.low);
    v.Set("high", row.interval.high);
    list.Append(std::move(v));
  }
  json::Value object = json::Value::MakeObject();
  object.Set("upstreams", std::move(list));
  object.Set("complete", rebuilt_.load());
  return object;
}

}  // namespace verbatim::gateway
