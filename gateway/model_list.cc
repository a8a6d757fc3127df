#include "gateway/model_list.h"

#include <string>
#include <utility>

#include "gateway/access.h"

namespace verbatim::gateway {

namespace asio = boost::asio;

namespace {

std::string ModelJson(const ServedModel& model) {
  return "{\"id\":" + json::Quote(model.name) +
         ",\"object\":\"model\",\"created\":" + std::to_string(model.created) +
         ",\"owned_by\":" + json::Quote(model.owner) + "}";
}

}  // namespace

asio::awaitable<void> ListModels(const InForce& now, const Request& http, ResponseSink& sink) {
  std::string body = "{\"object\":\"list\",\"data\":[";
  for (const ServedModel& model : now.catalog.List()) {
    if (!MayUseModel(now.tenants, http.principal, model.name)) continue;
    if (body.back() != '[') body += ",";
    body += ModelJson(model);
  }
  body += "]}";
  Headers headers;
  (void)co_await sink.SendWhole(200, std::move(headers), std::move(body));
}

asio::awaitable<void> ShowModel(const InForce& now, const Request& http, ResponseSink& sink) {
  for (const ServedModel& model : now.catalog.List()) {
    if (model.name != http.params.at(0)) continue;
    if (!MayUseModel(now.tenants, http.principal, model.name)) continue;
    Headers headers;
    (void)co_await sink.SendWhole(200, std::move(headers), ModelJson(model));
    co_return;
  }
  HttpError error = NoSuchModel(http.params.at(0));
  (void)co_await SendError(sink, std::move(error));
}

}  // namespace verbatim::gateway
