#include "gateway/wire/openai.h"

#include <algorithm>
#include <charconv>

#include "gateway/wire/openai_fields.h"

namespace verbatim::gateway {

namespace {

using json::Value;

// OpenAI's own default on /v1/completions; a chat answer may fill the context.
constexpr uint32_t kCompletionsMaxTokens = 16;
// A body that is all small values takes many times its size in memory; prompts are far below this.
constexpr size_t kMaxValues = size_t{1} << 18;
constexpr size_t kMaxStops = 4;
constexpr size_t kMaxIgnoredHeader = 1000;
constexpr double kMaxBias = 100;

HttpError BadRequest(std::string message, std::string param, std::string code) {
  return {.status = 400,
          .message = std::move(message),
          .type = "invalid_request_error",
          .param = std::move(param),
          .code = std::move(code),
          .headers = {}};
}

const char* TypeName(const Value& v) {
  switch (v.type()) {
    case Value::Type::kNull:
      return "null";
    case Value::Type::kBool:
      return "a boolean";
    case Value::Type::kNumber:
      return "a number";
    case Value::Type::kString:
      return "a string";
    case Value::Type::kArray:
      return "an array";
    case Value::Type::kObject:
      return "an object";
  }
  return "something else";
}

HttpError WrongType(const std::string& param, const char* expected, const Value& got) {
  return BadRequest("Invalid type for '" + param + "': expected " + expected + ", but got " +
                        TypeName(got) + " instead.",
                    param, "invalid_type");
}

HttpError Missing(const std::string& param) {
  return BadRequest("Missing required parameter: '" + param + "'.", param,
                    "missing_required_parameter");
}

HttpError Invalid(const std::string& param, const std::string& what,
                  const char* code = "invalid_value") {
  return BadRequest("Invalid value for '" + param + "': " + what, param, code);
}

const char* KindName(FieldKind kind) {
  switch (kind) {
    case FieldKind::kBool:
      return "a boolean";
    case FieldKind::kInteger:
      return "an integer";
    case FieldKind::kNumber:
      return "a number";
    case FieldKind::kString:
      return "a string";
    case FieldKind::kArray:
      return "an array";
    case FieldKind::kObject:
      return "an object";
    case FieldKind::kAny:
      break;
  }
  return "a value";
}

bool IsKind(const Value& v, FieldKind kind) {
  switch (kind) {
    case FieldKind::kAny:
      return true;
    case FieldKind::kBool:
      return v.is_bool();
    case FieldKind::kInteger:
    case FieldKind::kNumber:
      return v.is_number();
    case FieldKind::kString:
      return v.is_string();
    case FieldKind::kArray:
      return v.is_array();
    case FieldKind::kObject:
      return v.is_object();
  }
  return false;
}

// Type and range of one field by its row; null is as good as absent.
std::optional<HttpError> CheckField(const Field& f, const Value& v) {
  const std::string name(f.name);
  if (v.is_null()) return std::nullopt;
  if (!IsKind(v, f.kind)) return WrongType(name, KindName(f.kind), v);
  const bool integer = f.kind == FieldKind::kInteger;
  if (!integer && f.kind != FieldKind::kNumber) return std::nullopt;
  const std::string range =
      " It goes from " + json::FormatDouble(f.min) + " to " + json::FormatDouble(f.max) + ".";
  const auto d = v.AsDouble();
  if (integer && !v.AsInt64() && !v.AsUint64()) {
    const bool whole = !d || *d >= 9e18 || *d <= -9e18;
    return Invalid(name, whole ? "the integer is out of range." : "it must be an integer.");
  }
  if (f.max <= f.min) {
    return d ? std::nullopt
             : std::optional<HttpError>(Invalid(name, "the number is out of range."));
  }
  const bool negative = v.number_text()[0] == '-';
  if (d ? *d > f.max : !negative) {
    return Invalid(name, "it is too large." + range,
                   integer ? "integer_above_max_value" : "decimal_above_max_value");
  }
  if (d ? *d < f.min : negative) {
    return Invalid(name, "it is too small." + range,
                   integer ? "integer_below_min_value" : "decimal_below_min_value");
  }
  return std::nullopt;
}

class Decoder {
 public:
  Decoder(Endpoint endpoint, Value body) {
    r_.endpoint = endpoint;
    r_.body = std::move(body);
  }

