// Absolute http and https URLs as configurations name them, parsed strictly. Pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace verbatim::gateway {

struct Url {
  bool https = false;
  std::string host;            // lower-case name or IP address, without the brackets of an IPv6 one
  bool is_ip = false;          // `host` is an address
  uint16_t port = 0;           // as given, else 443 or 80
  std::string path;            // "" or "/...", percent-encoding kept, without a query
  std::string user, password;  // decoded; "" where there are none

  // "api.example.com:8443" as a Host header has it: brackets where needed, no default port.
  std::string Authority() const;
  // "https://api.example.com:8443", without path and credentials.
  std::string Origin() const;
};

// Scheme http or https, a host, no query, no fragment. Errors (kInvalid) never repeat credentials.
Result<Url> ParseUrl(std::string_view text);

// %XX as the byte that it stands for, once; what is no such thing stays as it is.
std::string DecodePercent(std::string_view text);

}  // namespace verbatim::gateway
