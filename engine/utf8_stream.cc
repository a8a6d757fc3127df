#include <cstdint>

#include "engine/tokenizer.h"

namespace verbatim::engine {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

// Whether the byte may stand at place i (1 to 3) of a character that starts with `lead`
// (Unicode 15, table 3-7).
bool Continues(uint8_t lead, size_t i, uint8_t byte) {
  if (i == 1) {
    switch (lead) {
      case 0xE0:
        return byte >= 0xA0 && byte <= 0xBF;
      case 0xED:
        return byte >= 0x80 && byte <= 0x9F;
      case 0xF0:
        return byte >= 0x90 && byte <= 0xBF;
      case 0xF4:
        return byte >= 0x80 && byte <= 0x8F;
      default:
        break;
    }
  }
  return byte >= 0x80 && byte <= 0xBF;
}

// Bytes of the character that starts with `lead`; 0 where none does.
size_t Length(uint8_t lead) {
  if (lead < 0x80) return 1;
  if (lead < 0xC2 || lead > 0xF4) return 0;
  return lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
}

}  // namespace

std::string Utf8Stream::Push(std::string_view bytes) {
  std::string out;
  for (const char ch : bytes) {
    const auto byte = static_cast<uint8_t>(ch);
    if (!held_.empty()) {
      const auto lead = static_cast<uint8_t>(held_[0]);
      if (Continues(lead, held_.size(), byte)) {
        held_ += ch;
        if (held_.size() == Length(lead)) {
          out += held_;
          held_.clear();
        }
        continue;
      }
      out += kReplacement;
      held_.clear();
    }
    switch (Length(byte)) {
      case 0:
        out += kReplacement;
        break;
      case 1:
        out += ch;
        break;
      default:
        held_ = ch;
    }
  }
  return out;
}

std::string Utf8Stream::Finish() {
  const bool any = !held_.empty();
  held_.clear();
  return any ? std::string(kReplacement) : std::string();
}

}  // namespace verbatim::engine
