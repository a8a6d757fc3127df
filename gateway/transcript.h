// What a run made, whoever made it. A plain value.
#pragma once

#include <optional>

#include "gateway/reply.h"
#include "gateway/reply_body.h"
#include "gateway/trace.h"

namespace verbatim::gateway {

// Tokens of the engine's, or the reply of an upstream with the pieces of its body.
struct Transcript {
  Trace trace;
  std::optional<ReplyHead> reply;
  ReplyBody body;
};

}  // namespace verbatim::gateway
