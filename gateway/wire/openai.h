// Request bodies of all endpoints, decoded: types and ranges are checked, and every field is kept,
// known or not. What /v1/responses (responses.h) and /v1/messages (messages.h) ask for is brought
// into the terms of /v1/chat/completions. Errors are answers with status 400 whose `param` names
// the field ("messages[0].role"). Pure functions; any thread may call them.
//
// Three steps, since policy stands between them and since what an engine cannot do an upstream may:
//   ParseBody -> policies::Decide needs the object -> Decode (of the effective request) ->
//   CheckEngine
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/json.h"
#include "engine/sampler.h"
#include "gateway/endpoint.h"
#include "gateway/http.h"

namespace verbatim::gateway {

struct GenerationRequest {
  Endpoint endpoint = Endpoint::kChatCompletions;
  json::Value body;  // the whole object, every field as sent
  std::string model;

  // Chat: objects as sent, but content that was a list of text parts is their texts joined, and
  // content that was absent is null. Of the other endpoints with messages: objects of role and
  // content, instructions and system prompt first. For the template: json::Value::Array of objects.
  json::Value messages;
  // What CheckEngine says of the prompt: parts that are no text, calls of tools.
  std::optional<HttpError> unsupported;
  json::Value template_variables;  // chat_template_kwargs: an object, or null

  // Completions: text, or token ids (then has_prompt_tokens; not checked against a vocabulary).
  std::string prompt;
  std::vector<int32_t> prompt_tokens;
  bool has_prompt_tokens = false;

  // As asked for, OpenAI's defaults where a field is absent or null (temperature 1, top_p 1). The
  // seed in `sampling` is the client's, modulo 2^64, and 0 where there is none.
  engine::SamplingParams sampling;
  std::optional<uint64_t> seed;
  // Of each choice: max_completion_tokens, max_tokens or max_output_tokens; 16 on /v1/completions
  // where absent (as OpenAI has it), else 0: to the end of the context.
  uint32_t max_tokens = 0;
  std::vector<std::string> stop;  // none empty
  bool ignore_eos = false;
  bool stream = false;
  bool include_usage = false;  // stream_options.include_usage
  bool deterministic = false;  // a promise that the client asks for

  // Names of top-level fields that are unknown or without effect here, sorted. They count in the
  // fingerprint all the same, but for the excluded ones (fingerprint.h).
  std::vector<std::string> ignored;
};

// A value, or the error that the client gets; Answered of backend.h.
template <typename T>
using Decoded = std::variant<T, HttpError>;

// The body as a JSON object. Not JSON, not an object, too deep, duplicate names, more than 262,144
// values: 400 without param.
Decoded<json::Value> ParseBody(std::string_view body);

// Types and ranges of every known field. /v1/embeddings is refused: no engine answers it.
Decoded<GenerationRequest> Decode(Endpoint endpoint, json::Value body);

// What the embedded engine cannot honour now and what would change the answer (n > 1, tools,
// logprobs, response_format, images, ...): a 400 that names it, with code "unsupported_parameter".
std::optional<HttpError> CheckEngine(const GenerationRequest& request);

// The value of the Verbatim-Ignored header: names joined by ", ", bytes outside [A-Za-z0-9_.-] as
// %XX, cut to 1,000 bytes with "..." at the end. Empty where nothing was ignored.
std::string IgnoredHeader(const GenerationRequest& request);

}  // namespace verbatim::gateway
