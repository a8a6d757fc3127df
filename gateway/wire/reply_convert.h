// A record made streamed serves a plain request, and the other way round. Lossless or not at all:
// what the merging of a field is not known for gives nothing, and the caller treats it as a miss.
// docs/conversions.md states what becomes of each field.
//
// Inputs are complete answers (reply_reader.h), content-decoded, yet hostile all the same. Numbers
// keep their digits. Pure functions; any thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/json.h"
#include "gateway/endpoint.h"
#include "gateway/reply.h"

namespace verbatim::gateway {

// The one JSON body that says what the events of `stream` say together. Chat completions,
// completions, responses, messages; nothing for other endpoints.
std::optional<std::string> StreamToPlain(Endpoint endpoint, std::string_view stream);

// Events that say what `body` says, as the endpoint's clients expect them: StreamToPlain of them
// equals `body` as a JSON value (checked, each time). include_usage: the client asked for usage
// (stream_options); responses and messages have it always. Without it the usage is left out.
std::optional<std::string> PlainToStream(Endpoint endpoint, std::string_view body,
                                         bool include_usage);

// For a stream of chat completions or completions for which the gateway asked for usage and its
// client did not. Takes one piece (ReplyPiece::bytes), live or of a record, and gives what the
// client sees of it: nothing where it is the chunk that only holds usage; else the same bytes,
// less a member "usage":null.
std::optional<std::string> WithoutUsage(std::string_view event_bytes);

// What WithoutUsage leaves out of the piece; all of it, where nothing is left.
ByteRange UsageIn(std::string_view event_bytes);
// The same for a piece whose event's data was parsed: `chunk`, an object, is its value.
ByteRange UsageIn(std::string_view event_bytes, std::string_view data, const json::Value& chunk);

// WithoutUsage of each event of a recorded stream, joined.
std::string StreamWithoutUsage(std::string_view stream);

// What an answer says, without what differs from run to run (ids, times, usage): for the
// comparison of an upstream that was asked again.
//   {"choices":[{"text","reasoning","refusal","tool_calls":[{"name","arguments"}],
//    "finish_reason"}],"model","system_fingerprint"}
// all strings, "" where the answer has none. Of embeddings and count_tokens the text of the one
// choice is what was computed. Null where `body` cannot be read.
json::Value ComparableAnswer(Endpoint endpoint, std::string_view body, bool streamed);

// Of two such: "" where they are equal, else what differs, the first of "unreadable", "choices"
// (how many), "text", "reasoning", "refusal", "tool_calls", "finish_reason", "model",
// "system_fingerprint".
std::string_view FirstDifference(const json::Value& a, const json::Value& b);

}  // namespace verbatim::gateway
