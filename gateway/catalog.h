// Which backend answers for which model. Filled once, then immutable: any thread may read it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "gateway/backend.h"

namespace verbatim::gateway {

struct ServedModel {
  std::string name;  // as requests say it
  std::shared_ptr<const Backend> backend;
  int64_t created = 0;  // seconds, for /v1/models
  std::string owner = "verbatim";
};

class Catalog {
 public:
  void AddModel(ServedModel model) { models_.push_back(std::move(model)); }
  // A whole name that an upstream serves, for the list of models.
  void ListName(ServedModel model) { listed_.push_back(std::move(model)); }
  // An upstream by its configured id. It answers for names that no model of AddModel has, as
  // `upstream_for` says: an id, or "" where no upstream knows the name.
  void AddUpstream(std::string id, std::shared_ptr<const Backend> backend);
  void SetUpstreamFor(std::function<std::string(std::string_view model)> upstream_for);

  // Null where nobody answers for it.
  std::shared_ptr<const Backend> Find(std::string_view model) const;
  std::shared_ptr<const Backend> Upstream(const std::string& id) const;

  std::vector<ServedModel> List() const;  // everything that has a whole name, each once
  bool empty() const { return models_.empty() && upstreams_.empty(); }

 private:
  std::vector<ServedModel> models_, listed_;
  std::map<std::string, std::shared_ptr<const Backend>> upstreams_;
  std::function<std::string(std::string_view)> upstream_for_;
};

}  // namespace verbatim::gateway
