// What policy keeps out of the store (docs/access.md; gateway/redaction.h applies it).
#pragma once

#include <string>

namespace verbatim::policies {

struct RedactRule {
  std::string name;     // in records; "": the pattern's name, or "rule N"
  std::string pointer;  // RFC 6901, where a segment * is every item or member; "": all strings
  std::string pattern;  // "email", "credit_card", "iban", "phone", "us_ssn", or ""
  std::string regex;    // PCRE2, or ""; with neither, the whole string is replaced
  std::string replace = "[REDACTED]";
};

}  // namespace verbatim::policies
