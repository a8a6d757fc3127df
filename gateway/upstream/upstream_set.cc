#include "gateway/upstream/upstream_set.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <optional>

#include "base/crypto.h"
#include "policies/loader.h"

namespace verbatim::gateway {

namespace {

// Credentials are read again by themselves when they change; certificates and proxies are not.
Digest DigestOfFiles(const policies::UpstreamConfig& config) {
  std::string all;
  for (const std::string* name :
       {&config.ca_file, &config.client_certificate, &config.client_key}) {
    std::string bytes;
    if (!name->empty()) {
      std::ifstream file(*name, std::ios::binary);
      bytes.assign(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
    }
    AppendU64(all, bytes.size());
    all += bytes;
  }
  if (config.proxy.starts_with("env:") || config.proxy.starts_with("file:")) {
    auto proxy = policies::ResolveSecret(config.proxy);
    if (proxy.ok()) all += *proxy;
  }
  return Sha256(all);
}

}  // namespace

Result<UpstreamSet::Upstreams> UpstreamSet::Make(const policies::UpstreamConfigs& configs,
                                                 const Upstreams& now) {
  std::erase_if(made_, [](const Made& made) { return made.backend.expired(); });
  Upstreams upstreams;
  for (const auto& [id, config] : configs) {
    const Digest files = DigestOfFiles(config);
    std::shared_ptr<const UpstreamBackend> backend;
    if (const auto at = now.find(id); at != now.end()) backend = at->second;
    const auto same = [&, &wanted = config](const Made& made) {
      return made.backend.lock() == backend && made.config == wanted && made.files == files;
    };
    if (std::none_of(made_.begin(), made_.end(), same)) backend = nullptr;
    if (!backend) {
      auto made = MakeUpstream(id, config, options_);
      if (!made.ok()) return made.error();
      backend = *std::move(made);
      made_.push_back({config, files, backend});
    }
    upstreams[id] = std::move(backend);
  }
  return upstreams;
}

}  // namespace verbatim::gateway
