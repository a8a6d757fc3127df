#include "engine/jinja_value.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstdlib>

namespace verbatim::engine::jinja {
namespace {

std::string Quoted(const std::string& name) { return "'" + name + "'"; }

// Python compares integers and floats exactly; so does long double (64 bits of mantissa or more).
int CompareNumbers(const Value& a, const Value& b) {
  if (a.is(Kind::kBigInt) || b.is(Kind::kBigInt)) {
    FailUnsupported("comparing integers beyond 64 bits is outside the subset");
  }
  if (a.is_integer() && b.is_integer()) {
    return a.integer() < b.integer() ? -1 : a.integer() > b.integer();
  }
  const auto wide = [](const Value& v) {
    return v.is_integer() ? static_cast<long double>(v.integer())
                          : static_cast<long double>(v.real());
  };
  return wide(a) < wide(b) ? -1 : wide(a) > wide(b);
}

bool IsSequence(const Value& v, ListObject::Type type) {
  return v.is(Kind::kList) && v.list().type == type;
}

}  // namespace

Value Value::Bool(bool v) {
  Value out;
  out.kind_ = Kind::kBool;
  out.int_ = v;
  return out;
}
Value Value::Int(int64_t v) {
  Value out;
  out.kind_ = Kind::kInt;
  out.int_ = v;
  return out;
}
Value Value::Float(double v) {
  Value out;
  out.kind_ = Kind::kFloat;
  out.float_ = v;
  return out;
}
Value Value::Of(Kind kind, std::shared_ptr<Object> object) {
  Value out;
  out.kind_ = kind;
  out.object_ = std::move(object);
  return out;
}
Value Value::String(Text text, bool markup) {
  auto object = std::make_shared<StringObject>();
  Seal(*object, 0, text.size());
  object->depth = 0;
  object->text = std::move(text);
  object->markup = markup;
  return Of(Kind::kString, std::move(object));
}
Value Value::String(std::string bytes, bool trusted) {
  return String(Text(std::move(bytes), trusted));
}
Value Value::BigInt(std::string digits) {
  Value out = String(std::move(digits), true);
  out.kind_ = Kind::kBigInt;
  return out;
}
Value Value::Undefined(std::string message) {
  Value out = String(std::move(message), true);
  out.kind_ = Kind::kUndefined;
  return out;
}
Value Value::Function(std::string name) {
  Value out = String(std::move(name), true);
  out.kind_ = Kind::kFunction;
  return out;
}
Value Value::List(std::vector<Value> items) {
  auto object = std::make_shared<ListObject>();
  uint32_t deepest = 0;
  uint64_t weight = 0;
  for (const Value& v : items) {
    deepest = std::max(deepest, v.depth());
    weight += v.weight();
  }
  object->items = std::move(items);
  Seal(*object, deepest, weight);
  return Of(Kind::kList, std::move(object));
}
Value Value::Tuple(std::vector<Value> items) {
  Value out = List(std::move(items));
  out.list().type = ListObject::Type::kTuple;
  return out;
}
bool Value::is_markup() const { return is_string() && as<StringObject>().markup; }
ListObject& Value::list() const { return as<ListObject>(); }
DictObject& Value::dict() const { return as<DictObject>(); }

void Seal(Object& object, uint32_t deepest, uint64_t weight) {
  if (weight > kMaxWeight) FailUnsupported("a value grew beyond the limit of 64 MiB");
  object.weight = weight + 8;
  if (deepest >= kMaxValueDepth) {
    FailUnsupported("values nested too deeply, or a namespace inside another value");
  }
  object.depth = deepest + 1;
}

Value MakeIterator(std::vector<Value> items, std::string type_name) {
  Value out = Value::List(std::move(items));
  out.list().type = ListObject::Type::kIterator;
  out.list().type_name = std::move(type_name);
  return out;
}

Value MakeDict(std::shared_ptr<DictObject> dict) {
  uint32_t deepest = 0;
  uint64_t weight = 0;
  for (const auto& [k, v] : dict->items) {
    deepest = std::max({deepest, k.depth(), v.depth()});
    weight += k.weight() + v.weight();
  }
  Seal(*dict, deepest, weight);
  return Value::Of(Kind::kDict, std::move(dict));
}

const Value* DictObject::Find(const Value& key) const {
  const auto it = index.find(HashKey(key));
  return it == index.end() ? nullptr : &items[it->second].second;
}
void DictObject::Set(Value key, Value value) {
  const auto [it, inserted] = index.try_emplace(HashKey(key), items.size());
  if (inserted) {
    items.emplace_back(std::move(key), std::move(value));
  } else {
    items[it->second].second = std::move(value);
  }
}

Value FromJson(const json::Value& v, bool trusted) {
  switch (v.type()) {
    case json::Value::Type::kNull:
      return Value::None();
    case json::Value::Type::kBool:
      return Value::Bool(v.as_bool());
    case json::Value::Type::kString:
      return Value::String(v.as_string(), trusted);
    case json::Value::Type::kNumber: {
      const std::string& text = v.number_text();
      if (text.find_first_of(".eE") == std::string::npos) {
        if (const auto n = v.AsInt64()) return Value::Int(*n);
        return Value::BigInt(text);
      }
      const auto d = v.AsDouble();
      if (!d) Fail("number " + text.substr(0, 40) + " is out of range");
      return Value::Float(*d);
    }
    case json::Value::Type::kArray: {
      std::vector<Value> items;
      items.reserve(v.items().size());
      for (const json::Value& item : v.items()) items.push_back(FromJson(item, trusted));
      return Value::List(std::move(items));
    }
    case json::Value::Type::kObject: {
      auto dict = std::make_shared<DictObject>();
      for (const auto& [key, item] : v.members()) {
        dict->Set(Value::String(key, trusted), FromJson(item, trusted));
      }
      return MakeDict(std::move(dict));
    }
  }
  return Value::None();
}

std::string TypeName(const Value& v) {
  switch (v.kind()) {
    case Kind::kUndefined:
      return "Undefined";
    case Kind::kNone:
      return "NoneType";
    case Kind::kBool:
      return "bool";
    case Kind::kInt:
    case Kind::kBigInt:
      return "int";
    case Kind::kFloat:
      return "float";
    case Kind::kString:
      return v.is_markup() ? "Markup" : "str";
    case Kind::kDict:
      return "dict";
    case Kind::kNamespace:
      return "Namespace";
    case Kind::kLoop:
      return "LoopContext";
    case Kind::kMacro:
      return "Macro";
    case Kind::kMethod:
      return "method";
    case Kind::kFunction:
      return "function";
    case Kind::kList:
      break;
  }
  switch (v.list().type) {
    case ListObject::Type::kList:
      return "list";
    case ListObject::Type::kTuple:
      return "tuple";
    case ListObject::Type::kRange:
      return "range";
    default:
      return v.list().type_name;
  }
}

bool Truth(const Value& v) {
  switch (v.kind()) {
    case Kind::kUndefined:
    case Kind::kNone:
      return false;
    case Kind::kBool:
    case Kind::kInt:
      return v.integer() != 0;
    case Kind::kFloat:
      return v.real() != 0;
    case Kind::kString:
      return !v.text().empty();
    case Kind::kDict:
      return !v.dict().items.empty();
    case Kind::kList:
      return v.list().type == ListObject::Type::kIterator || !v.list().items.empty();
    default:
      return true;
  }
}

bool Equal(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    if (a.is(Kind::kBigInt) && b.is(Kind::kBigInt)) return a.bytes() == b.bytes();
    if (a.is(Kind::kBigInt) != b.is(Kind::kBigInt) && a.is_integer() != b.is_integer()) {
      if (a.is_integer() || b.is_integer()) return false;
    }
    if (std::isnan(a.is(Kind::kFloat) ? a.real() : 0) ||
        std::isnan(b.is(Kind::kFloat) ? b.real() : 0)) {
      return false;
    }
    return CompareNumbers(a, b) == 0;
  }
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Kind::kUndefined:
    case Kind::kNone:
      return true;
    case Kind::kString:
      return a.bytes() == b.bytes();
    case Kind::kList: {
      const ListObject &x = a.list(), &y = b.list();
      if (&x == &y) return true;
      if (x.type != y.type || x.type == ListObject::Type::kIterator ||
          x.type == ListObject::Type::kView) {
        return false;
      }
      return std::equal(x.items.begin(), x.items.end(), y.items.begin(), y.items.end(), Equal);
    }
    case Kind::kDict: {
      if (a.dict().items.size() != b.dict().items.size()) return false;
      for (const auto& [key, value] : a.dict().items) {
        const Value* other = b.dict().Find(key);
        if (other == nullptr || !Equal(value, *other)) return false;
      }
      return true;
    }
    case Kind::kFunction:
      return a.bytes() == b.bytes();
    default:
      return a.object() == b.object();
  }
}

