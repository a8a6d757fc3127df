#include "gateway/upstream/chunked_body.h"

#include <algorithm>

namespace verbatim::gateway {
namespace {

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

bool IsText(char c) {
  const auto byte = static_cast<unsigned char>(c);
  return c == '\t' || (byte >= 0x20 && byte != 0x7f);
}

}  // namespace

size_t ChunkedBody::Put(std::string_view bytes, const Sink& sink, State& state) {
  size_t taken = 0;
  state = State::kMore;
  while (taken < bytes.size() && state == State::kMore) {
    if (at_ != At::kData) {
      state = Step(bytes[taken++]);
      continue;
    }
    const size_t n = static_cast<size_t>(std::min<uint64_t>(size_, bytes.size() - taken));
    if (!sink(bytes.substr(taken, n))) state = State::kStopped;
    taken += n;
    size_ -= n;
    if (size_ == 0) at_ = At::kDataCr;
  }
  return taken;
}

// Every byte but a chunk's data.
ChunkedBody::State ChunkedBody::Step(char c) {
  if (++line_ > line_limit_) return State::kTooLarge;
  switch (at_) {
    case At::kSize:
      if (const int digit = HexDigit(c); digit >= 0) {
        if (size_ >> 59 != 0) return State::kMalformed;
        size_ = size_ * 16 + static_cast<uint64_t>(digit);
        digits_ = true;
        return State::kMore;
      }
      if (!digits_) return State::kMalformed;
      [[fallthrough]];
    case At::kAfterSize:
      if (c == '\r') {
        at_ = At::kSizeEnd;
      } else if (c == ';') {
        at_ = At::kExtension;
      } else if (c == ' ' || c == '\t') {
        at_ = At::kAfterSize;
      } else {
        return State::kMalformed;
      }
      return State::kMore;
    case At::kExtension:
      if (c == '\r') {
        at_ = At::kSizeEnd;
        return State::kMore;
      }
      return IsText(c) ? State::kMore : State::kMalformed;
    case At::kSizeEnd:
      if (c != '\n') return State::kMalformed;
      at_ = size_ == 0 ? At::kLine : At::kData;
      line_ = 0;
      return State::kMore;
    case At::kData:  // not here
    case At::kDataCr:
      if (c != '\r') return State::kMalformed;
      at_ = At::kDataLf;
      return State::kMore;
    case At::kDataLf:
      if (c != '\n') return State::kMalformed;
      at_ = At::kSize;
      digits_ = false;
      line_ = 0;
      return State::kMore;
    case At::kLine:
    case At::kTrailer:
      if (c == '\r') {
        at_ = at_ == At::kLine ? At::kEnd : At::kTrailerEnd;
        return State::kMore;
      }
      at_ = At::kTrailer;
      return IsText(c) ? State::kMore : State::kMalformed;
    case At::kTrailerEnd:
      if (c != '\n') return State::kMalformed;
      at_ = At::kLine;
      return State::kMore;
    case At::kEnd:
      return c == '\n' ? State::kDone : State::kMalformed;
  }
  return State::kMalformed;
}

}  // namespace verbatim::gateway
