#include "gateway/wire/openai.h"

#include <algorithm>

#include "gateway/wire/decoder.h"
#include "gateway/wire/messages.h"
#include "gateway/wire/responses.h"

namespace verbatim::gateway {

namespace {

using json::Value;

// OpenAI's own default on /v1/completions; a chat answer may fill the context.
constexpr uint32_t kCompletionsMaxTokens = 16;
// A body that is all small values takes many times its size in memory; prompts are far below this.
constexpr size_t kMaxValues = size_t{1} << 18;
constexpr size_t kMaxStops = 4;
constexpr size_t kMaxIgnoredHeader = 1000;

class CompletionDecoder : public Decoder {
 public:
  using Decoder::Decoder;

 private:
  bool Own() override {
    return Tokens() && Stops("stop", kMaxStops) && Delivery() &&
           (r_.endpoint == Endpoint::kChatCompletions ? Messages() : Prompt());
  }

  bool Tokens() {
    const bool chat = r_.endpoint == Endpoint::kChatCompletions;
    const Value* tokens = Get("max_tokens");
    const Value* completion = chat ? Get("max_completion_tokens") : nullptr;
    if (tokens != nullptr && completion != nullptr && !(*tokens == *completion)) {
      return Fail(
          Invalid("max_completion_tokens", "max_tokens says another number; send one of them."));
    }
    if (completion != nullptr) tokens = completion;
    r_.max_tokens = chat ? 0 : kCompletionsMaxTokens;
    if (tokens != nullptr) r_.max_tokens = static_cast<uint32_t>(*tokens->AsInt64());
    return true;
  }

  bool Delivery() {
    if (const Value* options = Get("stream_options")) {
      const Value* usage = options->Find("include_usage");
      if (usage != nullptr && !usage->is_null()) {
        if (!usage->is_bool())
          return Fail(WrongType("stream_options.include_usage", "a boolean", *usage));
        r_.include_usage = usage->as_bool();
      }
    }
    if (const Value* variables = Get("chat_template_kwargs")) r_.template_variables = *variables;
    return true;
  }

  bool Messages() {
    const Value* messages = Get("messages");
    if (messages == nullptr) return Fail(Missing("messages"));
    if (messages->items().empty()) return Fail(Invalid("messages", "it is empty.", "empty_array"));
    r_.messages = *messages;
    for (size_t i = 0; i < r_.messages.items().size(); ++i) {
      if (!Message("messages[" + std::to_string(i) + "]", r_.messages.items()[i])) return false;
    }
    return true;
  }

  bool Message(const std::string& at, Value& message) {
    if (!Role(at, message, "system, developer, user, assistant, tool, function")) return false;
    for (const char* text : {"name", "tool_call_id", "refusal"}) {
      const Value* v = message.Find(text);
      if (v != nullptr && !v->is_null() && !v->is_string()) {
        return Fail(WrongType(at + "." + text, "a string", *v));
      }
    }
    const Value* calls = message.Find("tool_calls");
    if (calls != nullptr && !calls->is_null() && !calls->is_array()) {
      return Fail(WrongType(at + ".tool_calls", "an array", *calls));
    }
    if (!Content(at + ".content", message)) return false;
    for (const char* name : {"tool_calls", "function_call", "audio"}) {
      const Value* v = message.Find(name);
      if (v == nullptr || v->is_null() || (v->is_array() && v->items().empty())) continue;
      CannotRead(at + "." + name);
    }
    return true;
  }

  bool Content(const std::string& at, Value& message) {
    const Value* content = message.Find("content");
    if (content == nullptr || content->is_null()) {
      const auto has = [&](const char* name) {
        const Value* v = message.Find(name);
        return v != nullptr && !v->is_null();
      };
      const bool optional = message.Find("role")->as_string() == "assistant" &&
                            (has("tool_calls") || has("function_call") || has("refusal"));
      if (!optional)
        return Fail(content == nullptr ? Missing(at) : WrongType(at, "a string", *content));
      message.Set("content", Value());
      return true;
    }
    std::string text;
    if (!Text(at, *content, text)) return false;
    message.Set("content", std::move(text));
    return true;
  }

