// Jinja's filters and tests.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>

#include "engine/jinja_interpreter.h"

namespace verbatim::engine::jinja {
namespace {

constexpr std::string_view kFilters[] = {
    "abs",    "batch",      "capitalize", "center",   "count",  "d",      "default", "dictsort",
    "e",      "escape",     "first",      "float",    "format", "indent", "int",     "items",
    "join",   "last",       "length",     "list",     "lower",  "map",    "max",     "min",
    "reject", "rejectattr", "replace",    "reverse",  "round",  "safe",   "select",  "selectattr",
    "slice",  "sort",       "string",     "sum",      "title",  "tojson", "trim",    "truncate",
    "unique", "upper",      "urlencode",  "wordcount"};
constexpr std::string_view kOutside[] = {"attr",     "groupby", "filesizeformat", "forceescape",
                                         "pprint",   "random",  "striptags",      "urlize",
                                         "wordwrap", "xmlattr"};
constexpr std::string_view kTests[] = {
    "boolean",  "callable", "defined", "divisibleby", "eq",   "equalto",   "==",     "escaped",
    "even",     "false",    "filter",  "float",       "ge",   ">=",        "gt",     "greaterthan",
    ">",        "in",       "integer", "iterable",    "le",   "<=",        "lower",  "lt",
    "lessthan", "<",        "mapping", "ne",          "!=",   "none",      "number", "odd",
    "sameas",   "sequence", "string",  "test",        "true", "undefined", "upper"};

bool Listed(std::string_view name, std::initializer_list<std::string_view> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// Case folding as Jinja's sort, min, max and unique do unless asked not to: str.lower.
Value Fold(const Value& v) {
  if (!v.is_string()) return v;
  std::string out;
  const std::string& s = v.bytes();
  for (size_t i = 0; i < s.size(); i += CharLength(s, i)) out += ToLower(CharAt(s, i));
  return Value::String(std::move(out), true);
}

bool Flag(const Value* v, bool otherwise) { return v == nullptr ? otherwise : Truth(*v); }

const Value* Given(const Value* v) { return v == nullptr || v->is_none() ? nullptr : v; }

}  // namespace

bool IsFilter(std::string_view name) {
  return std::find(std::begin(kFilters), std::end(kFilters), name) != std::end(kFilters);
}
bool IsFilterOutsideSubset(std::string_view name) {
  return std::find(std::begin(kOutside), std::end(kOutside), name) != std::end(kOutside);
}
bool IsTest(std::string_view name) {
  return std::find(std::begin(kTests), std::end(kTests), name) != std::end(kTests);
}

std::vector<const Value*> Bind(const Args& args, std::string_view function,
                               std::initializer_list<std::string_view> names) {
  std::vector<const Value*> out(names.size(), nullptr);
  if (args.positional.size() > names.size()) {
    Fail(std::string(function) + "() takes at most " + std::to_string(names.size()) +
         " argument(s), got " + std::to_string(args.positional.size()));
  }
  for (size_t i = 0; i < args.positional.size(); ++i) out[i] = &args.positional[i];
  for (const auto& [name, value] : args.keywords) {
    const auto it = std::find(names.begin(), names.end(), name);
    if (it == names.end()) {
      Fail(std::string(function) + "() got an unexpected keyword argument '" + name + "'");
    }
    const Value*& slot = out[static_cast<size_t>(it - names.begin())];
    if (slot != nullptr) {
      Fail(std::string(function) + "() got multiple values for argument '" + name + "'");
    }
    slot = &value;
  }
  return out;
}

int64_t IntegerArgument(const Value* v, int64_t otherwise) {
  if (v == nullptr) return otherwise;
  if (v->is_undefined()) Fail(v->bytes());
  if (!v->is_integer()) Fail("'" + TypeName(*v) + "' object cannot be interpreted as an integer");
  return v->integer();
}

const Text& TextArgument(const Value& v) {
  if (v.is_undefined()) Fail(v.bytes());
  if (!v.is_string()) Fail("a string is required, not '" + TypeName(v) + "'");
  return v.text();
}

// What attribute= means: nothing, an index, or names and indices with dots between.
Interpreter::Getter Interpreter::AttributeGetter(const Value* attribute, const Value* fallback) {
  std::vector<Value> path;
  if (Given(attribute) != nullptr) {
    if (attribute->is_integer()) {
      path.push_back(*attribute);
    } else {
      const std::string text = TextArgument(*attribute).bytes();
      for (size_t at = 0; at <= text.size();) {
        const size_t dot = std::min(text.find('.', at), text.size());
        const std::string part = text.substr(at, dot - at);
        const bool digits = !part.empty() && part.size() < 18 &&
                            part.find_first_not_of("0123456789") == std::string::npos;
        path.push_back(digits ? Value::Int(std::stoll(part)) : Value::String(part, true));
        at = dot + 1;
      }
    }
  }
  const std::optional<Value> otherwise =
      Given(fallback) == nullptr ? std::nullopt : std::optional<Value>(*fallback);
  return [this, path = std::move(path), otherwise](const Value& v) {
    Value out = v;
    for (const Value& part : path) {
      out = GetItem(out, part);
      if (out.is_undefined() && otherwise) out = *otherwise;
    }
    return out;
  };
}

Value Interpreter::Filter(const std::string& name, const Value& input, const Args& args) {
  if (name == "default" || name == "d") {
    const auto a = Bind(args, name, {"default_value", "boolean"});
    if (input.is_undefined() || (Flag(a[1], false) && !Truth(input))) {
      return a[0] == nullptr ? Value::String("", true) : *a[0];
    }
    return input;
  }
  if (name == "tojson") return ToJsonFilter(input, args);
  if (Listed(name, {"map", "select", "reject", "selectattr", "rejectattr"})) {
    return SelectFilter(name, input, args);
  }
  if (Listed(name, {"abs", "float", "int", "round"})) return NumberFilter(name, input, args);
  if (Listed(name,
             {"capitalize", "center", "e", "escape", "format", "indent", "lower", "replace", "safe",
              "string", "title", "trim", "truncate", "upper", "urlencode", "wordcount"})) {
    return TextFilter(name, input, args);
  }
  return SequenceFilter(name, input, args);
}

Value Interpreter::ToJsonFilter(const Value& input, const Args& args) {
  const auto a = Bind(args, "tojson", {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style;
  style.ensure_ascii = Flag(a[0], false);
  style.sort_keys = Flag(a[3], false);
  if (Given(a[1]) != nullptr) {
    style.pretty = true;
    style.item_separator = ",";
    if (a[1]->is_string()) {
      style.indent = a[1]->bytes();
    } else {
      const int64_t width = IntegerArgument(a[1], 0);
      if (width > 64) FailUnsupported("tojson with an indent beyond 64 is outside the subset");
      style.indent = std::string(static_cast<size_t>(std::max<int64_t>(width, 0)), ' ');
    }
    if (style.indent.size() > 64) FailUnsupported("tojson with an indent beyond 64 bytes");
  }
  if (Given(a[2]) != nullptr) {
    const std::vector<Value> both = Items(*a[2]);
    if (both.size() != 2) Fail("tojson: separators must be two strings");
    style.item_separator = TextArgument(both[0]).bytes();
    style.key_separator = TextArgument(both[1]).bytes();
    if (style.item_separator.size() + style.key_separator.size() > 64) {
      FailUnsupported("tojson with separators beyond 64 bytes");
    }
  }
  Charge(input.weight() / 8);
  return MakeString(ToJson(input, style));
}

Value Interpreter::SelectFilter(const std::string& name, const Value& input, const Args& args) {
  Args rest = args;
  const auto take = [&](const char* what) {
    if (rest.positional.empty()) Fail(std::string(name) + " requires " + what);
    Value v = rest.positional.front();
    rest.positional.erase(rest.positional.begin());
    return v;
  };
  std::vector<Value> out;
  if (name == "map") {
    if (args.positional.empty()) {
      const auto a = Bind(args, "map", {"attribute", "default"});
      if (a[0] == nullptr) Fail("map requires a filter argument");
      const Getter get = AttributeGetter(a[0], a[1]);
      for (const Value& v : Items(input)) out.push_back(get(v));
      return MakeIterator(std::move(out));
    }
    const std::string filter = TextArgument(take("a filter argument")).bytes();
    if (!IsFilter(filter)) Fail("No filter named '" + filter + "'.");
    for (const Value& v : Items(input)) {
      Charge(1 + v.weight() / 64);
      out.push_back(Filter(filter, v, rest));
    }
    return MakeIterator(std::move(out));
  }
  Getter get = [](const Value& v) { return v; };
  if (name == "selectattr" || name == "rejectattr") {
    const Value attribute = take("an attribute");
    get = AttributeGetter(&attribute, nullptr);
  }
  std::optional<std::string> test;
  if (!rest.positional.empty()) test = TextArgument(take("a test")).bytes();
  if (test && !IsTest(*test)) Fail("No test named '" + *test + "'.");
  const bool want = name.starts_with("select");
  for (const Value& v : Items(input)) {
    Charge(1);
    const Value tested = get(v);
    if ((test ? Test(*test, tested, rest) : Truth(tested)) == want) out.push_back(v);
  }
  return MakeIterator(std::move(out));
}

Value Interpreter::NumberFilter(const std::string& name, const Value& input, const Args& args) {
  if (name == "abs") {
    if (input.is_undefined()) Fail(input.bytes());
    Bind(args, name, {});
    if (input.is(Kind::kFloat)) return Value::Float(std::fabs(input.real()));
    if (!input.is_integer()) Fail("bad operand type for abs(): '" + TypeName(input) + "'");
    return input.integer() < 0 ? Binary("-", Value::Int(0), input) : Value::Int(input.integer());
  }
  if (name == "float") {
    const auto a = Bind(args, name, {"default"});
    if (input.is(Kind::kBigInt)) FailUnsupported("float of an integer beyond 64 bits");
    if (input.is_number()) return Value::Float(input.real());
    if (input.is_string()) {
      if (const auto v = ParseFloat(input.bytes())) return Value::Float(*v);
    } else if (input.is_undefined()) {
      Fail(input.bytes());
    }
    return a[0] == nullptr ? Value::Float(0) : *a[0];
  }
  if (name == "int") {
    const auto a = Bind(args, name, {"default", "base"});
    const Value otherwise = a[0] == nullptr ? Value::Int(0) : *a[0];
    std::optional<double> real;
    if (input.is(Kind::kBigInt)) return input;
    if (input.is_integer()) return Value::Int(input.integer());
    if (input.is_undefined()) Fail(input.bytes());
    if (input.is(Kind::kFloat)) real = input.real();
    if (input.is_string()) {
      if (const auto v = ParseInteger(input.bytes(), IntegerArgument(a[1], 10))) return *v;
      real = ParseFloat(input.bytes());
    }
    if (!real || std::isnan(*real) || std::isinf(*real)) return otherwise;
    if (std::fabs(*real) >= 9.2e18) FailUnsupported("an integer beyond 64 bits");
    return Value::Int(static_cast<int64_t>(*real));
  }
  // round
  const auto a = Bind(args, name, {"precision", "method"});
  if (input.is_undefined()) Fail(input.bytes());
  if (!input.is_integer() && !input.is(Kind::kFloat)) {
    Fail("type " + TypeName(input) + " doesn't define __round__ method");
  }
  const int64_t precision = IntegerArgument(a[0], 0);
  const std::string method = a[1] == nullptr ? "common" : TextArgument(*a[1]).bytes();
  if (precision < -15 || precision > 15) FailUnsupported("round beyond 15 digits");
  if (method == "common") {
    if (input.is_integer()) {
      if (precision < 0) FailUnsupported("round of an integer to tens");
      return Value::Int(input.integer());
    }
    if (precision < 0) FailUnsupported("round to tens is outside the subset");
    char buffer[400];
    std::snprintf(buffer, sizeof buffer, "%.*f", static_cast<int>(precision), input.real());
    return Value::Float(*ParseFloat(buffer));
  }
  if (method != "ceil" && method != "floor") {
    Fail("method must be common, ceil or floor");
  }
  const double scale = std::pow(10.0, static_cast<double>(precision));
  const double scaled = input.real() * scale;
  return Value::Float((method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale);
}

Value Interpreter::TextFilter(const std::string& name, const Value& input, const Args& args) {
  const bool markup = input.is_markup();
  if (name == "safe") return MakeString(ToText(input), true);
  if (name == "escape" || name == "e") {
    return markup ? input : MakeString(Escape(ToText(input)), true);
  }
  Charge(input.weight() / 16);
  const Value text = input.is_string() ? input : MakeString(ToText(input));
  if (name == "string") return text;
  if (Listed(name, {"lower", "upper", "capitalize"})) {
    Bind(args, name, {});
    return StringMethod(text, name, {});
  }
  if (name == "trim") {
    const auto a = Bind(args, name, {"chars"});
    Args strip;
    if (Given(a[0]) != nullptr) strip.positional.push_back(*a[0]);
    return StringMethod(text, "strip", strip);
  }
  if (name == "center") {
    const auto a = Bind(args, name, {"width"});
    Args center;
    center.positional.push_back(Value::Int(IntegerArgument(a[0], 80)));
    return StringMethod(text, "center", center);
  }
  if (markup) FailUnsupported("the filter '" + name + "' of markup is outside the subset");
  if (name == "replace") {
    const auto a = Bind(args, name, {"old", "new", "count"});
    if (a[0] == nullptr || a[1] == nullptr) Fail("replace requires old and new");
    return MakeString(Replace(text.text(), ToText(*a[0]), ToText(*a[1]),
                              Given(a[2]) == nullptr ? -1 : IntegerArgument(a[2], -1)));
  }
  if (name == "format") {
    if (!args.positional.empty() && !args.keywords.empty()) {
      Fail("can't handle positional and keyword arguments at the same time");
    }
    if (!args.keywords.empty()) FailUnsupported("format with keywords is outside the subset");
    return MakeString(FormatPercent(text.text(), Value::Tuple(args.positional)));
  }
  const std::string& s = text.bytes();
  if (name == "indent") {
    const auto a = Bind(args, name, {"width", "first", "blank"});
    Text pad;
    if (a[0] != nullptr && a[0]->is_string()) {
      pad = a[0]->text();
    } else {
      const int64_t width = IntegerArgument(a[0], 4);
      if (width > 4096) FailUnsupported("indent beyond 4096 is outside the subset");
      pad = Text(std::string(static_cast<size_t>(std::max<int64_t>(width, 0)), ' '), true);
    }
    const bool blank = Flag(a[2], false);
    Text out;
    if (Flag(a[1], false)) out.Append(pad);
    bool first = true;
    // As str.splitlines of the text and one more newline.
    for (size_t at = 0; at <= s.size();) {
      size_t end = at;
      while (end < s.size() && !IsLineBreak(CharAt(s, end))) end += CharLength(s, end);
      if (!first) {
        out.Append("\n", true);
        if (blank || end > at) out.Append(pad);
      }
      first = false;
      out.Append(text.text().Slice(at, end));
      if (out.size() > limits_.max_output_bytes) break;
      if (end >= s.size()) break;
      at = end + (s.compare(end, 2, "\r\n") == 0 ? 2 : CharLength(s, end));
    }
    return MakeString(std::move(out));
  }
  if (name == "title") {
    // Words begin after white space and any of - ( { [ <.
    Bind(args, name, {});
    Text out;
    bool start = true;
    for (size_t i = 0; i < s.size();) {
      const size_t n = CharLength(s, i);
      const uint32_t c = CharAt(s, i);
      const bool raw = n == 1 && c >= 0x80;
      out.Append(raw ? s.substr(i, n) : start ? ToUpper(c) : ToLower(c), text.text().TrustedAt(i));
      start = IsSpace(c) || c == '-' || c == '(' || c == '{' || c == '[' || c == '<';
      i += n;
    }
    return MakeString(std::move(out));
  }
  if (name == "truncate") {
    const auto a = Bind(args, name, {"length", "killwords", "end", "leeway"});
    const int64_t length = IntegerArgument(a[0], 255), leeway = IntegerArgument(Given(a[3]), 5);
    const Text end = a[2] == nullptr ? Text("...", true) : TextArgument(*a[2]);
    const auto end_chars = static_cast<int64_t>(CharCount(end.bytes()));
    if (length < end_chars) Fail("expected length >= " + std::to_string(end_chars));
    if (leeway < 0) Fail("expected leeway >= 0");
    if (static_cast<int64_t>(CharCount(s)) <= length + leeway) return text;
    Value cut = Slice(text, std::nullopt, length - end_chars, 1);
    if (!Flag(a[1], false)) {
      const size_t space = cut.bytes().rfind(' ');
      if (space != std::string::npos) cut = MakeString(cut.text().Slice(0, space));
    }
    Text out = cut.text();
    out.Append(end);
    return MakeString(std::move(out));
  }
  if (name == "urlencode") {
    if (!input.is_string()) FailUnsupported("urlencode of anything but a string");
    static constexpr char kHex[] = "0123456789ABCDEF";
    Text out;
    for (size_t i = 0; i < s.size(); ++i) {
      const auto c = static_cast<uint8_t>(s[i]);
      if ((c < 0x80 && (IsAlpha(c) || IsDecimal(c))) ||
          std::string_view("_.-~/").find(s[i]) != std::string_view::npos) {
        out.Append(std::string_view(&s[i], 1), text.text().TrustedAt(i));
      } else {
        const char escaped[] = {'%', kHex[c >> 4], kHex[c & 15]};
        out.Append(std::string_view(escaped, 3), true);
      }
    }
    return MakeString(std::move(out));
  }
  // wordcount: runs of \w
  Bind(args, name, {});
  int64_t words = 0;
  bool inside = false;
  for (size_t i = 0; i < s.size(); i += CharLength(s, i)) {
    const uint32_t c = CharAt(s, i);
    const bool word = c == '_' || IsAlpha(c) || IsDecimal(c);
    words += word && !inside;
    inside = word;
  }
  return Value::Int(words);
}

Value Interpreter::SequenceFilter(const std::string& name, const Value& input, const Args& args) {
  if (name == "length" || name == "count") {
    Bind(args, name, {});
    return Value::Int(static_cast<int64_t>(Length(input)));
  }
  if (name == "items") {
    Bind(args, name, {});
    if (input.is_undefined()) return MakeIterator({});
    if (!input.is(Kind::kDict)) Fail("Can only get item pairs from a mapping.");
    std::vector<Value> out;
    for (const auto& [key, value] : input.dict().items) out.push_back(Value::Tuple({key, value}));
    Charge(out.size() * 8);
    return MakeIterator(std::move(out));
  }
  if (name == "dictsort") {
    const auto a = Bind(args, name, {"case_sensitive", "by", "reverse"});
    const std::string by = a[1] == nullptr ? "key" : TextArgument(*a[1]).bytes();
    if (by != "key" && by != "value") Fail("You can only sort by either \"key\" or \"value\"");
    if (input.is_undefined()) Fail(input.bytes());
    if (!input.is(Kind::kDict)) Fail("'" + TypeName(input) + "' object has no attribute 'items'");
    std::vector<std::pair<Value, Value>> keyed;  // what to sort by, and the pair
    for (const auto& [key, value] : input.dict().items) {
      const Value& v = by == "key" ? key : value;
      keyed.emplace_back(Flag(a[0], false) ? v : Fold(v), Value::Tuple({key, value}));
    }
    Charge(keyed.size() * 64);
    const bool reverse = Flag(a[2], false);
    std::stable_sort(keyed.begin(), keyed.end(), [reverse](const auto& x, const auto& y) {
      return reverse ? Compare(y.first, x.first, "<") < 0 : Compare(x.first, y.first, "<") < 0;
    });
    std::vector<Value> out;
    for (auto& [key, pair] : keyed) out.push_back(std::move(pair));
    return Value::List(std::move(out));
  }
  if (name == "join") {
    const auto a = Bind(args, name, {"d", "attribute"});
    if (input.is_markup() || (a[0] != nullptr && a[0]->is_markup())) {
      FailUnsupported("join of markup is outside the subset");
    }
    const Getter get = AttributeGetter(a.size() > 1 ? a[1] : nullptr, nullptr);
    const Text separator = a[0] == nullptr ? Text() : ToText(*a[0]);
    Text out;
    bool first = true;
    for (const Value& item : Items(input)) {
      const Value v = get(item);
      Charge(1 + (v.weight() + separator.size()) / 16);
      if (!first) out.Append(separator);
      first = false;
      out.Append(ToText(v));
      if (out.size() > limits_.max_output_bytes) break;  // MakeString refuses it
    }
    return MakeString(std::move(out));
  }
  if (name == "first" || name == "last") {
    Bind(args, name, {});
    if (name == "last" && input.is(Kind::kList) &&
        input.list().type == ListObject::Type::kIterator) {
      Fail("'" + TypeName(input) + "' object is not reversible");
    }
    if (input.is(Kind::kList) && input.list().type == ListObject::Type::kIterator) {
      if (input.list().consumed) return Value::Undefined("No first item, sequence was empty.");
      auto& rest = input.list().items;  // the generator goes on after the first
      if (rest.empty()) return Value::Undefined("No first item, sequence was empty.");
      Charge(1 + rest.size() / 8);
      const Value first = rest.front();
      rest.erase(rest.begin());
      return first;
    }
    const std::vector<Value> items = Items(input);
    if (items.empty()) return Value::Undefined("No " + name + " item, sequence was empty.");
    return name == "first" ? items.front() : items.back();
  }
  if (name == "list") {
    Bind(args, name, {});
    return Value::List(Items(input));
  }
  if (name == "reverse") {
    Bind(args, name, {});
    if (input.is_string()) return Slice(input, std::nullopt, std::nullopt, -1);
    if (input.is(Kind::kList) && input.list().type == ListObject::Type::kIterator) {
      FailUnsupported("reverse of a generator is outside the subset (use list first)");
    }
    std::vector<Value> items = Items(input);
    std::reverse(items.begin(), items.end());
    return MakeIterator(std::move(items), "list_reverseiterator");
  }
  if (name == "sum") {
    const auto a = Bind(args, name, {"attribute", "start"});
    const Getter get = AttributeGetter(a[0], nullptr);
    Value total = a[1] == nullptr ? Value::Int(0) : *a[1];
    if (total.is_string()) Fail("sum() can't sum strings [use ''.join(seq) instead]");
    for (const Value& v : Items(input)) total = Binary("+", total, get(v));
    return total;
  }
  if (name == "min" || name == "max") {
    const auto a = Bind(args, name, {"case_sensitive", "attribute"});
    const Getter get = AttributeGetter(a[1], nullptr);
    const bool fold = !Flag(a[0], false);
    const std::vector<Value> items = Items(input);
    if (items.empty()) return Value::Undefined("No aggregated item, sequence was empty.");
    const auto key = [&](const Value& v) { return fold ? Fold(get(v)) : get(v); };
    size_t best = 0;
    Value best_key = key(items[0]);
    for (size_t i = 1; i < items.size(); ++i) {
      Value k = key(items[i]);
      const int order = Compare(k, best_key, name == "min" ? "<" : ">");
      if (name == "min" ? order < 0 : order > 0) {
        best = i;
        best_key = std::move(k);
      }
    }
    return items[best];
  }
  if (name == "sort" || name == "unique") {
    std::vector<const Value*> a;
    bool reverse = false;
    const Value* attribute = nullptr;
    const Value* case_sensitive = nullptr;
    if (name == "sort") {
      a = Bind(args, name, {"reverse", "case_sensitive", "attribute"});
      reverse = Flag(a[0], false);
      case_sensitive = a[1];
      attribute = a[2];
    } else {
      a = Bind(args, name, {"case_sensitive", "attribute"});
      case_sensitive = a[0];
      attribute = a[1];
    }
    const bool fold = !Flag(case_sensitive, false);
    // sort takes several attributes, with commas between.
    std::vector<Getter> getters;
    if (name == "sort" && Given(attribute) != nullptr && attribute->is_string()) {
      const std::string& text = attribute->bytes();
      for (size_t at = 0; at <= text.size();) {
        const size_t comma = std::min(text.find(',', at), text.size());
        const Value part = Value::String(text.substr(at, comma - at), true);
        getters.push_back(AttributeGetter(&part, nullptr));
        at = comma + 1;
      }
    } else {
      getters.push_back(AttributeGetter(attribute, nullptr));
    }
    const std::vector<Value> items = Items(input);
    std::vector<std::pair<std::vector<Value>, Value>> keyed;
    for (const Value& v : items) {
      std::vector<Value> keys;
      for (const Getter& get : getters) keys.push_back(fold ? Fold(get(v)) : get(v));
      for (const Value& k : keys) Charge(32 + k.weight() / 4);
      keyed.emplace_back(std::move(keys), v);
    }
    std::vector<Value> out;
    if (name == "unique") {
      std::unordered_map<std::string, bool> seen;
      for (auto& [keys, v] : keyed) {
        if (seen.emplace(HashKey(keys[0]), true).second) out.push_back(std::move(v));
      }
      return MakeIterator(std::move(out));
    }
    const auto less = [](const std::vector<Value>& x, const std::vector<Value>& y) {
      for (size_t i = 0; i < x.size(); ++i) {
        if (!Equal(x[i], y[i])) return Compare(x[i], y[i], "<") < 0;
      }
      return false;
    };
    std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& x, const auto& y) {
      return reverse ? less(y.first, x.first) : less(x.first, y.first);
    });
    for (auto& [keys, v] : keyed) out.push_back(std::move(v));
    return Value::List(std::move(out));
  }
  if (name == "batch" || name == "slice") {
    const auto a = Bind(args, name, {name == "batch" ? "linecount" : "slices", "fill_with"});
    const int64_t n = IntegerArgument(a[0], 0);
    if (n < 1 || n > 100000) FailUnsupported(name + " of less than 1 or more than 100000");
    const std::vector<Value> items = Items(input);
    const auto count = static_cast<size_t>(n);
    std::vector<Value> out;
    const Value* fill = Given(a[1]);
    if (name == "batch") {
      for (size_t i = 0; i < items.size(); i += count) {
        std::vector<Value> line(
            items.begin() + static_cast<ptrdiff_t>(i),
            items.begin() + static_cast<ptrdiff_t>(std::min(i + count, items.size())));
        while (fill != nullptr && line.size() < count) line.push_back(*fill);
        Charge(line.size() * 4);
        out.push_back(Value::List(std::move(line)));
      }
      return MakeIterator(std::move(out));
    }
    const size_t each = items.size() / count, more = items.size() % count;
    Charge(count * 4);
    for (size_t i = 0, at = 0; i < count; ++i) {
      const size_t size = each + (i < more ? 1 : 0);
      std::vector<Value> part(items.begin() + static_cast<ptrdiff_t>(at),
                              items.begin() + static_cast<ptrdiff_t>(at + size));
      at += size;
      if (fill != nullptr && i >= more) part.push_back(*fill);
      out.push_back(Value::List(std::move(part)));
    }
    return MakeIterator(std::move(out));
  }
  Fail("No filter named '" + name + "' found.");
}

bool Interpreter::Test(const std::string& name, const Value& input, const Args& args) {
  const bool binary =
      Listed(name, {"divisibleby", "eq", "equalto", "==", "ge", ">=", "gt", "greaterthan", ">",
                    "in", "le", "<=", "lt", "lessthan", "<", "ne", "!=", "sameas"});
  const auto a = binary ? Bind(args, name, {"other"}) : Bind(args, name, {});
  if (binary && a[0] == nullptr) Fail("the test '" + name + "' needs an argument");
  if (name == "defined") return !input.is_undefined();
  if (name == "undefined") return input.is_undefined();
  if (name == "none") return input.is_none();
  if (name == "boolean") return input.is(Kind::kBool);
  if (name == "true") return input.is(Kind::kBool) && input.integer() != 0;
  if (name == "false") return input.is(Kind::kBool) && input.integer() == 0;
  if (name == "integer") return input.is(Kind::kInt) || input.is(Kind::kBigInt);
  if (name == "float") return input.is(Kind::kFloat);
  if (name == "number") return input.is_number();
  if (name == "string") return input.is_string();
  if (name == "mapping") return input.is(Kind::kDict);
  if (name == "sequence") {
    return input.is_undefined() || input.is_string() || input.is(Kind::kDict) ||
           (input.is(Kind::kList) && input.list().type < ListObject::Type::kIterator);
  }
  if (name == "iterable") {
    return input.is_undefined() || input.is_string() || input.is(Kind::kDict) ||
           input.is(Kind::kList) || input.is(Kind::kLoop);
  }
  if (name == "callable") {
    return input.is(Kind::kMacro) || input.is(Kind::kMethod) || input.is(Kind::kFunction) ||
           input.is(Kind::kLoop) || input.is_undefined();
  }
  if (name == "escaped") return input.is_markup();
  if (name == "filter") {
    return input.is_string() && (IsFilter(input.bytes()) || IsFilterOutsideSubset(input.bytes()));
  }
  if (name == "test") return input.is_string() && IsTest(input.bytes());
  if (name == "lower" || name == "upper") {
    const Value text = MakeString(ToText(input));
    return Truth(StringMethod(text, name == "lower" ? "islower" : "isupper", {}));
  }
  if (name == "odd" || name == "even" || name == "divisibleby") {
    const Value by = name == "divisibleby" ? *a[0] : Value::Int(2);
    if (input.is_string()) Fail("not all arguments converted during string formatting");
    const Value rest = Binary("%", input, by);
    return Equal(rest, Value::Int(name == "odd" ? 1 : 0));
  }
  const Value& other = *a[0];
  if (name == "sameas") return Identical(input, other);
  if (name == "in") return Contains(other, input);
  if (Listed(name, {"eq", "equalto", "=="})) return EqualValues(input, other);
  if (Listed(name, {"ne", "!="})) return !EqualValues(input, other);
  Charge(1 + std::min(input.weight(), other.weight()) / 16);
  if (Listed(name, {"lt", "lessthan", "<"})) return Compare(input, other, "<") < 0;
  if (Listed(name, {"gt", "greaterthan", ">"})) return Compare(input, other, ">") > 0;
  if (Listed(name, {"le", "<="})) return Compare(input, other, "<=") <= 0;
  return Compare(input, other, ">=") >= 0;
}

}  // namespace verbatim::engine::jinja
