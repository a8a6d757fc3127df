#include "gateway/redaction_places.h"

#include <algorithm>
#include <string_view>
#include <utility>

namespace verbatim::gateway {

namespace {

using json::Value;

// An event's own number, "0" where it has none.
std::string Index(const Value& object, const char* name) {
  const Value* v = object.Find(name);
  return v && v->AsUint64() ? std::to_string(*v->AsUint64()) : "0";
}

std::string_view TextOf(const Value& object, const char* name) {
  const Value* v = object.Find(name);
  return v && v->is_string() ? std::string_view(v->as_string()) : std::string_view();
}

Place Below(Place place, std::initializer_list<std::string> more) {
  place.insert(place.end(), more);
  return place;
}

void AddChunk(const Value& choices, std::vector<Alias>& aliases) {
  for (size_t i = 0; choices.is_array() && i < choices.items().size(); ++i) {
    const Value& choice = choices.items()[i];
    if (!choice.is_object()) continue;
    const Place from = {"choices", std::to_string(i)};
    const Place to = {"choices", choice.Find("index") ? Index(choice, "index") : from[1]};
    aliases.push_back({Below(from, {"delta"}), Below(to, {"message"})});
    aliases.push_back({from, to});
    // Tool calls come by their index, too.
    const Value* delta = choice.Find("delta");
    const Value* calls = delta ? delta->Find("tool_calls") : nullptr;
    for (size_t k = 0; calls && calls->is_array() && k < calls->items().size(); ++k) {
      const Value& call = calls->items()[k];
      if (!call.is_object() || !call.Find("index")) continue;
      aliases.push_back({Below(from, {"delta", "tool_calls", std::to_string(k)}),
                         Below(to, {"message", "tool_calls", Index(call, "index")})});
    }
  }
}

// The part of a response's item that an event's "delta" belongs to, and the event's other member
// with the whole of it. part: what the item has it in, with the index's name; "" the item itself.
struct ResponseText {
  std::string_view event;  // behind "response.", without ".delta" or ".done"
  std::string_view part, index, member;
};
constexpr ResponseText kResponseTexts[] = {
    {"output_text", "content", "content_index", "text"},
    {"refusal", "content", "content_index", "refusal"},
    {"reasoning_text", "content", "content_index", "text"},
    {"reasoning_summary_text", "summary", "summary_index", "text"},
    {"function_call_arguments", "", "", "arguments"},
    {"mcp_call_arguments", "", "", "arguments"},
    {"custom_tool_call_input", "", "", "input"},
    {"code_interpreter_call_code", "", "", "code"},
};

void AddResponse(const Value& event, std::string_view type, std::vector<Alias>& aliases) {
  const Place item = {"output", Index(event, "output_index")};
  const bool summary = event.Find("summary_index") != nullptr;
  const Place part = Below(item, {summary ? "summary" : "content",
                                  Index(event, summary ? "summary_index" : "content_index")});
  aliases.push_back({{"response"}, {}});
  aliases.push_back({{"item"}, item});
  aliases.push_back({{"part"}, part});
  type.remove_prefix(std::string_view("response.").size());
  const std::string_view name = type.substr(0, type.rfind('.'));
  for (const ResponseText& text : kResponseTexts) {
    if (text.event != name) continue;
    const std::string member(text.member);
    const Place to = text.part.empty() ? item : part;
    aliases.push_back({{"delta"}, Below(to, {member})});
    aliases.push_back({{member}, Below(to, {member})});
    aliases.push_back({{"logprobs"}, Below(to, {"logprobs"})});
    return;
  }
  // Of a kind that is not known: whatever it holds belongs to the item, or to all.
  const bool in_item = event.Find("output_index") != nullptr;
  if (!event.Find("item") && !event.Find("part") && !event.Find("response")) {
    aliases.push_back({{}, in_item ? item : Place{}, true});
  }
}

void AddMessage(const Value& event, std::string_view type, std::vector<Alias>& aliases) {
  const Place block = {"content", Index(event, "index")};
  if (type == "message_start") aliases.push_back({{"message"}, {}});
  if (type == "content_block_start") aliases.push_back({{"content_block"}, block});
  if (type == "message_delta") aliases.push_back({{"delta"}, {}});
  if (type != "content_block_delta") return;
  const Value* delta = event.Find("delta");
  const std::string_view kind = delta ? TextOf(*delta, "type") : std::string_view();
  // The rest comes as the text of JSON (input), or under another name (citations).
  const bool same = kind == "text_delta" || kind == "thinking_delta" || kind == "signature_delta";
  if (kind == "input_json_delta") {
    aliases.push_back({{"delta", "partial_json"}, Below(block, {"input"}), true});
  } else {
    aliases.push_back({{"delta"}, block, !same});
  }
}

bool Matches(const Place& pattern, const Place& path, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    if (pattern[i] != "*" && pattern[i] != path[i]) return false;
  }
  return true;
}

}  // namespace

std::vector<Alias> AliasesOf(const Value& event) {
  std::vector<Alias> aliases;
  if (!event.is_object()) return aliases;
  if (const Value* choices = event.Find("choices")) AddChunk(*choices, aliases);
  const std::string_view type = TextOf(event, "type");
  if (type.starts_with("response.")) {
    AddResponse(event, type, aliases);
  } else if (!type.empty()) {
    AddMessage(event, type, aliases);
  }
  return aliases;
}

bool ToPlainPlace(Place& place) {
  static constexpr std::string_view kOfEvents[] = {"content_block", "delta", "item",
                                                   "message",       "part",  "response"};
  if (!place.empty() &&
      std::find(std::begin(kOfEvents), std::end(kOfEvents), place[0]) != std::end(kOfEvents)) {
    return false;
  }
  if (place.size() > 2 && place[0] == "choices" && place[2] == "delta") place[2] = "message";
  return true;
}

bool Covers(const Place& place, const Place& path) {
  return path.size() >= place.size() && Matches(place, path, place.size());
}

bool Covers(const Place& place, const Place& path, const std::vector<Alias>& aliases) {
  if (Covers(place, path)) return true;
  for (const Alias& alias : aliases) {
    if (!Covers(alias.from, path)) continue;
    Place plain = alias.to;
    plain.insert(plain.end(), path.begin() + static_cast<std::ptrdiff_t>(alias.from.size()),
                 path.end());
    if (Covers(place, plain)) return true;
    const size_t known = std::min(place.size(), alias.to.size());
    if (alias.opaque && Matches(place, alias.to, known)) return true;
  }
  return false;
}

}  // namespace verbatim::gateway
