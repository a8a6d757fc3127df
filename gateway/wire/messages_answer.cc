#include "gateway/wire/messages_answer.h"

#include "base/check.h"
#include "base/json.h"

namespace verbatim::gateway {

namespace {

// "stop_reason" and "stop_sequence", as members.
std::string Stop(const TraceEvent& end) {
  const char* reason = end.finish_reason == "length" ? "max_tokens" : "end_turn";
  if (!end.stop.empty()) reason = "stop_sequence";
  return std::string("\"stop_reason\":\"") + reason +
         "\",\"stop_sequence\":" + (end.stop.empty() ? "null" : json::Quote(end.stop));
}

std::string Usage(uint32_t prompt_tokens, uint64_t generated) {
  return "\"usage\":{\"input_tokens\":" + std::to_string(prompt_tokens) +
         ",\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":0,\"output_tokens\":" +
         std::to_string(generated) + "}";
}

std::string TextBlock(const std::string& text) {
  return R"({"type":"text","text":)" + json::Quote(text) + "}";
}

std::string Message(const AnswerHead& head, const std::string& content, const std::string& stop,
                    const std::string& usage) {
  return "{\"id\":" + json::Quote(head.id) + R"(,"type":"message","role":"assistant","model":)" +
         json::Quote(head.model) + ",\"content\":[" + content + "]," + stop + "," + usage + "}";
}

std::string Event(const std::string& type, const std::string& members) {
  return "event: " + type + "\ndata: {\"type\":\"" + type + "\"" + members + "}\n\n";
}

class MessageStream : public StreamWriter {
 public:
  MessageStream(const AnswerHead& head, uint32_t prompt_tokens)
      : head_(head), prompt_tokens_(prompt_tokens) {}

  std::string Begin() override {
    const std::string message =
        Message(head_, "", R"("stop_reason":null,"stop_sequence":null)", Usage(prompt_tokens_, 0));
    return gateway::Event("message_start", ",\"message\":" + message) +
           gateway::Event("content_block_start", ",\"index\":0,\"content_block\":" + TextBlock(""));
  }

  std::string Event(const TraceEvent& event) override {
    if (!event.end) {
      ++generated_;
      return gateway::Event(
          "content_block_delta",
          R"(,"index":0,"delta":{"type":"text_delta","text":)" + json::Quote(event.text) + "}");
    }
    return gateway::Event("content_block_stop", ",\"index\":0") +
           gateway::Event("message_delta",
                          ",\"delta\":{" + Stop(event) + "}," + Usage(prompt_tokens_, generated_));
  }

  std::string End(const Trace&) override { return gateway::Event("message_stop", ""); }

  std::string Error(const HttpError& error, std::string_view request_id) const override {
    return MessageStreamError(error, request_id);
  }

 private:
  const AnswerHead& head_;
  const uint32_t prompt_tokens_;
  uint64_t generated_ = 0;
};

}  // namespace

std::string MessageBody(const AnswerHead& head, const Trace& trace) {
  CHECK(trace.choices == 1);
  std::string text, stop;
  for (const TraceEvent& event : trace.events) {
    if (event.end) stop = Stop(event);
    text += event.text;
  }
  return Message(head, TextBlock(text), stop, Usage(trace.prompt_tokens, trace.Generated()));
}

std::unique_ptr<StreamWriter> NewMessageStream(const AnswerHead& head, uint32_t prompt_tokens) {
  return std::make_unique<MessageStream>(head, prompt_tokens);
}

std::string MessageStreamError(const HttpError& error, std::string_view request_id) {
  return "event: error\ndata: " + ErrorJson(error, ErrorForm::kAnthropic, request_id) + "\n\n";
}

std::string TokenCountBody(uint64_t input_tokens) {
  return "{\"input_tokens\":" + std::to_string(input_tokens) + "}";
}

}  // namespace verbatim::gateway
