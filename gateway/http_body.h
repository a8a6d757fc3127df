// A request body in chunks (RFC 9112, section 7.1), taken apart strictly: sizes are hex digits
// and nothing else, lines end with CRLF. Extensions and trailers are read over within bounds. A
// value of one connection; one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace verbatim::gateway {

class ChunkDecoder {
 public:
  enum class State {
    kMore,       // everything given was used, and more must come
    kDone,       // the body is whole
    kMalformed,  // not chunks
    kTooLarge,   // a chunk would take the body beyond the limit
  };

  explicit ChunkDecoder(uint64_t limit) : limit_(limit) {}

  // Appends to *body what of `bytes` is body. *used: how many bytes of `bytes` it took; fewer than
  // all only at kDone (the rest is the next request) and on errors. After kDone or an error the
  // decoder is spent.
  State Feed(std::string_view bytes, size_t* used, std::string* body);

 private:
  enum class Step { kSize, kExtension, kSizeEnd, kData, kDataCr, kDataLf, kTrailer, kTrailerLf };
  // The byte is taken in and the step advanced; kMore: go on.
  State TakeFraming(char c);

  const uint64_t limit_;
  Step step_ = Step::kSize;
  uint64_t total_ = 0;   // bytes of all chunks announced so far
  uint64_t left_ = 0;    // of this chunk
  size_t line_ = 0;      // digits of the size, or bytes of the trailer's line
  size_t overhead_ = 0;  // bytes of extensions and trailers, of the whole body
};

}  // namespace verbatim::gateway
