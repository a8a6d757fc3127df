// The head of an HTTP/1.x request, checked byte by byte before anything else believes it.
//
// Refused: whatever two HTTP implementations could read differently (RFC 9112, sections 2.2, 5, 6):
// bare LF or CR, folded lines, space before a colon, control bytes, repeated or malformed
// Content-Length, Content-Length beside Transfer-Encoding, codings other than chunked, no Host or
// two. Pure functions; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "gateway/http.h"

namespace verbatim::gateway {

enum class HeadScan { kMore, kEnd, kBareNewline };

// Looks for the empty line. `*position` (0 at first) keeps what was looked at between calls with
// ever more bytes; at kEnd it is the head's length, empty line included.
HeadScan ScanHead(std::string_view bytes, size_t* position);

struct RequestHead {
  std::string method;
  std::string raw_path;  // origin form, still percent-encoded; "*" of OPTIONS
  std::string path;      // decoded
  std::string query;
  std::string host;  // Host field (or the absolute target's authority), lower-case; "" in HTTP/1.0
  int version = 11;  // 10 or 11
  Headers headers;   // names lower-case, values trimmed
  bool keep_alive = true;  // the client lets the connection go on
  // How the body is delimited: in chunks, or by its length (0: there is none).
  bool chunked = false;
  uint64_t content_length = 0;
  bool has_body() const { return chunked || content_length > 0; }
};

// Parses what ScanHead delimited. An error is the answer to send before closing.
std::optional<HttpError> ParseHead(std::string_view bytes, size_t max_fields, RequestHead* head);

// Percent-decoding. kInvalid: a malformed escape, a control byte, or text that is not UTF-8.
Result<std::string> PercentDecode(std::string_view text);

// For a server on loopback without keys: an error where the request may come from a web page of
// another site (its Host is no loopback name, as in DNS rebinding; its Origin is another one).
std::optional<HttpError> CheckBrowserOrigin(const RequestHead& head, bool tls);

// RFC 9110, section 5.6.2: what methods and field names are made of.
bool IsHttpToken(std::string_view text);
// ASCII only.
std::string ToLowerCase(std::string_view text);

}  // namespace verbatim::gateway
