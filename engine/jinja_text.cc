#include "engine/jinja_text.h"

#include <algorithm>
#include <iterator>
#include <span>

#include "engine/unicode_tables.h"

namespace verbatim::engine::jinja {

void Fail(std::string message) { throw Failure{{Code::kInvalid, std::move(message)}}; }
void FailUnsupported(std::string message) {
  throw Failure{{Code::kUnsupported, std::move(message)}};
}

void Text::Append(std::string_view bytes, bool trusted) {
  if (bytes.empty()) return;
  const size_t old = bytes_.size();
  if (old == 0) {
    trusted_ = trusted;
    runs_.clear();
  } else if (runs_.empty() && trusted != trusted_) {
    runs_ = {{old, trusted_}, {old + bytes.size(), trusted}};
  } else if (!runs_.empty()) {
    if (runs_.back().second == trusted) {
      runs_.back().first += bytes.size();
    } else {
      runs_.emplace_back(old + bytes.size(), trusted);
    }
  }
  bytes_ += bytes;
}

void Text::Append(const Text& other) {
  other.ForEachRun([this](std::string_view bytes, bool trusted) { Append(bytes, trusted); });
}

Text Text::Slice(size_t begin, size_t end) const {
  if (runs_.empty()) return Text(bytes_.substr(begin, end - begin), trusted_);
  Text out;
  auto run = std::upper_bound(runs_.begin(), runs_.end(), begin,
                              [](size_t at, const auto& r) { return at < r.first; });
  while (begin < end) {
    const size_t stop = std::min(end, run->first);
    out.Append(std::string_view(bytes_).substr(begin, stop - begin), run->second);
    begin = stop;
    ++run;
  }
  return out;
}

bool Text::TrustedAt(size_t i) const {
  if (runs_.empty()) return trusted_;
  return std::upper_bound(runs_.begin(), runs_.end(), i,
                          [](size_t at, const auto& r) { return at < r.first; })
      ->second;
}

size_t CharLength(std::string_view s, size_t at) {
  const auto c = static_cast<uint8_t>(s[at]);
  const size_t n = c < 0xC2 ? 1 : c < 0xE0 ? 2 : c < 0xF0 ? 3 : c < 0xF5 ? 4 : 1;
  if (at + n > s.size()) return 1;
  for (size_t i = 1; i < n; ++i) {
    if ((static_cast<uint8_t>(s[at + i]) & 0xC0) != 0x80) return 1;
  }
  return n;
}

uint32_t CharAt(std::string_view s, size_t at) {
  const auto byte = [&](size_t i) {
    return static_cast<uint32_t>(static_cast<uint8_t>(s[at + i]));
  };
  switch (CharLength(s, at)) {
    case 2:
      return (byte(0) & 0x1F) << 6 | (byte(1) & 0x3F);
    case 3:
      return (byte(0) & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F);
    case 4:
      return (byte(0) & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 |
             (byte(3) & 0x3F);
    default:
      return byte(0) < 0x80 ? byte(0) : 0xDC00 + byte(0);  // Python's surrogateescape
  }
}

size_t CharCount(std::string_view s) {
  size_t n = 0;
  for (size_t i = 0; i < s.size(); i += CharLength(s, i)) ++n;
  return n;
}

std::vector<size_t> CharOffsets(std::string_view s) {
  std::vector<size_t> offsets;
  offsets.reserve(s.size() + 1);
  for (size_t i = 0; i < s.size(); i += CharLength(s, i)) offsets.push_back(i);
  offsets.push_back(s.size());
  return offsets;
}

void AppendChar(std::string& out, uint32_t c) {
  const auto put = [&](uint32_t b) { out += static_cast<char>(b); };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xC0 | c >> 6);
    put(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    put(0xE0 | c >> 12);
    put(0x80 | (c >> 6 & 0x3F));
    put(0x80 | (c & 0x3F));
  } else {
    put(0xF0 | c >> 18);
    put(0x80 | (c >> 12 & 0x3F));
    put(0x80 | (c >> 6 & 0x3F));
    put(0x80 | (c & 0x3F));
  }
}

namespace {

bool InRanges(std::span<const CodeRange> ranges, uint32_t c) {
  const auto it = std::upper_bound(ranges.begin(), ranges.end(), c,
                                   [](uint32_t v, const CodeRange& r) { return v < r.first; });
  return it != ranges.begin() && c <= std::prev(it)->last;
}

const char* FindString(std::span<const CaseString> strings, uint32_t c) {
  const auto it = std::lower_bound(strings.begin(), strings.end(), c,
                                   [](const CaseString& s, uint32_t v) { return s.code < v; });
  return it != strings.end() && it->code == c ? it->text : nullptr;
}

uint32_t MapCase(std::span<const CaseRange> ranges, uint32_t c) {
  auto it = std::upper_bound(ranges.begin(), ranges.end(), c,
                             [](uint32_t v, const CaseRange& r) { return v < r.first; });
  // Ranges with a step of two may overlap their neighbour's gaps; look a few back.
  for (int back = 0; back < 3 && it != ranges.begin(); ++back) {
    --it;
    if (c <= it->last && (c - it->first) % it->step == 0) {
      return static_cast<uint32_t>(static_cast<int64_t>(c) + it->delta);
    }
  }
  return c;
}

std::string Char(uint32_t c) {
  std::string out;
  AppendChar(out, c);
  return out;
}

}  // namespace

bool IsSpace(uint32_t c) {
  return (c >= 9 && c <= 13) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}
bool IsLineBreak(uint32_t c) {
  return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 ||
         c == 0x2029;
}
bool IsPrintable(uint32_t c) {
  return c < 0x80 ? c >= 0x20 && c != 0x7F : InRanges({kPrintableRanges, kPrintableRangesCount}, c);
}
bool IsAlpha(uint32_t c) {
  return c < 0x80 ? (c | 0x20) >= 'a' && (c | 0x20) <= 'z'
                  : InRanges({kAlphaRanges, kAlphaRangesCount}, c);
}
bool IsDecimal(uint32_t c) {
  return c < 0x80 ? c >= '0' && c <= '9' : InRanges({kDigitRanges, kDigitRangesCount}, c);
}
bool IsUpper(uint32_t c) {
  return c < 0x80 ? c >= 'A' && c <= 'Z' : InRanges({kUppercaseRanges, kUppercaseRangesCount}, c);
}
bool IsLower(uint32_t c) {
  return c < 0x80 ? c >= 'a' && c <= 'z' : InRanges({kLowercaseRanges, kLowercaseRangesCount}, c);
}

std::string ToUpper(uint32_t c) {
  if (c < 0x80) return std::string(1, static_cast<char>(IsLower(c) ? c - 32 : c));
  if (const char* s = FindString({kUpperStrings, kUpperStringsCount}, c)) return s;
  return Char(MapCase({kUpperRanges, kUpperRangesCount}, c));
}
std::string ToLower(uint32_t c) {
  if (c < 0x80) return std::string(1, static_cast<char>(IsUpper(c) ? c + 32 : c));
  // Final sigma depends on its neighbours.
  if (c == 0x3A3) FailUnsupported("lower-casing U+03A3 (final sigma) is outside the subset");
  if (const char* s = FindString({kLowerStrings, kLowerStringsCount}, c)) return s;
  return Char(MapCase({kLowerRanges, kLowerRangesCount}, c));
}
std::string ToTitle(uint32_t c) {
  if (const char* s = FindString({kTitleStrings, kTitleStringsCount}, c)) return s;
  return ToUpper(c);
}

std::pair<size_t, size_t> Strip(std::string_view s, Side side, const std::string* chars) {
  const auto strips = [&](size_t at) {
    const size_t n = CharLength(s, at);
    if (chars == nullptr) return IsSpace(CharAt(s, at));
    for (size_t i = 0; i < chars->size(); i += CharLength(*chars, i)) {
      if (std::string_view(*chars).substr(i, CharLength(*chars, i)) == s.substr(at, n)) return true;
    }
    return false;
  };
  size_t begin = 0, end = s.size();
  if (side != Side::kRight) {
    while (begin < end && strips(begin)) begin += CharLength(s, begin);
  }
  if (side != Side::kLeft) {
    while (begin < end) {
      size_t last = end - 1;
      while (last > begin && end - last < 4 && (static_cast<uint8_t>(s[last]) & 0xC0) == 0x80)
        --last;
      if (last + CharLength(s, last) != end) last = end - 1;
      if (!strips(last)) break;
      end = last;
    }
  }
  return {begin, end};
}

}  // namespace verbatim::engine::jinja
