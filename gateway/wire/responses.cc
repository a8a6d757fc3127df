#include "gateway/wire/responses.h"

#include "gateway/wire/decoder.h"

namespace verbatim::gateway {

namespace {

using json::Value;

constexpr size_t kMaxStops = 4;

Value Message(std::string role, std::string content) {
  return json::Object{{"role", std::move(role)}, {"content", std::move(content)}};
}

class ResponsesDecoder : public Decoder {
 public:
  using Decoder::Decoder;

 private:
  bool Own() override {
    if (const Value* most = Get("max_output_tokens")) {
      r_.max_tokens = static_cast<uint32_t>(*most->AsInt64());
    }
    if (const Value* variables = Get("chat_template_kwargs")) r_.template_variables = *variables;
    return Stops("stop", kMaxStops) && Input();
  }

  bool Input() {
    r_.messages = Value::MakeArray();
    if (const Value* instructions = Get("instructions")) {
      r_.messages.Append(Message("system", instructions->as_string()));
    }
    const Value* input = Get("input");
    if (input == nullptr) return Fail(Missing("input"));
    if (input->is_string()) {
      r_.messages.Append(Message("user", input->as_string()));
      return true;
    }
    if (!input->is_array()) {
      return Fail(WrongType("input", "a string or an array of items", *input));
    }
    if (input->items().empty()) return Fail(Invalid("input", "it is empty.", "empty_array"));
    for (size_t i = 0; i < input->items().size(); ++i) {
      if (!Item("input[" + std::to_string(i) + "]", input->items()[i])) return false;
    }
    return true;
  }

  bool Item(const std::string& at, const Value& item) {
    if (!item.is_object()) return Fail(WrongType(at, "an object", item));
    const Value* type = item.Find("type");
    if (type != nullptr && !type->is_string()) {
      return Fail(WrongType(at + ".type", "a string", *type));
    }
    if (type != nullptr && type->as_string() != "message") {
      CannotRead(at);
      return true;
    }
    if (!Role(at, item, "system, developer, user, assistant")) return false;
    const Value* content = item.Find("content");
    if (content == nullptr) return Fail(Missing(at + ".content"));
    std::string text;
    if (!Text(at + ".content", *content, text, "input_text", "output_text")) return false;
    r_.messages.Append(Message(item.Find("role")->as_string(), std::move(text)));
    return true;
  }
};

}  // namespace

Decoded<GenerationRequest> DecodeResponses(Value body) {
  return ResponsesDecoder(Endpoint::kResponses, std::move(body)).Run();
}

}  // namespace verbatim::gateway
