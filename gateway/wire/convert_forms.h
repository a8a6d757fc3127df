// The conversions of reply_convert.h, one pair per API, on JSON values. Internal to the folder.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/json.h"
#include "gateway/endpoint.h"

namespace verbatim::gateway {

// What to do with a field whose merging is unknown.
enum class Unknown {
  kRefuse,  // no result: conversions
  kSkip,    // leave it out: comparisons
};

// Chat completions and completions: chunks of choices.
std::optional<json::Value> MergeChunks(Endpoint endpoint, std::string_view stream, Unknown unknown);
std::optional<std::string> ChunksOf(Endpoint endpoint, const json::Value& body, bool include_usage);

// Anthropic messages.
std::optional<json::Value> MergeMessageEvents(std::string_view stream, Unknown unknown);
std::optional<std::string> MessageEventsOf(const json::Value& message);

// Responses. The last event holds the whole response; its own text is given.
std::optional<std::string> ResponseOfEvents(std::string_view stream);
std::optional<std::string> ResponseEventsOf(const json::Value& response);

// "event: NAME\n" where there is a name, "data: ...\n\n".
void AppendEvent(std::string_view name, std::string_view data, std::string& out);

}  // namespace verbatim::gateway
