// What a run made, whoever made it. A plain value.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "gateway/reply.h"
#include "gateway/trace.h"

namespace verbatim::gateway {

// Tokens of the engine's, or the reply of an upstream with the pieces of its body.
struct Transcript {
  Trace trace;
  std::optional<ReplyHead> reply;
  std::vector<std::string> pieces;

  std::string Body() const {
    std::string body;
    size_t size = 0;
    for (const std::string& piece : pieces) size += piece.size();
    body.reserve(size);
    for (const std::string& piece : pieces) body += piece;
    return body;
  }
};

}  // namespace verbatim::gateway
