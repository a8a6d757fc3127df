#include "gateway/in_force.h"

#include <utility>

#include "gateway/manifest.h"

namespace verbatim::gateway {

namespace {

// How far back the last configuration is looked for: about a second's reading.
constexpr uint64_t kConfigurationScan = uint64_t{1} << 18;

}  // namespace

std::shared_ptr<const InForce> Seal(InForce in_force, const Manifest& manifest) {
  in_force.policy_digest = HexEncode(PolicyDigest(in_force.policy));
  if (in_force.locked.empty()) in_force.extra_key = ExtraKey(in_force.policy, manifest.value);
  return std::make_shared<const InForce>(std::move(in_force));
}

store::AppendRequest ConfigurationEntry(const InForce& in_force, const Manifest& manifest) {
  store::AppendRequest entry;
  entry.kind = store::Kind::kConfiguration;
  entry.manifest = HexEncode(manifest.digest);
  entry.outcome = in_force.locked.empty() ? "ok" : "software_lock";
  entry.detail = json::Value::MakeObject();
  entry.detail.Set("policy", in_force.policy_digest);
  json::Value body = json::Value::MakeObject();
  body.Set("manifest", manifest.value);
  body.Set("policy", ToJson(in_force.policy));
  if (!in_force.locked.empty()) body.Set("locked", in_force.locked);
  entry.response = json::Canonical(body);
  return entry;
}

bool ConfigurationIsRecorded(const store::Ledger& ledger, const InForce& in_force,
                             const Manifest& manifest) {
  const std::string digest = HexEncode(manifest.digest);
  const uint64_t size = ledger.Size();
  for (uint64_t n = size; n > 0 && size - n < kConfigurationScan; --n) {
    auto view = ledger.Entry(n - 1, false);
    if (!view.ok()) return false;
    const store::Leaf& leaf = view->leaf;
    // A rejected one (a reload that was refused) changed nothing.
    if (leaf.kind != store::Kind::kConfiguration || leaf.outcome == "rejected") continue;
    const json::Value* policy = leaf.detail.Find("policy");
    return leaf.outcome == "ok" && leaf.manifest == digest && policy && policy->is_string() &&
           policy->as_string() == in_force.policy_digest;
  }
  return false;
}

}  // namespace verbatim::gateway
