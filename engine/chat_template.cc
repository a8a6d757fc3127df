#include "engine/chat_template.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <unordered_map>
#include <utility>

#include "base/check.h"
#include "engine/jinja_ast.h"
#include "engine/jinja_interpreter.h"

namespace verbatim::engine {
namespace {

constexpr size_t kMaxSource = size_t{1} << 20;

// Templates write control tokens around these, as in '<|' + message.role + '|>'.
constexpr std::string_view kRoles[] = {"system",    "developer", "user",
                                       "assistant", "tool",      "function"};

using Variables = std::unordered_map<std::string, jinja::Value>;

// A message as data, but for a well-known role.
jinja::Value MessageValue(const json::Value& message) {
  jinja::Value v = jinja::FromJson(message, false);
  if (const json::Value* role = message.Find("role"); role != nullptr && role->is_string()) {
    const std::string& name = role->as_string();
    if (std::find(std::begin(kRoles), std::end(kRoles), name) != std::end(kRoles)) {
      v.dict().Set(jinja::Value::String("role", true), jinja::Value::String(name, true));
    }
  }
  return v;
}

}  // namespace

struct ChatTemplate::State {
  jinja::Template source;

  Result<std::vector<Segment>> Run(Variables variables, int64_t clock_micros,
                                   const RenderLimits& limits) const {
    const jinja::Text text =
        jinja::Interpreter(limits, clock_micros).Run(source, std::move(variables));
    std::vector<Segment> segments;
    text.ForEachRun([&](std::string_view bytes, bool trusted) {
      segments.push_back({std::string(bytes), trusted});
    });
    return segments;
  }
};

ChatTemplate::ChatTemplate(std::unique_ptr<State> state) : state_(std::move(state)) {}
ChatTemplate::~ChatTemplate() = default;

Result<std::unique_ptr<const ChatTemplate>> ChatTemplate::Parse(std::string_view source) {
  if (source.size() > kMaxSource) {
    return Error{Code::kUnsupported, "the chat template is longer than 1 MiB"};
  }
  try {
    auto state = std::make_unique<State>();
    state->source = jinja::ParseTemplate(source);
    return std::unique_ptr<const ChatTemplate>(new ChatTemplate(std::move(state)));
  } catch (jinja::Failure& failure) {
    return std::move(failure.error);
  }
}

bool ChatTemplate::uses_clock() const { return state_->source.uses_clock; }

Result<std::vector<Segment>> ChatTemplate::RenderChat(const ChatRequest& request,
                                                      const RenderLimits& limits) const {
  if (!request.messages.is_array()) {
    return Error{Code::kInvalid, "messages must be an array"};
  }
  if (!request.variables.is_object()) {
    return Error{Code::kInvalid, "the template's variables must be an object"};
  }
  try {
    Variables variables;
    for (const auto& [name, value] : request.variables.members()) {
      variables[name] = jinja::FromJson(value, false);
    }
    std::vector<jinja::Value> messages;
    for (const json::Value& message : request.messages.items()) {
      if (!message.is_object()) return Error{Code::kInvalid, "each message must be an object"};
      messages.push_back(MessageValue(message));
    }
    variables["messages"] = jinja::Value::List(std::move(messages));
    variables["tools"] = jinja::FromJson(request.tools, false);
    variables.try_emplace("documents", jinja::Value::None());
    variables["add_generation_prompt"] = jinja::Value::Bool(request.add_generation_prompt);
    variables["bos_token"] = jinja::Value::String(request.bos_token, true);
    variables["eos_token"] = jinja::Value::String(request.eos_token, true);
    return state_->Run(std::move(variables), request.clock_micros, limits);
  } catch (jinja::Failure& failure) {
    return std::move(failure.error);
  }
}

Result<std::vector<Segment>> ChatTemplate::Render(const json::Value& variables,
                                                  int64_t clock_micros,
                                                  const RenderLimits& limits) const {
  if (!variables.is_object()) {
    return Error{Code::kInvalid, "the template's variables must be an object"};
  }
  try {
    Variables values;
    for (const auto& [name, value] : variables.members()) {
      values[name] = jinja::FromJson(value, false);
    }
    return state_->Run(std::move(values), clock_micros, limits);
  } catch (jinja::Failure& failure) {
    return std::move(failure.error);
  }
}

}  // namespace verbatim::engine