bool Identical(const Value& a, const Value& b) {
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Kind::kNone:
      return true;
    case Kind::kBool:
    case Kind::kInt:
      return a.integer() == b.integer();
    case Kind::kFloat:
      return a.real() == b.real();
    case Kind::kFunction:
      return a.bytes() == b.bytes();
    default:
      return a.object() == b.object();
  }
}

int Compare(const Value& a, const Value& b, const char* op) {
  if (a.is_number() && b.is_number()) return CompareNumbers(a, b);
  if (a.is_string() && b.is_string()) {
    const int c = a.bytes().compare(b.bytes());  // the order of code points is that of UTF-8
    return c < 0 ? -1 : c > 0;
  }
  for (const auto type : {ListObject::Type::kList, ListObject::Type::kTuple}) {
    if (!IsSequence(a, type) || !IsSequence(b, type)) continue;
    const auto &x = a.list().items, &y = b.list().items;
    for (size_t i = 0; i < std::min(x.size(), y.size()); ++i) {
      if (!Equal(x[i], y[i])) return Compare(x[i], y[i], op);
    }
    return x.size() < y.size() ? -1 : x.size() > y.size();
  }
  if (a.is_undefined()) Fail(a.bytes());
  if (b.is_undefined()) Fail(b.bytes());
  Fail(Quoted(op) + " not supported between instances of " + Quoted(TypeName(a)) + " and " +
       Quoted(TypeName(b)));
}