  Decoded<GenerationRequest> Run() {
    const bool ok = Fields() && Model() && Sampling() && Bias() && Tokens() && Stop() &&
                    Delivery() &&
                    (r_.endpoint == Endpoint::kChatCompletions ? Messages() : Prompt());
    if (!ok) return std::move(*error_);
    return std::move(r_);
  }

 private:
  bool Fail(HttpError error) {
    error_ = std::move(error);
    return false;
  }

  // The field where it is present and not null.
  const Value* Get(std::string_view name) const {
    const Value* v = r_.body.Find(name);
    return v == nullptr || v->is_null() ? nullptr : v;
  }
  double Number(std::string_view name, double absent) const {
    const Value* v = Get(name);
    return v == nullptr ? absent : v->AsDouble().value_or(absent);
  }
  bool Flag(std::string_view name) const {
    const Value* v = Get(name);
    return v != nullptr && v->as_bool();
  }

  bool Fields() {
    if (!r_.body.is_object())
      return Fail(BadRequest("The body must be a JSON object.", "", "invalid_json"));
    const int endpoint = r_.endpoint == Endpoint::kChatCompletions ? kChat : kCompletions;
    for (const json::Member& m : r_.body.members()) {
      const Field* f = FindField(m.first, endpoint);
      if (f == nullptr || f->effect == Effect::kInert) r_.ignored.push_back(m.first);
      if (f == nullptr) continue;
      if (auto error = CheckField(*f, m.second)) return Fail(std::move(*error));
    }
    std::sort(r_.ignored.begin(), r_.ignored.end());
    return true;
  }

  bool Model() {
    const Value* model = Get("model");
    if (model == nullptr) return Fail(Missing("model"));
    r_.model = model->as_string();
    return !r_.model.empty() || Fail(Invalid("model", "it is empty."));
  }

  bool Sampling() {
    engine::SamplingParams& s = r_.sampling;
    s.temperature = static_cast<float>(Number("temperature", 1));
    s.top_p = Number("top_p", 1);
    s.min_p = Number("min_p", 0);
    s.presence_penalty = static_cast<float>(Number("presence_penalty", 0));
    s.frequency_penalty = static_cast<float>(Number("frequency_penalty", 0));
    s.repetition_penalty = static_cast<float>(Number("repetition_penalty", 1));
    if (const Value* k = Get("top_k")) s.top_k = std::max<int64_t>(0, k->AsInt64().value_or(0));
    if (const Value* seed = Get("seed")) {
      const auto i = seed->AsInt64();
      r_.seed = i ? static_cast<uint64_t>(*i) : *seed->AsUint64();
      s.seed = *r_.seed;
    }
    return true;
  }

