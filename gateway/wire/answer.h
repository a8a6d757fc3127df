// The bytes of the embedded engine's answers, in the form of the endpoint that was asked. Pure
// functions of a trace and of what the record keeps about it: no clock, no load, no counters. Equal
// inputs give equal bytes, so that a stored result serves as plain or streamed exactly what a new
// run would give. The forms: openai_answer.h, responses_answer.h, messages_answer.h.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "gateway/endpoint.h"
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
  // Of /v1/responses, whose answers repeat their request: those members, as JSON text.
  std::string echo{};
};

// Everything but `created`, which is the run's.
AnswerHead HeadOf(const GenerationRequest& request, std::string id, std::string system_fingerprint);

// What of the answer's bytes the client chose.
struct AnswerForm {
  bool streamed = false;
  bool include_usage = false;  // of streamed chat and text completions only
  friend bool operator==(const AnswerForm&, const AnswerForm&) = default;
};

// The whole body of a complete trace.
std::string Render(const AnswerHead& head, const Trace& trace, const AnswerForm& form);

// A stream in parts, each whole events: Begin once, Event for each event of the trace in order, End
// once. Joined they are what Render gives. What says that the answer is complete comes with the
// trace's last event or after it. `head` outlives the writer. Not thread-safe.
class StreamWriter {
 public:
  virtual ~StreamWriter() = default;
  virtual std::string Begin() = 0;
  virtual std::string Event(const TraceEvent& event) = 0;
  virtual std::string End(const Trace& trace) = 0;
  // An error instead of all that would follow, at any point after Begin.
  virtual std::string Error(const HttpError& error, std::string_view request_id) const = 0;
};
std::unique_ptr<StreamWriter> NewStreamWriter(const AnswerHead& head, const AnswerForm& form,
                                              uint32_t choices, uint32_t prompt_tokens);

// An error within a stream that somebody else began (an upstream), as the endpoint's clients know
// it; nothing follows it. sequence_number: of /v1/responses, one more than the last event's.
std::string StreamError(const HttpError& error, Endpoint endpoint, std::string_view request_id,
                        uint64_t sequence_number = 0);

}  // namespace verbatim::gateway