std::string HashKey(const Value& v) {
  switch (v.kind()) {
    case Kind::kUndefined:
      return "u";
    case Kind::kNone:
      return "n";
    case Kind::kBool:
    case Kind::kInt:
      return "i" + std::to_string(v.integer());
    case Kind::kBigInt:
      return "i" + v.bytes();
    case Kind::kFloat: {
      const double d = v.real();
      if (d == std::floor(d) && std::fabs(d) < 9e18) {
        return "i" + std::to_string(static_cast<int64_t>(d));
      }
      return "d" + std::to_string(std::bit_cast<uint64_t>(d));
    }
    case Kind::kString:
      return "s" + v.bytes();
    case Kind::kList:
      if (v.list().type == ListObject::Type::kTuple) {
        std::string out = "(";
        for (const Value& item : v.list().items) {
          const std::string key = HashKey(item);
          out += std::to_string(key.size()) + ":" + key;
        }
        return out;
      }
      [[fallthrough]];
    case Kind::kDict:
      Fail("unhashable type: " + Quoted(TypeName(v)));
    default:
      FailUnsupported("a " + TypeName(v) + " as a key is outside the subset");
  }
}

std::string FloatRepr(double v) {
  if (std::isnan(v)) return "nan";
  if (std::isinf(v)) return v < 0 ? "-inf" : "inf";
  char buffer[40];
  const auto [end, error] =
      std::to_chars(buffer, buffer + sizeof buffer, v, std::chars_format::scientific);
  std::string text(buffer, end);
  const size_t e = text.find('e');
  const int exponent = std::atoi(text.c_str() + e + 1);
  std::string digits;
  for (const char c : text.substr(0, e)) {
    if (c >= '0' && c <= '9') digits += c;
  }
  const std::string sign = std::signbit(v) ? "-" : "";
  if (exponent < -4 || exponent >= 16) {
    std::string out = sign + digits.substr(0, 1);
    if (digits.size() > 1) out += "." + digits.substr(1);
    const int magnitude = std::abs(exponent);
    return out + (exponent < 0 ? "e-" : "e+") + (magnitude < 10 ? "0" : "") +
           std::to_string(magnitude);
  }
  if (exponent < 0)
    return sign + "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + digits;
  const auto whole = static_cast<size_t>(exponent) + 1;
  if (digits.size() <= whole) return sign + digits + std::string(whole - digits.size(), '0') + ".0";
  return sign + digits.substr(0, whole) + "." + digits.substr(whole);
}

