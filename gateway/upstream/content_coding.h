// Streaming decoders of content codings (RFC 9110 8.4): gzip, deflate, br, zstd. What a sender has
// flushed comes out at once; nothing waits for the end of the body.
//
// A decoder lives on one thread. Input is hostile: a decoder's own memory is bounded (zstd: windows
// up to 8 MB, RFC 8878), and whoever takes the output bounds it by answering false.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace verbatim::gateway {

// Takes decoded bytes, at most 16 KB at a time; false ends the decoding.
using DecodedSink = std::function<bool(std::string_view bytes)>;

class ContentDecoder {
 public:
  enum class State {
    kOk,
    kStopped,  // the sink answered false
    kBad,      // the bytes are not in this coding
  };

  virtual ~ContentDecoder() = default;
  virtual State Decode(std::string_view bytes, const DecodedSink& sink) = 0;
  // Whether the input so far is a whole body; an empty one is.
  virtual bool AtEnd() const = 0;
};

// The decoder of a content-encoding header's value: codings in the order in which they were
// applied, at most two besides identity. Null for none at all. Errors: kUnsupported by name.
Result<std::unique_ptr<ContentDecoder>> MakeContentDecoder(std::string_view content_encoding);

}  // namespace verbatim::gateway
