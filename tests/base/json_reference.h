// What it means that two JSON values are equal, said a second time and without canonical text: the
// decimal values of numbers, the characters of strings, members by name. For tests that compare the
// canonical form with it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "base/json.h"

namespace verbatim::test {

// digits x 10^exponent, without zeros at either end; zero has no digits.
struct Decimal {
  bool negative = false;
  std::string digits;
  int64_t exponent = 0;
  bool operator==(const Decimal&) const = default;
};

// Nothing where the exponent has more than 15 digits.
inline std::optional<Decimal> ToDecimal(std::string_view text) {
  Decimal d;
  if (text.starts_with('-')) {
    d.negative = true;
    text.remove_prefix(1);
  }
  const size_t e = std::min(text.find_first_of("eE"), text.size());
  const std::string_view mantissa = text.substr(0, e);
  const size_t point = std::min(mantissa.find('.'), mantissa.size());
  d.digits = mantissa.substr(0, point);
  if (point < mantissa.size()) {
    d.digits += mantissa.substr(point + 1);
    d.exponent = -static_cast<int64_t>(mantissa.size() - point - 1);
  }
  if (e < text.size()) {
    const std::string exponent(text.substr(e + 1));
    if (exponent.size() > 16) return std::nullopt;
    d.exponent += std::stoll(exponent);
  }
  d.digits.erase(0, std::min(d.digits.find_first_not_of('0'), d.digits.size()));
  while (!d.digits.empty() && d.digits.back() == '0') {
    d.digits.pop_back();
    ++d.exponent;
  }
  return d.digits.empty() ? Decimal() : d;
}

// Nothing where that cannot be said here.
inline std::optional<bool> SameValue(const json::Value& a, const json::Value& b) {
  if (a.type() != b.type()) return false;
  switch (a.type()) {
    case json::Value::Type::kNull:
      return true;
    case json::Value::Type::kBool:
      return a.as_bool() == b.as_bool();
    case json::Value::Type::kString:
      return a.as_string() == b.as_string();
    case json::Value::Type::kNumber: {
      const auto x = ToDecimal(a.number_text()), y = ToDecimal(b.number_text());
      if (!x || !y) return std::nullopt;
      return *x == *y;
    }
    case json::Value::Type::kArray: {
      if (a.items().size() != b.items().size()) return false;
      for (size_t i = 0; i < a.items().size(); ++i) {
        const auto same = SameValue(a.items()[i], b.items()[i]);
        if (!same || !*same) return same;
      }
      return true;
    }
    case json::Value::Type::kObject: {
      if (a.members().size() != b.members().size()) return false;
      std::map<std::string_view, const json::Value*> members;
      for (const auto& [name, value] : b.members()) members[name] = &value;
      for (const auto& [name, value] : a.members()) {
        const auto found = members.find(name);
        if (found == members.end()) return false;
        const auto same = SameValue(value, *found->second);
        if (!same || !*same) return same;
      }
      return true;
    }
  }
  return std::nullopt;
}

}  // namespace verbatim::test