Text ToText(const Value& v) {
  switch (v.kind()) {
    case Kind::kUndefined:
      return {};
    case Kind::kString:
      return v.text();
    default: {
      Text out;
      AppendRepr(v, out);
      return out;
    }
  }
}

namespace {

void AppendStringRepr(const Text& text, Text& out) {
  const std::string& s = text.bytes();
  const bool has_single = s.find('\'') != std::string::npos;
  const char quote = has_single && s.find('"') == std::string::npos ? '"' : '\'';
  static constexpr char kHex[] = "0123456789abcdef";
  const auto hex = [&](const char* prefix, uint32_t c, int digits) {
    std::string escape = prefix;
    for (int shift = (digits - 1) * 4; shift >= 0; shift -= 4) escape += kHex[c >> shift & 15];
    out.Append(escape, true);
  };
  out.Append(std::string_view(&quote, 1), true);
  size_t offset = 0;
  text.ForEachRun([&](std::string_view run, bool trusted) {
    for (size_t i = 0; i < run.size();) {
      const size_t n = std::min(CharLength(s, offset + i), run.size() - i);
      const uint32_t c = CharAt(s, offset + i);
      const std::string_view bytes = run.substr(i, n);
      if (c == '\n') {
        out.Append("\\n", true);
      } else if (c == '\r') {
        out.Append("\\r", true);
      } else if (c == '\t') {
        out.Append("\\t", true);
      } else if (c == '\\' || c == static_cast<uint32_t>(quote)) {
        out.Append("\\", true);
        out.Append(bytes, trusted);
      } else if (IsPrintable(c)) {
        out.Append(bytes, trusted);
      } else if (c < 0x100) {
        hex("\\x", c, 2);
      } else if (c < 0x10000) {
        hex("\\u", c, 4);
      } else {
        hex("\\U", c, 8);
      }
      i += n;
    }
    offset += run.size();
  });
  out.Append(std::string_view(&quote, 1), true);
}

}  // namespace

