// Which proxy, if any, the connections to an origin go through. Pure functions.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "gateway/upstream/url.h"

namespace verbatim::gateway {

struct Proxy {
  std::string host;
  bool is_ip = false;
  uint16_t port = 0;
  std::string authorization;  // "Basic ...", or "" where the URL has no credentials; never logged
};

// The value of an environment variable, "" where it is not set.
using Environment = std::function<std::string(const char* name)>;
std::string ProcessEnvironment(const char* name);

// `option`: "http://[user:password@]host:port", "none", or "". The last one reads the environment:
// https_proxy or HTTPS_PROXY, http_proxy or HTTP_PROXY, by the origin's scheme, unless no_proxy or
// NO_PROXY names the origin or it is loopback. Errors (kInvalid) never repeat credentials.
Result<std::optional<Proxy>> ChooseProxy(const Url& origin, std::string_view option,
                                         const Environment& environment);

// Whether a NO_PROXY list names the origin. Entries stand between commas, each with an optional
// ":port": "*" is everything, ".example.com" and "*.example.com" every name below it, "example.com"
// that name and every one below it, an address itself, "10.0.0.0/8" a range of addresses.
bool InNoProxy(const Url& origin, std::string_view list);

}  // namespace verbatim::gateway
