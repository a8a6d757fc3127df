#include "gateway/model_list.h"

#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/json.h"
#include "gateway/access.h"

namespace verbatim::gateway {

namespace asio = boost::asio;

namespace {

bool WantsAnthropic(const Request& http) { return !http.Header("anthropic-version").empty(); }

std::string ModelJson(const ServedModel& model, bool anthropic) {
  const std::string name = json::Quote(model.name);
  if (anthropic) {
    return "{\"type\":\"model\",\"id\":" + name + ",\"display_name\":" + name +
           ",\"created_at\":" + json::Quote(FormatTime(model.created * 1'000'000)) + "}";
  }
  return "{\"id\":" + name + ",\"object\":\"model\",\"created\":" + std::to_string(model.created) +
         ",\"owned_by\":" + json::Quote(model.owner) + "}";
}

std::vector<ServedModel> ModelsFor(const InForce& now, const Request& http) {
  std::vector<ServedModel> models = now.catalog.List();
  std::erase_if(models, [&](const ServedModel& model) {
    return !MayUseModel(now.tenants, http.principal, model.name);
  });
  return models;
}

}  // namespace

asio::awaitable<void> ListModels(const InForce& now, const Request& http, ResponseSink& sink) {
  const bool anthropic = WantsAnthropic(http);
  const std::vector<ServedModel> models = ModelsFor(now, http);
  std::string data;
  for (const ServedModel& model : models) {
    if (!data.empty()) data += ",";
    data += ModelJson(model, anthropic);
  }
  std::string body = "{\"object\":\"list\",\"data\":[" + data + "]}";
  if (anthropic) {
    const std::string first = models.empty() ? "null" : json::Quote(models.front().name);
    const std::string last = models.empty() ? "null" : json::Quote(models.back().name);
    body = "{\"data\":[" + data + "],\"has_more\":false,\"first_id\":" + first +
           ",\"last_id\":" + last + "}";
  }
  Headers headers;
  (void)co_await sink.SendWhole(200, std::move(headers), std::move(body));
}

asio::awaitable<void> ShowModel(const InForce& now, const Request& http, ResponseSink& sink) {
  const bool anthropic = WantsAnthropic(http);
  for (const ServedModel& model : ModelsFor(now, http)) {
    if (model.name != http.params.at(0)) continue;
    Headers headers;
    std::string body = ModelJson(model, anthropic);
    (void)co_await sink.SendWhole(200, std::move(headers), std::move(body));
    co_return;
  }
  HttpError error = NoSuchModel(http.params.at(0));
  if (anthropic) {
    error.body = ErrorJson(error, ErrorForm::kAnthropic, http.id);
    error.headers.emplace_back("content-type", "application/json");
  }
  (void)co_await SendError(sink, std::move(error));
}

}  // namespace verbatim::gateway
