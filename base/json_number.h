// The exact decimal of a JSON number, and its layout as ECMAScript's Number::toString lays out
// digits (ECMA-262 6.1.6.1.20). For json.cc only.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace verbatim::json {

// value = (-1)^negative * 0.DIGITS * 10^point. `digits` has no zero at either end; zero is the
// empty string. The point is exact however long the exponent is: an int64 where it fits with room
// to spare, else decimal text with its sign (and only then is `big_point` not empty).
struct Decimal {
  bool negative = false;
  std::string digits;
  int64_t point = 0;
  std::string big_point;
};

// `text` is a valid JSON number. Linear in its length.
Decimal ParseDecimal(std::string_view text);

// ECMAScript's layout over all digits of `d`: equal decimals give equal text, different ones never.
std::string FormatDecimal(const Decimal& d);

}  // namespace verbatim::json
