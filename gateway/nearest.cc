#include "gateway/nearest.h"

#include <optional>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "gateway/fingerprint.h"

namespace verbatim::gateway {

namespace {

constexpr uint64_t kEntries = 4096;
constexpr int kAnswers = 32;
constexpr int64_t kMicros = 20'000;  // it runs where all runs do
constexpr size_t kRequestBytes = size_t{256} << 10;
constexpr size_t kDifferences = 16;  // counted of one request
constexpr size_t kNamed = 4;         // of them in the message

// What counts of a request as received; nothing where it is no JSON object.
std::optional<json::Value> Counted(const std::string& endpoint, const std::string& body) {
  auto parsed = ParseBody(body);
  auto* object = std::get_if<json::Value>(&parsed);
  if (!object) return std::nullopt;
  const Envelope envelope{.name_space = {},
                          .endpoint = endpoint,
                          .request = std::move(*object),
                          .identity = {},
                          .extra = {}};
  return *EnvelopeJson(envelope).Find("request");
}

std::string Describe(uint64_t entry, const std::vector<Difference>& differences) {
  std::string text = "The nearest recorded request is entry " + std::to_string(entry);
  if (differences.empty()) {
    return text + ", which asks for the same: model, policy or software differ. ";
  }
  text += "; it differs in ";
  for (size_t i = 0; i < differences.size() && i < kNamed; ++i) {
    if (i > 0) text += ", ";
    text += differences[i].pointer.empty() ? "the whole" : differences[i].pointer;
  }
  return text + (differences.size() > kNamed ? " and more. " : ". ");
}

}  // namespace

std::string DescribeNearest(const store::Ledger& ledger, const Call& call) {
  const std::string endpoint(EndpointPath(call.endpoint));
  if (call.body.size() > kRequestBytes) return "";
  const auto asked = Counted(endpoint, call.body);
  if (!asked) return "";
  std::optional<uint64_t> nearest;
  std::vector<Difference> least;
  int seen = 0;
  const uint64_t size = ledger.Size();
  const int64_t until = MonotonicMicros() + kMicros;
  for (uint64_t n = size; n > 0 && size - n < kEntries && seen < kAnswers; --n) {
    if (MonotonicMicros() > until) break;
    auto view = ledger.Entry(n - 1, false);
    if (!view.ok() || view->leaf.kind != store::Kind::kGenerated) continue;
    view = ledger.Entry(n - 1, true);
    if (!view.ok() || !view->record || view->request.size() > kRequestBytes) continue;
    if (view->record->name_space != call.decision.name_space) continue;
    if (view->record->endpoint != endpoint || !view->record->serves_hits) continue;
    ++seen;
    const auto recorded = Counted(endpoint, view->request);
    if (!recorded) continue;
    std::vector<Difference> differences = Explain(*recorded, *asked, kDifferences);
    if (nearest && differences.size() >= least.size()) continue;
    nearest = n - 1;
    least = std::move(differences);
    if (least.empty()) break;
  }
  return nearest ? Describe(*nearest, least) : "";
}

}  // namespace verbatim::gateway
