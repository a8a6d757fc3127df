#include "gateway/http_head.h"

#include <algorithm>
#include <array>

#include "base/bytes.h"

namespace verbatim::gateway {
namespace {

HttpError Bad(std::string message, int status = 400) {
  HttpError error;
  error.status = status;
  error.message = std::move(message);
  return error;
}

constexpr bool IsDigit(char c) { return c >= '0' && c <= '9'; }
constexpr bool IsAlpha(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

// One entry per byte: what a token may hold, as itself in lower case; 0 for everything else.
constexpr std::array<char, 256> kTokenByte = [] {
  std::array<char, 256> table{};
  for (size_t c = 0; c < 128; ++c) {
    const char byte = static_cast<char>(c);
    const std::string_view punctuation = "!#$%&'*+-.^_`|~";
    if (IsDigit(byte) || IsAlpha(byte) || punctuation.find(byte) != std::string_view::npos) {
      table[c] = byte >= 'A' && byte <= 'Z' ? static_cast<char>(byte - 'A' + 'a') : byte;
    }
  }
  return table;
}();

char TokenByte(char c) { return kTokenByte[static_cast<unsigned char>(c)]; }

std::string_view Trim(std::string_view s) {
  while (!s.empty() && (s.front() == ' ' || s.front() == '\t')) s.remove_prefix(1);
  while (!s.empty() && (s.back() == ' ' || s.back() == '\t')) s.remove_suffix(1);
  return s;
}

int HexValue(char c) {
  if (IsDigit(c)) return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// host[:port] or [v6][:port], of the characters that RFC 3986 allows there (no user information).
bool IsAuthority(std::string_view s) {
  if (s.empty()) return false;
  size_t end = 0;
  if (s.front() == '[') {
    end = s.find(']');
    if (end == std::string_view::npos || end < 3) return false;
    for (char c : s.substr(1, end - 1)) {
      if (HexValue(c) < 0 && c != ':' && c != '.') return false;
    }
    ++end;
  } else {
    while (end < s.size() && s[end] != ':') {
      const char c = s[end];
      if (!IsDigit(c) && !IsAlpha(c) && c != '-' && c != '.' && c != '_') return false;
      ++end;
    }
    if (end == 0) return false;
  }
  if (end == s.size()) return true;
  const std::string_view port = s.substr(end);
  return port.front() == ':' && port.size() <= 6 &&
         std::all_of(port.begin() + 1, port.end(), IsDigit);
}

// "METHOD target HTTP/1.1", one space each.
std::optional<HttpError> ParseRequestLine(std::string_view line, RequestHead* head) {
  const size_t first = line.find(' ');
  const size_t last = line.rfind(' ');
  if (first == std::string_view::npos || first == last) {
    return Bad("The request line must be METHOD, target and HTTP version, one space apart.");
  }
  const std::string_view method = line.substr(0, first);
  std::string_view target = line.substr(first + 1, last - first - 1);
  const std::string_view version = line.substr(last + 1);
  if (!IsHttpToken(method)) return Bad("The request method is malformed.");
  if (version == "HTTP/1.1") {
    head->version = 11;
  } else if (version == "HTTP/1.0") {
    head->version = 10;
  } else if (version.starts_with("HTTP/")) {
    return Bad("This server speaks HTTP/1.1 and HTTP/1.0.", 505);
  } else {
    return Bad("The request line does not end with an HTTP version.");
  }
  for (char c : target) {
    if (c <= 0x20 || c >= 0x7f || c == '#') {
      return Bad("The request target holds a byte that must be percent-encoded.");
    }
  }
  head->method = method;
  // The absolute form names the host in the target (RFC 9112, section 3.2.2).
  if (target == "*" && method == "OPTIONS") {
    head->raw_path = head->path = "*";
    return std::nullopt;
  }
  const size_t colon = target.starts_with('/') ? std::string_view::npos : target.find("://");
  if (colon != std::string_view::npos) {
    const std::string scheme = ToLowerCase(target.substr(0, colon));
    if (scheme != "http" && scheme != "https") {
      return Bad("The request target's scheme must be http or https.");
    }
    target.remove_prefix(colon + 3);
    const size_t end = std::min(target.find_first_of("/?"), target.size());
    head->host = ToLowerCase(target.substr(0, end));
    if (!IsAuthority(head->host)) return Bad("The request target's host is malformed.");
    target.remove_prefix(end);
    if (target.empty()) target = "/";
  }
  if (!target.starts_with('/')) return Bad("The request target must start with /.");
  const size_t question = std::min(target.find('?'), target.size());
  head->raw_path = target.substr(0, question);
  if (question < target.size()) head->query = target.substr(question + 1);
  Result<std::string> path = PercentDecode(head->raw_path);
  if (!path.ok()) return Bad("The request path: " + path.error().message);
  head->path = std::move(path).value();
  return std::nullopt;
}

std::optional<HttpError> ParseField(std::string_view line, RequestHead* head) {
  if (line.front() == ' ' || line.front() == '\t') {
    return Bad("Header fields folded over several lines are not accepted.");
  }
  const size_t colon = line.find(':');
  if (colon == std::string_view::npos) return Bad("A header line has no colon.");
  std::string name(line.substr(0, colon));
  bool token = !name.empty();
  for (char& c : name) {
    c = TokenByte(c);
    token = token && c != 0;
  }
  if (!token) return Bad("A header field's name is malformed.");
  const std::string_view value = Trim(line.substr(colon + 1));
  for (char c : value) {
    if ((static_cast<unsigned char>(c) < 0x20 && c != '\t') || c == 0x7f) {
      return Bad("A header field's value holds a control byte.");
    }
  }
  head->headers.emplace_back(std::move(name), value);
  return std::nullopt;
}

// Whether a list as in "keep-alive, Upgrade" has this lower-case token.
bool HasToken(std::string_view list, std::string_view token) {
  while (!list.empty()) {
    const size_t comma = std::min(list.find(','), list.size());
    if (ToLowerCase(Trim(list.substr(0, comma))) == token) return true;
    list.remove_prefix(std::min(comma + 1, list.size()));
  }
  return false;
}

std::optional<HttpError> ReadLength(std::string_view text, RequestHead* head) {
  if (text.empty() || !std::all_of(text.begin(), text.end(), IsDigit)) {
    return Bad("Content-Length must be a decimal number.");
  }
  if (text.size() > 18) return Bad("The request body is too large.", 413);
  for (char c : text)
    head->content_length = head->content_length * 10 + static_cast<uint8_t>(c - '0');
  return std::nullopt;
}

// What decides where the body ends, Host, and whether the connection goes on.
std::optional<HttpError> CheckFraming(RequestHead* head) {
  int lengths = 0, codings = 0, hosts = 0;
  bool close = false, keep_alive = false;
  std::string_view length, coding, host;
  for (const auto& [name, value] : head->headers) {
    if (name == "content-length") ++lengths, length = value;
    if (name == "transfer-encoding") ++codings, coding = value;
    if (name == "host") ++hosts, host = value;
    if (name == "connection") {
      close = close || HasToken(value, "close");
      keep_alive = keep_alive || HasToken(value, "keep-alive");
    }
  }
  head->keep_alive = !close && (head->version == 11 || keep_alive);
  if (hosts > 1) return Bad("The request has more than one Host header.");
  if (hosts == 0 && head->version == 11) return Bad("HTTP/1.1 requests need a Host header.");
  if (hosts == 1 && !IsAuthority(host)) return Bad("The Host header is malformed.");
  if (hosts == 1 && head->host.empty()) head->host = ToLowerCase(host);
  if (lengths > 1) return Bad("The request has more than one Content-Length header.");
  if (codings > 1) return Bad("The request has more than one Transfer-Encoding header.");
  if (lengths == 1 && codings == 1) {
    return Bad("The request has both Content-Length and Transfer-Encoding.");
  }
  if (lengths == 1) return ReadLength(length, head);
  if (codings == 1) {
    if (head->version == 10) return Bad("Transfer-Encoding needs HTTP/1.1.");
    if (ToLowerCase(coding) != "chunked") {
      return Bad("The only Transfer-Encoding accepted is chunked.", 501);
    }
    head->chunked = true;
  }
  return std::nullopt;
}

// "localhost", 127.0.0.0/8 and ::1, with or without a port.
bool IsLoopbackHost(std::string_view authority) {
  if (authority.starts_with("[")) return authority.substr(0, authority.find(']')) == "[::1";
  const std::string_view host = authority.substr(0, authority.find(':'));
  if (host == "localhost") return true;
  // Four numbers, so that 127.0.0.1.example.org is none.
  return host.starts_with("127.") && std::count(host.begin(), host.end(), '.') == 3 &&
         std::all_of(host.begin(), host.end(), [](char c) { return IsDigit(c) || c == '.'; });
}

}  // namespace

std::string ToLowerCase(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return out;
}

bool IsHttpToken(std::string_view text) {
  return !text.empty() &&
         std::all_of(text.begin(), text.end(), [](char c) { return TokenByte(c) != 0; });
}

HeadScan ScanHead(std::string_view bytes, size_t* position) {
  for (size_t from = *position;;) {
    const size_t i = bytes.find('\n', from);
    if (i == std::string_view::npos) break;
    if (i == 0 || bytes[i - 1] != '\r') return HeadScan::kBareNewline;
    if (i >= 3 && bytes[i - 2] == '\n') {
      *position = i + 1;
      return HeadScan::kEnd;
    }
    from = i + 1;
  }
  *position = bytes.size();
  return HeadScan::kMore;
}

std::optional<HttpError> ParseHead(std::string_view bytes, size_t max_fields, RequestHead* head) {
  bool first = true;
  head->headers.reserve(16);
  while (!bytes.empty()) {
    const size_t end = bytes.find("\r\n");
    if (end == std::string_view::npos) return Bad("A header line does not end with CRLF.");
    const std::string_view line = bytes.substr(0, end);
    bytes.remove_prefix(end + 2);
    if (line.find('\r') != std::string_view::npos) return Bad("A header line holds a bare CR.");
    if (first) {
      if (auto error = ParseRequestLine(line, head)) return error;
      first = false;
      continue;
    }
    if (line.empty()) break;
    if (head->headers.size() == max_fields) {
      return Bad("The request has more than " + std::to_string(max_fields) + " header fields.",
                 431);
    }
    if (auto error = ParseField(line, head)) return error;
  }
  return CheckFraming(head);
}

Result<std::string> PercentDecode(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    char c = text[i];
    if (c == '%') {
      const int high = i + 2 < text.size() ? HexValue(text[i + 1]) : -1;
      const int low = high >= 0 ? HexValue(text[i + 2]) : -1;
      if (low < 0) return Error{Code::kInvalid, "a % must be followed by two hex digits."};
      c = static_cast<char>(high * 16 + low);
      i += 2;
    }
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      return Error{Code::kInvalid, "control bytes are not accepted."};
    }
    out.push_back(c);
  }
  if (!IsUtf8(out)) return Error{Code::kInvalid, "its bytes are not UTF-8."};
  return out;
}

std::optional<HttpError> CheckBrowserOrigin(const RequestHead& head, bool tls) {
  if (!head.host.empty() && !IsLoopbackHost(head.host)) {
    return Bad(
        "The Host header names no loopback address; a server without API keys answers "
        "local requests only. Use http://127.0.0.1 or http://localhost.",
        403);
  }
  const std::string_view origin = FindHeader(head.headers, "origin");
  const std::string_view site = FindHeader(head.headers, "sec-fetch-site");
  const char* scheme = tls ? "https://" : "http://";
  if ((!origin.empty() && ToLowerCase(origin) != scheme + head.host) || site == "cross-site") {
    return Bad("Web pages of another origin may not use a server without API keys.", 403);
  }
  return std::nullopt;
}

}  // namespace verbatim::gateway
