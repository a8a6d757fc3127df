#include "engine/text_stream.h"

#include <algorithm>
#include <utility>

namespace verbatim::engine {

std::string TextStream::Push(std::string_view bytes) {
  if (stopped()) return {};
  return Append(utf8_.Push(bytes));
}

std::string TextStream::Finish() {
  if (stopped()) return {};
  std::string text = Append(utf8_.Finish());
  if (!stopped()) text += std::exchange(held_, {});
  return text;
}

std::string TextStream::Append(std::string text) {
  held_ += text;
  size_t match_begin = 0, match_end = std::string::npos;
  for (size_t i = 0; i < stops_.size(); ++i) {
    const size_t begin = held_.find(stops_[i]);
    if (begin == std::string::npos) continue;
    const size_t end = begin + stops_[i].size();
    if (end < match_end || (end == match_end && begin < match_begin)) {
      match_begin = begin;
      match_end = end;
      stop_ = static_cast<int>(i);
    }
  }
  if (stopped()) {
    held_.resize(match_begin);
    return std::exchange(held_, {});
  }
  // The longest end of the text that begins a stop string stays.
  size_t keep = 0;
  for (const std::string& stop : stops_) {
    for (size_t n = std::min(stop.size() - 1, held_.size()); n > keep; --n) {
      if (held_.ends_with(std::string_view(stop).substr(0, n))) keep = n;
    }
  }
  std::string out = held_.substr(0, held_.size() - keep);
  held_.erase(0, held_.size() - keep);
  return out;
}

}  // namespace verbatim::engine