void AppendRepr(const Value& v, Text& out) {
  const auto items = [&](const char* open, const std::vector<Value>& values, const char* close) {
    out.Append(open, true);
    for (size_t i = 0; i < values.size(); ++i) {
      if (i > 0) out.Append(", ", true);
      AppendRepr(values[i], out);
    }
    out.Append(close, true);
  };
  switch (v.kind()) {
    case Kind::kUndefined:
      return out.Append("Undefined", true);
    case Kind::kNone:
      return out.Append("None", true);
    case Kind::kBool:
      return out.Append(v.integer() != 0 ? "True" : "False", true);
    case Kind::kInt:
      return out.Append(std::to_string(v.integer()), true);
    case Kind::kBigInt:
      return out.Append(v.bytes(), true);
    case Kind::kFloat:
      return out.Append(FloatRepr(v.real()), true);
    case Kind::kString:
      if (v.is_markup()) {
        out.Append("Markup(", true);
        AppendStringRepr(v.text(), out);
        return out.Append(")", true);
      }
      return AppendStringRepr(v.text(), out);
    case Kind::kDict: {
      out.Append("{", true);
      bool first = true;
      for (const auto& [key, value] : v.dict().items) {
        if (!first) out.Append(", ", true);
        first = false;
        AppendRepr(key, out);
        out.Append(": ", true);
        AppendRepr(value, out);
      }
      return out.Append("}", true);
    }
    case Kind::kList: {
      const ListObject& list = v.list();
      switch (list.type) {
        case ListObject::Type::kList:
          return items("[", list.items, "]");
        case ListObject::Type::kTuple:
          return items("(", list.items, list.items.size() == 1 ? ",)" : ")");
        case ListObject::Type::kRange: {
          std::string text =
              "range(" + std::to_string(list.start) + ", " + std::to_string(list.stop);
          if (list.step != 1) text += ", " + std::to_string(list.step);
          return out.Append(text + ")", true);
        }
        case ListObject::Type::kView:
          return items((list.type_name + "([").c_str(), list.items, "])");
        case ListObject::Type::kIterator:
          break;
      }
      break;
    }
    default:
      break;
  }
  FailUnsupported("printing a " + TypeName(v) + " is outside the subset");
}

std::vector<Value> Iterate(const Value& v) {
  switch (v.kind()) {
    case Kind::kUndefined:
      return {};
    case Kind::kString: {
      std::vector<Value> out;
      const std::string& s = v.bytes();
      for (size_t i = 0; i < s.size();) {
        const size_t n = CharLength(s, i);
        out.push_back(Value::String(v.text().Slice(i, i + n)));
        i += n;
      }
      return out;
    }
    case Kind::kDict: {
      std::vector<Value> out;
      for (const auto& [key, value] : v.dict().items) out.push_back(key);
      return out;
    }
    case Kind::kList:
      if (v.list().type == ListObject::Type::kIterator) {
        if (v.list().consumed) return {};
        v.list().consumed = true;
      }
      return v.list().items;
    case Kind::kLoop:
      FailUnsupported("iterating over loop is outside the subset");
    default:
      Fail(Quoted(TypeName(v)) + " object is not iterable");
  }
}

size_t Length(const Value& v) {
  switch (v.kind()) {
    case Kind::kUndefined:
      return 0;
    case Kind::kString:
      return CharCount(v.bytes());
    case Kind::kDict:
      return v.dict().items.size();
    case Kind::kList:
      if (v.list().type != ListObject::Type::kIterator) return v.list().items.size();
      break;
    case Kind::kLoop:
      return v.as<LoopObject>().items.size();
    default:
      break;
  }
  Fail("object of type " + Quoted(TypeName(v)) + " has no len()");
}

