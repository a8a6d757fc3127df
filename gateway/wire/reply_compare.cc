// What two answers to one request have in common, or not (reply_convert.h).
#include <utility>

#include "gateway/wire/convert_forms.h"
#include "gateway/wire/json_read.h"
#include "gateway/wire/reply_convert.h"

namespace verbatim::gateway {

namespace {

using json::Value;

constexpr json::ParseLimits kBodyLimits{
    .max_bytes = size_t{256} << 20, .max_depth = 128, .max_values = size_t{1} << 22};

struct Said {
  std::string text, reasoning, refusal, finish_reason;
  json::Array tool_calls;

  void Call(std::string_view name, std::string arguments) {
    Value call = Value::MakeObject();
    call.Set("name", name);
    call.Set("arguments", std::move(arguments));
    tool_calls.push_back(std::move(call));
  }
  Value Choice() && {
    Value choice = Value::MakeObject();
    choice.Set("text", std::move(text));
    choice.Set("reasoning", std::move(reasoning));
    choice.Set("refusal", std::move(refusal));
    choice.Set("tool_calls", Value(std::move(tool_calls)));
    choice.Set("finish_reason", std::move(finish_reason));
    return choice;
  }
};

// Text, or whatever else stands there, as text.
std::string TextOf(const Value* v) {
  if (v == nullptr || v->is_null()) return "";
  return v->is_string() ? v->as_string() : json::Canonical(*v);
}

void AddFunction(const Value& call, Said& said) {
  for (const char* kind : {"function", "custom"}) {
    const Value* function = FindObject(call, kind);
    if (function == nullptr) continue;
    const Value* arguments = FindPresent(*function, "arguments");
    said.Call(FindText(*function, "name"),
              TextOf(arguments != nullptr ? arguments : function->Find("input")));
  }
}

Value OfChunked(const Value& choice) {
  Said said;
  said.text = TextOf(choice.Find("text"));
  said.finish_reason = FindText(choice, "finish_reason");
  const Value* message = FindObject(choice, "message");
  if (message == nullptr) return std::move(said).Choice();
  said.text += TextOf(message->Find("content"));
  said.refusal = FindText(*message, "refusal");
  for (const char* name : {"reasoning_content", "reasoning", "reasoning_text", "thinking"}) {
    if (said.reasoning.empty()) said.reasoning = FindText(*message, name);
  }
  if (const Value* calls = FindArray(*message, "tool_calls")) {
    for (const Value& call : calls->items()) AddFunction(call, said);
  }
  if (const Value* call = FindObject(*message, "function_call")) {
    said.Call(FindText(*call, "name"), TextOf(call->Find("arguments")));
  }
  return std::move(said).Choice();
}

Value OfMessage(const Value& message) {
  Said said;
  said.finish_reason = FindText(message, "stop_reason");
  const Value* content = FindArray(message, "content");
  if (content == nullptr) return std::move(said).Choice();
  for (const Value& block : content->items()) {
    const std::string_view type = FindText(block, "type");
    if (type == "text") said.text += FindText(block, "text");
    if (type == "thinking") said.reasoning += FindText(block, "thinking");
    if (const Value* input = FindPresent(block, "input")) {
      said.Call(FindText(block, "name"), json::Canonical(*input));
    }
  }
  return std::move(said).Choice();
}

void AddParts(const Value* parts, std::string_view type, std::string_view member,
              std::string& out) {
  if (parts == nullptr || !parts->is_array()) return;
  for (const Value& part : parts->items()) {
    if (type.empty() || FindText(part, "type") == type) out += FindText(part, member);
  }
}

Value OfResponse(const Value& response) {
  Said said;
  said.finish_reason = FindText(response, "status");
  if (const Value* details = FindObject(response, "incomplete_details")) {
    said.finish_reason = FindText(*details, "reason");
  }
  const Value* output = FindArray(response, "output");
  if (output == nullptr) return std::move(said).Choice();
  for (const Value& item : output->items()) {
    const std::string_view type = FindText(item, "type");
    if (type == "message") {
      AddParts(item.Find("content"), "output_text", "text", said.text);
      AddParts(item.Find("content"), "refusal", "refusal", said.refusal);
    } else if (type == "reasoning") {
      AddParts(item.Find("summary"), "", "text", said.reasoning);
      AddParts(item.Find("content"), "", "text", said.reasoning);
    } else if (type == "function_call" || type == "custom_tool_call") {
      const Value* arguments = FindPresent(item, "arguments");
      said.Call(FindText(item, "name"),
                TextOf(arguments != nullptr ? arguments : item.Find("input")));
    }
  }
  return std::move(said).Choice();
}

std::optional<Value> Whole(Endpoint endpoint, std::string_view body, bool streamed) {
  if (streamed) {
    if (endpoint == Endpoint::kChatCompletions || endpoint == Endpoint::kCompletions) {
      return MergeChunks(endpoint, body, Unknown::kSkip);
    }
    if (endpoint == Endpoint::kMessages) return MergeMessageEvents(body, Unknown::kSkip);
  }
  std::optional<std::string> plain(body);
  if (streamed) plain = StreamToPlain(endpoint, body);
  if (!plain) return std::nullopt;
  Result<Value> parsed = json::Parse(*plain, kBodyLimits);
  if (!parsed.ok() || !parsed->is_object()) return std::nullopt;
  return std::move(*parsed);
}

}  // namespace

Value ComparableAnswer(Endpoint endpoint, std::string_view body, bool streamed) {
  const std::optional<Value> whole = Whole(endpoint, body, streamed);
  if (!whole) return Value();
  Value choices = Value::MakeArray();
  switch (endpoint) {
    case Endpoint::kChatCompletions:
    case Endpoint::kCompletions: {
      const Value* all = FindArray(*whole, "choices");
      if (all == nullptr) return Value();
      for (const Value& choice : all->items()) choices.Append(OfChunked(choice));
      break;
    }
    case Endpoint::kResponses:
      choices.Append(OfResponse(*whole));
      break;
    case Endpoint::kMessages:
      choices.Append(OfMessage(*whole));
      break;
    case Endpoint::kEmbeddings:
    case Endpoint::kCountTokens: {
      Said said;
      const char* computed = endpoint == Endpoint::kEmbeddings ? "data" : "input_tokens";
      said.text = TextOf(whole->Find(computed));
      choices.Append(std::move(said).Choice());
      break;
    }
  }
  Value answer = Value::MakeObject();
  answer.Set("choices", std::move(choices));
  answer.Set("model", FindText(*whole, "model"));
  answer.Set("system_fingerprint", FindText(*whole, "system_fingerprint"));
  return answer;
}

std::string_view FirstDifference(const Value& a, const Value& b) {
  const Value* left = FindArray(a, "choices");
  const Value* right = FindArray(b, "choices");
  if (left == nullptr || right == nullptr) return "unreadable";
  if (left->items().size() != right->items().size()) return "choices";
  const auto differ = [](const Value& x, const Value& y, std::string_view name) {
    const Value *of_x = x.Find(name), *of_y = y.Find(name);
    return of_x == nullptr || of_y == nullptr ? of_x != of_y : !(*of_x == *of_y);
  };
  for (std::string_view name : {"text", "reasoning", "refusal", "tool_calls", "finish_reason"}) {
    for (size_t i = 0; i < left->items().size(); ++i) {
      if (differ(left->items()[i], right->items()[i], name)) return name;
    }
  }
  for (std::string_view name : {"model", "system_fingerprint"}) {
    if (differ(a, b, name)) return name;
  }
  return "";
}

}  // namespace verbatim::gateway
