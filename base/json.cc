#include "base/json.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/bytes.h"
#include "base/json_number.h"

namespace verbatim::json {

namespace {

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

// The length of the JSON number at the start of `s`, or 0 where there is none.
size_t NumberLength(std::string_view s) {
  size_t i = 0;
  const auto digits = [&] {
    const size_t start = i;
    while (i < s.size() && IsDigit(s[i])) ++i;
    return i > start;
  };
  if (i < s.size() && s[i] == '-') ++i;
  if (i < s.size() && s[i] == '0') {
    ++i;
  } else if (!digits()) {
    return 0;
  }
  if (i < s.size() && s[i] == '.') {
    ++i;
    if (!digits()) return 0;
  }
  if (i < s.size() && (s[i] == 'e' || s[i] == 'E')) {
    ++i;
    if (i < s.size() && (s[i] == '+' || s[i] == '-')) ++i;
    if (!digits()) return 0;
  }
  return i;
}

void AppendCodePoint(std::string& out, uint32_t c) {
  if (c < 0x80) {
    out += static_cast<char>(c);
  } else if (c < 0x800) {
    out += static_cast<char>(0xc0 | c >> 6);
    out += static_cast<char>(0x80 | (c & 63));
  } else if (c < 0x10000) {
    out += static_cast<char>(0xe0 | c >> 12);
    out += static_cast<char>(0x80 | (c >> 6 & 63));
    out += static_cast<char>(0x80 | (c & 63));
  } else {
    out += static_cast<char>(0xf0 | c >> 18);
    out += static_cast<char>(0x80 | (c >> 12 & 63));
    out += static_cast<char>(0x80 | (c >> 6 & 63));
    out += static_cast<char>(0x80 | (c & 63));
  }
}

// The code point at s[i] (surrogates allowed), and its length; an ill-formed byte is U+FFFD of
// length 1.
uint32_t DecodeAt(std::string_view s, size_t i, size_t& length) {
  const auto byte = [&](size_t k) -> uint32_t {
    return i + k < s.size() ? static_cast<uint8_t>(s[i + k]) : 0u;
  };
  const auto tail = [&](size_t k) { return (byte(k) & 0xc0) == 0x80; };
  const uint32_t c = byte(0);
  length = 1;
  if (c < 0x80) return c;
  if (c >= 0xc2 && c <= 0xdf && tail(1)) {
    length = 2;
    return (c & 31) << 6 | (byte(1) & 63);
  }
  if (c >= 0xe0 && c <= 0xef && tail(1) && tail(2) && !(c == 0xe0 && byte(1) < 0xa0)) {
    length = 3;
    return (c & 15) << 12 | (byte(1) & 63) << 6 | (byte(2) & 63);
  }
  if (c >= 0xf0 && c <= 0xf4 && tail(1) && tail(2) && tail(3) && !(c == 0xf0 && byte(1) < 0x90) &&
      !(c == 0xf4 && byte(1) > 0x8f)) {
    length = 4;
    return (c & 7) << 18 | (byte(1) & 63) << 12 | (byte(2) & 63) << 6 | (byte(3) & 63);
  }
  return 0xfffd;
}

bool IsSurrogate(uint32_t c) { return c >= 0xd800 && c <= 0xdfff; }

// The UTF-16 code units of a string, one after the other; -1 at its end.
class Utf16Reader {
 public:
  explicit Utf16Reader(std::string_view s) : s_(s) {}
  int64_t Next() {
    if (low_ != 0) return std::exchange(low_, 0);
    if (at_ >= s_.size()) return -1;
    size_t length;
    const uint32_t c = DecodeAt(s_, at_, length);
    at_ += length;
    if (c < 0x10000) return c;
    low_ = 0xdc00 + ((c - 0x10000) & 0x3ff);
    return 0xd800 + ((c - 0x10000) >> 10);
  }

