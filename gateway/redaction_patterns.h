// What redaction rules look for in a text: the named patterns, and regular expressions over PCRE2,
// which stays in redaction_patterns.cc. Immutable; any thread.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace verbatim::gateway {

struct TextRange {
  size_t begin = 0, end = 0;  // bytes; end is one past the last
};

class TextPattern {
 public:
  // "email", "credit_card" (13 to 19 digits with the Luhn check digit, in groups or not), "iban"
  // (ISO 13616, with its check digits), "phone" (numbers with +, 00 or a leading 0 in groups, and
  // North American ones), "us_ssn" (in groups). CHECKs that there is a pattern of that name.
  static TextPattern Named(std::string_view name);
  // PCRE2, UTF-8. kInvalid where it is no expression: says what is wrong and where.
  static Result<TextPattern> Regex(const std::string& regex);

  // Matches in order, without overlaps, none empty. Where an expression takes too long on a text
  // (over a second, or PCRE2's limits of steps and memory), all the rest of it is a match.
  std::vector<TextRange> Find(std::string_view text) const;

 private:
  struct Impl;
  explicit TextPattern(std::shared_ptr<const Impl> impl);
  std::shared_ptr<const Impl> impl_;
};

}  // namespace verbatim::gateway
