// An upstream's answer, whole, in the form that one client asked for. Pure functions.
#pragma once

#include <optional>
#include <string>

#include "gateway/reply.h"
#include "gateway/wire/answer.h"

namespace verbatim::gateway {

struct Rendition {
  int status = 200;
  Headers headers;  // the reply's, and its content type
  std::string body;
  bool streamed = false;
  bool converted = false;  // recorded streamed and served plain, or the other way round
};

// The reply's own headers with its content type, for an answer that is passed on as it came.
Headers ReplyHeaders(const ReplyHead& reply);

// Whether the usage in a recorded stream is to be taken out for a client who asked so.
bool StripsUsage(Endpoint endpoint, bool has_usage, const AnswerForm& asked);

// has_usage: `body` is a stream with usage in it that was asked for (OpenAI's include_usage).
// Nothing where the answer cannot be given in that form without loss.
std::optional<Rendition> RenderReply(Endpoint endpoint, const ReplyHead& reply, std::string body,
                                     bool has_usage, const AnswerForm& asked);

}  // namespace verbatim::gateway
