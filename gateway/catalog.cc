#include "gateway/catalog.h"

#include <algorithm>
#include <utility>

namespace verbatim::gateway {

void Catalog::AddUpstream(std::string id, std::shared_ptr<const Backend> backend) {
  upstreams_[std::move(id)] = std::move(backend);
}

void Catalog::SetUpstreamFor(std::function<std::string(std::string_view)> upstream_for) {
  upstream_for_ = std::move(upstream_for);
}

std::vector<ServedModel> Catalog::List() const {
  std::vector<ServedModel> all = models_;
  for (const ServedModel& model : listed_) {
    const bool there = std::any_of(
        all.begin(), all.end(), [&](const ServedModel& other) { return other.name == model.name; });
    if (!there) all.push_back(model);
  }
  return all;
}

std::shared_ptr<const Backend> Catalog::Find(std::string_view model) const {
  for (const ServedModel& served : models_) {
    if (served.name == model) return served.backend;
  }
  return upstream_for_ ? Upstream(upstream_for_(model)) : nullptr;
}

std::shared_ptr<const Backend> Catalog::Upstream(const std::string& id) const {
  const auto found = upstreams_.find(id);
  return found == upstreams_.end() ? nullptr : found->second;
}

}  // namespace verbatim::gateway
