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

// platform.claude.com/docs/en/api/errors
const char* AnthropicType(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 402:
      return "billing_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 413:
      return "request_too_large";
    case 429:
      return "rate_limit_error";
    case 503:
    case 529:
      return "overloaded_error";
    case 504:
      return "timeout_error";
    default:
      return status >= 500 ? "api_error" : "invalid_request_error";
  }
}

std::string QuoteOrNull(std::string_view s) { return s.empty() ? "null" : json::Quote(s); }

}  // namespace

std::string ErrorJson(const HttpError& error, ErrorForm form, std::string_view request_id) {
  if (form == ErrorForm::kAnthropic) {
    return R"({"type":"error","error":{"type":")" + std::string(AnthropicType(error.status)) +
           "\",\"message\":" + json::Quote(error.message) +
           "},\"request_id\":" + QuoteOrNull(request_id) + "}";
  }
  const std::string type = error.type.empty() ? UsualType(error.status) : error.type;
  return "{\"error\":{\"message\":" + json::Quote(error.message) +
         ",\"type\":" + json::Quote(type) + ",\"param\":" + QuoteOrNull(error.param) +
         ",\"code\":" + QuoteOrNull(error.code) + "}}";
}

boost::asio::awaitable<Status> ResponseSink::FinishWith(std::string_view bytes) {
  Status sent = co_await Write(bytes);
  if (sent.ok()) sent = co_await Finish();
  co_return sent;
}

boost::asio::awaitable<Status> SendError(ResponseSink& sink, HttpError error) {
  std::string body = std::move(error.body);
  if (body.empty()) body = ErrorJson(error, sink.error_form(), sink.request_id());
  co_return co_await sink.SendWhole(error.status, std::move(error.headers), std::move(body));
}

}  // namespace verbatim::gateway
