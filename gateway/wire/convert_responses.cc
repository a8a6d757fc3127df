// Responses: the event sequence, and the response that its last event holds.
#include <utility>

#include "gateway/wire/convert_forms.h"
#include "gateway/wire/json_read.h"
#include "gateway/wire/sse.h"

namespace verbatim::gateway {

namespace {

using json::Value;

constexpr json::ParseLimits kEventLimits{
    .max_bytes = size_t{64} << 20, .max_depth = 128, .max_values = size_t{1} << 20};

// All output text of a response, in its order.
std::string OutputText(const Value& response) {
  std::string text;
  const Value* output = FindArray(response, "output");
  if (output == nullptr) return text;
  for (const Value& item : output->items()) {
    const Value* content = FindArray(item, "content");
    if (FindText(item, "type") != "message" || content == nullptr) continue;
    for (const Value& part : content->items()) {
      if (FindText(part, "type") == "output_text") text += FindText(part, "text");
    }
  }
  return text;
}

// Writes the events of a whole response, in the order in which they would have come.
class ResponseWriter {
 public:
  explicit ResponseWriter(const Value& response) : response_(response) {}
  std::optional<std::string> Run();

 private:
  void Event(std::string_view type, Value members);
  void Whole(const char* type, const char* status);
  bool WriteItem(size_t index, const Value& item);
  void WriteMessage(Value place, const json::Array& content);
  void WriteReasoning(Value place, const Value& item);
  // added, delta, done, part done; part_name is the index's name.
  void WriteText(std::string_view kind, Value place, const Value& part, const char* member);
  void WritePart(std::string_view kind, const Value& place, const Value& part);

