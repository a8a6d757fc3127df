// Requests of Anthropic's /v1/messages and /v1/messages/count_tokens. See openai.h, Decode.
#pragma once

#include "gateway/wire/openai.h"

namespace verbatim::gateway {

// `system` becomes the first message. What CheckEngine refuses: blocks that are no text, and a last
// message of the assistant's, which this API would continue.
Decoded<GenerationRequest> DecodeMessages(Endpoint endpoint, json::Value body);

}  // namespace verbatim::gateway
