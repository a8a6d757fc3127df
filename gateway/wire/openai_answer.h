// Answers in OpenAI's older forms: /v1/chat/completions and /v1/completions. See answer.h.
//
// A stream is, in this order: for chat one event per choice with the role; one event per token, an
// empty text included, so that events and tokens correspond; one event with the finish_reason at
// each choice's end; with usage asked for, one event with it and no choices; `data: [DONE]`.
#pragma once

#include <memory>
#include <string>

#include "gateway/wire/answer.h"

namespace verbatim::gateway {

std::string CompletionBody(const AnswerHead& head, const Trace& trace);
std::unique_ptr<StreamWriter> NewCompletionStream(const AnswerHead& head, uint32_t choices,
                                                  bool include_usage);
std::string CompletionStreamError(const HttpError& error);

}  // namespace verbatim::gateway