  const Value& response_;
  uint64_t sequence_ = 0;
  std::string out_;
};

void ResponseWriter::Event(std::string_view type, Value members) {
  Value event = Value::MakeObject();
  event.Set("type", type);
  event.Set("sequence_number", sequence_++);
  for (auto& [name, value] : members.members()) event.Set(name, std::move(value));
  AppendEvent(type, json::Serialize(event), out_);
}

Value With(Value object, std::string name, Value value) {
  object.Set(std::move(name), std::move(value));
  return object;
}

// The response as it stood before there was output.
void ResponseWriter::Whole(const char* type, const char* status) {
  Value begun = response_;
  begun.Set("status", status);
  begun.Set("output", Value::MakeArray());
  for (const char* name : {"usage", "completed_at", "incomplete_details"}) {
    if (Value* value = begun.Find(name)) *value = Value();
  }
  Event(type, With(Value::MakeObject(), "response", std::move(begun)));
}

// A part that is text: begun empty, then all of it at once.
void ResponseWriter::WriteText(std::string_view kind, Value place, const Value& part,
                               const char* member) {
  const std::string name = "response." + std::string(kind);
  const Value text(FindText(part, member));
  Value delta = With(place, "delta", text), done = With(std::move(place), member, text);
  if (kind == "output_text") {
    const Value* logprobs = FindArray(part, "logprobs");
    for (Value* event : {&delta, &done}) {
      event->Set("logprobs", logprobs != nullptr ? *logprobs : Value::MakeArray());
    }
  }
  Event(name + ".delta", std::move(delta));
  Event(name + ".done", std::move(done));
}

void ResponseWriter::WriteMessage(Value place, const json::Array& content) {
  for (size_t i = 0; i < content.size(); ++i) {
    const Value& part = content[i];
    const Value at = With(place, "content_index", uint64_t{i});
    const std::string_view type = FindText(part, "type");
    Value begun = part;
    if (type == "output_text") {
      begun.Set("text", "");
      for (const char* list : {"annotations", "logprobs"}) {
        if (FindArray(part, list) != nullptr) begun.Set(list, Value::MakeArray());
      }
    }
    if (type == "refusal") begun.Set("refusal", "");
    Event("response.content_part.added", With(at, "part", std::move(begun)));
    if (type == "output_text") {
      const Value* annotations = FindArray(part, "annotations");
      WriteText("output_text", at, part, "text");
      for (size_t a = 0; annotations != nullptr && a < annotations->items().size(); ++a) {
        Value event = With(at, "annotation_index", uint64_t{a});
        event.Set("annotation", annotations->items()[a]);
        Event("response.output_text.annotation.added", std::move(event));
      }
    }
    if (type == "refusal") WriteText("refusal", at, part, "refusal");
    Event("response.content_part.done", With(at, "part", part));
  }
}

void ResponseWriter::WriteReasoning(Value place, const Value& item) {
  const Value* summary = FindArray(item, "summary");
  for (size_t i = 0; summary != nullptr && i < summary->items().size(); ++i) {
    const Value& part = summary->items()[i];
    const Value at = With(place, "summary_index", uint64_t{i});
    Event("response.reasoning_summary_part.added",
          With(at, "part", part.is_object() ? With(part, "text", "") : part));
    WriteText("reasoning_summary_text", at, part, "text");
    Event("response.reasoning_summary_part.done", With(at, "part", part));
  }
  const Value* content = FindArray(item, "content");
  for (size_t i = 0; content != nullptr && i < content->items().size(); ++i) {
    const Value at = With(place, "content_index", uint64_t{i});
    WriteText("reasoning_text", at, content->items()[i], "text");
  }
}

bool ResponseWriter::WriteItem(size_t index, const Value& item) {
  if (!item.is_object()) return false;
  const std::string_view type = FindText(item, "type");
  const Value* content = FindArray(item, "content");
  Value begun = item;
  if (begun.Find("status") != nullptr) begun.Set("status", "in_progress");
  if (type == "message" && content != nullptr) begun.Set("content", Value::MakeArray());
  if (type == "reasoning") {
    for (const char* list : {"summary", "content"}) {
      if (FindArray(item, list) != nullptr) begun.Set(list, Value::MakeArray());
    }
  }
  const char* argument = type == "function_call"      ? "arguments"
                         : type == "custom_tool_call" ? "input"
                                                      : nullptr;
  if (argument != nullptr) begun.Set(argument, "");
  Value place = Value::MakeObject();
  place.Set("output_index", uint64_t{index});
  Event("response.output_item.added", With(place, "item", std::move(begun)));
  Value inside = With(place, "item_id", FindText(item, "id"));
  if (type == "message" && content != nullptr) WriteMessage(inside, content->items());
  if (type == "reasoning") WriteReasoning(inside, item);
  if (type == "function_call") {
    inside.Set("name", FindText(item, "name"));
    WriteText("function_call_arguments", inside, item, "arguments");
  }
  if (type == "custom_tool_call") WriteText("custom_tool_call_input", inside, item, "input");
  Event("response.output_item.done", With(place, "item", item));
  return true;
}

std::optional<std::string> ResponseWriter::Run() {
  const Value* output = FindArray(response_, "output");
  const std::string_view status = FindText(response_, "status");
  if (output == nullptr || (status != "completed" && status != "incomplete")) return std::nullopt;
  Whole("response.created", "in_progress");
  Whole("response.in_progress", "in_progress");
  for (size_t i = 0; i < output->items().size(); ++i) {
    if (!WriteItem(i, output->items()[i])) return std::nullopt;
  }
  Event("response." + std::string(status), With(Value::MakeObject(), "response", response_));
  return std::move(out_);
}

}  // namespace

std::optional<std::string> ResponseOfEvents(std::string_view stream) {
  std::string streamed_text;
  for (const SsePiece& piece : ParseEventStream(stream)) {
    if (!piece.event) continue;
    const Result<Value> event = json::Parse(piece.event->data, kEventLimits);
    if (!event.ok() || !event->is_object()) continue;
    const std::string_view type = FindText(*event, "type");
    if (type == "error" || type == "response.failed") break;
    if (type == "response.output_text.delta") streamed_text += FindText(*event, "delta");
    if (type != "response.completed" && type != "response.incomplete") continue;
    const Value* response = FindObject(*event, "response");
    // Some vendors' last event leaves out what the others said.
    if (response == nullptr || OutputText(*response) != streamed_text) break;
    return piece.event->data.substr(response->text_begin(),
                                    response->text_end() - response->text_begin());
  }
  return std::nullopt;
}

std::optional<std::string> ResponseEventsOf(const Value& response) {
  return ResponseWriter(response).Run();
}

}  // namespace verbatim::gateway
