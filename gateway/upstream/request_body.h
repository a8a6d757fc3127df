// Request bodies as they go upstream, what the gateway itself reads in them, and what they say of
// an answer's further use. Pure functions; any thread may call them.
#pragma once

#include <string>
#include <string_view>

#include "base/json.h"
#include "gateway/backend.h"
#include "gateway/endpoint.h"
#include "gateway/wire/openai.h"

namespace verbatim::gateway {

// What the gateway reads of a request that someone else will check: `model` (a string, needed),
// `stream` (true, false, null), stream_options.include_usage, and `seed` where it is an integer.
// Errors: 400 that names one of these; and `deterministic: true`, which no upstream can promise.
Answered<GenerationRequest> DecodeForUpstream(Endpoint endpoint, const json::Value& body);

struct BodyChanges {
  std::string model;       // the upstream's name for the request's model
  bool ask_usage = false;  // stream_options.include_usage becomes true
};

// The body that goes upstream: `body`, an object that was parsed from `text` and whose members
// policy may have set, added or erased. Every value that came from `text` unchanged has its own
// bytes there; the rest is written anew; spaces between members are dropped. The gateway's own
// field `deterministic` does not go out. Equal arguments give equal bytes.
std::string UpstreamBody(const json::Value& body, std::string_view text,
                         const BodyChanges& changes);

// Streams of these endpoints hold usage only where it was asked for.
bool UsageMustBeAskedFor(Endpoint endpoint);

// Whether an answer to this request may serve equal ones.
//
// kStateful: anything in it that someone else keeps or can change: previous_response_id,
// conversation, background, stored prompts and files, containers, URLs that are not data: (in any
// member of a part that holds no text), media kept under a name, item references, tools that run
// elsewhere (all that are not known to run at the client), models and switches that search, lists
// of models of which any may answer. kSampled: neither temperature 0 nor a seed, but where nothing
// is drawn (embeddings, count_tokens).
Reuse ReuseOf(Endpoint endpoint, const json::Value& body);

// Of the request, for the record: temperature, top_p, seed, max_tokens and their like, as sent.
json::Value ParametersOf(const json::Value& body);

}  // namespace verbatim::gateway