  bool Prompt() {
    const Value* prompt = Get("prompt");
    if (prompt == nullptr) return Fail(Missing("prompt"));
    if (prompt->is_array() && prompt->items().size() == 1 && !prompt->items()[0].is_number()) {
      prompt = &prompt->items()[0];  // a list of one prompt
    }
    if (prompt->is_string()) {
      r_.prompt = prompt->as_string();
      return true;
    }
    if (!prompt->is_array()) {
      return Fail(WrongType("prompt", "a string or an array of token ids", *prompt));
    }
    if (prompt->items().empty()) return Fail(Invalid("prompt", "it is empty.", "empty_array"));
    r_.has_prompt_tokens = true;
    for (size_t i = 0; i < prompt->items().size(); ++i) {
      const Value& item = prompt->items()[i];
      const std::string at = "prompt[" + std::to_string(i) + "]";
      if (item.is_string() || item.is_array()) {
        return Fail(
            BadRequest("Lists of several prompts are not supported by this version; send one "
                       "prompt in each request.",
                       "prompt", "unsupported_parameter"));
      }
      if (!item.is_number()) return Fail(WrongType(at, "a token id", item));
      const auto id = item.AsInt64();
      if (!id || *id < 0 || *id > INT32_MAX) return Fail(Invalid(at, "it is no token id."));
      r_.prompt_tokens.push_back(static_cast<int32_t>(*id));
    }
    return true;
  }
};

bool IsNeutral(const Field& f, const Value& v) {
  const std::string text = json::Canonical(v);
  std::string_view rest = f.neutral;
  while (!rest.empty()) {
    const size_t bar = std::min(rest.find('|'), rest.size());
    if (rest.substr(0, bar) == text) return true;
    rest.remove_prefix(std::min(bar + 1, rest.size()));
  }
  return false;
}

HttpError UnsupportedField(const std::string& param, const std::string& neutral) {
  return BadRequest(
      "'" + param + "' would change the answer, and the embedded engine does not support " +
          "it in this version" +
          (neutral.empty() ? "; leave it out." : "; leave it out or send " + neutral + "."),
      param, "unsupported_parameter");
}

std::optional<HttpError> CheckOne(const Field* field, const Value& value) {
  if (field == nullptr || field->effect != Effect::kRefused || value.is_null()) return std::nullopt;
  if (IsNeutral(*field, value)) return std::nullopt;
  return UnsupportedField(std::string(field->name),
                          std::string(field->neutral.substr(0, field->neutral.find('|'))));
}

}  // namespace

Decoded<Value> ParseBody(std::string_view body) {
  auto v = json::Parse(body, {.max_values = kMaxValues});
  if (!v) {
    return BadRequest(
        "We could not parse the JSON body of your request: " + v.error().message + ".", "",
        "invalid_json");
  }
  if (!v->is_object()) return BadRequest("The body must be a JSON object.", "", "invalid_json");
  return std::move(*v);
}

Decoded<GenerationRequest> Decode(Endpoint endpoint, Value body) {
  switch (endpoint) {
    case Endpoint::kChatCompletions:
    case Endpoint::kCompletions:
      return CompletionDecoder(endpoint, std::move(body)).Run();
    case Endpoint::kResponses:
      return DecodeResponses(std::move(body));
    case Endpoint::kMessages:
    case Endpoint::kCountTokens:
      return DecodeMessages(endpoint, std::move(body));
    case Endpoint::kEmbeddings:
      break;
  }
  const Value* model = body.Find("model");
  const std::string name = model && model->is_string() ? model->as_string() : "";
  return BadRequest("The model `" + name +
                        "` runs in this server and generates text; it has no embeddings of its "
                        "own. Configure an upstream for " +
                        std::string(EndpointPath(endpoint)) + " and ask for one of its models.",
                    "model", "unsupported_endpoint");
}

std::optional<HttpError> CheckEngine(const GenerationRequest& request) {
  const int endpoint = FieldsOf(request.endpoint);
  for (const json::Member& m : request.body.members()) {
    if (auto error = CheckOne(FindField(m.first, endpoint), m.second)) return error;
    if (!m.second.is_object() || !HasMembers(m.first, endpoint)) continue;
    for (const json::Member& inner : m.second.members()) {
      if (auto error = CheckOne(FindMember(m.first, inner.first, endpoint), inner.second)) {
        return error;
      }
    }
  }
  return request.unsupported;
}

std::string IgnoredHeader(const GenerationRequest& request) {
  static constexpr char kHex[] = "0123456789ABCDEF";
  std::string out;
  for (const std::string& name : request.ignored) {
    std::string safe = out.empty() ? "" : ", ";
    if (name.empty()) safe += "\"\"";
    for (const char c : name) {
      const auto b = static_cast<uint8_t>(c);
      const bool plain = (b >= '0' && b <= '9') || (b >= 'a' && b <= 'z') ||
                         (b >= 'A' && b <= 'Z') || b == '_' || b == '.' || b == '-';
      if (plain) {
        safe += c;
      } else {
        safe += '%';
        safe += kHex[b >> 4];
        safe += kHex[b & 15];
      }
      if (safe.size() > kMaxIgnoredHeader) break;
    }
    if (out.size() + safe.size() > kMaxIgnoredHeader - 5)
      return out + (out.empty() ? "..." : ", ...");
    out += safe;
  }
  return out;
}

}  // namespace verbatim::gateway
