// JSON values that lose nothing: numbers keep their digits, strings keep lone surrogates, objects
// keep the order of their members. Parsing is strict: RFC 8259 text, valid UTF-8, no duplicate keys
// (judged after unescaping), a bounded depth. Used for requests, records, leaves and files alike.
//
// Strings are held unescaped, in UTF-8; a lone surrogate escape is held as its three-byte WTF-8
// form (ED A0..BF xx), which no valid input byte sequence can produce. Well-formed pairs are
// combined. Not thread-safe for writers; const access from any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/result.h"

namespace verbatim::json {

class Value;
using Array = std::vector<Value>;
using Member = std::pair<std::string, Value>;
using Object = std::vector<Member>;  // in the order of the text; keys are unique

class Value {
 public:
  enum class Type { kNull, kBool, kNumber, kString, kArray, kObject };

  Value() = default;          // null
  Value(bool v);              // NOLINT: values are written as literals: {"a", true}
  Value(int v);               // NOLINT
  Value(int64_t v);           // NOLINT
  Value(uint64_t v);          // NOLINT
  Value(double v);            // NOLINT: CHECKs finite; the shortest text that reads back
  Value(const char* v);       // NOLINT
  Value(std::string v);       // NOLINT
  Value(std::string_view v);  // NOLINT
  Value(Array v);             // NOLINT
  Value(Object v);            // NOLINT
  // A number given by its JSON text, which must be valid; CHECKed.
  static Value NumberFromText(std::string text);
  static Value MakeObject() { return Value(Object{}); }
  static Value MakeArray() { return Value(Array{}); }

  Type type() const { return type_; }
  bool is_null() const { return type_ == Type::kNull; }
  bool is_bool() const { return type_ == Type::kBool; }
  bool is_number() const { return type_ == Type::kNumber; }
  bool is_string() const { return type_ == Type::kString; }
  bool is_array() const { return type_ == Type::kArray; }
  bool is_object() const { return type_ == Type::kObject; }

  // Access by type; each CHECKs it.
  bool as_bool() const;
  const std::string& as_string() const;
  const std::string& number_text() const;  // the number as written: "1e0", "9007199254740993"
  const Array& items() const;
  Array& items();
  const Object& members() const;
  Object& members();

  // The exact value where it is an integer in range ("1.0" and "1e2" are), else nothing.
  std::optional<int64_t> AsInt64() const;
  std::optional<uint64_t> AsUint64() const;
  // The nearest double, where the value is a number and that double is finite.
  std::optional<double> AsDouble() const;

  // Objects: the member, or null where there is none (or this is no object).
  const Value* Find(std::string_view key) const;
  Value* Find(std::string_view key);
  void Set(std::string key, Value value);  // replaces in place, or appends
  bool Erase(std::string_view key);
  void Append(Value value);  // arrays

  // For parsed values: where the value's text stands in the parsed text (first byte, one past the
  // last), so that what nobody changed can be passed on byte for byte. Both 0 for made values.
  size_t text_begin() const { return begin_; }
  size_t text_end() const { return end_; }

  // Structural equality after canonicalisation (1 == 1.0; member order does not count).
  friend bool operator==(const Value& a, const Value& b);

 private:
  friend class Parser;
  Type type_ = Type::kNull;
  bool bool_ = false;
  std::variant<std::string, Array, Object>
      data_;  // a string, or the text of a number, is the first
  size_t begin_ = 0, end_ = 0;
};

struct ParseLimits {
  size_t max_bytes = size_t{64} << 20;
  size_t max_depth = 256;               // of arrays and objects within each other
  size_t max_values = size_t{1} << 22;  // all values counted; one takes 64 bytes or more
};

// The whole text as one JSON value. Errors: kInvalid with the byte offset and what was expected.
Result<Value> Parse(std::string_view text, const ParseLimits& limits = {});

// Canonical JSON as gateway/FINGERPRINT.md defines it: RFC 8785, and stricter where that would let
// two different values collide (exact decimals, lone surrogates). Equal values give equal bytes.
std::string Canonical(const Value& value);

// One line, members in their order, numbers as written. For answers and files that people read.
std::string Serialize(const Value& value);

// s as a JSON string literal with its quotes (RFC 8785 escapes; WTF-8 surrogates as \udxxx).
std::string Quote(std::string_view s);

// RFC 8785 (ECMAScript Number::toString) text of a finite double; -0 gives "0".
std::string FormatDouble(double v);

}  // namespace verbatim::json
