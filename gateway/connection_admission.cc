#include "gateway/connection_admission.h"

#include <utility>

namespace verbatim::gateway {
namespace {

constexpr size_t kShownDigits = 16;  // of a certificate's fingerprint

HttpError MakeError(int status, std::string message, std::string code = {}) {
  HttpError error;
  error.status = status;
  error.message = std::move(message);
  error.code = std::move(code);
  return error;
}

bool ForOperatorsOnly(uint8_t roles) {
  return roles != 0 && (roles & static_cast<uint8_t>(Role::kClient)) == 0;
}

// Bodies are JSON, and not compressed.
std::optional<HttpError> CheckContent(const RequestHead& head) {
  const std::string_view encoding = FindHeader(head.headers, "content-encoding");
  if (!encoding.empty() && ToLowerCase(encoding) != "identity") {
    return MakeError(415, "Content-Encoding is not supported here; send the body uncompressed.");
  }
  const std::string_view given = FindHeader(head.headers, "content-type");
  if (given.empty() || given == "application/json") return std::nullopt;
  const std::string type = ToLowerCase(given);
  const std::string_view media = std::string_view(type).substr(0, type.find_first_of("; \t"));
  if (media != "application/json") {
    return MakeError(415, "Content-Type must be application/json.");
  }
  const size_t charset = type.find("charset=");
  if (charset != std::string::npos) {
    const std::string_view name = std::string_view(type).substr(charset + 8);
    if (!name.starts_with("utf-8") && !name.starts_with("\"utf-8\"")) {
      return MakeError(415, "The body's charset must be utf-8.");
    }
  }
  return std::nullopt;
}

std::optional<HttpError> CheckPrincipal(const RequestHead& head, const Route& route,
                                        const Authenticator& auth, const Caller& caller,
                                        bool certificates, Principal* principal) {
  Result<Principal> found = auth.Authenticate(head.headers, caller.remote_ip);
  if (!found.ok()) {
    HttpError error = MakeError(401, found.error().message, "invalid_api_key");
    error.headers.emplace_back("www-authenticate", "Bearer");
    return error;
  }
  *principal = std::move(found).value();
  if ((principal->roles & route.roles) == 0) {
    return MakeError(403, "This API key's roles do not allow " + head.path + ".");
  }
  if (!certificates || !ForOperatorsOnly(route.roles)) return std::nullopt;
  if (caller.certificate == nullptr) {
    return MakeError(403,
                     head.path +
                         " needs a client certificate signed by the server's client_ca; configure "
                         "one in your client.",
                     "client_certificate_required");
  }
  const std::string shown = "cert:" + caller.certificate->fingerprint.substr(0, kShownDigits);
  principal->key_id = principal->key_id == "none" ? shown : principal->key_id + "+" + shown;
  if (principal->subject == "anonymous" && !caller.certificate->common_name.empty()) {
    principal->subject = caller.certificate->common_name;
  }
  return std::nullopt;
}

}  // namespace

std::optional<HttpError> Admit(const RequestHead& head, const Router& router,
                               const Authenticator& auth, const Caller& caller, bool certificates,
                               Admission* admission) {
  if (!auth.has_keys()) {
    if (auto error = CheckBrowserOrigin(head, caller.tls)) return error;
  }
  Router::Match& match = admission->match;
  match = router.Find(head.method, head.raw_path);
  if (head.method == "OPTIONS" && (!match.allow.empty() || head.raw_path == "*")) {
    return std::nullopt;
  }
  if (match.route == nullptr) {
    if (match.allow.empty()) {
      return MakeError(404,
                       "Unknown request URL: " + head.method + " " + head.path +
                           ". Please check the URL for typos.",
                       "unknown_url");
    }
    HttpError error = MakeError(405, "Not allowed to " + head.method + " on " + head.path + ".",
                                "method_not_allowed");
    error.headers.emplace_back("allow", match.allow);
    return error;
  }
  const Route& route = *match.route;
  if (route.roles != 0) {
    auto error = CheckPrincipal(head, route, auth, caller, certificates, &admission->principal);
    if (error) return error;
  }
  const std::string_view expect = FindHeader(head.headers, "expect");
  if (!expect.empty()) {
    if (ToLowerCase(expect) != "100-continue") {
      return MakeError(417, "The only expectation understood is 100-continue.");
    }
    admission->expects_continue = true;
  }
  if (route.method != "POST" || route.any_content) return std::nullopt;
  return CheckContent(head);
}

}  // namespace verbatim::gateway
