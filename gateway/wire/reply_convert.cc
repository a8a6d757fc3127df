#include "gateway/wire/reply_convert.h"

#include "gateway/wire/convert_forms.h"
#include "gateway/wire/json_read.h"

namespace verbatim::gateway {

namespace {

using json::Value;

constexpr json::ParseLimits kBodyLimits{
    .max_bytes = size_t{256} << 20, .max_depth = 128, .max_values = size_t{1} << 20};

std::optional<std::string> Written(const std::optional<Value>& value) {
  if (!value) return std::nullopt;
  return json::Serialize(*value);
}

// What a stream cannot say: how it was asked for, and a tool call's place said twice.
Value Comparable(Value body, bool has_usage) {
  if (!has_usage) body.Erase("usage");
  Value* choices = body.Find("choices");
  if (choices == nullptr || !choices->is_array()) return body;
  for (Value& choice : choices->items()) {
    Value* message = choice.Find("message");
    Value* calls = message ? message->Find("tool_calls") : nullptr;
    if (calls == nullptr || !calls->is_array()) continue;
    for (size_t i = 0; i < calls->items().size(); ++i) {
      const Value* index = calls->items()[i].Find("index");
      if (index != nullptr && *index == Value(uint64_t{i})) calls->items()[i].Erase("index");
    }
  }
  return body;
}

}  // namespace

void AppendEvent(std::string_view name, std::string_view data, std::string& out) {
  if (!name.empty()) out.append("event: ").append(name).append("\n");
  out.append("data: ").append(data).append("\n\n");
}

std::optional<std::string> StreamToPlain(Endpoint endpoint, std::string_view stream) {
  switch (endpoint) {
    case Endpoint::kChatCompletions:
    case Endpoint::kCompletions:
      return Written(MergeChunks(endpoint, stream, Unknown::kRefuse));
    case Endpoint::kResponses:
      return ResponseOfEvents(stream);
    case Endpoint::kMessages:
      return Written(MergeMessageEvents(stream, Unknown::kRefuse));
    case Endpoint::kEmbeddings:
    case Endpoint::kCountTokens:
      return std::nullopt;
  }
  return std::nullopt;
}

std::optional<std::string> PlainToStream(Endpoint endpoint, std::string_view body,
                                         bool include_usage) {
  const Result<Value> plain = json::Parse(body, kBodyLimits);
  if (!plain.ok() || !plain->is_object()) return std::nullopt;
  if (FindPresent(*plain, "error") != nullptr) return std::nullopt;
  std::optional<std::string> stream;
  bool has_usage = true;
  switch (endpoint) {
    case Endpoint::kChatCompletions:
    case Endpoint::kCompletions:
      stream = ChunksOf(endpoint, *plain, include_usage);
      has_usage = include_usage;
      break;
    case Endpoint::kResponses:
      stream = ResponseEventsOf(*plain);
      break;
    case Endpoint::kMessages:
      stream = MessageEventsOf(*plain);
      break;
    case Endpoint::kEmbeddings:
    case Endpoint::kCountTokens:
      break;
  }
  if (!stream) return std::nullopt;
  // No rule is trusted here: what does not come back as it was is not served.
  const std::optional<std::string> back = StreamToPlain(endpoint, *stream);
  if (!back) return std::nullopt;
  Result<Value> again = json::Parse(*back, kBodyLimits);
  if (!again.ok()) return std::nullopt;
  if (!(Comparable(std::move(*again), has_usage) == Comparable(*plain, has_usage))) {
    return std::nullopt;
  }
  return stream;
}

}  // namespace verbatim::gateway