 private:
  std::string_view s_;
  size_t at_ = 0;
  uint32_t low_ = 0;
};

// Order of the UTF-16 code units (RFC 8785 section 3.2.3): it differs from byte order in that
// supplementary characters, which are surrogate pairs there, come before U+E000..U+FFFF.
bool Utf16Less(std::string_view a, std::string_view b) {
  const size_t common = std::min(a.size(), b.size());
  size_t at = 0;
  while (at < common && a[at] == b[at]) ++at;
  const auto is_ascii = [](char c) { return static_cast<uint8_t>(c) < 0x80; };
  if (at == common && a.size() == b.size()) return false;
  const bool ascii = (at == a.size() || is_ascii(a[at])) && (at == b.size() || is_ascii(b[at]));
  if (ascii) return at == a.size() || (at < b.size() && a[at] < b[at]);
  Utf16Reader ra(a), rb(b);
  for (;;) {
    const int64_t ua = ra.Next(), ub = rb.Next();
    if (ua != ub) return ua < ub;
    if (ua < 0) return false;
  }
}

void AppendQuoted(std::string& out, std::string_view s) {
  static constexpr char kHex[] = "0123456789abcdef";
  const auto escape = [&](uint32_t c) {
    out += "\\u";
    for (int shift = 12; shift >= 0; shift -= 4) out += kHex[c >> shift & 15];
  };
  const auto stands_as_it_is = [](char c) {
    return c >= 0x20 && c != '"' && c != '\\' && static_cast<uint8_t>(c) < 0x80;
  };
  out += '"';
  for (size_t i = 0; i < s.size();) {
    size_t plain = i;
    while (plain < s.size() && stands_as_it_is(s[plain])) ++plain;
    out.append(s, i, plain - i);
    i = plain;
    if (i == s.size()) break;
    const char c = s[i];
    if (static_cast<uint8_t>(c) >= 0x80) {
      size_t length;
      const uint32_t point = DecodeAt(s, i, length);
      if (IsSurrogate(point)) {
        escape(point);
      } else {
        AppendCodePoint(out, point);
      }
      i += length;
      continue;
    }
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\b':
        out += "\\b";
        break;
      case '\t':
        out += "\\t";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\f':
        out += "\\f";
        break;
      case '\r':
        out += "\\r";
        break;
      default:
        escape(static_cast<uint8_t>(c));
    }
    ++i;
  }
  out += '"';
}

// Both writers: canonical ones sort members and normalise numbers.
void Write(const Value& v, bool canonical, std::string& out) {
  switch (v.type()) {
    case Value::Type::kNull:
      out += "null";
      return;
    case Value::Type::kBool:
      out += v.as_bool() ? "true" : "false";
      return;
    case Value::Type::kNumber:
      out += canonical ? FormatDecimal(ParseDecimal(v.number_text())) : v.number_text();
      return;
    case Value::Type::kString:
      AppendQuoted(out, v.as_string());
      return;
    case Value::Type::kArray: {
      out += '[';
      bool first = true;
      for (const Value& item : v.items()) {
        if (!first) out += ',';
        first = false;
        Write(item, canonical, out);
      }
      out += ']';
      return;
    }
    case Value::Type::kObject: {
      std::vector<const Member*> members;
      members.reserve(v.members().size());
      for (const Member& m : v.members()) members.push_back(&m);
      if (canonical) {
        std::sort(members.begin(), members.end(),
                  [](const Member* a, const Member* b) { return Utf16Less(a->first, b->first); });
      }
      out += '{';
      for (const Member* m : members) {
        if (m != members.front()) out += ',';
        AppendQuoted(out, m->first);
        out += ':';
        Write(m->second, canonical, out);
      }
      out += '}';
      return;
    }
  }
}

// The magnitude of an integer below 10^20, else nothing.
std::optional<uint64_t> IntegerMagnitude(const Decimal& d) {
  if (d.digits.empty()) return 0;
  const auto k = static_cast<int64_t>(d.digits.size());
  if (!d.big_point.empty() || d.point < k || d.point > 20) return std::nullopt;
  uint64_t v = 0;
  for (int64_t i = 0; i < d.point; ++i) {
    const auto digit = static_cast<uint64_t>(i < k ? d.digits[static_cast<size_t>(i)] - '0' : 0);
    if (v > (UINT64_MAX - digit) / 10) return std::nullopt;
    v = v * 10 + digit;
  }
  return v;
}

}  // namespace

