#include "base/json_number.h"

#include <algorithm>

#include "base/check.h"

namespace verbatim::json {

namespace {

// Exponents of up to 18 digits are int64 arithmetic; no text is long enough to overflow it then.
constexpr size_t kSmallExponentDigits = 18;

// |magnitude| + delta as decimal text; magnitude has more than 18 digits, so the result is
// positive.
std::string AddToMagnitude(std::string magnitude, int64_t delta) {
  int64_t carry = delta;
  for (size_t i = magnitude.size(); i-- > 0 && carry != 0;) {
    const int64_t sum = (magnitude[i] - '0') + carry;
    int64_t digit = sum % 10;
    if (digit < 0) digit += 10;
    magnitude[i] = static_cast<char>('0' + digit);
    carry = (sum - digit) / 10;
  }
  CHECK(carry >= 0);
  if (carry > 0) magnitude.insert(0, std::to_string(carry));
  const size_t first = magnitude.find_first_not_of('0');
  CHECK(first != std::string::npos);
  return magnitude.substr(first);
}

// Appends point - 1, the exponent of the form d.ddde±x, with its sign.
void AppendExponent(const Decimal& d, std::string& out) {
  if (d.big_point.empty()) {
    const int64_t e = d.point - 1;
    if (e >= 0) out += '+';
    out += std::to_string(e);
  } else {
    out += d.big_point[0];
    out += AddToMagnitude(d.big_point.substr(1), d.big_point[0] == '-' ? 1 : -1);
  }
}

}  // namespace

Decimal ParseDecimal(std::string_view text) {
  Decimal d;
  size_t i = 0;
  if (i < text.size() && text[i] == '-') {
    d.negative = true;
    ++i;
  }
  const size_t mantissa_end = std::min(text.find_first_of("eE"), text.size());
  const std::string_view mantissa = text.substr(i, mantissa_end - i);
  const size_t integer_digits = std::min(mantissa.find('.'), mantissa.size());
  std::string all(mantissa.substr(0, integer_digits));
  if (integer_digits < mantissa.size()) all += mantissa.substr(integer_digits + 1);
  const size_t first = all.find_first_not_of('0');
  if (first == std::string::npos) return Decimal{};  // zero, whatever its sign and exponent
  d.digits = all.substr(first, all.find_last_not_of('0') + 1 - first);
  const int64_t shift = static_cast<int64_t>(integer_digits) - static_cast<int64_t>(first);

  std::string_view exponent = mantissa_end < text.size() ? text.substr(mantissa_end + 1) : "0";
  const bool negative_exponent = exponent[0] == '-';
  if (exponent[0] == '-' || exponent[0] == '+') exponent.remove_prefix(1);
  const size_t significant = exponent.find_first_not_of('0');
  exponent = significant == std::string_view::npos ? "0" : exponent.substr(significant);
  if (exponent.size() <= kSmallExponentDigits) {
    int64_t e = 0;
    for (char c : exponent) e = e * 10 + (c - '0');
    d.point = (negative_exponent ? -e : e) + shift;
    return d;
  }
  // A shift could bring a 19-digit exponent back below the bound, so both forms of one value are
  // made alike: by the size of the sum and not of what was written.
  std::string magnitude = AddToMagnitude(std::string(exponent), negative_exponent ? -shift : shift);
  if (magnitude.size() <= kSmallExponentDigits) {
    int64_t e = 0;
    for (char c : magnitude) e = e * 10 + (c - '0');
    d.point = negative_exponent ? -e : e;
  } else {
    d.big_point = negative_exponent ? '-' : '+';
    d.big_point += magnitude;
  }
  return d;
}

std::string FormatDecimal(const Decimal& d) {
  if (d.digits.empty()) return "0";
  std::string out = d.negative ? "-" : "";
  const std::string& digits = d.digits;
  const auto k = static_cast<int64_t>(digits.size());
  const int64_t n = d.point;
  if (d.big_point.empty() && k <= n && n <= 21) {
    out += digits;
    out.append(static_cast<size_t>(n - k), '0');
  } else if (d.big_point.empty() && 0 < n && n <= 21) {
    out.append(digits, 0, static_cast<size_t>(n));
    out += '.';
    out.append(digits, static_cast<size_t>(n));
  } else if (d.big_point.empty() && -6 < n && n <= 0) {
    out += "0.";
    out.append(static_cast<size_t>(-n), '0');
    out += digits;
  } else {
    out += digits[0];
    if (k > 1) {
      out += '.';
      out.append(digits, 1);
    }
    out += 'e';
    AppendExponent(d, out);
  }
  return out;
}

}  // namespace verbatim::json
