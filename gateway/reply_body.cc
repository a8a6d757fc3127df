#include "gateway/reply_body.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace verbatim::gateway {

namespace {

// A block holds a quarter of what was there before it, so that at most about that much is empty.
constexpr size_t kLeastBlock = 1023, kMostBlock = 65'535;  // and a byte of the string's own
constexpr size_t kOwnBlock = size_t{4} << 10;  // pieces from this size on are not copied into one

}  // namespace

void ReplyBody::Append(std::string piece, ByteRange usage) {
  if (piece.empty()) return;
  CHECK(piece.size() <= UINT32_MAX);
  const size_t size = piece.size();
  const bool fits = !blocks_.empty() && blocks_.back().capacity() - blocks_.back().size() >= size;
  if (fits) {
    blocks_.back() += piece;
  } else if (size >= kOwnBlock) {
    if (piece.capacity() / 5 > size / 4) piece.shrink_to_fit();
    held_ += piece.capacity();
    blocks_.push_back(std::move(piece));
  } else {
    std::string block;
    block.reserve(std::max(size, std::clamp(size_ / 4, kLeastBlock, kMostBlock)));
    held_ += block.capacity();
    block += piece;
    blocks_.push_back(std::move(block));
  }
  pieces_.push_back({static_cast<uint32_t>(size), usage});
  held_ += sizeof(Piece);
  size_ += size;
}

std::string_view ReplyBody::Read(Place& place, size_t end, size_t most, size_t most_bytes,
                                 std::vector<Piece>* pieces) const {
  end = std::min(end, pieces_.size());
  if (place.piece >= end) return {};
  if (place.offset == blocks_[place.block].size()) {
    ++place.block;
    place.offset = 0;
  }
  const std::string& block = blocks_[place.block];
  const size_t begin = place.offset;
  const size_t last = place.piece + std::min(most, end - place.piece);
  while (place.piece < last && place.offset < block.size()) {
    const uint32_t size = pieces_[place.piece].size;
    if (place.offset > begin && place.offset - begin + size > most_bytes) break;
    if (pieces) pieces->push_back(pieces_[place.piece]);
    ++place.piece;
    place.offset += size;
    place.bytes += size;
  }
  return std::string_view(block).substr(begin, place.offset - begin);
}

size_t ReplyBody::Behind(const Place& place, size_t end) const {
  size_t bytes = size_ - place.bytes;
  for (size_t i = std::max(end, place.piece); i < pieces_.size(); ++i) bytes -= pieces_[i].size;
  return bytes;
}

std::string ReplyBody::Joined() const {
  std::string body;
  body.reserve(size_);
  for (const std::string& block : blocks_) body += block;
  return body;
}

}  // namespace verbatim::gateway