constexpr size_t kFewMembers = 16;  // up to this, names are compared pairwise
// An object's room from the start, as long as there are fewer values: later, memory counts for
// more.
constexpr size_t kFirstMembers = 4, kFewValues = 1024;

// Recursive descent over the text, as deep as the limit allows. UTF-8 is judged before it starts.
class Parser {
 public:
  Parser(std::string_view text, const ParseLimits& limits) : text_(text), limits_(limits) {}

  Result<Value> Run() {
    Value v;
    SkipSpace();
    if (ParseValue(v, 0)) {
      SkipSpace();
      if (at_ < text_.size()) Fail("the end of the text");
    }
    if (!error_.empty()) return Error{Code::kInvalid, error_};
    return v;
  }

 private:
  bool Fail(std::string_view expected) {
    if (error_.empty()) {
      error_ = "byte " + std::to_string(at_) + ": expected " + std::string(expected);
      if (at_ >= text_.size()) error_ += ", but the text ends here";
    }
    return false;
  }

  bool FailWith(std::string_view what) {
    if (error_.empty()) error_ = "byte " + std::to_string(at_) + ": " + std::string(what);
    return false;
  }

  void SkipSpace() {
    while (at_ < text_.size() &&
           (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\t' || text_[at_] == '\r')) {
      ++at_;
    }
  }

  bool Eat(char c) {
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }

  bool ParseValue(Value& v, size_t depth) {
    if (at_ >= text_.size()) return Fail("a JSON value");
    if (++values_ > limits_.max_values) {
      return FailWith("more than " + std::to_string(limits_.max_values) + " values");
    }
    v.begin_ = at_;
    if (!ParseByFirstByte(v, depth)) return false;
    v.end_ = at_;
    return true;
  }

  bool ParseByFirstByte(Value& v, size_t depth) {
    switch (text_[at_]) {
      case '{':
        return ParseObject(v, depth + 1);
      case '[':
        return ParseArray(v, depth + 1);
      case '"':
        v.type_ = Value::Type::kString;
        return ParseString(v.data_.emplace<std::string>());
      case 't':
        v.type_ = Value::Type::kBool;
        v.bool_ = true;
        return Literal("true");
      case 'f':
        v.type_ = Value::Type::kBool;
        return Literal("false");
      case 'n':
        return Literal("null");
      default: {
        const size_t length = NumberLength(text_.substr(at_));
        if (length == 0) return Fail("a JSON value");
        v.type_ = Value::Type::kNumber;
        v.data_ = std::string(text_.substr(at_, length));
        at_ += length;
        return true;
      }
    }
  }

  bool Literal(std::string_view word) {
    if (text_.substr(at_, word.size()) != word) return Fail("a JSON value");
    at_ += word.size();
    return true;
  }

  bool TooDeep(size_t depth) {
    if (depth <= limits_.max_depth) return false;
    FailWith("nested deeper than " + std::to_string(limits_.max_depth) + " levels");
    return true;
  }

  bool ParseArray(Value& v, size_t depth) {
    if (TooDeep(depth)) return false;
    v.type_ = Value::Type::kArray;
    Array& items = v.data_.emplace<Array>();
    ++at_;
    SkipSpace();
    if (Eat(']')) return true;
    for (;;) {
      SkipSpace();
      if (!ParseValue(items.emplace_back(), depth)) return false;
      SkipSpace();
      if (Eat(']')) return true;
      if (!Eat(',')) return Fail("',' or ']'");
    }
  }

  bool ParseObject(Value& v, size_t depth) {
    if (TooDeep(depth)) return false;
    v.type_ = Value::Type::kObject;
    Object& members = v.data_.emplace<Object>();
    ++at_;
    SkipSpace();
    if (Eat('}')) return true;
    if (values_ < kFewValues) members.reserve(kFirstMembers);
    for (;;) {
      SkipSpace();
      if (at_ >= text_.size() || text_[at_] != '"') return Fail("a string as the member's name");
      Member& member = members.emplace_back();
      if (!ParseString(member.first)) return false;
      SkipSpace();
      if (!Eat(':')) return Fail("':'");
      SkipSpace();
      if (!ParseValue(member.second, depth)) return false;
      SkipSpace();
      if (Eat('}')) return KeysAreUnique(members);
      if (!Eat(',')) return Fail("',' or '}'");
    }
  }

  static bool AllDiffer(const Object& members) {
    for (size_t i = 1; i < members.size(); ++i) {
      for (size_t k = 0; k < i; ++k) {
        if (members[i].first == members[k].first) return false;
      }
    }
    return true;
  }

  // By sorting, where there are many: no choice of keys makes this slow.
  bool KeysAreUnique(const Object& members) {
    if (members.size() <= kFewMembers && AllDiffer(members)) return true;
    std::vector<std::string_view> keys(members.size());
    for (size_t i = 0; i < keys.size(); ++i) keys[i] = members[i].first;
    std::sort(keys.begin(), keys.end());
    const auto twice = std::adjacent_find(keys.begin(), keys.end());
    if (twice == keys.end()) return true;
    return FailWith("the object that ends here has the name " + Quote(twice->substr(0, 80)) +
                    " more than once");
  }

  bool ParseString(std::string& out) {
    ++at_;
    for (;;) {
      const size_t start = at_;
      const char* at = text_.data() + at_;
      const char* const end = text_.data() + text_.size();
      while (at != end && *at != '"' && *at != '\\' && static_cast<uint8_t>(*at) >= 0x20) ++at;
      at_ = static_cast<size_t>(at - text_.data());
      out.append(text_, start, at_ - start);
      if (at_ >= text_.size()) return Fail("'\"'");
      if (Eat('"')) return true;
      if (text_[at_] != '\\')
        return FailWith("control characters in strings are written as \\u00xx");
      if (!ParseEscape(out)) return false;
    }
  }

  bool ParseEscape(std::string& out) {
    ++at_;
    const char c = at_ < text_.size() ? text_[at_] : '\0';
    static constexpr std::string_view kFrom = "\"\\/bfnrt", kTo = "\"\\/\b\f\n\r\t";
    if (const size_t i = kFrom.find(c); i != std::string_view::npos && c != '\0') {
      out += kTo[i];
      ++at_;
      return true;
    }
    if (c != 'u') return Fail("one of \" \\ / b f n r t u after the backslash");
    ++at_;
    uint32_t unit;
    if (!ParseHex4(at_, unit)) return Fail("four hexadecimal digits");
    at_ += 4;
    uint32_t low;
    if (unit >= 0xd800 && unit <= 0xdbff && text_.substr(at_, 2) == "\\u" &&
        ParseHex4(at_ + 2, low) && low >= 0xdc00 && low <= 0xdfff) {
      unit = 0x10000 + ((unit - 0xd800) << 10) + (low - 0xdc00);
      at_ += 6;
    }
    AppendCodePoint(out, unit);
    return true;
  }

  bool ParseHex4(size_t at, uint32_t& unit) const {
    if (at + 4 > text_.size()) return false;
    const char* end = text_.data() + at + 4;
    const auto [stop, error] = std::from_chars(text_.data() + at, end, unit, 16);
    return error == std::errc{} && stop == end;
  }

  std::string_view text_;
  const ParseLimits& limits_;
  size_t at_ = 0;
  size_t values_ = 0;
  std::string error_;
};

Result<Value> Parse(std::string_view text, const ParseLimits& limits) {
  if (text.size() > limits.max_bytes) {
    return Error{Code::kInvalid, "longer than " + std::to_string(limits.max_bytes) + " bytes"};
  }
  if (!IsUtf8(text)) {
    return Error{Code::kInvalid, "not valid UTF-8"};
  }
  return Parser(text, limits).Run();
}

Value::Value(bool v) : type_(Type::kBool), bool_(v) {}
Value::Value(int v) : type_(Type::kNumber), data_(std::to_string(v)) {}
Value::Value(int64_t v) : type_(Type::kNumber), data_(std::to_string(v)) {}
Value::Value(uint64_t v) : type_(Type::kNumber), data_(std::to_string(v)) {}
Value::Value(double v) : type_(Type::kNumber), data_(FormatDouble(v)) {}
Value::Value(const char* v) : type_(Type::kString), data_(std::string(v)) {}
Value::Value(std::string v) : type_(Type::kString), data_(std::move(v)) {}
Value::Value(std::string_view v) : type_(Type::kString), data_(std::string(v)) {}
Value::Value(Array v) : type_(Type::kArray), data_(std::move(v)) {}
Value::Value(Object v) : type_(Type::kObject), data_(std::move(v)) {}

Value Value::NumberFromText(std::string text) {
  CHECK(!text.empty() && NumberLength(text) == text.size());
  Value v;
  v.type_ = Type::kNumber;
  v.data_ = std::move(text);
  return v;
}

bool Value::as_bool() const {
  CHECK(is_bool());
  return bool_;
}
const std::string& Value::as_string() const {
  CHECK(is_string());
  return std::get<std::string>(data_);
}
const std::string& Value::number_text() const {
  CHECK(is_number());
  return std::get<std::string>(data_);
}
const Array& Value::items() const {
  CHECK(is_array());
  return std::get<Array>(data_);
}
Array& Value::items() {
  CHECK(is_array());
  return std::get<Array>(data_);
}
const Object& Value::members() const {
  CHECK(is_object());
  return std::get<Object>(data_);
}
Object& Value::members() {
  CHECK(is_object());
  return std::get<Object>(data_);
}

std::optional<int64_t> Value::AsInt64() const {
  if (!is_number()) return std::nullopt;
  const Decimal d = ParseDecimal(number_text());
  const auto magnitude = IntegerMagnitude(d);
  constexpr uint64_t kMin = uint64_t{1} << 63;
  if (!magnitude || *magnitude > (d.negative ? kMin : kMin - 1)) return std::nullopt;
  return static_cast<int64_t>(d.negative ? uint64_t{0} - *magnitude : *magnitude);
}

std::optional<uint64_t> Value::AsUint64() const {
  if (!is_number()) return std::nullopt;
  const Decimal d = ParseDecimal(number_text());
  return d.negative ? std::nullopt : IntegerMagnitude(d);
}

std::optional<double> Value::AsDouble() const {
  if (!is_number()) return std::nullopt;
  const std::string& text = number_text();
  double v = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), v);
  if (error == std::errc{}) return std::isfinite(v) ? std::optional<double>(v) : std::nullopt;
  // Out of range: towards zero the nearest double is zero, the other way there is none.
  const Decimal d = ParseDecimal(text);
  const bool tiny = d.big_point.empty() ? d.point < 0 : d.big_point[0] == '-';
  if (!tiny) return std::nullopt;
  return d.negative ? -0.0 : 0.0;
}

