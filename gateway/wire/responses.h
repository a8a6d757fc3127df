// Requests of OpenAI's /v1/responses. See openai.h, Decode.
#pragma once

#include "gateway/wire/openai.h"

namespace verbatim::gateway {

// `input` is a string or a list of messages with text parts; anything else in it (calls, reasoning,
// references) is what CheckEngine refuses. `instructions` becomes the first message.
Decoded<GenerationRequest> DecodeResponses(json::Value body);

}  // namespace verbatim::gateway
