// Server-sent events as they arrive: an incremental parser after WHATWG HTML section 9.2.6, which
// also keeps the bytes of each event as they came, so that what was recorded can be sent again.
//
// Bytes may be cut anywhere, inside a CRLF or a character too. The pieces joined are the input, and
// where they are cut depends on the bytes alone, never on the packets. Data is not decoded: bytes
// that are no UTF-8 stay as they are. One parser per stream; no thread safety.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace verbatim::gateway {

struct SseEvent {
  std::string type;  // of the `event` field; "message" where there is none
  std::string data;  // its `data` lines, joined with LF
  std::string id;    // the last event id in force
};

// What stood up to and including a blank line: comments, fields, line ends.
struct SsePiece {
  std::string bytes;
  std::optional<SseEvent> event;  // nothing where no `data` line was among them
};

class SseParser {
 public:
  static constexpr size_t kMaxEventBytes = size_t{16} << 20;
  // A piece that would be longer than max_event_bytes ends the parsing: see too_large.
  explicit SseParser(size_t max_event_bytes = kMaxEventBytes) : max_event_bytes_(max_event_bytes) {}

  // Appends the pieces that `bytes` completes. A blank line that is a lone CR completes its piece
  // at once where the line before ended with a lone CR too (an LF that follows begins the next
  // piece), and else with the next byte, since that may be its LF.
  void Feed(std::string_view bytes, std::vector<SsePiece>& out);

  // The stream ended. Appends what is left, if anything: an event whose blank line never came is no
  // event. Nothing may be fed afterwards.
  void Finish(std::vector<SsePiece>& out);

  // After Finish: the event at the very end whose lines are all there, but whose blank line is not.
  // By WHATWG it is dropped.
  const std::optional<SseEvent>& unfinished() const { return unfinished_; }

  // A piece was too long. It and everything after it is given as it is fed, without events.
  bool too_large() const { return too_large_; }
  // Of the last valid `retry` line, in milliseconds.
  std::optional<uint64_t> retry() const { return retry_; }
  // Bytes held of a piece that is not complete.
  size_t pending() const { return buffer_.size(); }

 private:
  enum class LineEnd { kNone, kCr, kLf, kCrLf };

  void Take(bool at_end, std::vector<SsePiece>& out);
  bool NextLine(bool at_end, std::string_view& line);
  void TakeField(std::string_view line);
  void Cut(std::vector<SsePiece>& out);
  SseEvent TakeEvent();

  const size_t max_event_bytes_;
  std::string buffer_;             // from the first byte of the piece that is not complete
  size_t piece_ = 0;               // in buffer_, while feeding: where that piece begins
  size_t line_ = 0;                // ... and its first line that is not taken
  size_t scanned_ = 0;             // no line end between line_ and here
  LineEnd last_ = LineEnd::kNone;  // of the line before
  bool first_ = true;              // nothing was fed: a byte order mark may come
  bool skip_lf_ = false;           // an LF here belongs to a CR that was taken for a line end
  bool too_large_ = false;
  bool has_data_ = false;
  std::string type_, data_, id_;
  std::optional<uint64_t> retry_;
  std::optional<SseEvent> unfinished_;
};

// A whole stream at once; the bytes of an unfinished event at its end are the last piece, which
// has the event where `unfinished` says so.
std::vector<SsePiece> ParseEventStream(std::string_view stream, bool unfinished = false);

}  // namespace verbatim::gateway
