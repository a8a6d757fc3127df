#include "gateway/http.h"

#include "base/json.h"

namespace verbatim::gateway {
namespace {

const char* UsualType(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 408:
      return "timeout_error";
    case 429:
      return "rate_limit_error";
    default:
      return status >= 500 ? "server_error" : "invalid_request_error";
  }
}

std::string QuoteOrNull(const std::string& s) { return s.empty() ? "null" : json::Quote(s); }

}  // namespace

std::string_view FindHeader(const Headers& headers, std::string_view name) {
  for (const auto& [key, value] : headers) {
    if (key == name) return value;
  }
  return {};
}

std::string ErrorJson(const HttpError& error) {
  const std::string type = error.type.empty() ? UsualType(error.status) : error.type;
  return "{\"error\":{\"message\":" + json::Quote(error.message) +
         ",\"type\":" + json::Quote(type) + ",\"param\":" + QuoteOrNull(error.param) +
         ",\"code\":" + QuoteOrNull(error.code) + "}}";
}

boost::asio::awaitable<Status> SendError(ResponseSink& sink, HttpError error) {
  std::string body = error.body.empty() ? ErrorJson(error) : std::move(error.body);
  co_return co_await sink.SendWhole(error.status, std::move(error.headers), std::move(body));
}

}  // namespace verbatim::gateway
