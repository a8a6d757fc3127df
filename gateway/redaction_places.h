// Where the texts of a stream's events stand in the plain form of the same answer, so that one
// pointer into that form says what is redacted in both (redaction.h). Pure functions.
//
// Formats: OpenAI's chunks (choices[].delta is choices[].message of the plain form) and events of
// responses (item, part, delta and response by output_index, content_index and summary_index),
// Anthropic's events (message, content_block and delta by index).
#pragma once

#include <string>
#include <vector>

#include "base/json.h"

namespace verbatim::gateway {

using Place = std::vector<std::string>;  // segments of a JSON pointer, unescaped

// What stands below `from` in an event stands below `to` in the plain answer.
struct Alias {
  Place from, to;
  // It is the text of what stands there, or nobody knows where below: any place further down in the
  // plain answer may be in it.
  bool opaque = false;
};

std::vector<Alias> AliasesOf(const json::Value& event);

// A pointer of a rule that names a place in events as one in the plain form: choices/*/delta is
// choices/*/message. Nothing where it names one that only events have ("delta", "item", "part",
// "content_block", "response", "message" at the top).
bool ToPlainPlace(Place& place);

// Whether `place`, whose segments "*" are any, is `path` or above it.
bool Covers(const Place& place, const Place& path);
// The same for a path in an event with these aliases.
bool Covers(const Place& place, const Place& path, const std::vector<Alias>& aliases);

}  // namespace verbatim::gateway
