// The body of a reply as it grows: its bytes once, in blocks that never move, and where its pieces
// end. So readers on other threads send straight from it, while whoever fills it goes on.
//
// A value: copies are deep. Not thread-safe by itself: whoever shares one guards every call; bytes
// that a call gave stay valid and unchanged without the guard, as long as the body lives.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "gateway/reply.h"

namespace verbatim::gateway {

class ReplyBody {
 public:
  struct Piece {
    uint32_t size = 0;
    ByteRange usage{};  // as ReplyPiece::usage
  };
  void Append(std::string bytes, ByteRange usage = {});  // shorter than 4 GiB

  size_t pieces() const { return pieces_.size(); }
  size_t size() const { return size_; }  // of all pieces, in bytes
  size_t held() const { return held_; }  // memory that it takes, in bytes

  // Where a reader has come to: before a piece. Advances only by Read.
  struct Place {
    size_t piece = 0, block = 0, offset = 0;  // offset: in the block
    size_t bytes = 0;                         // of all pieces before it
  };
  // The pieces from `place` on and before the piece `end`, as far as they lie one behind the other
  // in memory: at most `most` of them, and at most `most_bytes` unless the first alone is longer.
  // They are appended to *pieces, where that is not null. Moves `place` behind them.
  std::string_view Read(Place& place, size_t end, size_t most, size_t most_bytes,
                        std::vector<Piece>* pieces) const;

  // Of the pieces before `end`, how many bytes lie behind `place`.
  size_t Behind(const Place& place, size_t end) const;

  std::string Joined() const;

 private:
  std::vector<std::string> blocks_;  // never grown in place
  std::vector<Piece> pieces_;
  size_t size_ = 0, held_ = 0;
};

}  // namespace verbatim::gateway
