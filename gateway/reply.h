// What an upstream answers, as it came: the values that pass between the one that reads a reply
// (wire/reply_reader.h), the run that it belongs to (backend.h), and the ledger. Plain values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"
#include "gateway/http.h"

namespace verbatim::gateway {

// Known once the reply's header is there. Of replies with status 2xx only: any other is the run's
// error, passed on as it came (backend.h).
struct ReplyHead {
  int status = 200;
  std::string content_type;  // as sent
  Headers headers;           // those that reach the client and the record; names lower-case
  bool streamed = false;     // text/event-stream: pieces are whole events
};

struct ByteRange {
  uint32_t begin = 0, size = 0;
};

// A part of the content-decoded body. Of a stream: one event with its line ends and blank line, or
// comments that stood between events; joined, the pieces are the body.
struct ReplyPiece {
  std::string bytes;
  // This piece completes the answer (the last choice's finish_reason, message_delta with a
  // stop_reason, response.completed): it and what follows are held back until the commit.
  bool completes = false;
  // What a client who asked for no usage is not given of an event (WithoutUsage in
  // wire/reply_convert.h): all of it, a member in it, or nothing.
  ByteRange usage{};
};

// What the whole reply says of itself.
struct ReplySummary {
  // It ended as its protocol demands, with a finish reason for each choice and no error inside.
  bool complete = false;
  std::string why_not;                                // a short code where not: "no_finish_reason"
  std::vector<std::string> finish_reasons;            // by choice, as the upstream names them
  json::Value usage;                                  // as the upstream gave it, or null
  uint64_t prompt_tokens = 0, completion_tokens = 0;  // of it, whatever their names there
  std::string id, model, system_fingerprint;          // as the upstream gave them, or ""
};

}  // namespace verbatim::gateway
