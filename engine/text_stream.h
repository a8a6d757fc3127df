// From the bytes of tokens to text that may leave: whole UTF-8 only, and nothing that belongs to a
// stop string or may still become one. Not thread-safe.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/tokenizer.h"

namespace verbatim::engine {

class TextStream {
 public:
  // stops: non-empty, UTF-8.
  explicit TextStream(std::vector<std::string> stops) : stops_(std::move(stops)) {}

  // The text that the next bytes decide. Where a stop string is complete, the text before it; what
  // comes later is dropped. Of several stop strings the one that is complete first counts, and of
  // those that end together the longest; so the result does not depend on how the bytes are cut.
  std::string Push(std::string_view bytes);
  // What was held back: the rest of the text, an incomplete character as U+FFFD.
  std::string Finish();

  bool stopped() const { return stop_ >= 0; }
  const std::string& stop() const { return stops_[static_cast<size_t>(stop_)]; }  // where stopped()

 private:
  std::string Append(std::string text);

  std::vector<std::string> stops_;
  Utf8Stream utf8_;
  std::string held_;  // whole UTF-8; a beginning of a stop string
  int stop_ = -1;     // the stop string that matched
};

}  // namespace verbatim::engine
