#include "gateway/wire/responses_answer.h"

#include "base/check.h"
#include "base/json.h"

namespace verbatim::gateway {

namespace {

// What a response can say of how it went.
struct Progress {
  const char* status = "in_progress";
  std::string output{};        // items
  std::string usage = "null";  // an object
  const char* why_incomplete = "null";
};

std::string ResponseObject(const AnswerHead& head, const Progress& p) {
  return "{\"id\":" + json::Quote(head.id) +
         ",\"object\":\"response\",\"created_at\":" + std::to_string(head.created) +
         ",\"status\":\"" + p.status +
         "\",\"background\":false,\"error\":null,\"incomplete_details\":" + p.why_incomplete +
         ",\"model\":" + json::Quote(head.model) + ",\"output\":[" + p.output + "]," + head.echo +
         ",\"usage\":" + p.usage + "}";
}

std::string UsageObject(const Trace& trace) {
  const uint64_t generated = trace.Generated();
  return "{\"input_tokens\":" + std::to_string(trace.prompt_tokens) +
         ",\"input_tokens_details\":{\"cached_tokens\":0,\"cache_write_tokens\":0}"
         ",\"output_tokens\":" +
         std::to_string(generated) +
         ",\"output_tokens_details\":{\"reasoning_tokens\":0},\"total_tokens\":" +
         std::to_string(trace.prompt_tokens + generated) + "}";
}

// "resp_<hex>" has one item, "msg_<hex>".
std::string ItemId(const AnswerHead& head) {
  return "\"msg_" + head.id.substr(std::min(head.id.find('_') + 1, head.id.size())) + "\"";
}

std::string PartObject(const std::string& text) {
  return R"({"type":"output_text","annotations":[],"logprobs":[],"text":)" + json::Quote(text) +
         "}";
}

std::string ItemObject(const AnswerHead& head, const char* status, const std::string& content) {
  return "{\"id\":" + ItemId(head) + R"(,"type":"message","status":")" + status +
         R"(","content":[)" + content + R"(],"role":"assistant"})";
}

Progress Final(const AnswerHead& head, const Trace& trace, const std::string& text,
               const std::string& finish_reason) {
  const bool whole = finish_reason != "length";
  Progress p;
  p.status = whole ? "completed" : "incomplete";
  p.output = ItemObject(head, p.status, PartObject(text));
  p.usage = UsageObject(trace);
  if (!whole) p.why_incomplete = R"({"reason":"max_output_tokens"})";
  return p;
}

class ResponseStream : public StreamWriter {
 public:
  explicit ResponseStream(const AnswerHead& head) : head_(head) {}

  std::string Begin() override {
    const std::string response = ",\"response\":" + ResponseObject(head_, {});
    std::string events = Event("response.created", response);
    events += Event("response.in_progress", response);
    events += Event("response.output_item.added",
                    ",\"output_index\":0,\"item\":" + ItemObject(head_, "in_progress", ""));
    events += Event("response.content_part.added", Place() + ",\"part\":" + PartObject(""));
    return events;
  }

  std::string Event(const TraceEvent& event) override {
    if (!event.end) {
      text_ += event.text;
      return Event("response.output_text.delta",
                   Place() + ",\"delta\":" + json::Quote(event.text) + ",\"logprobs\":[]");
    }
    finish_reason_ = event.finish_reason;
    const char* status = finish_reason_ == "length" ? "incomplete" : "completed";
    std::string events = Event("response.output_text.done",
                               Place() + ",\"text\":" + json::Quote(text_) + ",\"logprobs\":[]");
    events += Event("response.content_part.done", Place() + ",\"part\":" + PartObject(text_));
    events += Event("response.output_item.done",
                    ",\"output_index\":0,\"item\":" + ItemObject(head_, status, PartObject(text_)));
    return events;
  }

  std::string End(const Trace& trace) override {
    const Progress last = Final(head_, trace, text_, finish_reason_);
    return Event(std::string("response.") + last.status,
                 ",\"response\":" + ResponseObject(head_, last));
  }

  std::string Error(const HttpError& error, std::string_view) const override {
    return ResponseStreamError(error, sequence_number_);
  }

 private:
  std::string Event(const std::string& type, const std::string& members) {
    return "event: " + type + "\ndata: {\"type\":\"" + type +
           "\",\"sequence_number\":" + std::to_string(sequence_number_++) + members + "}\n\n";
  }
  std::string Place() const {
    return ",\"item_id\":" + ItemId(head_) + ",\"output_index\":0,\"content_index\":0";
  }

  const AnswerHead& head_;
  uint64_t sequence_number_ = 0;
  std::string text_;
  std::string finish_reason_;
};

}  // namespace

std::string ResponseBody(const AnswerHead& head, const Trace& trace) {
  CHECK(trace.choices == 1);
  std::string text, finish_reason;
  for (const TraceEvent& event : trace.events) {
    if (event.end) finish_reason = event.finish_reason;
    text += event.text;
  }
  return ResponseObject(head, Final(head, trace, text, finish_reason));
}

std::unique_ptr<StreamWriter> NewResponseStream(const AnswerHead& head) {
  return std::make_unique<ResponseStream>(head);
}

// OpenAI documents the members beside "error" and sends "error"; its Python client raises on the
// latter only.
std::string ResponseStreamError(const HttpError& error, uint64_t sequence_number) {
  const auto quoted = [](const std::string& s) { return s.empty() ? "null" : json::Quote(s); };
  std::string object = ErrorJson(error);  // {"error":{...}}
  object.pop_back();
  return "event: error\ndata: {\"type\":\"error\",\"sequence_number\":" +
         std::to_string(sequence_number) + ",\"code\":" + quoted(error.code) +
         ",\"message\":" + json::Quote(error.message) + ",\"param\":" + quoted(error.param) + "," +
         object.substr(1) + "}\n\n";
}

// Canonical, so that equal requests are repeated in equal bytes.
std::string ResponseEcho(const GenerationRequest& request) {
  const auto echoed = [&](const char* name, const char* absent) {
    const json::Value* v = request.body.Find(name);
    return std::string("\"") + name +
           "\":" + (v == nullptr || v->is_null() ? absent : json::Canonical(*v));
  };
  return echoed("instructions", "null") + "," + echoed("max_output_tokens", "null") + "," +
         echoed("metadata", "{}") + "," + echoed("parallel_tool_calls", "true") +
         ",\"previous_response_id\":null," + echoed("prompt_cache_key", "null") +
         R"(,"reasoning":{"effort":null,"summary":null},)" + echoed("safety_identifier", "null") +
         R"(,"service_tier":"default","store":false,)" + echoed("temperature", "1") +
         R"(,"text":{"format":{"type":"text"},"verbosity":"medium"},)" +
         echoed("tool_choice", "\"auto\"") + R"(,"tools":[],"top_logprobs":0,)" +
         echoed("top_p", "1") + R"(,"truncation":"disabled",)" + echoed("user", "null");
}

}  // namespace verbatim::gateway