  bool Bias() {
    const Value* bias = Get("logit_bias");
    if (bias == nullptr) return true;
    for (const json::Member& m : bias->members()) {
      const std::string param = "logit_bias." + m.first.substr(0, 40);
      int32_t id = -1;
      const char* end = m.first.data() + m.first.size();
      const auto [stop, error] = std::from_chars(m.first.data(), end, id);
      const bool spelled = error == std::errc{} && stop == end && std::to_string(id) == m.first;
      if (!spelled || id < 0) return Fail(Invalid("logit_bias", "its names are token ids."));
      if (!m.second.is_number()) return Fail(WrongType(param, "a number", m.second));
      const auto add = m.second.AsDouble();
      if (!add || *add < -kMaxBias || *add > kMaxBias) {
        return Fail(Invalid(param, "it goes from -100 to 100."));
      }
      r_.sampling.logit_bias.emplace_back(id, static_cast<float>(*add));
    }
    std::sort(r_.sampling.logit_bias.begin(), r_.sampling.logit_bias.end());
    return true;
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

  bool Stop() {
    const Value* stop = Get("stop");
    if (stop == nullptr) return true;
    if (stop->is_string()) return OneStop("stop", *stop);
    if (!stop->is_array()) return Fail(WrongType("stop", "a string or an array of strings", *stop));
    if (stop->items().size() > kMaxStops) {
      return Fail(Invalid("stop", "at most 4 strings.", "array_above_max_length"));
    }
    for (size_t i = 0; i < stop->items().size(); ++i) {
      if (!OneStop("stop[" + std::to_string(i) + "]", stop->items()[i])) return false;
    }
    return true;
  }

  bool OneStop(const std::string& param, const Value& v) {
    if (!v.is_string()) return Fail(WrongType(param, "a string", v));
    if (v.as_string().empty()) return Fail(Invalid(param, "it is empty.", "empty_string"));
    if (!IsUtf8(v.as_string())) return Fail(Invalid(param, "it has half of a surrogate pair."));
    r_.stop.push_back(v.as_string());
    return true;
  }

  bool Delivery() {
    r_.ignore_eos = Flag("ignore_eos");
    r_.stream = Flag("stream");
    r_.deterministic = Flag("deterministic");
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
    static constexpr std::string_view kRoles[] = {"system",    "developer", "user",
                                                  "assistant", "tool",      "function"};
    if (!message.is_object()) return Fail(WrongType(at, "an object", message));
    const Value* role = message.Find("role");
    if (role == nullptr) return Fail(Missing(at + ".role"));
    if (!role->is_string()) return Fail(WrongType(at + ".role", "a string", *role));
    if (std::find(std::begin(kRoles), std::end(kRoles), role->as_string()) == std::end(kRoles)) {
      return Fail(Invalid(at + ".role",
                          "the roles are system, developer, user, assistant, tool and function."));
    }
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
    return Content(at + ".content", message);
  }

  // Text parts are joined; a list with anything else in it stays a list, which CheckEngine refuses.
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
    if (content->is_string()) return true;
    if (!content->is_array()) {
      return Fail(WrongType(at, "a string or an array of parts", *content));
    }
    std::string text;
    bool only_text = true;
    for (size_t i = 0; i < content->items().size(); ++i) {
      const Value& part = content->items()[i];
      const std::string here = at + "[" + std::to_string(i) + "]";
      if (!part.is_object()) return Fail(WrongType(here, "an object", part));
      const Value* type = part.Find("type");
      if (type == nullptr) return Fail(Missing(here + ".type"));
      if (!type->is_string()) return Fail(WrongType(here + ".type", "a string", *type));
      if (type->as_string() != "text") {
        only_text = false;
        continue;
      }
      const Value* piece = part.Find("text");
      if (piece == nullptr) return Fail(Missing(here + ".text"));
      if (!piece->is_string()) return Fail(WrongType(here + ".text", "a string", *piece));
      text += piece->as_string();
    }
    if (content->items().empty()) return Fail(Invalid(at, "it is empty.", "empty_array"));
    if (only_text) message.Set("content", std::move(text));
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

  GenerationRequest r_;
  std::optional<HttpError> error_;
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

HttpError Unsupported(const std::string& param, const std::string& neutral) {
  return BadRequest(
      "'" + param + "' would change the answer, and the embedded engine does not support " +
          "it in this version" +
          (neutral.empty() ? "; leave it out." : "; leave it out or send " + neutral + "."),
      param, "unsupported_parameter");
}

// What a message may hold that the engine cannot read: parts that are no text, and calls of tools.
std::optional<HttpError> CheckMessage(const std::string& at, const Value& message) {
  const Value* content = message.Find("content");
  if (content != nullptr && content->is_array()) {
    for (size_t i = 0; i < content->items().size(); ++i) {
      if (content->items()[i].Find("type")->as_string() == "text") continue;
      return Unsupported(at + ".content[" + std::to_string(i) + "]", "a text part");
    }
  }
  for (const char* name : {"tool_calls", "function_call", "audio"}) {
    const Value* v = message.Find(name);
    if (v == nullptr || v->is_null() || (v->is_array() && v->items().empty())) continue;
    return Unsupported(at + "." + name, "");
  }
  return std::nullopt;
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
  return Decoder(endpoint, std::move(body)).Run();
}

std::optional<HttpError> CheckEngine(const GenerationRequest& request) {
  const int endpoint = request.endpoint == Endpoint::kChatCompletions ? kChat : kCompletions;
  for (const json::Member& m : request.body.members()) {
    const Field* f = FindField(m.first, endpoint);
    if (f == nullptr || f->effect != Effect::kRefused || m.second.is_null()) continue;
    if (!IsNeutral(*f, m.second)) {
      return Unsupported(m.first, std::string(f->neutral.substr(0, f->neutral.find('|'))));
    }
  }
  if (!request.messages.is_array()) return std::nullopt;
  for (size_t i = 0; i < request.messages.items().size(); ++i) {
    if (auto error =
            CheckMessage("messages[" + std::to_string(i) + "]", request.messages.items()[i])) {
      return error;
    }
  }
  return std::nullopt;
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
