// Methods of Python's strings, dicts, lists and loops, both kinds of string formatting, numbers
// from text, and the clock.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <limits>

#include "engine/jinja_interpreter.h"

namespace verbatim::engine::jinja {
namespace {

constexpr std::string_view kMethods[] = {
    "capitalize", "center",     "count",        "endswith",     "find",    "format",
    "index",      "isalnum",    "isalpha",      "isdigit",      "islower", "isnumeric",
    "isdecimal",  "isspace",    "isupper",      "join",         "ljust",   "lower",
    "lstrip",     "partition",  "removeprefix", "removesuffix", "replace", "rfind",
    "rindex",     "rjust",      "rpartition",   "rsplit",       "rstrip",  "split",
    "splitlines", "startswith", "strip",        "swapcase",     "title",   "upper",
    "zfill"};
constexpr std::string_view kOtherMethods[] = {
    "casefold",     "encode",      "expandtabs", "format_map", "isascii",
    "isidentifier", "isprintable", "istitle",    "maketrans",  "translate"};

size_t Find(std::string_view hay, std::string_view needle, size_t from) {
  if (from > hay.size()) return std::string_view::npos;
  const void* at = memmem(hay.data() + from, hay.size() - from, needle.data(), needle.size());
  return at == nullptr ? std::string_view::npos
                       : static_cast<size_t>(static_cast<const char*>(at) - hay.data());
}

// Each character mapped; the origin stays with it. f(code point, index of the character).
template <typename F>
Text MapChars(const Text& text, F f) {
  const std::string& s = text.bytes();
  Text out;
  size_t index = 0;
  for (size_t i = 0; i < s.size(); ++index) {
    const size_t n = CharLength(s, i);
    const bool stray = n == 1 && static_cast<uint8_t>(s[i]) >= 0x80;
    out.Append(stray ? s.substr(i, 1) : f(CharAt(s, i), index), text.TrustedAt(i));
    i += n;
  }
  return out;
}

// Whether there are characters and all pass.
template <typename F>
bool AllChars(std::string_view s, F f) {
  for (size_t i = 0; i < s.size(); i += CharLength(s, i)) {
    if (!f(CharAt(s, i))) return false;
  }
  return !s.empty();
}

// [[fill]align][sign][0][width][,][.precision][type] of str.format, and what % gives it.
struct Spec {
  std::string fill = " ";
  char align = 0, sign = '-', type = 0;
  bool zero = false, comma = false, alternate = false;
  int64_t width = 0, precision = -1;
};

int64_t ReadDigits(std::string_view s, size_t& i) {
  int64_t v = 0;
  for (; i < s.size() && s[i] >= '0' && s[i] <= '9'; ++i) {
    v = v * 10 + (s[i] - '0');
    if (v > 4096) FailUnsupported("a format width beyond 4096 is outside the subset");
  }
  return v;
}

Spec ParseSpec(std::string_view s) {
  Spec spec;
  size_t i = 0;
  const auto is_align = [](char c) { return c == '<' || c == '>' || c == '^' || c == '='; };
  if (!s.empty() && CharLength(s, 0) < s.size() && is_align(s[CharLength(s, 0)])) {
    spec.fill = s.substr(0, CharLength(s, 0));
    i = spec.fill.size();
    spec.align = s[i++];
  } else if (!s.empty() && is_align(s[0])) {
    spec.align = s[i++];
  }
  if (i < s.size() && (s[i] == '+' || s[i] == '-' || s[i] == ' ')) spec.sign = s[i++];
  if (i < s.size() && s[i] == '0') {
    spec.zero = true;
    ++i;
  }
  spec.width = ReadDigits(s, i);
  if (i < s.size() && s[i] == ',') {
    spec.comma = true;
    ++i;
  }
  if (i < s.size() && s[i] == '.') {
    ++i;
    spec.precision = ReadDigits(s, i);
  }
  if (i < s.size()) spec.type = s[i++];
  if (i != s.size() || (spec.type != 0 && std::strchr("sdfFxXob%", spec.type) == nullptr)) {
    FailUnsupported("the format '" + std::string(s) + "' is outside the subset");
  }
  return spec;
}

Text Pad(const Text& text, const Spec& spec, char default_align) {
  const auto chars = static_cast<int64_t>(CharCount(text.bytes()));
  if (chars >= spec.width) return text;
  const char align = spec.align != 0 ? spec.align : default_align;
  const int64_t missing = spec.width - chars;
  const int64_t left = align == '<' ? 0 : align == '^' ? missing / 2 : missing;
  Text out;
  for (int64_t i = 0; i < left; ++i) out.Append(spec.fill, true);
  out.Append(text);
  for (int64_t i = left; i < missing; ++i) out.Append(spec.fill, true);
  return out;
}

std::string WithCommas(std::string digits) {
  const size_t end = std::min(digits.find('.'), digits.size());
  for (size_t i = end; i > 3; i -= 3) digits.insert(i - 3, ",");
  return digits;
}

Text FormatNumber(const Value& v, const Spec& spec) {
  std::string digits;
  bool negative = false;
  const char type = spec.type;
  const bool as_float = type == 'f' || type == 'F' || type == '%';
  if (as_float) {
    double d = v.real();
    if (type == '%') d *= 100;
    if (std::isnan(d) || std::isinf(d)) FailUnsupported("formatting nan or inf");
    char buffer[512];
    const int precision = spec.precision < 0 ? 6 : static_cast<int>(spec.precision);
    if (precision > 100) FailUnsupported("a precision beyond 100 is outside the subset");
    std::snprintf(buffer, sizeof buffer, "%.*f", precision, std::fabs(d));
    digits = buffer;
    negative = std::signbit(d);
  } else if (v.is(Kind::kFloat)) {
    if (type != 0 || spec.precision >= 0) {
      FailUnsupported("this format of a float is outside the subset");
    }
    digits = FloatRepr(std::fabs(v.real()));
    negative = std::signbit(v.real());
  } else {
    const int base = type == 'x' || type == 'X' ? 16 : type == 'o' ? 8 : type == 'b' ? 2 : 10;
    negative = v.integer() < 0;
    const uint64_t magnitude =
        negative ? 0 - static_cast<uint64_t>(v.integer()) : static_cast<uint64_t>(v.integer());
    char buffer[72];
    const auto [end, error] = std::to_chars(buffer, buffer + sizeof buffer, magnitude, base);
    digits.assign(buffer, end);
    if (type == 'X') {
      for (char& c : digits) c = static_cast<char>(c >= 'a' ? c - 32 : c);
    }
  }
  if (spec.comma) digits = WithCommas(digits);
  if (type == '%') digits += '%';
  const std::string sign = negative ? "-" : spec.sign == '-' ? "" : std::string(1, spec.sign);
  if ((spec.zero && spec.align == 0) || spec.align == '=') {
    if (spec.comma) FailUnsupported("zero padding with commas is outside the subset");
    const std::string fill = spec.align == '=' && !spec.zero ? spec.fill : "0";
    std::string body = digits;
    while (static_cast<int64_t>(body.size() + sign.size()) < spec.width) body.insert(0, fill);
    return Text(sign + body, true);
  }
  return Pad(Text(sign + digits, true), spec, '>');
}

Text FormatValue(const Value& v, std::string_view format) {
  if (format.empty()) return ToText(v);
  const Spec spec = ParseSpec(format);
  if (v.is_string()) {
    if (spec.type != 0 && spec.type != 's') {
      Fail(std::string("Unknown format code '") + spec.type + "' for object of type 'str'");
    }
    if (spec.zero || spec.comma || spec.align == '=') {
      FailUnsupported("this format of a string is outside the subset");
    }
    Text text = v.text();
    if (spec.precision >= 0) {
      const auto offsets = CharOffsets(text.bytes());
      const auto keep = std::min<size_t>(static_cast<size_t>(spec.precision), offsets.size() - 1);
      text = text.Slice(0, offsets[keep]);
    }
    return Pad(text, spec, '<');
  }
  if (v.is(Kind::kBool) || v.is(Kind::kBigInt)) {
    FailUnsupported("formatting a " + TypeName(v) + " with '" + std::string(format) + "'");
  }
  if (!v.is_number() || spec.type == 's') {
    Fail("unsupported format string passed to " + TypeName(v) + ".__format__");
  }
  if (v.is(Kind::kFloat) && spec.type == 'd') {
    Fail("Unknown format code 'd' for object of type 'float'");
  }
  return FormatNumber(v, spec);
}

}  // namespace

bool HasStringMethod(std::string_view name) {
  return std::find(std::begin(kMethods), std::end(kMethods), name) != std::end(kMethods);
}
bool IsPythonStringMethod(std::string_view name) {
  return std::find(std::begin(kOtherMethods), std::end(kOtherMethods), name) !=
         std::end(kOtherMethods);
}

Text Escape(const Text& text) {
  Text out;
  text.ForEachRun([&](std::string_view run, bool trusted) {
    for (const char c : run) {
      switch (c) {
        case '&':
          out.Append("&amp;", true);
          break;
        case '<':
          out.Append("&lt;", true);
          break;
        case '>':
          out.Append("&gt;", true);
          break;
        case '\'':
          out.Append("&#39;", true);
          break;
        case '"':
          out.Append("&#34;", true);
          break;
        default:
          out.Append(std::string_view(&c, 1), trusted);
      }
    }
  });
  return out;
}

Value Interpreter::CallMethod(const MethodObject& method, const Args& args) {
  const Value& self = method.self;
  const std::string& name = method.name;
  if (self.is_string()) return StringMethod(self, name, args);
  if (self.is(Kind::kLoop)) return CallLoop(self.as<LoopObject>(), name, args);
  if (self.is(Kind::kList)) {  // count, index
    const auto a = Bind(args, name, {"value"});
    if (a[0] == nullptr) Fail("list." + name + "() takes exactly one argument (0 given)");
    int64_t count = 0, at = 0;
    for (const Value& v : Items(self)) {
      if (EqualValues(v, *a[0])) {
        if (name == "index") return Value::Int(at);
        ++count;
      }
      ++at;
    }
    if (name == "index") Fail("value is not in list");
    return Value::Int(count);
  }
  const DictObject& dict = self.dict();
  if (name == "get") {
    if (!args.keywords.empty()) Fail("dict.get() takes no keyword arguments");
    const auto a = Bind(args, "get", {"key", "default"});
    if (a[0] == nullptr) Fail("get expected at least 1 argument, got 0");
    Charge(a[0]->weight() / 16);
    const Value* v = dict.Find(*a[0]);
    return v != nullptr ? *v : a[1] == nullptr ? Value::None() : *a[1];
  }
  Bind(args, name, {});
  Charge(dict.items.size() * 8);
  if (name == "copy") return MakeDict(std::make_shared<DictObject>(dict));
  std::vector<Value> items;
  for (const auto& [key, value] : dict.items) {
    items.push_back(name == "keys" ? key : name == "values" ? value : Value::Tuple({key, value}));
  }
  Value view = MakeIterator(std::move(items), "dict_" + name);
  view.list().type = ListObject::Type::kView;
  return view;
}

Value Interpreter::StringMethod(const Value& self, const std::string& name, const Args& args) {
  const Text& text = self.text();
  const std::string& s = text.bytes();
  const bool markup = self.is_markup();
  Charge(1 + s.size() / 16);
  if (name == "format") {
    if (markup) FailUnsupported("format of markup is outside the subset");
    return MakeString(Format(text, args));
  }
  const auto keep = [&](Text out) { return MakeString(std::move(out), markup); };
  const auto none_or = [&](const Value* v) { return v == nullptr || v->is_none() ? nullptr : v; };

  if (name == "strip" || name == "lstrip" || name == "rstrip") {
    const auto a = Bind(args, name, {"chars"});
    const std::string* chars = none_or(a[0]) == nullptr ? nullptr : &TextArgument(*a[0]).bytes();
    if (chars != nullptr && chars->size() > 256) {
      FailUnsupported("strip of more than 256 bytes of characters");
    }
    const Side side = name == "strip" ? Side::kBoth : name == "lstrip" ? Side::kLeft : Side::kRight;
    const auto [begin, end] = Strip(s, side, chars);
    return keep(text.Slice(begin, end));
  }
  if (name == "upper" || name == "lower" || name == "capitalize" || name == "swapcase" ||
      name == "title") {
    Bind(args, name, {});
    bool in_word = false;
    return keep(MapChars(text, [&](uint32_t c, size_t index) {
      if (name == "upper") return ToUpper(c);
      if (name == "lower") return ToLower(c);
      if (name == "capitalize") return index == 0 ? ToTitle(c) : ToLower(c);
      if (name == "swapcase") return IsUpper(c) ? ToLower(c) : ToUpper(c);
      std::string out = in_word ? ToLower(c) : ToTitle(c);
      in_word = IsUpper(c) || IsLower(c);
      return out;
    }));
  }
  if (name == "startswith" || name == "endswith") {
    const auto a = Bind(args, name, {"prefix", "start", "end"});
    if (a[0] == nullptr) Fail(name + "() takes at least 1 argument (0 given)");
    if (a[1] != nullptr || a[2] != nullptr) {
      FailUnsupported(name + " with positions is outside the subset");
    }
    const auto matches = [&](const Value& v) {
      const std::string& part = TextArgument(v).bytes();
      return name == "startswith" ? s.starts_with(part) : s.ends_with(part);
    };
    if (a[0]->is(Kind::kList) && a[0]->list().type == ListObject::Type::kTuple) {
      for (const Value& v : Items(*a[0])) {
        if (matches(v)) return Value::Bool(true);
      }
      return Value::Bool(false);
    }
    return Value::Bool(matches(*a[0]));
  }
  if (name == "removeprefix" || name == "removesuffix") {
    const auto a = Bind(args, name, {"part"});
    if (a[0] == nullptr) Fail(name + "() takes exactly one argument (0 given)");
    const std::string& part = TextArgument(*a[0]).bytes();
    if (name == "removeprefix" && s.starts_with(part))
      return keep(text.Slice(part.size(), s.size()));
    if (name == "removesuffix" && s.ends_with(part)) {
      return keep(text.Slice(0, s.size() - part.size()));
    }
    return self;
  }
  if (name == "split" || name == "rsplit") {
    const auto a = Bind(args, name, {"sep", "maxsplit"});
    if (markup) FailUnsupported("split of markup is outside the subset");
    return Split(text, none_or(a[0]), IntegerArgument(a[1], -1), name == "rsplit");
  }
  if (name == "splitlines") {
    const auto a = Bind(args, name, {"keepends"});
    const bool keep_ends = a[0] != nullptr && Truth(*a[0]);
    std::vector<Value> out;
    for (size_t at = 0; at < s.size();) {
      size_t end = at;
      while (end < s.size() && !IsLineBreak(CharAt(s, end))) end += CharLength(s, end);
      const size_t next =
          end >= s.size() ? end : end + (s.compare(end, 2, "\r\n") == 0 ? 2 : CharLength(s, end));
      out.push_back(keep(text.Slice(at, keep_ends ? next : end)));
      at = next;
    }
    Charge(out.size() * 4);
    return Value::List(std::move(out));
  }
  if (name == "partition" || name == "rpartition") {
    const auto a = Bind(args, name, {"sep"});
    if (a[0] == nullptr) Fail(name + "() takes exactly one argument (0 given)");
    const std::string& sep = TextArgument(*a[0]).bytes();
    if (sep.empty()) Fail("empty separator");
    const size_t at = name == "partition" ? Find(s, sep, 0) : s.rfind(sep);
    const Value empty = MakeString({});
    if (at == std::string::npos) {
      return name == "partition" ? Value::Tuple({self, empty, empty})
                                 : Value::Tuple({empty, empty, self});
    }
    return Value::Tuple({keep(text.Slice(0, at)), keep(text.Slice(at, at + sep.size())),
                         keep(text.Slice(at + sep.size(), s.size()))});
  }
  if (name == "replace") {
    const auto a = Bind(args, name, {"old", "new", "count"});
    if (a[0] == nullptr || a[1] == nullptr) Fail("replace expected at least 2 arguments");
    if (markup) FailUnsupported("replace of markup is outside the subset");
    return MakeString(
        Replace(text, TextArgument(*a[0]), TextArgument(*a[1]), IntegerArgument(a[2], -1)));
  }
  if (name == "find" || name == "rfind" || name == "index" || name == "rindex" || name == "count") {
    const auto a = Bind(args, name, {"sub", "start", "end"});
    if (a[0] == nullptr) Fail(name + "() takes at least 1 argument (0 given)");
    if (a[1] != nullptr || a[2] != nullptr) {
      FailUnsupported(name + " with positions is outside the subset");
    }
    const std::string& sub = TextArgument(*a[0]).bytes();
    if (name == "count") {
      if (sub.empty()) return Value::Int(static_cast<int64_t>(CharCount(s)) + 1);
      int64_t n = 0;
      for (size_t at = Find(s, sub, 0); at != std::string::npos;
           at = Find(s, sub, at + sub.size())) {
        ++n;
      }
      return Value::Int(n);
    }
    Charge(name[0] == 'r' ? s.size() * std::min<size_t>(sub.size(), 4096) / 64 : 0);
    const size_t at = name[0] == 'r' ? s.rfind(sub) : Find(s, sub, 0);
    if (at == std::string::npos) {
      if (name.ends_with("index")) Fail("substring not found");
      return Value::Int(-1);
    }
    return Value::Int(static_cast<int64_t>(CharCount(std::string_view(s).substr(0, at))));
  }
  if (name == "join") {
    const auto a = Bind(args, name, {"iterable"});
    if (a[0] == nullptr) Fail("join() takes exactly one argument (0 given)");
    if (markup) FailUnsupported("join of markup is outside the subset");
    if (a[0]->is_undefined()) return MakeString({});
    Text out;
    size_t i = 0;
    for (const Value& v : Items(*a[0])) {
      if (!v.is_string()) {
        Fail("sequence item " + std::to_string(i) + ": expected str instance, " + TypeName(v) +
             " found");
      }
      Charge(1 + (v.weight() + s.size()) / 16);
      if (i++ > 0) out.Append(text);
      out.Append(v.text());
      if (out.size() > limits_.max_output_bytes) break;  // MakeString refuses it
    }
    return MakeString(std::move(out));
  }
  if (name == "center" || name == "ljust" || name == "rjust" || name == "zfill") {
    const auto a = Bind(args, name, {"width", "fillchar"});
    if (a[0] == nullptr) Fail(name + "() takes at least 1 argument (0 given)");
    const int64_t width = IntegerArgument(a[0], 0);
    if (width > 65536) FailUnsupported(name + " beyond 65536 is outside the subset");
    const auto chars = static_cast<int64_t>(CharCount(s));
    const int64_t missing = std::max<int64_t>(width - chars, 0);
    Text fill(name == "zfill" ? "0" : " ", true);
    if (a[1] != nullptr) fill = TextArgument(*a[1]);
    if (CharCount(fill.bytes()) != 1) Fail("The fill character must be exactly one character long");
    if (name == "zfill") {
      const size_t sign = !s.empty() && (s[0] == '-' || s[0] == '+') ? 1 : 0;
      Text out = text.Slice(0, sign);
      for (int64_t i = 0; i < missing; ++i) out.Append(fill);
      out.Append(text.Slice(sign, s.size()));
      return keep(std::move(out));
    }
    // CPython's centring: the odd one goes left where the width is odd.
    const int64_t left = name == "ljust"   ? 0
                         : name == "rjust" ? missing
                                           : missing / 2 + (missing & width & 1);
    Text out;
    for (int64_t i = 0; i < left; ++i) out.Append(fill);
    out.Append(text);
    for (int64_t i = left; i < missing; ++i) out.Append(fill);
    return keep(std::move(out));
  }
  Bind(args, name, {});
  if (name == "isspace") return Value::Bool(AllChars(s, IsSpace));
  if (name == "isalpha") return Value::Bool(AllChars(s, IsAlpha));
  if (name == "isdigit" || name == "isnumeric" || name == "isdecimal") {
    const bool ascii = std::all_of(s.begin(), s.end(), [](char c) { return c >= 0; });
    if (!ascii && name != "isdigit") FailUnsupported(name + " of non-ASCII text");
    return Value::Bool(AllChars(s, IsDecimal));
  }
  if (name == "isalnum") {
    return Value::Bool(AllChars(s, [](uint32_t c) { return IsAlpha(c) || IsDecimal(c); }));
  }
  // islower, isupper: at least one cased character, and none of the other case.
  bool any = false;
  for (size_t i = 0; i < s.size(); i += CharLength(s, i)) {
    const uint32_t c = CharAt(s, i);
    const bool upper = IsUpper(c), lower = IsLower(c);
    if (name == "islower" ? upper : lower) return Value::Bool(false);
    any = any || upper || lower;
  }
  return Value::Bool(any);
}

Value Interpreter::Split(const Text& text, const Value* separator, int64_t limit, bool from_right) {
  const std::string& s = text.bytes();
  std::vector<std::pair<size_t, size_t>> parts;
  if (separator != nullptr) {
    const std::string& sep = TextArgument(*separator).bytes();
    if (sep.empty()) Fail("empty separator");
    std::vector<size_t> cuts;
    for (size_t at = Find(s, sep, 0); at != std::string::npos; at = Find(s, sep, at + sep.size())) {
      if (!from_right && limit >= 0 && static_cast<int64_t>(cuts.size()) >= limit) break;
      cuts.push_back(at);
    }
    if (from_right && limit >= 0) {
      // Separators that overlap are cut elsewhere from the right than from the left.
      cuts.clear();
      Charge(s.size() * std::min<size_t>(sep.size(), 4096) / 64);
      size_t end = s.size();
      while (static_cast<int64_t>(cuts.size()) < limit && end >= sep.size()) {
        const size_t at = s.rfind(sep, end - sep.size());
        if (at == std::string::npos) break;
        cuts.push_back(at);
        end = at;
      }
      std::reverse(cuts.begin(), cuts.end());
    }
    size_t begin = 0;
    for (const size_t cut : cuts) {
      parts.emplace_back(begin, cut);
      begin = cut + sep.size();
    }
    parts.emplace_back(begin, s.size());
  } else {
    // Runs of white space, none at the ends.
    std::vector<std::pair<size_t, size_t>> words;
    for (size_t i = 0; i < s.size();) {
      if (IsSpace(CharAt(s, i))) {
        i += CharLength(s, i);
        continue;
      }
      const size_t begin = i;
      while (i < s.size() && !IsSpace(CharAt(s, i))) i += CharLength(s, i);
      words.emplace_back(begin, i);
    }
    const auto n = static_cast<int64_t>(words.size());
    if (limit >= 0 && n > limit + 1) {
      if (from_right) {
        const auto cut = static_cast<size_t>(n - limit - 1);
        parts.emplace_back(0, words[cut].second);  // Python keeps the white space before
        parts.insert(parts.end(), words.begin() + static_cast<ptrdiff_t>(cut) + 1, words.end());
      } else {
        parts.assign(words.begin(), words.begin() + static_cast<ptrdiff_t>(limit));
        parts.emplace_back(words[static_cast<size_t>(limit)].first, s.size());  // and after
      }
    } else {
      parts = std::move(words);
    }
  }
  Charge(parts.size() * 8);
  std::vector<Value> out;
  out.reserve(parts.size());
  for (const auto& [begin, end] : parts) out.push_back(Value::String(text.Slice(begin, end)));
  return Value::List(std::move(out));
}

Text Interpreter::Replace(const Text& text, const Text& from, const Text& to, int64_t limit) {
  const std::string& s = text.bytes();
  const std::string& needle = from.bytes();
  Text out;
  size_t done = 0;
  const auto too_long = [&] { return out.size() > limits_.max_output_bytes; };
  if (needle.empty()) {
    // Before each character and at the end.
    for (size_t at = 0; at <= s.size() && limit != 0 && !too_long(); --limit) {
      Charge(1 + to.size() / 16);
      out.Append(to);
      const size_t n = at < s.size() ? CharLength(s, at) : 0;
      out.Append(text.Slice(at, at + n));
      done = at + n;
      if (n == 0) break;
      at += n;
    }
  } else {
    for (size_t at = Find(s, needle, 0); at != std::string::npos && limit != 0 && !too_long();
         at = Find(s, needle, done), --limit) {
      Charge(1 + to.size() / 16);
      out.Append(text.Slice(done, at));
      out.Append(to);
      done = at + needle.size();
    }
  }
  out.Append(text.Slice(done, s.size()));
  return out;
}

Text Interpreter::Format(const Text& format, const Args& args) {
  const std::string& s = format.bytes();
  Text out;
  size_t next = 0;
  bool automatic = false, manual = false;
  for (size_t i = 0; i < s.size();) {
    const size_t brace = s.find_first_of("{}", i);
    out.Append(format.Slice(i, std::min(brace, s.size())));
    if (brace == std::string::npos) break;
    if (brace + 1 < s.size() && s[brace + 1] == s[brace]) {
      out.Append(format.Slice(brace, brace + 1));
      i = brace + 2;
      continue;
    }
    if (s[brace] == '}') Fail("Single '}' encountered in format string");
    const size_t close = s.find_first_of("{}", brace + 1);
    if (close == std::string::npos) Fail("expected '}' before end of string");
    if (s[close] == '{') FailUnsupported("nested fields in str.format are outside the subset");
    std::string field = s.substr(brace + 1, close - brace - 1), spec, conversion;
    if (const size_t colon = field.find(':'); colon != std::string::npos) {
      spec = field.substr(colon + 1);
      field.resize(colon);
    }
    if (const size_t mark = field.find('!'); mark != std::string::npos) {
      conversion = field.substr(mark + 1);
      field.resize(mark);
    }
    if (field.find_first_of(".[") != std::string::npos) {
      FailUnsupported("attributes in str.format are outside the subset");
    }
    const Value* v = nullptr;
    if (field.find_first_not_of("0123456789") == std::string::npos) {
      (field.empty() ? automatic : manual) = true;
      if (automatic && manual) {
        Fail("cannot switch between automatic field numbering and manual field specification");
      }
      size_t at = 0;
      const auto index = field.empty() ? next++ : static_cast<size_t>(ReadDigits(field, at));
      if (index >= args.positional.size()) {
        Fail("Replacement index " + std::to_string(index) +
             " out of range for positional args tuple");
      }
      v = &args.positional[index];
    } else {
      for (const auto& [key, value] : args.keywords) {
        if (key == field) v = &value;
      }
      if (v == nullptr) Fail("'" + field + "'");
    }
    Charge(1 + v->weight() / 16);
    if (conversion == "r") {
      Text repr;
      AppendRepr(*v, repr);
      out.Append(FormatValue(Value::String(std::move(repr)), spec));
    } else if (conversion == "s") {
      out.Append(FormatValue(Value::String(ToText(*v)), spec));
    } else if (conversion.empty()) {
      out.Append(FormatValue(*v, spec));
    } else {
      FailUnsupported("the conversion !" + conversion + " is outside the subset");
    }
    if (out.size() > limits_.max_output_bytes) break;  // MakeString refuses it
    i = close + 1;
  }
  return out;
}

Text Interpreter::FormatPercent(const Text& format, const Value& args) {
  const std::string& s = format.bytes();
  const bool tuple = args.is(Kind::kList) && args.list().type == ListObject::Type::kTuple;
  Text out;
  size_t next = 0;
  bool named = false;
  for (size_t i = 0; i < s.size();) {
    const size_t percent = std::min(s.find('%', i), s.size());
    out.Append(format.Slice(i, percent));
    if (percent == s.size()) break;
    i = percent + 1;
    const Value* v = nullptr;
    if (i < s.size() && s[i] == '(') {
      const size_t close = s.find(')', i);
      if (close == std::string::npos) Fail("incomplete format key");
      if (!args.is(Kind::kDict)) Fail("format requires a mapping");
      v = args.dict().Find(Value::String(s.substr(i + 1, close - i - 1), true));
      if (v == nullptr) Fail("'" + s.substr(i + 1, close - i - 1) + "'");
      named = true;
      i = close + 1;
    }
    Spec spec;
    for (; i < s.size() && std::strchr("-+ 0#", s[i]) != nullptr && s[i] != 0; ++i) {
      if (s[i] == '-') spec.align = '<';
      if (s[i] == '+' || (s[i] == ' ' && spec.sign != '+')) spec.sign = s[i];
      if (s[i] == '0') spec.zero = true;
      if (s[i] == '#') FailUnsupported("the flag # of % is outside the subset");
    }
    spec.width = ReadDigits(s, i);
    if (i < s.size() && s[i] == '.') spec.precision = ReadDigits(s, ++i);
    if (i >= s.size()) Fail("incomplete format");
    spec.type = s[i++];
    if (spec.type == '%') {
      out.Append("%", true);
      continue;
    }
    if (v == nullptr) {
      if (!tuple && next == 0) {
        v = &args;
      } else if (tuple && next < args.list().items.size()) {
        v = &args.list().items[next];
      } else {
        Fail("not enough arguments for format string");
      }
      ++next;
    }
    Charge(1 + v->weight() / 16);
    Text text;
    switch (spec.type) {
      case 's':
      case 'r':
        if (spec.type == 's') {
          text = ToText(*v);
        } else {
          AppendRepr(*v, text);
        }
        if (spec.precision >= 0) {
          const auto offsets = CharOffsets(text.bytes());
          text = text.Slice(
              0,
              offsets[std::min<size_t>(static_cast<size_t>(spec.precision), offsets.size() - 1)]);
        }
        out.Append(Pad(text, spec, '>'));
        break;
      case 'd':
      case 'i':
      case 'x':
      case 'X':
      case 'o': {
        const bool decimal = spec.type == 'd' || spec.type == 'i';
        Value number = *v;
        if (v->is(Kind::kFloat) && decimal && std::fabs(v->real()) < 9e18) {
          number = Value::Int(static_cast<int64_t>(v->real()));
        }
        if (!number.is_integer()) {
          Fail(std::string("%") + spec.type + " format: a real number is required, not " +
               TypeName(*v));
        }
        if (spec.precision >= 0) FailUnsupported("a precision of % with integers");
        if (decimal) spec.type = 'd';
        if (spec.align == '<') spec.zero = false;
        out.Append(FormatNumber(number, spec));
        break;
      }
      case 'f':
      case 'F':
        if (!v->is_number() || v->is(Kind::kBigInt))
          Fail("must be real number, not " + TypeName(*v));
        if (spec.align == '<') spec.zero = false;
        out.Append(FormatNumber(*v, spec));
        break;
      default:
        FailUnsupported(std::string("the format %") + spec.type + " is outside the subset");
    }
    if (out.size() > limits_.max_output_bytes) break;  // MakeString refuses it
  }
  if (!named && tuple && next < args.list().items.size()) {
    Fail("not all arguments converted during string formatting");
  }
  if (!named && !tuple && next == 0 && !args.is(Kind::kDict) && !args.is(Kind::kList)) {
    Fail("not all arguments converted during string formatting");
  }
  return out;
}

std::optional<Value> ParseInteger(std::string_view text, int64_t base) {
  const auto [begin, end] = Strip(text, Side::kBoth, nullptr);
  std::string_view s = text.substr(begin, end - begin);
  bool negative = false;
  if (!s.empty() && (s[0] == '-' || s[0] == '+')) {
    negative = s[0] == '-';
    s.remove_prefix(1);
  }
  if (base != 0 && (base < 2 || base > 36)) Fail("int() base must be >= 2 and <= 36, or 0");
  if (s.size() > 2 && s[0] == '0') {
    const char c = static_cast<char>(s[1] | 0x20);
    const int prefix = c == 'x' ? 16 : c == 'o' ? 8 : c == 'b' ? 2 : 0;
    if (prefix != 0 && (base == 0 || base == prefix)) {
      base = prefix;
      s.remove_prefix(2);
      if (s[0] == '_') s.remove_prefix(1);
    }
  }
  if (base == 0) base = 10;
  std::string digits;
  for (size_t i = 0; i < s.size(); ++i) {
    if (s[i] == '_' && i > 0 && i + 1 < s.size() && s[i - 1] != '_') continue;
    if (static_cast<uint8_t>(s[i]) >= 0x80) FailUnsupported("int() of non-ASCII digits");
    digits += s[i];
  }
  if (digits.empty()) return std::nullopt;
  uint64_t v = 0;
  const auto [stop, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), v, static_cast<int>(base));
  if (stop != digits.data() + digits.size() || error == std::errc::invalid_argument) {
    return std::nullopt;
  }
  if (error != std::errc() || v > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    FailUnsupported("int() beyond 64 bits is outside the subset");
  }
  return Value::Int(negative ? -static_cast<int64_t>(v) : static_cast<int64_t>(v));
}

