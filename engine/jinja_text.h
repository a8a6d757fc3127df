// Strings of the template interpreter: UTF-8 with the origin of every byte, and Python's view of
// them (characters are code points). Internal to the chat template.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace verbatim::engine::jinja {

// How an error inside the interpreter travels; ChatTemplate turns it into a value.
struct Failure {
  Error error;
};
[[noreturn]] void Fail(std::string message);             // kInvalid: what Jinja would raise
[[noreturn]] void FailUnsupported(std::string message);  // kUnsupported: outside the subset

class Text {
 public:
  Text() = default;
  Text(std::string bytes, bool trusted) : bytes_(std::move(bytes)), trusted_(trusted) {}

  const std::string& bytes() const { return bytes_; }
  bool empty() const { return bytes_.empty(); }
  size_t size() const { return bytes_.size(); }
  void Append(std::string_view bytes, bool trusted);
  void Append(const Text& other);
  Text Slice(size_t begin, size_t end) const;  // bytes
  bool TrustedAt(size_t i) const;
  // Calls f(bytes, trusted) for each run of one origin.
  template <typename F>
  void ForEachRun(F f) const {
    if (runs_.empty()) {
      if (!bytes_.empty()) f(std::string_view(bytes_), trusted_);
      return;
    }
    size_t begin = 0;
    for (const auto& [end, trusted] : runs_) {
      f(std::string_view(bytes_).substr(begin, end - begin), trusted);
      begin = end;
    }
  }

 private:
  std::string bytes_;
  bool trusted_ = true;                        // of all bytes, where runs_ is empty
  std::vector<std::pair<size_t, bool>> runs_;  // end, trusted; neighbours differ
};

// Code points. A byte that is part of no UTF-8 sequence counts as a character of its own.
size_t CharLength(std::string_view s, size_t at);  // bytes of the character at `at`
uint32_t CharAt(std::string_view s, size_t at);
size_t CharCount(std::string_view s);
std::vector<size_t> CharOffsets(std::string_view s);  // of each character, then s.size()
void AppendChar(std::string& out, uint32_t c);

// Python's character classes and case mapping (str.isspace, str.upper, ...).
bool IsSpace(uint32_t c);
bool IsLineBreak(uint32_t c);  // str.splitlines
bool IsPrintable(uint32_t c);
bool IsAlpha(uint32_t c);
bool IsDecimal(uint32_t c);  // str.isdigit for ASCII and other decimal digits
bool IsUpper(uint32_t c);
bool IsLower(uint32_t c);
std::string ToUpper(uint32_t c);  // may be several characters
std::string ToLower(uint32_t c);
std::string ToTitle(uint32_t c);

enum class Side { kBoth, kLeft, kRight };
// The bytes that remain, begin and end, after stripping white space, or any of `chars`.
std::pair<size_t, size_t> Strip(std::string_view s, Side side, const std::string* chars);

}  // namespace verbatim::engine::jinja
