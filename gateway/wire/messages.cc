#include "gateway/wire/messages.h"

#include "gateway/wire/decoder.h"

namespace verbatim::gateway {

namespace {

using json::Value;

constexpr size_t kMaxStops = 64;  // each is looked for at every token

class MessagesDecoder : public Decoder {
 public:
  using Decoder::Decoder;

 private:
  bool Own() override {
    if (r_.endpoint == Endpoint::kMessages) {
      const Value* most = Get("max_tokens");
      if (most == nullptr) return Fail(Missing("max_tokens"));
      r_.max_tokens = static_cast<uint32_t>(*most->AsInt64());
      if (!Stops("stop_sequences", kMaxStops)) return false;
    }
    if (const Value* variables = Get("chat_template_kwargs")) r_.template_variables = *variables;
    return System() && Messages();
  }

  bool System() {
    r_.messages = Value::MakeArray();
    const Value* system = Get("system");
    if (system == nullptr || (system->is_array() && system->items().empty())) return true;
    return Add("system", "system", *system);
  }

  bool Messages() {
    const Value* messages = Get("messages");
    if (messages == nullptr) return Fail(Missing("messages"));
    if (messages->items().empty()) return Fail(Invalid("messages", "it is empty.", "empty_array"));
    std::string at;
    for (size_t i = 0; i < messages->items().size(); ++i) {
      const Value& message = messages->items()[i];
      at = "messages[" + std::to_string(i) + "]";
      if (!Role(at, message, "user, assistant, system")) return false;
      const Value* content = message.Find("content");
      if (content == nullptr) return Fail(Missing(at + ".content"));
      if (!Add(message.Find("role")->as_string(), at + ".content", *content)) return false;
    }
    const Value& last = messages->items().back();
    if (last.Find("role")->as_string() == "assistant") {
      Unsupported(BadRequest(
          "'" + at +
              "' is the assistant's and the last one, which this API would continue; the "
              "embedded engine does not support that in this version. End with a user's message.",
          at, "unsupported_parameter"));
    }
    return true;
  }

  bool Add(const std::string& role, const std::string& at, const Value& content) {
    std::string text;
    if (!Text(at, content, text)) return false;
    r_.messages.Append(json::Object{{"role", role}, {"content", std::move(text)}});
    return true;
  }
};

}  // namespace

Decoded<GenerationRequest> DecodeMessages(Endpoint endpoint, Value body) {
  return MessagesDecoder(endpoint, std::move(body)).Run();
}

}  // namespace verbatim::gateway