std::optional<double> ParseFloat(std::string_view text) {
  const auto [begin, end] = Strip(text, Side::kBoth, nullptr);
  std::string s;
  for (size_t i = begin; i < end; ++i) {
    const auto digit = [&](size_t k) {
      return k >= begin && k < end && text[k] >= '0' && text[k] <= '9';
    };
    if (text[i] == '_' && digit(i - 1) && digit(i + 1)) continue;
    s += static_cast<char>(text[i] >= 'A' && text[i] <= 'Z' ? text[i] + 32 : text[i]);
  }
  if (s.starts_with('+')) s.erase(0, 1);
  if (s.empty() || s[0] == '+') return std::nullopt;
  const size_t first = s[0] == '-' ? 1 : 0;
  const std::string rest = s.substr(first);
  if (rest != "inf" && rest != "infinity" && rest != "nan" &&
      rest.find_first_not_of("0123456789.e+-") != std::string::npos) {
    return std::nullopt;
  }
  double v = 0;
  const auto [stop, error] = std::from_chars(s.data(), s.data() + s.size(), v);
  if (error == std::errc::result_out_of_range) FailUnsupported("float() out of range");
  if (error != std::errc() || stop != s.data() + s.size()) return std::nullopt;
  return v;
}

std::string FormatClock(int64_t micros, std::string_view format) {
  const auto seconds = static_cast<time_t>(micros / 1000000 - (micros % 1000000 < 0 ? 1 : 0));
  const int64_t fraction = micros - int64_t{seconds} * 1000000;
  struct tm t {};
  gmtime_r(&seconds, &t);
  static constexpr const char* kDays[] = {"Sunday",   "Monday", "Tuesday", "Wednesday",
                                          "Thursday", "Friday", "Saturday"};
  static constexpr const char* kMonths[] = {"January",   "February", "March",    "April",
                                            "May",       "June",     "July",     "August",
                                            "September", "October",  "November", "December"};
  const auto padded = [](int64_t v, int digits, char fill = '0') {
    std::string text = std::to_string(v);
    while (static_cast<int>(text.size()) < digits) text.insert(text.begin(), fill);
    return text;
  };
  const int hour12 = t.tm_hour % 12 == 0 ? 12 : t.tm_hour % 12;
  std::string out;
  for (size_t i = 0; i < format.size(); ++i) {
    if (format[i] != '%') {
      out += format[i];
      continue;
    }
    if (++i >= format.size()) FailUnsupported("strftime_now: a format that ends in %");
    const bool unpadded = format[i] == '-' && i + 1 < format.size();  // glibc: %-d
    if (unpadded) ++i;
    const auto number = [&](int v, int digits, char fill = '0') {
      out += unpadded ? std::to_string(v) : padded(v, digits, fill);
    };
    switch (format[i]) {
      case 'Y':
        out += std::to_string(t.tm_year + 1900);
        break;
      case 'y':
        number(t.tm_year % 100, 2);
        break;
      case 'm':
        number(t.tm_mon + 1, 2);
        break;
      case 'd':
        number(t.tm_mday, 2);
        break;
      case 'e':
        number(t.tm_mday, 2, ' ');
        break;
      case 'H':
        number(t.tm_hour, 2);
        break;
      case 'I':
        number(hour12, 2);
        break;
      case 'M':
        number(t.tm_min, 2);
        break;
      case 'S':
        number(t.tm_sec, 2);
        break;
      case 'j':
        number(t.tm_yday + 1, 3);
        break;
      case 'f':
        out += padded(fraction, 6);
        break;
      case 'p':
        out += t.tm_hour < 12 ? "AM" : "PM";
        break;
      case 'A':
        out += kDays[t.tm_wday];
        break;
      case 'a':
        out += std::string_view(kDays[t.tm_wday]).substr(0, 3);
        break;
      case 'B':
        out += kMonths[t.tm_mon];
        break;
      case 'b':
      case 'h':
        out += std::string_view(kMonths[t.tm_mon]).substr(0, 3);
        break;
      case 'w':
        out += std::to_string(t.tm_wday);
        break;
      case 'u':
        out += std::to_string(t.tm_wday == 0 ? 7 : t.tm_wday);
        break;
      case 'F':
        out += FormatClock(micros, "%Y-%m-%d");
        break;
      case 'T':
        out += FormatClock(micros, "%H:%M:%S");
        break;
      case 'R':
        out += FormatClock(micros, "%H:%M");
        break;
      case 'D':
      case 'x':
        out += FormatClock(micros, "%m/%d/%y");
        break;
      case 'X':
        out += FormatClock(micros, "%H:%M:%S");
        break;
      case 'c':
        out += FormatClock(micros, "%a %b %e %H:%M:%S %Y");
        break;
      case 'n':
        out += '\n';
        break;
      case 't':
        out += '\t';
        break;
      case '%':
        out += '%';
        break;
      default:
        FailUnsupported(std::string("strftime_now: the directive %") + format[i] +
                        " is outside the subset");
    }
  }
  return out;
}

}  // namespace verbatim::engine::jinja
