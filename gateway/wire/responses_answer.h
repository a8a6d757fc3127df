// Answers of /v1/responses. See answer.h.
//
// A stream is, in this order, numbered from 0: response.created, response.in_progress,
// response.output_item.added, response.content_part.added; one response.output_text.delta per
// token, an empty text included; at the choice's end response.output_text.done,
// response.content_part.done, response.output_item.done; then response.completed, or
// response.incomplete where the length ended it.
#pragma once

#include <memory>
#include <string>

#include "gateway/wire/answer.h"

namespace verbatim::gateway {

std::string ResponseBody(const AnswerHead& head, const Trace& trace);
std::unique_ptr<StreamWriter> NewResponseStream(const AnswerHead& head);
std::string ResponseStreamError(const HttpError& error, uint64_t sequence_number);

// AnswerHead::echo of a request: what is in force, whatever spelling asked for it.
std::string ResponseEcho(const GenerationRequest& request);

}  // namespace verbatim::gateway
