#include "gateway/http_body.h"

#include <algorithm>

namespace verbatim::gateway {
namespace {

constexpr size_t kMaxSizeDigits = 15;  // below 2^60: no sum of them and a limit overflows
// Extensions and trailers that nobody reads; a body made of them is an attack.
constexpr size_t kMaxOverhead = size_t{16} << 10;

int HexValue(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

bool IsControl(char c) { return (static_cast<unsigned char>(c) < 0x20 && c != '\t') || c == 0x7f; }

}  // namespace

ChunkDecoder::State ChunkDecoder::TakeFraming(char c) {
  switch (step_) {
    case Step::kSize: {
      const int digit = HexValue(c);
      if (digit >= 0) {
        if (++line_ > kMaxSizeDigits) return State::kMalformed;
        left_ = left_ * 16 + static_cast<uint64_t>(digit);
        return State::kMore;
      }
      if (line_ == 0) return State::kMalformed;
      if (c == '\r') {
        step_ = Step::kSizeEnd;
      } else if (c == ';') {
        step_ = Step::kExtension;
      } else {
        return State::kMalformed;
      }
      return State::kMore;
    }
    case Step::kExtension:
      if (c == '\r') {
        step_ = Step::kSizeEnd;
      } else if (IsControl(c) || ++overhead_ > kMaxOverhead) {
        return State::kMalformed;
      }
      return State::kMore;
    case Step::kSizeEnd:
      if (c != '\n') return State::kMalformed;
      line_ = 0;
      if (left_ > limit_ - total_) return State::kTooLarge;
      total_ += left_;
      step_ = left_ == 0 ? Step::kTrailer : Step::kData;
      return State::kMore;
    case Step::kDataCr:
      if (c != '\r') return State::kMalformed;
      step_ = Step::kDataLf;
      return State::kMore;
    case Step::kDataLf:
      if (c != '\n') return State::kMalformed;
      step_ = Step::kSize;
      return State::kMore;
    case Step::kTrailer:
      if (c == '\r') {
        step_ = Step::kTrailerLf;
      } else if (IsControl(c) || ++overhead_ > kMaxOverhead) {
        return State::kMalformed;
      } else {
        ++line_;
      }
      return State::kMore;
    case Step::kTrailerLf:
      if (c != '\n') return State::kMalformed;
      if (line_ == 0) return State::kDone;
      line_ = 0;
      step_ = Step::kTrailer;
      return State::kMore;
    case Step::kData:
      break;
  }
  return State::kMalformed;
}

ChunkDecoder::State ChunkDecoder::Feed(std::string_view bytes, size_t* used, std::string* body) {
  size_t at = 0;
  while (at < bytes.size()) {
    if (step_ == Step::kData) {
      const size_t n = std::min<uint64_t>(left_, bytes.size() - at);
      body->append(bytes.substr(at, n));
      at += n;
      left_ -= n;
      if (left_ == 0) step_ = Step::kDataCr;
      continue;
    }
    const State state = TakeFraming(bytes[at++]);
    if (state != State::kMore) {
      *used = at;
      return state;
    }
  }
  *used = at;
  return State::kMore;
}

}  // namespace verbatim::gateway
