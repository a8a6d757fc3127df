// The bytes of answers in OpenAI's forms. Pure functions of a trace and of what the record keeps
// about it: no clock, no load, no counters. Equal inputs give equal bytes, so that a stored result
// serves as plain or streamed, with or without the usage event, exactly what a new run would give.
//
// A stream is, in this order: for chat one event per choice with the role; one event per token, an
// empty text included, so that events and tokens correspond; one event with the finish_reason at
// each choice's end; with usage asked for, one event with it and no choices; `data: [DONE]`.
#pragma once

#include <cstdint>
#include <string>

#include "gateway/http.h"
#include "gateway/trace.h"
#include "gateway/wire/openai.h"

namespace verbatim::gateway {

struct AnswerHead {
  Endpoint endpoint = Endpoint::kChatCompletions;
  std::string id{};  // fingerprint.h, AnswerId
  std::string model{};
  std::string system_fingerprint{};  // fingerprint.h, SystemFingerprint
  int64_t created = 0;               // seconds
};

// What of the answer's bytes the client chose.
struct AnswerForm {
  bool streamed = false;
  bool include_usage = false;  // of streams only
  friend bool operator==(const AnswerForm&, const AnswerForm&) = default;
};

// The whole body of a complete trace.
std::string Render(const AnswerHead& head, const Trace& trace, const AnswerForm& form);

// A stream in parts: StreamBegin, StreamEvent for each event of the trace, StreamEnd. Joined they
// are what Render gives; each is whole SSE events.
std::string StreamBegin(const AnswerHead& head, uint32_t choices, bool include_usage);
std::string StreamEvent(const AnswerHead& head, const TraceEvent& event, bool include_usage);
std::string StreamEnd(const AnswerHead& head, const Trace& trace, bool include_usage);

// An error within a stream that has begun; no [DONE] follows it.
std::string StreamError(const HttpError& error);

}  // namespace verbatim::gateway
