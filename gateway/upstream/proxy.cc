#include "gateway/upstream/proxy.h"

#include <arpa/inet.h>

#include <array>
#include <charconv>
#include <cstdlib>

#include "base/bytes.h"

namespace verbatim::gateway {
namespace {

struct Address {
  std::array<uint8_t, 16> bytes{};
  int size = 0;  // 4, 16, or 0 where the text is no address
};

Address ParseAddress(std::string_view text) {
  Address address;
  const std::string copy(text);
  if (inet_pton(AF_INET, copy.c_str(), address.bytes.data()) == 1) {
    address.size = 4;
  } else if (inet_pton(AF_INET6, copy.c_str(), address.bytes.data()) == 1) {
    address.size = 16;
  }
  return address;
}

bool SameBits(const Address& a, const Address& b, unsigned bits) {
  if (a.size != b.size || a.size == 0 || bits > static_cast<unsigned>(a.size) * 8) return false;
  for (unsigned i = 0; i < bits; ++i) {
    if (((a.bytes[i / 8] ^ b.bytes[i / 8]) >> (7 - i % 8)) & 1) return false;
  }
  return true;
}

std::optional<unsigned> ParseNumber(std::string_view text, unsigned max) {
  unsigned value = 0;
  const auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (ec != std::errc() || end != text.data() + text.size() || value > max) return std::nullopt;
  return value;
}

std::string_view Trim(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

std::string Lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return out;
}

bool EndsWith(std::string_view text, std::string_view end) {
  return text.size() > end.size() && text.substr(text.size() - end.size()) == end;
}

// "[::1]:443", "example.com:443", "::1", "example.com": the part without the port, which is
// checked.
bool TakePort(std::string_view& entry, uint16_t port) {
  std::string_view digits;
  if (entry.front() == '[') {
    const size_t close = entry.find(']');
    if (close == std::string_view::npos) return false;
    digits = entry.substr(close + 1);
    entry = entry.substr(1, close - 1);
    if (digits.empty()) return true;
    if (digits.front() != ':') return false;
    digits.remove_prefix(1);
  } else {
    const size_t colon = entry.find(':');
    if (colon == std::string_view::npos || entry.find(':', colon + 1) != std::string_view::npos) {
      return true;
    }
    digits = entry.substr(colon + 1);
    entry = entry.substr(0, colon);
  }
  return ParseNumber(digits, 65535) == port;
}

bool Names(std::string_view entry, const Url& origin) {
  if (entry == "*") return true;
  if (!TakePort(entry, origin.port) || entry.empty()) return false;
  if (entry == "*") return true;

  if (origin.is_ip) {
    const Address address = ParseAddress(origin.host);
    const size_t slash = entry.find('/');
    if (slash == std::string_view::npos) {
      return SameBits(address, ParseAddress(entry), static_cast<unsigned>(address.size) * 8);
    }
    const auto bits = ParseNumber(entry.substr(slash + 1), 128);
    return bits && SameBits(address, ParseAddress(entry.substr(0, slash)), *bits);
  }

  const std::string name = Lower(entry);
  if (name.front() == '.') return EndsWith(origin.host, name);
  if (name.compare(0, 2, "*.") == 0) return EndsWith(origin.host, name.substr(1));
  return origin.host == name || EndsWith(origin.host, "." + name);
}

bool IsLoopback(const Url& origin) {
  if (!origin.is_ip) return origin.host == "localhost" || EndsWith(origin.host, ".localhost");
  const Address address = ParseAddress(origin.host);
  return SameBits(address, ParseAddress("127.0.0.0"), 8) ||
         SameBits(address, ParseAddress("::1"), 128);
}

Result<std::optional<Proxy>> ParseProxy(std::string_view text, const std::string& where) {
  const bool has_scheme = text.find("://") != std::string_view::npos;
  auto url = ParseUrl(has_scheme ? std::string(text) : "http://" + std::string(text));
  if (!url.ok()) return Error{Code::kInvalid, where + ": " + url.error().message};
  if (url->https) {
    return Error{Code::kInvalid, where +
                                     ": only http:// proxies are understood (HTTPS goes through "
                                     "them as a tunnel and stays encrypted)"};
  }
  if (!url->path.empty() && url->path != "/") {
    return Error{Code::kInvalid, where + ": a proxy's URL has no path"};
  }
  Proxy proxy{.host = url->host, .is_ip = url->is_ip, .port = url->port, .authorization = ""};
  if (!url->user.empty() || !url->password.empty()) {
    if (url->user.find(':') != std::string::npos) {
      return Error{Code::kInvalid, where + ": a proxy's user name has no colon"};
    }
    proxy.authorization = "Basic " + Base64Encode(url->user + ":" + url->password);
  }
  return std::optional<Proxy>(std::move(proxy));
}

}  // namespace

std::string ProcessEnvironment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

bool InNoProxy(const Url& origin, std::string_view list) {
  while (!list.empty()) {
    const size_t comma = list.find(',');
    const std::string_view entry = Trim(list.substr(0, comma));
    if (!entry.empty() && Names(entry, origin)) return true;
    if (comma == std::string_view::npos) break;
    list.remove_prefix(comma + 1);
  }
  return false;
}

Result<std::optional<Proxy>> ChooseProxy(const Url& origin, std::string_view option,
                                         const Environment& environment) {
  if (option == "none") return std::optional<Proxy>();
  if (!option.empty()) return ParseProxy(option, "proxy");

  // The lower-case name wins, as in curl.
  const auto read = [&](const char* lower, const char* upper) {
    std::string value = environment(lower);
    return value.empty() ? environment(upper) : value;
  };
  const std::string value =
      origin.https ? read("https_proxy", "HTTPS_PROXY") : read("http_proxy", "HTTP_PROXY");
  if (value.empty() || IsLoopback(origin) || InNoProxy(origin, read("no_proxy", "NO_PROXY"))) {
    return std::optional<Proxy>();
  }
  return ParseProxy(value, origin.https ? "HTTPS_PROXY" : "HTTP_PROXY");
}

}  // namespace verbatim::gateway
