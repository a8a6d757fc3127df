// Chat completions and completions: chunks of choices, and the whole.
#include <algorithm>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "gateway/wire/convert_forms.h"
#include "gateway/wire/json_read.h"
#include "gateway/wire/merge.h"
#include "gateway/wire/merge_parts.h"
#include "gateway/wire/sse.h"

namespace verbatim::gateway {

namespace {

using json::Value;

constexpr json::ParseLimits kEventLimits{
    .max_bytes = size_t{64} << 20, .max_depth = 128, .max_values = size_t{1} << 18};

bool OneOf(std::string_view name, std::initializer_list<std::string_view> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// One choice's logprobs: lists that follow each other.
class MergedLogprobs {
 public:
  bool Add(Value&& part) {
    seen_ = true;
    if (part.is_null()) return true;
    if (!part.is_object()) return false;
    given_ = true;
    for (auto& [name, value] : part.members()) {
      if (!OneOf(name, {"content", "refusal", "tokens", "token_logprobs", "top_logprobs",
                        "text_offset"}) ||
          !lists_[name].Add(std::move(value))) {
        return false;
      }
    }
    return true;
  }
  void WriteTo(Value& choice) {
    if (!seen_) return;
    Value logprobs;
    if (given_) logprobs = Value::MakeObject();
    for (auto& [name, list] : lists_) list.WriteTo(logprobs, name);
    choice.Set("logprobs", std::move(logprobs));
  }

 private:
  bool seen_ = false, given_ = false;
  std::map<std::string, MergedList> lists_;
};

// The members of an object that no rule names: each said once, or always the same.
class MergedRest {
 public:
  bool Add(const std::string& name, const Value& value) {
    return all_.size() < kMaxMembers && Of(name).Add(value);
  }
  void Replace(const std::string& name, const Value& value) { Of(name).Replace(value); }
  // Member by member, where both are objects.
  bool AddMembers(const std::string& name, const Value& value, bool replace) {
    if (value.is_object() && value.members().size() > kMaxMembers) return false;
    MergedOnce& merged = Of(name);
    if (!value.is_object() || !merged.value().is_object()) return merged.Add(value);
    Value all = merged.value();
    for (const auto& [key, member] : value.members()) {
      const Value* old = all.Find(key);
      if (old != nullptr && !replace && !(*old == member)) return false;
      all.Set(key, member);
    }
    if (all.members().size() > kMaxMembers) return false;
    merged.Replace(all);
    return true;
  }
  void WriteTo(Value& object) const {
    for (const auto& [name, value] : all_) value.WriteTo(object, name);
  }

 private:
  MergedOnce& Of(const std::string& name) {
    for (auto& [known, value] : all_) {
      if (known == name) return value;
    }
    return all_.emplace_back(name, MergedOnce()).second;
  }

  std::vector<std::pair<std::string, MergedOnce>> all_;  // in the order of their first coming
};

// A choice, from its parts.
class Choice {
 public:
  Choice(bool chat, Unknown unknown) : chat_(chat), skip_unknown_(unknown == Unknown::kSkip) {}

  bool Take(Value&& choice);
  bool Finish(uint64_t index, Value& out);

 private:
  bool TakeMember(const std::string& name, Value&& value);
  bool TakeDelta(Value&& delta);
  bool TakeDeltaMember(const std::string& name, Value&& value);

  const bool chat_, skip_unknown_;
  MergedOnce index_, role_;
  MergedContent content_;
  MergedText text_;                          // of completions
  std::map<std::string, MergedText> texts_;  // refusal, reasoning, ...
  MergedList annotations_;
  MergedReasoning reasoning_details_;
  MergedToolCalls tool_calls_;
  MergedCall function_call_;
  MergedRest message_rest_, rest_;
  MergedLogprobs logprobs_;
  MergedOnce finish_reason_;
  Value message_so_far_;  // of vendors who send it beside the delta
};

bool Choice::Take(Value&& choice) {
  for (auto& [name, value] : choice.members()) {
    if (!TakeMember(name, std::move(value)) && !skip_unknown_) return false;
  }
  return true;
}

bool Choice::TakeMember(const std::string& name, Value&& value) {
  if (name == "index") return index_.Add(value);
  if (name == "finish_reason") {
    finish_reason_.Replace(value);
    return true;
  }
  if (name == "logprobs") return logprobs_.Add(std::move(value));
  if (name == "native_finish_reason" || name == "stop_reason") {
    rest_.Replace(name, value);
    return true;
  }
  if (name == "content_filter_results") return rest_.AddMembers(name, value, false);
  if (!chat_) return name == "text" ? text_.Add(value) : rest_.Add(name, value);
  if (name == "delta") return TakeDelta(std::move(value));
  if (name == "message") {
    message_so_far_ = std::move(value);
    return true;
  }
  return rest_.Add(name, value);
}

bool Choice::TakeDelta(Value&& delta) {
  if (delta.is_null()) return true;
  if (!delta.is_object()) return false;
  for (auto& [name, value] : delta.members()) {
    if (!TakeDeltaMember(name, std::move(value)) && !skip_unknown_) return false;
  }
  return true;
}

bool Choice::TakeDeltaMember(const std::string& name, Value&& value) {
  if (name == "role") return role_.Add(value);
  if (name == "content") return content_.Add(std::move(value));
  if (OneOf(name, {"refusal", "reasoning", "reasoning_content", "reasoning_text", "thinking"})) {
    return texts_[name].Add(value);
  }
  if (name == "tool_calls") return tool_calls_.Add(std::move(value));
  if (name == "function_call") return function_call_.Add(std::move(value));
  if (name == "annotations") return annotations_.Add(std::move(value));
  if (name == "reasoning_details") return reasoning_details_.Add(std::move(value));
  // Which part this is, where the part's own name says it as well; and the choice's index again.
  if (name == "channel") return value.is_string() || value.is_null();
  if (name == "index") return index_.Add(value);
  if (OneOf(name, {"extra_content", "thought_signature", "name"})) {
    return message_rest_.Add(name, value);
  }
  if (!value.is_null()) return false;
  return message_rest_.Add(name, value);
}

bool Choice::Finish(uint64_t index, Value& out) {
  out = Value::MakeObject();
  if (!chat_) text_.WriteTo(out, "text");
  out.Set("index", index);
  if (chat_) {
    Value message = Value::MakeObject();
    role_.WriteTo(message, "role");
    content_.WriteTo(message);
    for (const auto& [name, text] : texts_) text.WriteTo(message, name);
    reasoning_details_.WriteTo(message);
    tool_calls_.WriteTo(message);
    function_call_.WriteTo(message, "function_call");
    annotations_.WriteTo(message, "annotations");
    message_rest_.WriteTo(message);
    if (message_so_far_.is_object() && !skip_unknown_) {
      const Value* said = message_so_far_.Find("content");
      const Value* merged = message.Find("content");
      if (said == nullptr || merged == nullptr || !(*said == *merged)) return false;
    }
    out.Set("message", std::move(message));
  }
  logprobs_.WriteTo(out);
  rest_.WriteTo(out);
  finish_reason_.WriteTo(out, "finish_reason");
  return true;
}

class ChunkMerger {
 public:
  ChunkMerger(bool chat, Unknown unknown) : chat_(chat), unknown_(unknown) {}

  bool Take(const SseEvent& event);
  std::optional<Value> Finish();

 private:
  bool TakeMember(const std::string& name, Value&& value);
  bool TakeChoices(Value&& choices);

  const bool chat_;
  const Unknown unknown_;
  bool done_ = false;
  std::map<uint64_t, Choice> choices_;
  MergedOnce id_, created_, model_, usage_;
  MergedRest rest_;
};

bool ChunkMerger::Take(const SseEvent& event) {
  if (done_ || event.data.find_first_not_of(" \t\r\n") == std::string::npos) return true;
  if (event.data == "[DONE]") {
    done_ = true;
    return true;
  }
  if (event.type == "ping") return true;
  if (event.type != "message") return false;
  Result<Value> chunk = json::Parse(event.data, kEventLimits);
  if (!chunk.ok() || !chunk->is_object() || FindPresent(*chunk, "error") != nullptr) return false;
  for (auto& [name, value] : chunk->members()) {
    if (!TakeMember(name, std::move(value)) && unknown_ == Unknown::kRefuse) return false;
  }
  return true;
}

bool ChunkMerger::TakeMember(const std::string& name, Value&& value) {
  if (name == "choices") return TakeChoices(std::move(value));
  // The first that says something stands: some vendors begin with empty ones, or count on.
  if (name == "id" || name == "model") {
    (name == "id" ? id_ : model_).Add(value);
    return true;
  }
  if (name == "created") {
    if (!created_.seen() || created_.value() == Value(0)) created_.Replace(value);
    return true;
  }
  if (name == "usage") {
    if (!value.is_null()) usage_.Replace(value);
    return true;
  }
  // Padding, and what the merged object says in its own way.
  if (name == "object" || name == "obfuscation") return true;
  if (OneOf(name, {"system_fingerprint", "service_tier", "citations", "search_results"})) {
    rest_.Replace(name, value);
    return true;
  }
  if (name == "x_groq") return rest_.AddMembers(name, value, true);
  return rest_.Add(name, value);
}

bool ChunkMerger::TakeChoices(Value&& choices) {
  if (choices.is_null()) return true;
  if (!choices.is_array()) return false;
  for (size_t i = 0; i < choices.items().size(); ++i) {
    Value& choice = choices.items()[i];
    if (!choice.is_object()) return false;
    const Value* given = choice.Find("index");
    const std::optional<uint64_t> index = given == nullptr ? i : given->AsUint64();
    if (!index || *index >= kMaxChoices) return false;
    auto [at, made] = choices_.try_emplace(*index, chat_, unknown_);
    if (!at->second.Take(std::move(choice))) return false;
  }
  return true;
}

std::optional<Value> ChunkMerger::Finish() {
  if (!done_ || choices_.empty()) return std::nullopt;
  Value out = Value::MakeObject();
  id_.WriteTo(out, "id");
  out.Set("object", chat_ ? "chat.completion" : "text_completion");
  created_.WriteTo(out, "created");
  model_.WriteTo(out, "model");
  Value choices = Value::MakeArray();
  for (auto& [index, choice] : choices_) {
    Value whole;
    if (index != choices.items().size() || !choice.Finish(index, whole)) return std::nullopt;
    choices.Append(std::move(whole));
  }
  out.Set("choices", std::move(choices));
  usage_.WriteTo(out, "usage");
  rest_.WriteTo(out);
  return out;
}

// Writes the chunks of one whole answer.
class ChunkWriter {
 public:
  ChunkWriter(Endpoint endpoint, const Value& body, bool include_usage)
      : chat_(endpoint == Endpoint::kChatCompletions), body_(body), usage_(include_usage) {}

  std::optional<std::string> Run();

 private:
  bool WriteChoice(const Value& choice);
  void WriteChunk(Value choices, const Value& usage);

  const bool chat_;
  const Value& body_;
  const bool usage_;
  bool first_ = true;
  std::string out_;
};

void ChunkWriter::WriteChunk(Value choices, const Value& usage) {
  Value chunk = Value::MakeObject();
  for (const auto& [name, value] : body_.members()) {
    if (name == "object") {
      chunk.Set(name, chat_ ? "chat.completion.chunk" : "text_completion");
    } else if (name == "choices") {
      chunk.Set(name, std::move(choices));
    } else if (name != "usage" && (first_ || OneOf(name, {"id", "created", "model", "provider",
                                                          "service_tier", "system_fingerprint"}))) {
      chunk.Set(name, value);
    }
  }
  if (usage_) chunk.Set("usage", usage);
  first_ = false;
  AppendEvent("", json::Serialize(chunk), out_);
}

// All that the choice says, then how it ended.
bool ChunkWriter::WriteChoice(const Value& choice) {
  const Value* message = choice.Find("message");
  const Value* index = choice.Find("index");
  if (index == nullptr || (chat_ && (message == nullptr || !message->is_object()))) return false;
  Value said = Value::MakeObject(), end = Value::MakeObject();
  said.Set("index", *index);
  end.Set("index", *index);
  if (chat_) {
    said.Set("delta", DeltaOf(*message));
    end.Set("delta", Value::MakeObject());
  }
  for (const auto& [name, value] : choice.members()) {
    if (name == "index" || name == "message") continue;
    if (name == "text" || name == "logprobs") {
      said.Set(name, value);
      end.Set(name, name == "text" ? Value("") : Value());
    } else {
      if (name == "finish_reason") said.Set(name, Value());
      end.Set(name, value);
    }
  }
  for (Value* part : {&said, &end}) {
    Value choices = Value::MakeArray();
    choices.Append(std::move(*part));
    WriteChunk(std::move(choices), Value());
  }
  return true;
}

std::optional<std::string> ChunkWriter::Run() {
  const Value* choices = FindArray(body_, "choices");
  if (choices == nullptr) return std::nullopt;
  for (const Value& choice : choices->items()) {
    if (!WriteChoice(choice)) return std::nullopt;
  }
  const Value* usage = FindPresent(body_, "usage");
  if (usage_ && usage != nullptr) WriteChunk(Value::MakeArray(), *usage);
  AppendEvent("", "[DONE]", out_);
  return std::move(out_);
}

}  // namespace

std::optional<Value> MergeChunks(Endpoint endpoint, std::string_view stream, Unknown unknown) {
  ChunkMerger merger(endpoint == Endpoint::kChatCompletions, unknown);
  for (const SsePiece& piece : ParseEventStream(stream)) {
    if (piece.event && !merger.Take(*piece.event)) return std::nullopt;
  }
  return merger.Finish();
}

std::optional<std::string> ChunksOf(Endpoint endpoint, const Value& body, bool include_usage) {
  return ChunkWriter(endpoint, body, include_usage).Run();
}

}  // namespace verbatim::gateway
