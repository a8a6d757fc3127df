// The upstreams of a configuration, over its reloads: one whose configuration did not change, nor
// the files that it names, stays the one that it was, with its connections and its circuit breaker.
// Not thread-safe; the upstreams are.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/result.h"
#include "gateway/upstream/upstream_backend.h"
#include "policies/upstreams.h"

namespace verbatim::gateway {

class UpstreamSet {
 public:
  explicit UpstreamSet(UpstreamOptions options) : options_(std::move(options)) {}

  // By id. `now`: those in force, of an earlier call, among which unchanged ones are looked for.
  // Errors as of MakeUpstream.
  using Upstreams = std::map<std::string, std::shared_ptr<const UpstreamBackend>>;
  Result<Upstreams> Make(const policies::UpstreamConfigs& configs, const Upstreams& now);

 private:
  struct Made {
    policies::UpstreamConfig config;
    Digest files{};  // of what it reads once, when it is made
    std::weak_ptr<const UpstreamBackend> backend;
  };

  const UpstreamOptions options_;
  std::vector<Made> made_;
};

}  // namespace verbatim::gateway
