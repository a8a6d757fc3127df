#include "gateway/wire/answer.h"

#include <utility>

#include "base/check.h"
#include "gateway/wire/messages_answer.h"
#include "gateway/wire/openai_answer.h"
#include "gateway/wire/responses_answer.h"

namespace verbatim::gateway {

AnswerHead HeadOf(const GenerationRequest& request, std::string id,
                  std::string system_fingerprint) {
  AnswerHead head{.endpoint = request.endpoint,
                  .id = std::move(id),
                  .model = request.model,
                  .system_fingerprint = std::move(system_fingerprint)};
  if (request.endpoint == Endpoint::kResponses) head.echo = ResponseEcho(request);
  return head;
}

std::string Render(const AnswerHead& head, const Trace& trace, const AnswerForm& form) {
  if (form.streamed) {
    auto writer = NewStreamWriter(head, form, trace.choices, trace.prompt_tokens);
    std::string body = writer->Begin();
    for (const TraceEvent& event : trace.events) body += writer->Event(event);
    return body + writer->End(trace);
  }
  switch (head.endpoint) {
    case Endpoint::kChatCompletions:
    case Endpoint::kCompletions:
      return CompletionBody(head, trace);
    case Endpoint::kResponses:
      return ResponseBody(head, trace);
    case Endpoint::kMessages:
      return MessageBody(head, trace);
    case Endpoint::kCountTokens:
      return TokenCountBody(trace.prompt_tokens);
    case Endpoint::kEmbeddings:
      break;  // no engine answers it (Decode)
  }
  CHECK(false);
  return "";
}

std::unique_ptr<StreamWriter> NewStreamWriter(const AnswerHead& head, const AnswerForm& form,
                                              uint32_t choices, uint32_t prompt_tokens) {
  switch (head.endpoint) {
    case Endpoint::kResponses:
      return NewResponseStream(head);
    case Endpoint::kMessages:
      return NewMessageStream(head, prompt_tokens);
    case Endpoint::kChatCompletions:
    case Endpoint::kCompletions:
      return NewCompletionStream(head, choices, form.include_usage);
    case Endpoint::kCountTokens:
    case Endpoint::kEmbeddings:
      break;  // have no streams: Decode never says so
  }
  CHECK(false);
  return nullptr;
}

std::string StreamError(const HttpError& error, Endpoint endpoint, std::string_view request_id,
                        uint64_t sequence_number) {
  if (ErrorFormOf(endpoint) == ErrorForm::kAnthropic) return MessageStreamError(error, request_id);
  if (endpoint == Endpoint::kResponses) return ResponseStreamError(error, sequence_number);
  return CompletionStreamError(error);
}

}  // namespace verbatim::gateway
