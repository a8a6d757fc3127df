// Answers of Anthropic's /v1/messages and /v1/messages/count_tokens. See answer.h.
//
// A stream is, in this order: message_start, content_block_start; one content_block_delta per
// token, an empty text included; at the choice's end content_block_stop and message_delta, which
// has the stop_reason; then message_stop.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "gateway/wire/answer.h"

namespace verbatim::gateway {

std::string MessageBody(const AnswerHead& head, const Trace& trace);
std::unique_ptr<StreamWriter> NewMessageStream(const AnswerHead& head, uint32_t prompt_tokens);
std::string MessageStreamError(const HttpError& error, std::string_view request_id);

std::string TokenCountBody(uint64_t input_tokens);

}  // namespace verbatim::gateway
