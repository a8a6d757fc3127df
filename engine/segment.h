// A piece of a prompt and where it came from. The chat template's own text is trusted: control
// tokens written in it are control tokens. Message content and everything else that a request
// brings is not: "<|im_end|>" in it is ten characters of text.
#pragma once

#include <string>
#include <vector>

namespace verbatim::engine {

struct Segment {
  std::string text;
  bool trusted = false;
  friend bool operator==(const Segment&, const Segment&) = default;
};

// The texts joined: the rendered prompt, for its digest and for people.
inline std::string JoinSegments(const std::vector<Segment>& segments) {
  std::string text;
  for (const Segment& s : segments) text += s.text;
  return text;
}

}  // namespace verbatim::engine
