// Which parts of a configuration a running server takes over from a new one. Pure functions.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "policies/config.h"

namespace verbatim::policies {

// The paths of the fields whose values differ ("server.listen", "policy.mode", "tenants").
std::vector<std::string> ChangedFields(const Config& now, const Config& next);

// Whether a server that runs `now` can go on as `next`: what differs is the policy, tenants,
// access, upstreams, the access log, the log's level, or how long a drain may take.
// kFailedPrecondition names every field that only a restart changes.
Status CheckReload(const Config& now, const Config& next);

}  // namespace verbatim::policies
