#include "gateway/http_response.h"

#include <time.h>

#include <algorithm>
#include <charconv>

#include "gateway/http_head.h"

namespace verbatim::gateway {
namespace {

std::string_view Reason(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 201:
      return "Created";
    case 202:
      return "Accepted";
    case 204:
      return "No Content";
    case 304:
      return "Not Modified";
    case 307:
      return "Temporary Redirect";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 402:
      return "Payment Required";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 409:
      return "Conflict";
    case 410:
      return "Gone";
    case 413:
      return "Content Too Large";
    case 415:
      return "Unsupported Media Type";
    case 417:
      return "Expectation Failed";
    case 422:
      return "Unprocessable Content";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 500:
      return "Internal Server Error";
    case 501:
      return "Not Implemented";
    case 502:
      return "Bad Gateway";
    case 503:
      return "Service Unavailable";
    case 504:
      return "Gateway Timeout";
    case 505:
      return "HTTP Version Not Supported";
    default:
      return "";  // may be left out (RFC 9112, section 4)
  }
}

constexpr std::string_view kOurs[] = {
    "connection", "content-length",    "date",    "keep-alive",  "proxy-connection", "server",
    "trailer",    "transfer-encoding", "upgrade", "x-request-id"};

bool EqualsIgnoringCase(std::string_view name, std::string_view lower) {
  if (name.size() != lower.size()) return false;
  for (size_t i = 0; i < name.size(); ++i) {
    const char c = name[i];
    if ((c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c) != lower[i]) return false;
  }
  return true;
}

bool IsOurs(std::string_view name) {
  return std::any_of(std::begin(kOurs), std::end(kOurs),
                     [&](std::string_view ours) { return EqualsIgnoringCase(name, ours); });
}

void AppendNumber(std::string& out, size_t number) {
  char digits[24];
  out.append(digits, std::to_chars(digits, digits + sizeof(digits), number).ptr);
}

void AppendField(std::string& out, std::string_view name, std::string_view value) {
  out.append(name).append(": ");
  const size_t start = out.size();
  out.append(value);
  for (size_t i = start; i < out.size(); ++i) {
    const unsigned char c = static_cast<unsigned char>(out[i]);
    if (c < 0x20 || c == 0x7f) out[i] = ' ';
  }
  out.append("\r\n");
}

void AppendFields(RenderedFields& out, const Headers& headers, bool anthropic) {
  for (const auto& [name, value] : headers) {
    if (!IsHttpToken(name) || IsOurs(name)) continue;
    if (anthropic && EqualsIgnoringCase(name, "request-id")) continue;
    out.has_type = out.has_type || EqualsIgnoringCase(name, "content-type");
    out.has_cache = out.has_cache || EqualsIgnoringCase(name, "cache-control");
    AppendField(out.text, name, value);
  }
}

}  // namespace

std::string_view HttpDate::Now() {
  const time_t now = ::time(nullptr);
  if (now != second_) {
    second_ = now;
    tm parts{};
    ::gmtime_r(&now, &parts);
    ::strftime(text_, sizeof(text_), "%a, %d %b %Y %H:%M:%S GMT", &parts);
  }
  return text_;
}

RenderedFields RenderFields(const Headers& headers, bool anthropic) {
  RenderedFields fields;
  AppendFields(fields, headers, anthropic);
  return fields;
}

std::string ResponseHead(int status, const RenderedFields& fields, const Headers& more,
                         const ResponseForm& form, std::string_view request_id,
                         std::string_view date) {
  RenderedFields rest;
  AppendFields(rest, more, form.anthropic);
  std::string out;
  out.reserve(320 + fields.text.size() + rest.text.size());
  out.append(form.version == 10 ? "HTTP/1.0 " : "HTTP/1.1 ");
  AppendNumber(out, static_cast<size_t>(status));
  out.append(" ").append(Reason(status)).append("\r\n");
  AppendField(out, "date", date);
  out.append("server: verbatim\r\n");
  if (!request_id.empty()) AppendField(out, "x-request-id", request_id);
  if (!request_id.empty() && form.anthropic) AppendField(out, "request-id", request_id);
  if (!fields.has_type && !rest.has_type && status != 204) {
    out.append(form.stream ? "content-type: text/event-stream; charset=utf-8\r\n"
                           : "content-type: application/json\r\n");
  }
  if (!fields.has_cache && !rest.has_cache && form.stream) {
    out.append("cache-control: no-cache\r\n");
  }
  out.append(fields.text).append(rest.text);
  if (form.stream) {
    if (form.version == 11) out.append("transfer-encoding: chunked\r\n");
  } else if (status != 204 && status != 304) {
    out.append("content-length: ");
    AppendNumber(out, form.length);
    out.append("\r\n");
  }
  if (form.close) {
    out.append("connection: close\r\n");
  } else if (form.version == 10) {
    out.append("connection: keep-alive\r\n");
  }
  return out.append("\r\n");
}

}  // namespace verbatim::gateway
