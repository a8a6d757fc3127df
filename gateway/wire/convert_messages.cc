// Anthropic messages: the event sequence, and the whole.
#include <map>
#include <utility>

#include "gateway/wire/convert_forms.h"
#include "gateway/wire/json_read.h"
#include "gateway/wire/merge.h"
#include "gateway/wire/sse.h"

namespace verbatim::gateway {

namespace {

using json::Value;

constexpr json::ParseLimits kEventLimits{
    .max_bytes = size_t{64} << 20, .max_depth = 128, .max_values = size_t{1} << 18};

// A content block: what content_block_start gave, and what its deltas add.
class Block {
 public:
  explicit Block(Value start) : block_(std::move(start)) {}

  bool Take(const Value& delta);
  bool Stop();
  bool open() const { return open_; }
  Value& value() { return block_; }

 private:
  bool AddText(std::string_view name, const Value* part);

  Value block_;
  bool open_ = true;
  std::string_view text_name_;  // of the member that text_ goes on from
  std::string text_;
  bool has_input_ = false;
  std::string input_;
  MergedOnce signature_;
  json::Array citations_;
};

bool Block::AddText(std::string_view name, const Value* part) {
  if (part == nullptr || !part->is_string() || (!text_name_.empty() && text_name_ != name)) {
    return false;
  }
  text_name_ = name;
  text_ += part->as_string();
  return true;
}

bool Block::Take(const Value& delta) {
  const std::string_view type = FindText(delta, "type");
  if (!open_ || delta.members().size() != 2) return false;
  const Value* part = &delta.members()[delta.members()[0].first == "type" ? 1 : 0].second;
  if (type == "text_delta") return AddText("text", delta.Find("text"));
  if (type == "thinking_delta") return AddText("thinking", delta.Find("thinking"));
  // Whole in one delta; of two nobody says how they join.
  if (type == "compaction_delta") {
    return text_name_.empty() && AddText("content", delta.Find("content"));
  }
  if (type == "signature_delta") return delta.Find("signature") && signature_.Add(*part);
  if (type == "citations_delta" && delta.Find("citation") != nullptr) {
    citations_.push_back(*part);
    return true;
  }
  if (type == "input_json_delta" && delta.Find("partial_json") != nullptr && part->is_string()) {
    has_input_ = true;
    input_ += part->as_string();
    return true;
  }
  return false;
}

bool Block::Stop() {
  if (!open_) return false;
  open_ = false;
  if (!text_name_.empty()) {
    block_.Set(std::string(text_name_), std::string(FindText(block_, text_name_)) + text_);
  }
  // No arguments are no text at all; the block began with {} then.
  if (has_input_ && !input_.empty()) {
    Result<Value> input = json::Parse(input_, kEventLimits);
    if (!input.ok()) return false;
    block_.Set("input", std::move(*input));
  }
  signature_.WriteTo(block_, "signature");
  if (!citations_.empty()) {
    Value all = Value::MakeArray();
    if (const Value* before = FindArray(block_, "citations")) all = *before;
    for (Value& citation : citations_) all.Append(std::move(citation));
    block_.Set("citations", std::move(all));
  }
  return true;
}

class MessageMerger {
 public:
  explicit MessageMerger(Unknown unknown) : skip_unknown_(unknown == Unknown::kSkip) {}

  bool Take(const SseEvent& event);
  std::optional<Value> Finish();

 private:
  bool TakeStart(const Value& event);
  bool TakeBlockEvent(std::string_view type, const Value& event);
  bool TakeDelta(const Value& event);
  bool TakeUsage(const Value& usage);

  const bool skip_unknown_;
  bool stopped_ = false, answered_ = false;
  Value message_;  // null before message_start
  Value usage_;
  std::map<uint64_t, Block> blocks_;
};

bool MessageMerger::Take(const SseEvent& event) {
  if (stopped_ || event.type == "ping") return true;
  const Result<Value> parsed = json::Parse(event.data, kEventLimits);
  if (!parsed.ok() || !parsed->is_object()) return false;
  const std::string_view type = FindText(*parsed, "type");
  if (type == "ping") return true;
  if (type == "message_start") return TakeStart(*parsed);
  if (message_.is_null() || type == "error") return false;
  if (type == "message_delta") return TakeDelta(*parsed);
  if (type == "message_stop") {
    stopped_ = true;
    return true;
  }
  if (type.starts_with("content_block_")) return TakeBlockEvent(type, *parsed) || skip_unknown_;
  return skip_unknown_;
}

bool MessageMerger::TakeStart(const Value& event) {
  const Value* message = FindObject(event, "message");
  if (message == nullptr) return false;
  // The same once more says nothing new; another message in the middle of one does.
  if (!message_.is_null()) return skip_unknown_ || *message == message_;
  const Value* content = FindArray(*message, "content");
  if (content == nullptr || !content->items().empty()) return false;
  message_ = *message;
  const Value* usage = FindObject(*message, "usage");
  return usage == nullptr || TakeUsage(*usage);
}

bool MessageMerger::TakeBlockEvent(std::string_view type, const Value& event) {
  const Value* given = event.Find("index");
  const std::optional<uint64_t> index = given ? given->AsUint64() : std::nullopt;
  if (!index) return false;
  if (type == "content_block_start") {
    const Value* block = FindObject(event, "content_block");
    return block != nullptr && blocks_.size() < kMaxBlocks &&
           blocks_.try_emplace(*index, *block).second;
  }
  const auto at = blocks_.find(*index);
  if (at == blocks_.end()) return false;
  if (type == "content_block_stop") return at->second.Stop();
  const Value* delta = FindObject(event, "delta");
  return type == "content_block_delta" && delta != nullptr && at->second.Take(*delta);
}

// Counts are of the whole message so far, not of this event.
bool MessageMerger::TakeUsage(const Value& usage) {
  if (usage.members().size() > kMaxMembers) return false;
  if (!usage_.is_object()) usage_ = Value::MakeObject();
  for (const auto& [name, value] : usage.members()) {
    if (!value.is_null() || usage_.Find(name) == nullptr) usage_.Set(name, value);
  }
  return usage_.members().size() <= kMaxMembers;
}

bool MessageMerger::TakeDelta(const Value& event) {
  const auto too_many = [](const Value& object) { return object.members().size() > kMaxMembers; };
  if (too_many(event) || too_many(message_)) return false;
  for (const auto& [name, value] : event.members()) {
    if (name == "type") continue;
    if (name == "usage" && value.is_object()) {
      if (!TakeUsage(value)) return false;
    } else if (name == "delta" && value.is_object()) {
      if (too_many(value)) return false;
      for (const auto& [key, member] : value.members()) message_.Set(key, member);
      answered_ = answered_ || !FindText(value, "stop_reason").empty();
    } else {
      message_.Set(name, value);
    }
  }
  return true;
}

std::optional<Value> MessageMerger::Finish() {
  if (!stopped_ || !answered_) return std::nullopt;
  Value content = Value::MakeArray();
  for (auto& [index, block] : blocks_) {
    if (block.open() && !skip_unknown_) return std::nullopt;
    if (index != content.items().size()) return std::nullopt;
    content.Append(std::move(block.value()));
  }
  message_.Set("content", std::move(content));
  if (usage_.is_object()) message_.Set("usage", std::move(usage_));
  return std::move(message_);
}

class MessageWriter {
 public:
  explicit MessageWriter(const Value& message) : message_(message) {}
  std::optional<std::string> Run();