const Value* Value::Find(std::string_view key) const {
  if (!is_object()) return nullptr;
  for (const Member& m : members()) {
    if (m.first == key) return &m.second;
  }
  return nullptr;
}

Value* Value::Find(std::string_view key) {
  return const_cast<Value*>(static_cast<const Value*>(this)->Find(key));
}

void Value::Set(std::string key, Value value) {
  if (Value* old = Find(key)) {
    *old = std::move(value);
  } else {
    members().emplace_back(std::move(key), std::move(value));
  }
}

bool Value::Erase(std::string_view key) {
  Object& all = members();
  const auto it =
      std::find_if(all.begin(), all.end(), [&](const Member& m) { return m.first == key; });
  if (it == all.end()) return false;
  all.erase(it);
  return true;
}

void Value::Append(Value value) { items().push_back(std::move(value)); }

bool operator==(const Value& a, const Value& b) { return Canonical(a) == Canonical(b); }

std::string Canonical(const Value& value) {
  std::string out;
  Write(value, true, out);
  return out;
}

std::string Serialize(const Value& value) {
  std::string out;
  Write(value, false, out);
  return out;
}

std::string Quote(std::string_view s) {
  std::string out;
  AppendQuoted(out, s);
  return out;
}

std::string FormatDouble(double v) {
  CHECK(std::isfinite(v));
  // The shortest digits that read back, the nearest of several: what ECMAScript asks for.
  char text[40];
  const auto [end, error] =
      std::to_chars(text, text + sizeof text, v, std::chars_format::scientific);
  CHECK(error == std::errc{});
  return FormatDecimal(ParseDecimal({text, static_cast<size_t>(end - text)}));
}

}  // namespace verbatim::json
