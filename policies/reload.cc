#include "policies/reload.h"

#include <algorithm>
#include <iterator>
#include <string_view>

#include "policies/schema.h"

namespace verbatim::policies {
namespace {

constexpr std::string_view kReloaded[] = {
    "access", "log.level", "server.access_log", "tenants", "server.timeouts.drain_ms", "upstreams",
};

bool IsReloaded(const std::string& path) {
  return path.starts_with("policy.") ||
         std::find(std::begin(kReloaded), std::end(kReloaded), path) != std::end(kReloaded);
}

void AddChanged(const std::vector<Row>& now, const std::vector<Row>& next,
                const std::string& prefix, std::vector<std::string>& changed) {
  for (size_t i = 0; i < now.size(); ++i) {
    if (json::Canonical(now[i].write()) != json::Canonical(next[i].write())) {
      changed.push_back(prefix + now[i].path);
    }
  }
}

}  // namespace

std::vector<std::string> ChangedFields(const Config& now, const Config& next) {
  // Rows are bound to what they read and write.
  Config a = now, b = next;
  std::vector<std::string> changed;
  AddChanged(ConfigRows(a), ConfigRows(b), "", changed);
  AddChanged(PolicyRows(a.policy), PolicyRows(b.policy), "policy.", changed);
  return changed;
}

Status CheckReload(const Config& now, const Config& next) {
  std::string fields;
  for (const std::string& path : ChangedFields(now, next)) {
    if (IsReloaded(path)) continue;
    if (!fields.empty()) fields += ", ";
    fields += path;
  }
  if (fields.empty()) return {};
  return Error{Code::kFailedPrecondition,
               "only a restart changes " + fields + "; put it back, or restart the server"};
}

}  // namespace verbatim::policies