 private:
  bool WriteBlock(uint64_t index, const Value& block);
  void Delta(uint64_t index, const char* type, const char* name, Value part);
  void Event(const Value& event) {
    AppendEvent(FindText(event, "type"), json::Serialize(event), out_);
  }
  static Value Typed(const char* type) {
    Value event = Value::MakeObject();
    event.Set("type", type);
    return event;
  }
  static Value Indexed(const char* type, uint64_t index) {
    Value event = Typed(type);
    event.Set("index", index);
    return event;
  }

  const Value& message_;
  std::string out_;
};

void MessageWriter::Delta(uint64_t index, const char* type, const char* name, Value part) {
  Value delta = Typed(type);
  delta.Set(name, std::move(part));
  Value event = Indexed("content_block_delta", index);
  event.Set("delta", std::move(delta));
  Event(event);
}

bool MessageWriter::WriteBlock(uint64_t index, const Value& block) {
  if (!block.is_object()) return false;
  const std::string_view type = FindText(block, "type");
  const Value* input = FindObject(block, "input");
  const Value* citations = type == "text" ? FindArray(block, "citations") : nullptr;
  Value start = block;
  if (type == "text") start.Set("text", "");
  if (type == "thinking") {
    start.Set("thinking", "");
    if (start.Find("signature") != nullptr) start.Set("signature", "");
  }
  if (citations != nullptr) start.Set("citations", Value::MakeArray());
  if (input != nullptr) start.Set("input", Value::MakeObject());
  Value event = Indexed("content_block_start", index);
  event.Set("content_block", std::move(start));
  Event(event);
  if (citations != nullptr) {
    for (const Value& c : citations->items()) Delta(index, "citations_delta", "citation", c);
  }
  if (type == "text") Delta(index, "text_delta", "text", FindText(block, "text"));
  if (type == "thinking") {
    Delta(index, "thinking_delta", "thinking", FindText(block, "thinking"));
    const std::string_view signature = FindText(block, "signature");
    if (!signature.empty()) Delta(index, "signature_delta", "signature", signature);
  }
  if (input != nullptr) {
    Delta(index, "input_json_delta", "partial_json", json::Serialize(*input));
  }
  Event(Indexed("content_block_stop", index));
  return true;
}

std::optional<std::string> MessageWriter::Run() {
  const Value* content = FindArray(message_, "content");
  if (content == nullptr) return std::nullopt;
  Value begun = message_, delta = Value::MakeObject(), end = Typed("message_delta");
  begun.Set("content", Value::MakeArray());
  // What is known only at the end.
  for (const char* name : {"stop_reason", "stop_sequence", "stop_details", "container"}) {
    if (Value* value = begun.Find(name)) delta.Set(name, std::exchange(*value, Value()));
  }
  end.Set("delta", std::move(delta));
  if (const Value* usage = begun.Find("usage")) end.Set("usage", *usage);
  if (Value* context = begun.Find("context_management")) {
    end.Set("context_management", std::exchange(*context, Value()));
  }
  Value start = Typed("message_start");
  start.Set("message", std::move(begun));
  Event(start);
  for (size_t i = 0; i < content->items().size(); ++i) {
    if (!WriteBlock(i, content->items()[i])) return std::nullopt;
  }
  Event(end);
  Event(Typed("message_stop"));
  return std::move(out_);
}

}  // namespace

std::optional<Value> MergeMessageEvents(std::string_view stream, Unknown unknown) {
  MessageMerger merger(unknown);
  for (const SsePiece& piece : ParseEventStream(stream, true)) {
    if (piece.event && !merger.Take(*piece.event)) return std::nullopt;
  }
  return merger.Finish();
}

std::optional<std::string> MessageEventsOf(const Value& message) {
  return MessageWriter(message).Run();
}

}  // namespace verbatim::gateway
