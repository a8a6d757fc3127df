#include "gateway/wire/sse.h"

#include <charconv>
#include <utility>

#include "base/check.h"

namespace verbatim::gateway {

namespace {

constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";

}  // namespace

void SseParser::Feed(std::string_view bytes, std::vector<SsePiece>& out) {
  if (bytes.empty()) return;
  if (too_large_) {
    out.push_back({std::string(bytes), std::nullopt});
    return;
  }
  buffer_.append(bytes);
  Take(false, out);
}

void SseParser::Finish(std::vector<SsePiece>& out) {
  if (too_large_) return;
  Take(true, out);
  if (has_data_ && line_ == buffer_.size()) unfinished_ = TakeEvent();
  if (!buffer_.empty()) out.push_back({std::exchange(buffer_, {}), std::nullopt});
}

void SseParser::Take(bool at_end, std::vector<SsePiece>& out) {
  if (first_) {
    const bool undecided =
        buffer_.size() < kByteOrderMark.size() && kByteOrderMark.starts_with(buffer_);
    if (undecided && !at_end) return;
    first_ = false;
    if (buffer_.starts_with(kByteOrderMark)) line_ = scanned_ = kByteOrderMark.size();
  }
  std::string_view line;
  while (!too_large_ && NextLine(at_end, line)) {
    if (line.empty()) {
      Cut(out);
    } else {
      TakeField(line);
    }
  }
  if (buffer_.size() - piece_ > max_event_bytes_ && !too_large_) {
    too_large_ = true;
    out.push_back({buffer_.substr(piece_), std::nullopt});
  }
  if (too_large_) {
    buffer_ = {};
    return;
  }
  buffer_.erase(0, piece_);
  line_ -= piece_;
  scanned_ -= piece_;
  piece_ = 0;
}

// The next line without its end, if all of it is there.
bool SseParser::NextLine(bool at_end, std::string_view& line) {
  if (skip_lf_ && line_ < buffer_.size()) {
    skip_lf_ = false;
    if (buffer_[line_] == '\n') scanned_ = ++line_;
  }
  const char* at = buffer_.data() + scanned_;
  const char* const stop = buffer_.data() + buffer_.size();
  while (at != stop && *at != '\n' && *at != '\r') ++at;
  scanned_ = static_cast<size_t>(at - buffer_.data());
  if (scanned_ == buffer_.size()) return false;
  size_t next = scanned_ + 1;
  LineEnd end = LineEnd::kCr;
  if (buffer_[scanned_] == '\n') {
    end = LineEnd::kLf;
  } else if (scanned_ == line_ && last_ == LineEnd::kCr) {
    skip_lf_ = true;
  } else if (next == buffer_.size()) {
    if (!at_end) return false;
  } else if (buffer_[next] == '\n') {
    end = LineEnd::kCrLf;
    ++next;
  }
  line = std::string_view(buffer_).substr(line_, scanned_ - line_);
  line_ = scanned_ = next;
  last_ = end;
  return true;
}

void SseParser::TakeField(std::string_view line) {
  const size_t colon = line.find(':');
  const std::string_view name = line.substr(0, colon);
  std::string_view value;
  if (colon != std::string_view::npos) value = line.substr(colon + 1);
  if (value.starts_with(' ')) value.remove_prefix(1);
  if (name == "data") {
    if (has_data_) data_ += '\n';
    data_ += value;
    has_data_ = true;
  } else if (name == "event") {
    type_ = value;
  } else if (name == "id") {
    if (value.find('\0') == std::string_view::npos) id_ = value;
  } else if (name == "retry") {
    uint64_t milliseconds = 0;
    const char* end = value.data() + value.size();
    const auto [stop, error] = std::from_chars(value.data(), end, milliseconds);
    if (error == std::errc{} && stop == end) retry_ = milliseconds;
  }
}

// A blank line was taken: the piece ends before line_.
void SseParser::Cut(std::vector<SsePiece>& out) {
  CHECK(line_ > piece_);
  SsePiece& piece = out.emplace_back();
  if (line_ - piece_ > max_event_bytes_) {
    too_large_ = true;
    piece.bytes = buffer_.substr(piece_);
    return;
  }
  piece.bytes = buffer_.substr(piece_, line_ - piece_);
  piece_ = line_;
  if (has_data_) piece.event = TakeEvent();
  has_data_ = false;
  type_.clear();
  data_.clear();
}

SseEvent SseParser::TakeEvent() {
  if (type_.empty()) type_ = "message";
  return {std::move(type_), std::move(data_), id_};
}

std::vector<SsePiece> ParseEventStream(std::string_view stream, bool unfinished) {
  SseParser parser(stream.size());
  std::vector<SsePiece> pieces;
  parser.Feed(stream, pieces);
  parser.Finish(pieces);
  if (unfinished && parser.unfinished()) pieces.back().event = parser.unfinished();
  return pieces;
}

}  // namespace verbatim::gateway
