// The model file's chat template (Jinja, as Hugging Face runs it) from messages to a prompt, with
// the origin of every piece. docs/chat-templates.md states the subset of Jinja that is understood;
// a template outside it is refused by name and line, never approximated.
//
// Immutable after Parse; any thread may render. Rendering is bounded (RenderLimits), so that no
// template and no message can hang it or exhaust memory.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "engine/segment.h"

namespace verbatim::engine {

struct RenderLimits {
  size_t max_output_bytes = size_t{16} << 20;  // of the prompt, and of any one string on the way
  uint64_t max_steps = 20'000'000;             // expressions, loop rounds, bytes copied / 64
  uint32_t max_depth = 64;                     // macro calls inside each other
};

struct ChatRequest {
  // An array of objects, as the client sent them. "content" is a string, or null (None in the
  // template). Arguments of tool calls stay as they are given: strings or objects.
  json::Value messages = json::Value::MakeArray();
  json::Value tools;  // null: the template sees None
  // More variables (add_generation_prompt is set below; enable_thinking, documents, ...). An
  // object.
  json::Value variables = json::Value::MakeObject();
  bool add_generation_prompt = true;
  std::string bos_token, eos_token;  // trusted text
  int64_t clock_micros = 0;          // what strftime_now reads (UTC)
};

class ChatTemplate {
 public:
  // Errors: kUnsupported (a construct outside the subset) and kInvalid (no valid Jinja); the
  // message names the construct and the line.
  static Result<std::unique_ptr<const ChatTemplate>> Parse(std::string_view source);
  ~ChatTemplate();
  ChatTemplate(const ChatTemplate&) = delete;
  ChatTemplate& operator=(const ChatTemplate&) = delete;

  // The prompt. Neighbouring segments differ in trust and none is empty. What is trusted: the
  // template's text and strings, bos_token, eos_token, and a message's "role" where it is one of
  // system, developer, user, assistant, tool, function (templates build control tokens from it).
  // Errors: kInvalid (raise_exception's own message, or what Jinja would have raised),
  // kUnsupported (something outside the subset, or a limit, was reached).
  Result<std::vector<Segment>> RenderChat(const ChatRequest& request,
                                          const RenderLimits& limits = {}) const;

  // With these variables and no others: for tests and tools.
  Result<std::vector<Segment>> Render(const json::Value& variables, int64_t clock_micros,
                                      const RenderLimits& limits = {}) const;

  // Whether the source mentions strftime_now: the prompt may change by the day.
  bool uses_clock() const;

 private:
  struct State;
  explicit ChatTemplate(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace verbatim::engine