namespace {

void AppendJsonString(const Text& text, bool ensure_ascii, Text& out) {
  static constexpr char kHex[] = "0123456789abcdef";
  const auto unit = [&](uint32_t c) {
    const char escape[] = {
        '\\', 'u', kHex[c >> 12 & 15], kHex[c >> 8 & 15], kHex[c >> 4 & 15], kHex[c & 15]};
    out.Append(std::string_view(escape, 6), true);
  };
  out.Append("\"", true);
  const std::string& s = text.bytes();
  size_t offset = 0;
  text.ForEachRun([&](std::string_view run, bool trusted) {
    size_t plain = 0;
    const auto flush = [&](size_t end) { out.Append(run.substr(plain, end - plain), trusted); };
    for (size_t i = 0; i < run.size();) {
      const auto c = static_cast<uint8_t>(run[i]);
      if (c >= 0x20 && c != '"' && c != '\\' && (c < 0x80 || !ensure_ascii)) {
        ++i;
        continue;
      }
      flush(i);
      if (c >= 0x80) {
        const uint32_t point = CharAt(s, offset + i);
        i += std::min(CharLength(s, offset + i), run.size() - i);
        if (point >= 0x10000) {
          unit(0xD800 + ((point - 0x10000) >> 10));
          unit(0xDC00 + ((point - 0x10000) & 0x3FF));
        } else {
          unit(point);
        }
      } else {
        ++i;
        switch (c) {
          case '"':
            out.Append("\\\"", true);
            break;
          case '\\':
            out.Append("\\\\", true);
            break;
          case '\n':
            out.Append("\\n", true);
            break;
          case '\r':
            out.Append("\\r", true);
            break;
          case '\t':
            out.Append("\\t", true);
            break;
          case '\b':
            out.Append("\\b", true);
            break;
          case '\f':
            out.Append("\\f", true);
            break;
          default:
            unit(c);
        }
      }
      plain = i;
    }
    flush(run.size());
    offset += run.size();
  });
  out.Append("\"", true);
}

std::string JsonFloat(double v) {
  if (std::isnan(v)) return "NaN";
  if (std::isinf(v)) return v < 0 ? "-Infinity" : "Infinity";
  return FloatRepr(v);
}

void AppendJson(const Value& v, const JsonStyle& style, size_t level, Text& out) {
  const auto line = [&](size_t n) {
    if (out.size() > kMaxWeight) FailUnsupported("tojson's result is beyond the limit of 64 MiB");
    if (!style.pretty) return;
    std::string text = "\n";
    for (size_t i = 0; i < n; ++i) text += style.indent;
    out.Append(text, true);
  };
  switch (v.kind()) {
    case Kind::kNone:
      return out.Append("null", true);
    case Kind::kBool:
      return out.Append(v.integer() != 0 ? "true" : "false", true);
    case Kind::kInt:
      return out.Append(std::to_string(v.integer()), true);
    case Kind::kBigInt:
      return out.Append(v.bytes(), true);
    case Kind::kFloat:
      return out.Append(JsonFloat(v.real()), true);
    case Kind::kString:
      return AppendJsonString(v.text(), style.ensure_ascii, out);
    case Kind::kList: {
      if (v.list().type != ListObject::Type::kList && v.list().type != ListObject::Type::kTuple)
        break;
      const auto& items = v.list().items;
      if (items.empty()) return out.Append("[]", true);
      out.Append("[", true);
      for (size_t i = 0; i < items.size(); ++i) {
        if (i > 0) out.Append(style.item_separator, true);
        line(level + 1);
        AppendJson(items[i], style, level + 1, out);
      }
      line(level);
      return out.Append("]", true);
    }
    case Kind::kDict: {
      if (v.dict().items.empty()) return out.Append("{}", true);
      auto items = v.dict().items;
      if (style.sort_keys) {
        std::stable_sort(items.begin(), items.end(), [](const auto& a, const auto& b) {
          return Compare(a.first, b.first, "<") < 0;
        });
      }
      out.Append("{", true);
      bool first = true;
      for (const auto& [key, value] : items) {
        if (!first) out.Append(style.item_separator, true);
        first = false;
        line(level + 1);
        if (key.is_string()) {
          AppendJsonString(key.text(), style.ensure_ascii, out);
        } else if (key.is_number() || key.is_none()) {
          out.Append("\"", true);
          AppendJson(key, style, level, out);
          out.Append("\"", true);
        } else {
          Fail("keys must be str, int, float, bool or None, not " + TypeName(key));
        }
        out.Append(style.key_separator, true);
        AppendJson(value, style, level + 1, out);
      }
      line(level);
      return out.Append("}", true);
    }
    default:
      break;
  }
  Fail("Object of type " + TypeName(v) + " is not JSON serializable");
}

}  // namespace

Text ToJson(const Value& v, const JsonStyle& style) {
  Text out;
  AppendJson(v, style, 0, out);
  return out;
}

}  // namespace verbatim::engine::jinja
