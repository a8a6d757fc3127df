// The head of an answer, as bytes that nothing a handler puts in can break.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "gateway/http.h"

namespace verbatim::gateway {

// The Date field's value, made once a second. One thread.
class HttpDate {
 public:
  std::string_view Now();

 private:
  int64_t second_ = -1;
  char text_[32] = {};
};

struct ResponseForm {
  int version = 11;     // of the request: 10 or 11
  bool stream = false;  // of unknown length
  bool close = false;   // the connection ends with this answer
  size_t length = 0;    // of the body, where it is no stream
  // The client looks for the request's id under Anthropic's name, request-id, too.
  bool anthropic = false;
};

// Header fields as they are sent. Control bytes in values become spaces, and fields whose name is
// no token are left out, as are those that only the server may set (framing, connection, date,
// server, x-request-id, and what proxies must not pass on).
// anthropic: as in ResponseForm.
RenderedFields RenderFields(const Headers& headers, bool anthropic);

// Status line and fields, with the empty line; `more` fields behind `fields`.
std::string ResponseHead(int status, const RenderedFields& fields, const Headers& more,
                         const ResponseForm& form, std::string_view request_id,
                         std::string_view date);
inline std::string ResponseHead(int status, const Headers& headers, const ResponseForm& form,
                                std::string_view request_id, std::string_view date) {
  return ResponseHead(status, {}, headers, form, request_id, date);
}

}  // namespace verbatim::gateway
