// Everything about a request that is decided on its head alone: route, principal, client
// certificate, content type. Any thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "gateway/auth.h"
#include "gateway/http.h"
#include "gateway/http_head.h"
#include "gateway/server_tls.h"

namespace verbatim::gateway {

// Of the connection that the request came by.
struct Caller {
  std::string_view remote_ip;
  bool tls = false;
  const PeerCertificate* certificate = nullptr;  // null: none was shown
};

struct Admission {
  Router::Match match;
  Principal principal;
  bool expects_continue = false;
};

// An error is the answer; `admission` then has what was known by that point.
// certificates: routes that clients have no role on need a client certificate beside the key. It
// becomes part of the principal: key_id "KEY+cert:<16 hex>", or "cert:<16 hex>" where there is no
// key, and an anonymous subject takes the certificate's common name.
std::optional<HttpError> Admit(const RequestHead& head, const Router& router,
                               const Authenticator& auth, const Caller& caller, bool certificates,
                               Admission* admission);

}  // namespace verbatim::gateway
