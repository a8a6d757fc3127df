#include "gateway/wire/merge_parts.h"

#include <utility>

#include "gateway/wire/json_read.h"

namespace verbatim::gateway {

using json::Value;

namespace {

// The text of {"type":"text","text":...}, where that is all there is.
const std::string* PlainTextOf(const Value& part) {
  const Value* text = part.Find("text");
  const bool plain = part.is_object() && part.members().size() == 2 &&
                     FindText(part, "type") == "text" && text != nullptr && text->is_string();
  return plain ? &text->as_string() : nullptr;
}

// `b` null: absent. Texts are compared as they are written, which is quick.
bool SameScalar(const Value& a, const Value* b) {
  if (b == nullptr || a.type() != b->type()) return b == nullptr && a.is_null();
  if (a.is_string()) return a.as_string() == b->as_string();
  return a.is_number() && a.number_text() == b->number_text();
}

}  // namespace

bool MergedContent::Add(Value&& part) {
  seen_ = true;
  if (part.is_null()) return true;
  if (part.is_string()) {
    given_text_ = true;
    GoOn(Open::kText, part.as_string(), true);
    return true;
  }
  if (!part.is_array()) return false;
  given_list_ = true;
  bool first = true;
  for (Value& item : part.items()) {
    const std::string_view type = FindText(item, "type");
    if (const std::string* text = PlainTextOf(item)) {
      GoOn(Open::kText, *text, first);
    } else if (type == "thinking") {
      const Value* inner = FindArray(item, "thinking");
      if (inner == nullptr || inner->items().size() != 1 || item.members().size() != 2) {
        return false;
      }
      const std::string* thought = PlainTextOf(inner->items()[0]);
      if (thought == nullptr) return false;
      GoOn(Open::kThinking, *thought, first);
    } else if (type == "reference") {
      Close();
      parts_.push_back(std::move(item));
    } else {
      return false;
    }
    first = false;
  }
  return true;
}

void MergedContent::GoOn(Open kind, std::string_view text, bool may_join) {
  if (open_ == kind && may_join) {
    text_ += text;
    return;
  }
  Close();
  open_ = kind;
  text_ = text;
}

void MergedContent::Close() {
  // Empty text comes before and after lists, to say that there is no text.
  const bool nothing = open_ == Open::kText && text_.empty() && given_text_;
  if (open_ != Open::kNone && !nothing) {
    Value text = Value::MakeObject();
    text.Set("type", "text");
    text.Set("text", std::move(text_));
    if (open_ == Open::kThinking) {
      Value part = Value::MakeObject();
      part.Set("type", "thinking");
      part.Set("thinking", Value(json::Array{std::move(text)}));
      parts_.push_back(std::move(part));
    } else {
      parts_.push_back(std::move(text));
    }
  }
  open_ = Open::kNone;
  text_.clear();
}

void MergedContent::WriteTo(Value& message) {
  if (!seen_) return;
  if (given_list_) {
    Close();
    message.Set("content", Value(std::move(parts_)));
  } else {
    message.Set("content", given_text_ ? Value(std::move(text_)) : Value());
  }
}

bool MergedCall::Add(const Value& part) {
  seen_ = true;
  if (part.is_null()) return true;
  if (!part.is_object()) return false;
  given_ = true;
  for (const auto& [name, value] : part.members()) {
    bool known = value.is_null();
    if (name == "name") known = name_.Add(value);
    if (name == "arguments") known = arguments_.Add(value);
    if (name == "input") known = input_.Add(value);
    if (!known) return false;
  }
  return true;
}

void MergedCall::WriteTo(Value& object, std::string_view name) const {
  if (!seen_) return;
  Value call;
  if (given_) {
    call = Value::MakeObject();
    name_.WriteTo(call, "name");
    arguments_.WriteTo(call, "arguments");
    input_.WriteTo(call, "input");
  }
  object.Set(std::string(name), std::move(call));
}

bool MergedToolCalls::Add(const Value& list) {
  seen_ = true;
  if (list.is_null()) return true;
  if (!list.is_array()) return false;
  given_ = true;
  for (const Value& part : list.items()) {
    const Value* given = FindPresent(part, "index");
    std::optional<uint64_t> index;
    if (given != nullptr) {
      index = given->AsUint64();
    } else if (FindObject(part, "function") != nullptr) {
      index = calls_.empty() ? 0 : calls_.rbegin()->first + 1;
      if (FindText(*FindObject(part, "function"), "name").empty()) return false;
    }
    if (!index || calls_.size() > kMaxCalls || !AddTo(calls_[*index], part)) return false;
  }
  return true;
}

bool MergedToolCalls::AddTo(Call& call, const Value& part) {
  for (const auto& [name, value] : part.members()) {
    bool known = value.is_null() || name == "index";
    if (name == "id") known = call.id.Add(value);
    if (name == "type") known = call.type.Add(value);
    if (name == "function") known = call.function.Add(value);
    if (name == "custom") known = call.custom.Add(value);
    if (name == "extra_content") known = call.extra_content.Add(value);
    if (name == "thought_signature") known = call.thought_signature.Add(value);
    if (!known) return false;
  }
  return true;
}

void MergedToolCalls::WriteTo(Value& message) const {
  if (!seen_) return;
  Value all;
  if (given_) all = Value::MakeArray();
  for (const auto& [index, call] : calls_) {
    Value one = Value::MakeObject();
    call.id.WriteTo(one, "id");
    // Plain answers always say it, streams of some vendors never.
    one.Set("type", call.type.seen() ? call.type.value() : Value("function"));
    call.function.WriteTo(one, "function");
    call.custom.WriteTo(one, "custom");
    call.extra_content.WriteTo(one, "extra_content");
    call.thought_signature.WriteTo(one, "thought_signature");
    all.Append(std::move(one));
  }
  message.Set("tool_calls", std::move(all));
}

bool MergedReasoning::Add(const Value& list) {
  seen_ = true;
  if (list.is_null()) return true;
  if (!list.is_array()) return false;
  given_ = true;
  const size_t before = details_.size();
  for (const Value& part : list.items()) {
    if (!part.is_object() || details_.size() > kMaxDetails) return false;
    const Value* index = FindPresent(part, "index");
    const Value* type = FindPresent(part, "type");
    size_t at = before;
    while (at > 0 && !(SameScalar(details_[at - 1].index.value(), index) &&
                       SameScalar(details_[at - 1].type.value(), type))) {
      // Without an index only the last one goes on.
      at = index == nullptr ? 0 : at - 1;
    }
    Detail& detail = at == 0 ? details_.emplace_back() : details_[at - 1];
    if (!AddTo(detail, part)) return false;
  }
  return true;
}

bool MergedReasoning::AddTo(Detail& detail, const Value& part) {
  for (const auto& [name, value] : part.members()) {
    bool known = value.is_null();
    if (name == "type") known = detail.type.Add(value);
    if (name == "index") known = detail.index.Add(value);
    if (name == "id") known = detail.id.Add(value);
    if (name == "format") known = detail.format.Add(value);
    if (name == "signature") known = detail.signature.Add(value);
    if (name == "data") known = detail.data.Add(value);
    if (name == "text") known = detail.text.Add(value);
    if (name == "summary") known = detail.summary.Add(value);
    if (!known) return false;
  }
  return true;
}

void MergedReasoning::WriteTo(Value& message) const {
  if (!seen_) return;
  Value all;
  if (given_) all = Value::MakeArray();
  for (const Detail& detail : details_) {
    Value one = Value::MakeObject();
    detail.type.WriteTo(one, "type");
    detail.text.WriteTo(one, "text");
    detail.summary.WriteTo(one, "summary");
    detail.data.WriteTo(one, "data");
    detail.signature.WriteTo(one, "signature");
    detail.id.WriteTo(one, "id");
    detail.format.WriteTo(one, "format");
    detail.index.WriteTo(one, "index");
    all.Append(std::move(one));
  }
  message.Set("reasoning_details", std::move(all));
}

Value DeltaOf(const Value& message) {
  Value delta = message;
  Value* calls = delta.Find("tool_calls");
  if (calls == nullptr || !calls->is_array()) return delta;
  for (size_t i = 0; i < calls->items().size(); ++i) {
    Value& call = calls->items()[i];
    if (!call.is_object()) continue;
    Value indexed = Value::MakeObject();
    indexed.Set("index", uint64_t{i});
    for (auto& [name, value] : call.members()) {
      if (name != "index") indexed.Set(name, std::move(value));
    }
    call = std::move(indexed);
  }
  return delta;
}

}  // namespace verbatim::gateway
