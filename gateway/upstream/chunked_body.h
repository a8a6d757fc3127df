// The chunked transfer coding (RFC 9112 7.1), byte by byte: nothing is ever kept for later. Sizes,
// extensions and trailers are read strictly and left out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string_view>

namespace verbatim::gateway {

class ChunkedBody {
 public:
  enum class State {
    kMore,
    kDone,      // the line behind the last chunk's trailers was there
    kStopped,   // the sink answered false
    kTooLarge,  // a line, or all trailers together, are over the limit
    kMalformed,
  };
  using Sink = std::function<bool(std::string_view data)>;

  explicit ChunkedBody(size_t line_limit) : line_limit_(line_limit) {}

  // Says how much of `bytes` it took: all of it, unless the body ends within.
  size_t Put(std::string_view bytes, const Sink& sink, State& state);

 private:
  enum class At : uint8_t {
    kSize,       // digits
    kAfterSize,  // spaces before an extension or the line's end
    kExtension,
    kSizeEnd,  // LF
    kData,
    kDataCr,
    kDataLf,
    kLine,  // a trailer begins, or the end
    kTrailer,
    kTrailerEnd,  // LF
    kEnd,         // LF
  };
  State Step(char c);

  const size_t line_limit_;
  size_t line_ = 0;    // bytes of this line; of all trailers
  uint64_t size_ = 0;  // of this chunk, then what is left of it
  bool digits_ = false;
  At at_ = At::kSize;
};

}  // namespace verbatim::gateway
