#include "gateway/wire/openai_answer.h"

#include <vector>

#include "base/json.h"

namespace verbatim::gateway {

namespace {

bool IsChat(const AnswerHead& head) { return head.endpoint == Endpoint::kChatCompletions; }

// Everything before "choices", in one order for all forms.
std::string Opening(const AnswerHead& head, const char* object) {
  return "{\"id\":" + json::Quote(head.id) + ",\"object\":\"" + object +
         "\",\"created\":" + std::to_string(head.created) +
         ",\"model\":" + json::Quote(head.model) +
         ",\"system_fingerprint\":" + json::Quote(head.system_fingerprint) + ",\"choices\":[";
}

std::string Usage(const Trace& trace) {
  const uint64_t generated = trace.Generated();
  return "\"usage\":{\"prompt_tokens\":" + std::to_string(trace.prompt_tokens) +
         ",\"completion_tokens\":" + std::to_string(generated) +
         ",\"total_tokens\":" + std::to_string(trace.prompt_tokens + generated) + "}";
}

const char* ChunkObject(const AnswerHead& head) {
  return IsChat(head) ? "chat.completion.chunk" : "text_completion";
}

// One SSE event with one choice: what it says, and how it finished ("" while it goes on).
std::string Chunk(const AnswerHead& head, uint32_t choice, const std::string& says,
                  const std::string& finish_reason, bool include_usage) {
  return "data: " + Opening(head, ChunkObject(head)) + "{\"index\":" + std::to_string(choice) +
         "," + says + ",\"logprobs\":null,\"finish_reason\":" +
         (finish_reason.empty() ? "null" : json::Quote(finish_reason)) + "}]" +
         (include_usage ? ",\"usage\":null" : "") + "}\n\n";
}

class CompletionStream : public StreamWriter {
 public:
  CompletionStream(const AnswerHead& head, uint32_t choices, bool include_usage)
      : head_(head), choices_(choices), include_usage_(include_usage) {}

  std::string Begin() override {
    if (!IsChat(head_)) return "";
    std::string events;
    for (uint32_t i = 0; i < choices_; ++i) {
      events += Chunk(head_, i, R"("delta":{"role":"assistant","content":"","refusal":null})", "",
                      include_usage_);
    }
    return events;
  }

  std::string Event(const TraceEvent& event) override {
    std::string says;
    if (!IsChat(head_)) {
      says = "\"text\":" + json::Quote(event.text);
    } else if (event.end) {
      says = "\"delta\":{}";
    } else {
      says = "\"delta\":{\"content\":" + json::Quote(event.text) + "}";
    }
    return Chunk(head_, event.choice, says, event.finish_reason, include_usage_);
  }

  std::string End(const Trace& trace) override {
    std::string events;
    if (include_usage_) {
      events += "data: " + Opening(head_, ChunkObject(head_)) + "]," + Usage(trace) + "}\n\n";
    }
    return events + "data: [DONE]\n\n";
  }

  std::string Error(const HttpError& error, std::string_view) const override {
    return CompletionStreamError(error);
  }

 private:
  const AnswerHead& head_;
  const uint32_t choices_;
  const bool include_usage_;
};

}  // namespace

std::string CompletionBody(const AnswerHead& head, const Trace& trace) {
  std::vector<std::string> texts(trace.choices), reasons(trace.choices);
  for (const TraceEvent& event : trace.events) {
    if (event.end) {
      reasons[event.choice] = event.finish_reason;
    } else {
      texts[event.choice] += event.text;
    }
  }
  std::string body = Opening(head, IsChat(head) ? "chat.completion" : "text_completion");
  for (uint32_t i = 0; i < trace.choices; ++i) {
    if (i > 0) body += ",";
    body += "{\"index\":" + std::to_string(i);
    if (IsChat(head)) {
      body += ",\"message\":{\"role\":\"assistant\",\"content\":" + json::Quote(texts[i]) +
              ",\"refusal\":null}";
    } else {
      body += ",\"text\":" + json::Quote(texts[i]);
    }
    body += ",\"logprobs\":null,\"finish_reason\":" + json::Quote(reasons[i]) + "}";
  }
  return body + "]," + Usage(trace) + "}";
}

std::unique_ptr<StreamWriter> NewCompletionStream(const AnswerHead& head, uint32_t choices,
                                                  bool include_usage) {
  return std::make_unique<CompletionStream>(head, choices, include_usage);
}

std::string CompletionStreamError(const HttpError& error) {
  return "data: " + ErrorJson(error) + "\n\n";
}

}  // namespace verbatim::gateway
