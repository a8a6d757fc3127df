#include "gateway/http_head.h"

#include <algorithm>

#include "base/bytes.h"

namespace verbatim::gateway {
namespace {

HttpError Bad(std::string message, int status = 400) {
  HttpError error;
  error.status = status;
  error.message = std::move(message);
  return error;
}

std::string ToLower(std::string_view s) {
  std::string out(s);
  for (char& c : out) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return out;
}

bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsAlpha(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

// RFC 9110, section 5.6.2.
bool IsToken(std::string_view s) {
  constexpr std::string_view kPunctuation = "!#$%&'*+-.^_`|~";
  return !s.empty() && std::all_of(s.begin(), s.end(), [&](char c) {
    return IsDigit(c) || IsAlpha(c) || kPunctuation.find(c) != std::string_view::npos;
  });
}

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
  if (!IsToken(method)) return Bad("The request method is malformed.");
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
  constexpr std::string_view kScheme = "http://";
  if (ToLower(target.substr(0, kScheme.size())) == kScheme) {
    target.remove_prefix(kScheme.size());
    const size_t end = std::min(target.find_first_of("/?"), target.size());
    head->host = ToLower(target.substr(0, end));
    if (!IsAuthority(head->host)) return Bad("The request target's host is malformed.");
    target.remove_prefix(end);
    if (target.empty()) target = "/";
  }
  if (target == "*" && method == "OPTIONS") {
    head->raw_path = head->path = "*";
    return std::nullopt;
  }
  if (target.empty() || target.front() != '/') return Bad("The request target must start with /.");
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
  if (!IsToken(line.substr(0, colon))) return Bad("A header field's name is malformed.");
  const std::string_view value = Trim(line.substr(colon + 1));
  for (char c : value) {
    if ((static_cast<unsigned char>(c) < 0x20 && c != '\t') || c == 0x7f) {
      return Bad("A header field's value holds a control byte.");
    }
  }
  head->headers.emplace_back(ToLower(line.substr(0, colon)), std::string(value));
  return std::nullopt;
}

// What decides where the body ends, and Host.
std::optional<HttpError> CheckFraming(RequestHead* head) {
  int lengths = 0, codings = 0, hosts = 0;
  std::string_view length, coding, host;
  for (const auto& [name, value] : head->headers) {
    if (name == "content-length") ++lengths, length = value;
    if (name == "transfer-encoding") ++codings, coding = value;
    if (name == "host") ++hosts, host = value;
  }
  if (hosts > 1) return Bad("The request has more than one Host header.");
  if (hosts == 0 && head->version == 11) return Bad("HTTP/1.1 requests need a Host header.");
  if (hosts == 1 && !IsAuthority(host)) return Bad("The Host header is malformed.");
  if (hosts == 1 && head->host.empty()) head->host = ToLower(host);
  if (lengths > 1) return Bad("The request has more than one Content-Length header.");
  if (codings > 1) return Bad("The request has more than one Transfer-Encoding header.");
  if (lengths == 1 && codings == 1) {
    return Bad("The request has both Content-Length and Transfer-Encoding.");
  }
  if (lengths == 1) {
    if (length.empty() || !std::all_of(length.begin(), length.end(), IsDigit)) {
      return Bad("Content-Length must be a decimal number.");
    }
    if (length.size() > 18) return Bad("The request body is too large.", 413);
    head->has_body = length.find_first_not_of('0') != std::string_view::npos;
  }
  if (codings == 1) {
    if (head->version == 10) return Bad("Transfer-Encoding needs HTTP/1.1.");
    if (ToLower(coding) != "chunked") {
      return Bad("The only Transfer-Encoding accepted is chunked.", 501);
    }
    head->has_body = true;
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

HeadScan ScanHead(std::string_view bytes, size_t* position) {
  for (size_t i = *position; i < bytes.size(); ++i) {
    if (bytes[i] != '\n') continue;
    if (i == 0 || bytes[i - 1] != '\r') return HeadScan::kBareNewline;
    if (i >= 3 && bytes[i - 2] == '\n') {
      *position = i + 1;
      return HeadScan::kEnd;
    }
  }
  *position = bytes.size();
  return HeadScan::kMore;
}

std::optional<HttpError> ParseHead(std::string_view bytes, size_t max_fields, RequestHead* head) {
  bool first = true;
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

std::optional<HttpError> CheckBrowserOrigin(const RequestHead& head) {
  if (!head.host.empty() && !IsLoopbackHost(head.host)) {
    return Bad(
        "The Host header names no loopback address; a server without API keys answers "
        "local requests only. Use http://127.0.0.1 or http://localhost.",
        403);
  }
  const std::string_view origin = FindHeader(head.headers, "origin");
  const std::string_view site = FindHeader(head.headers, "sec-fetch-site");
  if ((!origin.empty() && ToLower(origin) != "http://" + head.host) || site == "cross-site") {
    return Bad("Web pages of another origin may not use a server without API keys.", 403);
  }
  return std::nullopt;
}

}  // namespace verbatim::gateway
