#include "gateway/upstream/url.h"

#include <boost/url/parse.hpp>
#include <boost/url/url_view.hpp>
#include <charconv>

namespace verbatim::gateway {
namespace {

// Of a URL that may hold a password, only what stands behind it is repeated.
Error Bad(const std::string& what) {
  return {Code::kInvalid, "the URL " + what + "; write it as https://host[:port][/path]"};
}

}  // namespace

std::string Url::Authority() const {
  std::string text = host.find(':') == std::string::npos ? host : "[" + host + "]";
  if (port != (https ? 443 : 80)) text += ":" + std::to_string(port);
  return text;
}

std::string Url::Origin() const { return (https ? "https://" : "http://") + Authority(); }

Result<Url> ParseUrl(std::string_view text) {
  const auto parsed = boost::urls::parse_uri(text);
  if (!parsed) return Bad("is no absolute URL");
  const boost::urls::url_view& view = *parsed;

  Url url;
  const boost::urls::scheme scheme = view.scheme_id();
  if (scheme != boost::urls::scheme::https && scheme != boost::urls::scheme::http) {
    return Bad("has a scheme other than http and https");
  }
  url.https = scheme == boost::urls::scheme::https;
  if (view.has_query() || view.has_fragment()) return Bad("has a query or a fragment");

  url.is_ip = view.host_type() == boost::urls::host_type::ipv4 ||
              view.host_type() == boost::urls::host_type::ipv6;
  if (view.host_type() == boost::urls::host_type::ipvfuture) return Bad("has an unknown host");
  url.host = view.host_address();
  if (url.host.empty() || url.host.size() > 253) return Bad("names no host");
  for (char& c : url.host) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    const bool plain =
        (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '.' || c == '_';
    if (!plain && !(url.is_ip && c == ':')) return Bad("has a host name that no DNS name can be");
  }

  url.port = url.https ? 443 : 80;
  if (view.has_port()) {
    // Not port_number(): it wraps around beyond 65535 now and then.
    const std::string digits = view.port();
    unsigned port = 0;
    const auto [end, ec] = std::from_chars(digits.data(), digits.data() + digits.size(), port);
    if (ec != std::errc() || end != digits.data() + digits.size() || port == 0 || port > 65535) {
      return Bad("has a port outside 1 to 65535");
    }
    url.port = static_cast<uint16_t>(port);
  }
  url.path = view.encoded_path();
  if (view.has_userinfo()) {
    url.user = view.user();
    url.password = view.password();
  }
  return url;
}

namespace {

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

}  // namespace

std::string DecodePercent(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const int high = text[i] == '%' && i + 2 < text.size() ? HexDigit(text[i + 1]) : -1;
    const int low = high >= 0 ? HexDigit(text[i + 2]) : -1;
    if (low >= 0) i += 2;
    out += low >= 0 ? static_cast<char>(high * 16 + low) : text[i];
  }
  return out;
}

}  // namespace verbatim::gateway
