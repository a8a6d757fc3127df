// What a configuration puts in force: the rules, the backends, and what follows from both. Made as
// a whole and replaced as a whole (Pipeline::Replace); a request keeps the one that it began under.
// Immutable once made: any thread may read it.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "base/json.h"
#include "gateway/catalog.h"
#include "gateway/redaction.h"
#include "gateway/upstream/upstream_backend.h"
#include "policies/policy.h"
#include "policies/tenants.h"
#include "store/ledger.h"

namespace verbatim::gateway {

struct Manifest;

struct InForce {
  policies::Policy policy;
  policies::Tenants tenants;
  Catalog catalog;
  Redactor redactor;
  std::map<std::string, std::shared_ptr<const UpstreamBackend>> upstreams;  // by id
  std::shared_ptr<const UpstreamBackend> pass_through;                      // policy's; null: none
  std::string key_secret;  // of the policy's key_secret, resolved; "": none
  // Not empty: the software lock of the policy does not hold, and this says why. Every generation
  // is refused with it (503), with an entry.
  std::string locked;

  // Of the above, by Seal.
  std::string policy_digest;  // in hex
  json::Value extra_key;      // policies::ExtraKey
};

std::shared_ptr<const InForce> Seal(InForce in_force, const Manifest& manifest);

// The entry of the server's own that says what is in force: outcome "ok", or "software_lock".
store::AppendRequest ConfigurationEntry(const InForce& in_force, const Manifest& manifest);

// Whether the newest such entry already says the same; one that stands more than 2^18 entries back
// counts as none. Blocks.
bool ConfigurationIsRecorded(const store::Ledger& ledger, const InForce& in_force,
                             const Manifest& manifest);

}  // namespace verbatim::gateway
