#include "base/json.h"

#include <gtest/gtest.h>

#include <bit>
#include <chrono>
#include <map>
#include <random>
#include <sstream>

#include "base/bytes.h"
#include "tests/base/json_reference.h"
#include "tests/base/vectors.h"

namespace verbatim {
namespace {

using json::Value;
using test::ReadFile;
using test::Vectors;

Value MustParse(std::string_view text) {
  auto v = json::Parse(text);
  EXPECT_TRUE(v.ok()) << text << ": " << (v.ok() ? "" : v.error().message);
  return v.ok() ? std::move(*v) : Value();
}

std::string CanonicalOf(std::string_view text) { return json::Canonical(MustParse(text)); }

TEST(Json, CanonicalForm) {
  struct Case {
    const char* text;
    const char* want;
  };
  const Case cases[] = {
      {" null ", "null"},
      {"[true,\tfalse\n]", "[true,false]"},
      {"{ }", "{}"},
      {R"({"b":1,"a":{"d":[],"c":""}})", R"({"a":{"c":"","d":[]},"b":1})"},
      // Escapes: the short ones, \u00xx in lower case, everything else as it is.
      {R"("\u0008\u0009\u000A\u000c\u000D\u0022\u005C\u002F\u001F\u007f")",
       "\"\\b\\t\\n\\f\\r\\\"\\\\/\\u001f\x7f\""},
      {R"("\u20ac\u2028\uD83D\uDE00")", "\"\u20ac\u2028\U0001F600\""},
      // Order by UTF-16 code units: U+1F600 is D83D DE00, before U+E000 and after U+D7FF.
      {"{\"\ue000\":1,\"\U0001F600\":2,\"\ud7ff\":3,\"a\":4,\"\":5}",
       "{\"\":5,\"a\":4,\"\ud7ff\":3,\"\U0001F600\":2,\"\ue000\":1}"},
      {R"({"\ud83e":1,"\ud83d\ude00":2,"\ud83d":3})",
       "{\"\\ud83d\":3,\"\U0001F600\":2,\"\\ud83e\":1}"},
      {R"({"ab":1,"a":2,"a\u0000":3})", R"({"a":2,"a\u0000":3,"ab":1})"},
      // Lone surrogates stay what they are.
      {R"(["\uD800","\udc00\ud800","\uD800\uD800\uDC00","\ud800x"])",
       "[\"\\ud800\",\"\\udc00\\ud800\",\"\\ud800\U00010000\",\"\\ud800x\"]"},
  };
  for (const Case& c : cases) {
    EXPECT_EQ(CanonicalOf(c.text), c.want) << c.text;
    EXPECT_EQ(CanonicalOf(c.want), c.want) << "canonical text must be a fixed point";
  }
}

TEST(Json, CanonicalNumbers) {
  struct Case {
    const char* text;
    const char* want;
  };
  const Case cases[] = {
      {"0", "0"},
      {"-0", "0"},
      {"-0.00e99", "0"},
      {"0e999999999999999999999999", "0"},
      {"1", "1"},
      {"1.0", "1"},
      {"1e0", "1"},
      {"10E-1", "1"},
      {"-1.50", "-1.5"},
      {"1e20", "100000000000000000000"},
      {"1e21", "1e+21"},
      {"123456789012345678901e1", "1.23456789012345678901e+21"},
      {"0.000001", "0.000001"},
      {"0.0000001", "1e-7"},
      {"0.00000012", "1.2e-7"},
      // Beyond a double's digits and range the exact decimal stays.
      {"9007199254740993", "9007199254740993"},
      {"12345678901234567890", "12345678901234567890"},
      {"333333333.33333329", "333333333.33333329"},
      {"0.1000000000000000055", "0.1000000000000000055"},
      {"1e400", "1e+400"},
      {"100e398", "1e+400"},
      {"-4.9e-400", "-4.9e-400"},
      {"1e999999999999", "1e+999999999999"},
      // Exponents longer than any integer type: the same value in two spellings.
      {"1e100000000000000000000", "1e+100000000000000000000"},
      {"10e99999999999999999999", "1e+100000000000000000000"},
      {"0.01e100000000000000000002", "1e+100000000000000000000"},
      {"1e-100000000000000000000", "1e-100000000000000000000"},
      {"0.1e-99999999999999999999", "1e-100000000000000000000"},
      // Around the switch of representation inside (18 digits).
      {"1e999999999999999999", "1e+999999999999999999"},
      {"10e999999999999999999", "1e+1000000000000000000"},
      {"1e1000000000000000000", "1e+1000000000000000000"},
      {"0.01e1000000000000000000", "1e+999999999999999998"},
      {"1e0000000000000000000000021", "1e+21"},
  };
  for (const Case& c : cases) {
    EXPECT_EQ(CanonicalOf(c.text), c.want) << c.text;
    EXPECT_EQ(CanonicalOf(c.want), c.want) << "canonical text must be a fixed point";
  }
}

TEST(Json, EcmaScriptNumbers) {
  SKIP_WITHOUT_VECTORS("jcs");
  std::istringstream lines(ReadFile(Vectors("jcs/es6-numbers-10000.txt")));
  size_t compared = 0;
  for (std::string line; std::getline(lines, line); ++compared) {
    const size_t comma = line.find(',');
    ASSERT_NE(comma, std::string::npos) << line;
    const uint64_t bits = std::stoull(line.substr(0, comma), nullptr, 16);
    const std::string want = line.substr(comma + 1);
    const std::string got = json::FormatDouble(std::bit_cast<double>(bits));
    ASSERT_EQ(got, want) << line;
    ASSERT_EQ(CanonicalOf(got), want) << "its own decimal must be canonical";
  }
  EXPECT_EQ(compared, 10000u);
}

TEST(Json, Rfc8785Vectors) {
  SKIP_WITHOUT_VECTORS("jcs");
  size_t compared = 0;
  for (const auto& file : std::filesystem::directory_iterator(Vectors("jcs/input"))) {
    const auto name = file.path().filename();
    std::string want = ReadFile(Vectors("jcs/output") / name);
    // In `values` one number is no double's own decimal: it stays by the stricter rule.
    const std::string rounded = "333333333.3333333,", exact = "333333333.33333329,";
    if (name == "values.json") want.replace(want.find(rounded), rounded.size(), exact);
    EXPECT_EQ(CanonicalOf(ReadFile(file.path())), want) << name;
    ++compared;
  }
  EXPECT_GT(compared, 0u);
}

std::string SuiteText(const Value& item) {
  if (const Value* b64 = item.Find("b64")) return std::move(*Base64Decode(b64->as_string()));
  const Value* repeat = item.Find("repeat");
  EXPECT_NE(repeat, nullptr) << json::Serialize(item).substr(0, 200);
  std::string text;
  for (int64_t i = 0; i < *repeat->Find("times")->AsInt64(); ++i) {
    text += repeat->Find("text")->as_string();
  }
  return repeat->Find("then_newline")->as_bool() ? text + "\n" : text;
}

TEST(Json, ParsingSuite) {
  SKIP_WITHOUT_VECTORS("json_parsing");
  const Value suite = MustParse(ReadFile(Vectors("json_parsing/jsontestsuite.json")));
  std::map<std::string, int> counts;
  for (const Value& item : suite.Find("parsing")->items()) {
    const std::string& name = item.Find("name")->as_string();
    const std::string& verdict = item.Find("verdict")->as_string();
    const std::string text = SuiteText(item);
    const auto parsed = json::Parse(text);
    ++counts[verdict];
    // Names given twice are well-formed JSON by RFC 8259, and refused here.
    const bool duplicate = name.find("duplicated_key") != std::string::npos;
    if (verdict == "accept") {
      EXPECT_EQ(parsed.ok(), !duplicate) << name;
    } else if (verdict == "reject") {
      EXPECT_FALSE(parsed.ok()) << name;
    }
    if (!parsed.ok()) {
      EXPECT_EQ(parsed.error().code, Code::kInvalid);
      continue;
    }
    const std::string canonical = json::Canonical(*parsed);
    EXPECT_EQ(CanonicalOf(canonical), canonical) << name;
    EXPECT_EQ(CanonicalOf(json::Serialize(*parsed)), canonical) << name;
  }
  EXPECT_GT(counts["accept"], 0);
  EXPECT_GT(counts["reject"], 0);
}

TEST(Json, DifferentTextsOfTheSuiteNeverCollide) {
  SKIP_WITHOUT_VECTORS("json_parsing");
  const Value suite = MustParse(ReadFile(Vectors("json_parsing/jsontestsuite.json")));
  std::map<std::string, std::string> seen;  // canonical text -> name
  for (const Value& item : suite.Find("transform")->items()) {
    const std::string& name = item.Find("name")->as_string();
    const auto parsed = json::Parse(SuiteText(item));
    if (!parsed.ok()) {
      const bool raw_surrogate = name.find("invalid_codepoint") != std::string::npos &&
                                 name.find("escaped") == std::string::npos;
      EXPECT_TRUE(name.find("same_key") != std::string::npos || raw_surrogate)
          << name << ": " << parsed.error().message;
      continue;
    }
    const auto [at, fresh] = seen.emplace(json::Canonical(*parsed), name);
    // 1.0 in several spellings is one value; nothing else may meet.
    EXPECT_TRUE(fresh || at->first == "[0]" || at->first == "[1]") << name << " = " << at->second;
  }
  EXPECT_GT(seen.size(), 5u);
}

TEST(Json, Refused) {
  const std::string_view texts[] = {"",
                                    " ",
                                    "[1,]",
                                    "[,1]",
                                    "{\"a\":1,}",
                                    "{a:1}",
                                    "{'a':1}",
                                    "01",
                                    "-",
                                    "+1",
                                    ".5",
                                    "1.",
                                    "1e",
                                    "1e+",
                                    "0x10",
                                    "NaN",
                                    "Infinity",
                                    "nul",
                                    "truex",
                                    "[1] 2",
                                    "[1",
                                    "{\"a\"",
                                    "{\"a\":",
                                    "\"",
                                    "\"\\",
                                    "\"\\x\"",
                                    "\"\\u12\"",
                                    "\"\\u12g4\"",
                                    "\"\\u+123\"",
                                    "\"\\u -12\"",
                                    "\"\t\"",
                                    "\"\n\"",
                                    "\xef\xbb\xbf{}",
                                    "/**/1",
                                    "[1 2]",
                                    "{\"a\" 1}",
                                    "1\f",
                                    "\"\xc0\xaf\"",
                                    "\"\xed\xa0\x80\"",
                                    "\"\xf4\x90\x80\x80\"",
                                    "\"\xff\"",
                                    "\"\xe2\x82\"",
                                    R"({"a":1,"a":1})",
                                    R"({"a":1,"\u0061":2})",
                                    R"({"x":{"\ud800":1,"\uD800":2}})"};
  for (const std::string_view text : texts) {
    const auto parsed = json::Parse(text);
    ASSERT_FALSE(parsed.ok()) << text;
    EXPECT_EQ(parsed.error().code, Code::kInvalid);
    EXPECT_FALSE(parsed.error().message.empty());
  }
  const auto nul = json::Parse(std::string_view("1\0", 2));
  EXPECT_FALSE(nul.ok());
  EXPECT_EQ(json::Parse("[1,}").error().message, "byte 3: expected a JSON value");
}

TEST(Json, Limits) {
  const auto nested = [](size_t depth) {
    return std::string(depth, '[') + std::string(depth, ']');
  };
  EXPECT_TRUE(json::Parse(nested(256)).ok());
  EXPECT_FALSE(json::Parse(nested(257)).ok());
  EXPECT_FALSE(json::Parse(std::string(10'000'000, '[')).ok());
  std::string objects;
  for (int i = 0; i < 100'000; ++i) objects += "{\"a\":";
  EXPECT_FALSE(json::Parse(objects).ok());
  EXPECT_FALSE(json::Parse("[1,2,3]", {.max_values = 3}).ok());
  EXPECT_TRUE(json::Parse("[1,2,3]", {.max_values = 4}).ok());
  EXPECT_FALSE(json::Parse("[1,2,3]", {.max_bytes = 6}).ok());
}

TEST(Json, HostileSizesTakeLinearTime) {
  const auto start = std::chrono::steady_clock::now();
  const std::string digits(1'000'000, '7');
  EXPECT_EQ(CanonicalOf("0." + digits), "0." + digits);
  EXPECT_EQ(CanonicalOf("1e" + digits), "1e+" + digits);
  EXPECT_EQ(CanonicalOf(digits + "e-" + digits).substr(0, 5), "7.777");
  EXPECT_EQ(CanonicalOf("1" + std::string(1'000'000, '0')), "1e+1000000");
  EXPECT_EQ(CanonicalOf("0." + std::string(1'000'000, '0') + "1"), "1e-1000001");
  EXPECT_EQ(CanonicalOf("1" + std::string(1'000'000, '0') + "e-1000000"), "1");
  std::string object = "{";
  for (int i = 0; i < 200'000; ++i) object += "\"" + std::to_string(i) + "\":0,";
  object.back() = '}';
  EXPECT_TRUE(json::Parse(object).ok());
  object.back() = ',';
  EXPECT_FALSE(json::Parse(object + "\"77\":0}").ok());
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
}

TEST(Json, NumbersAsIntegersAndDoubles) {
  struct Case {
    const char* text;
    std::optional<int64_t> i;
    std::optional<uint64_t> u;
  };
  const Case cases[] = {
      {"0", 0, 0},
      {"-0", 0, 0},
      {"1.0", 1, 1},
      {"1e2", 100, 100},
      {"1200e-2", 12, 12},
      {"1.5", {}, {}},
      {"-1", -1, {}},
      {"9223372036854775807", INT64_MAX, 9223372036854775807u},
      {"9223372036854775808", {}, 9223372036854775808u},
      {"-9223372036854775808", INT64_MIN, {}},
      {"-9223372036854775809", {}, {}},
      {"18446744073709551615", {}, UINT64_MAX},
      {"18446744073709551616", {}, {}},
      {"1e19", {}, 10000000000000000000u},
      {"1e20", {}, {}},
      {"1e999999999999999999999", {}, {}},
      {"1e-999999999999999999999", {}, {}},
  };
  for (const Case& c : cases) {
    EXPECT_EQ(MustParse(c.text).AsInt64(), c.i) << c.text;
    EXPECT_EQ(MustParse(c.text).AsUint64(), c.u) << c.text;
  }
  EXPECT_EQ(MustParse("0.1").AsDouble(), 0.1);
  EXPECT_EQ(MustParse("1e400").AsDouble(), std::nullopt);
  EXPECT_EQ(MustParse("1e-400").AsDouble(), 0.0);
  EXPECT_EQ(MustParse("4.9e-324").AsDouble(), 4.9e-324);
  EXPECT_EQ(MustParse("1e-99999999999999999999").AsDouble(), 0.0);
  EXPECT_EQ(MustParse("-1e99999999999999999999").AsDouble(), std::nullopt);
  EXPECT_EQ(MustParse("\"1\"").AsDouble(), std::nullopt);
}

TEST(Json, ValuesMadeByHand) {
  Value v = json::Object{{"n", 1}, {"s", "x\"y"}, {"d", 0.5}, {"u", UINT64_MAX}};
  v.Set("n", int64_t{-7});
  v.Set("list", Value::MakeArray());
  v.Find("list")->Append(true);
  v.Find("list")->Append(Value());
  EXPECT_EQ(json::Serialize(v),
            R"({"n":-7,"s":"x\"y","d":0.5,"u":18446744073709551615,"list":[true,null]})");
  EXPECT_TRUE(v.Erase("s"));
  EXPECT_FALSE(v.Erase("s"));
  EXPECT_EQ(v.Find("s"), nullptr);
  EXPECT_EQ(MustParse("[1,{\"a\":1.0,\"b\":2}]"), MustParse("[1e0,{\"b\":2,\"a\":1}]"));
  EXPECT_FALSE(MustParse("1") == MustParse("\"1\""));
  EXPECT_EQ(json::Quote("a\xff\xc3"), "\"a\ufffd\ufffd\"");
}

TEST(Json, TextPositions) {
  const std::string text = R"( {"a" : [1, "x" ] , "b":{}} )";
  const Value v = MustParse(text);
  const auto span = [&](const Value& at) {
    return text.substr(at.text_begin(), at.text_end() - at.text_begin());
  };
  EXPECT_EQ(span(v), R"({"a" : [1, "x" ] , "b":{}})");
  EXPECT_EQ(span(*v.Find("a")), R"([1, "x" ])");
  EXPECT_EQ(span(v.Find("a")->items()[1]), R"("x")");
  EXPECT_EQ(span(*v.Find("b")), "{}");
}

// Random values written with random spacing, order, escapes and number spellings are one value.
class RandomJson {
 public:
  explicit RandomJson(uint32_t seed) : random_(seed) {}

  Value Make(int depth) {
    switch (Below(depth > 0 ? 6 : 4)) {
      case 0:
        return {};
      case 1:
        return Below(2) == 1;
      case 2:
        return Value::NumberFromText(Number());
      case 3:
        return Text();
      case 4: {
        Value v = Value::MakeArray();
        for (int n = Below(4); n > 0; --n) v.Append(Make(depth - 1));
        return v;
      }
      default: {
        Value v = Value::MakeObject();
        for (int n = Below(5); n > 0; --n) v.Set(Text(), Make(depth - 1));
        return v;
      }
    }
  }

  std::string Spell(const Value& v) {
    const std::string s = Space();
    switch (v.type()) {
      case Value::Type::kNumber:
        return s + SpellNumber(v.number_text()) + Space();
      case Value::Type::kString:
        return s + SpellText(v.as_string()) + Space();
      case Value::Type::kArray: {
        std::string out = s + "[";
        for (const Value& item : v.items()) out += (out == s + "[" ? "" : ",") + Spell(item);
        return out + (v.items().empty() ? Space() : "") + "]" + Space();
      }
      case Value::Type::kObject: {
        std::vector<json::Member> members = v.members();
        std::shuffle(members.begin(), members.end(), random_);
        std::string out = s + "{";
        for (const json::Member& m : members) {
          out += (out == s + "{" ? "" : ",") + Space() + SpellText(m.first) + Space() + ":" +
                 Spell(m.second);
        }
        return out + "}" + Space();
      }
      default:
        return s + json::Serialize(v) + Space();
    }
  }

 private:
  int Below(int n) { return static_cast<int>(random_() % static_cast<uint32_t>(n)); }
  std::string Space() { return std::string(static_cast<size_t>(Below(3)), " \t\n\r"[Below(4)]); }
  std::string Number() {
    std::string s = Below(2) ? "-" : "";
    s += std::to_string(1 + Below(9));
    for (int n = Below(25); n > 0; --n) s += static_cast<char>('0' + Below(10));
    return s + "e" + std::to_string(Below(60) - 30);
  }
  std::string SpellNumber(const std::string& text) {  // shift the point and adjust the exponent
    const size_t e = text.find('e');
    if (e == std::string::npos) return text;
    const int zeros = Below(4);
    return text.substr(0, e) + std::string(static_cast<size_t>(zeros), '0') +
           (Below(2) ? ".00" : "") + "E" + std::to_string(std::stoi(text.substr(e + 1)) - zeros);
  }
  std::string Text() {
    static const char* const kParts[] = {
        "a", "\"", "\\", "/", "\n", "\x01", "\u00e9", "\u20ac", "\U0001F600", "\ue000", "\ud7ff"};
    std::string s;
    for (int n = Below(5); n > 0; --n) s += kParts[Below(11)];
    return s;
  }
  std::string SpellText(const std::string& s) {  // some characters of one byte as \u00XX
    if (Below(2)) return json::Quote(s);
    std::string out = "\"";
    for (const char c : s) {
      if (static_cast<uint8_t>(c) >= 0x80) {
        out += c;
      } else {
        char escape[8];
        std::snprintf(escape, sizeof escape, Below(2) ? "\\u%04x" : "\\u%04X", c);
        out += escape;
      }
    }
    return out + "\"";
  }

  std::mt19937 random_;
};

// A value beside another one of which it differs in one place, or in none.
Value Changed(const Value& v, std::mt19937& random) {
  switch (v.type()) {
    case Value::Type::kNull:
      return random() % 2 ? v : Value(false);
    case Value::Type::kBool:
      return random() % 2 ? v : Value(!v.as_bool());
    case Value::Type::kNumber: {
      std::string text = v.number_text();
      const size_t at = random() % text.size();
      if (text[at] >= '1' && text[at] <= '8') ++text[at];
      return Value::NumberFromText(text);
    }
    case Value::Type::kString:
      return v.as_string() + (random() % 2 ? "" : "a");
    case Value::Type::kArray: {
      json::Array items = v.items();
      if (items.empty()) return random() % 2 ? v : Value(json::Array{Value()});
      Value& item = items[random() % items.size()];
      item = Changed(item, random);
      return items;
    }
    default: {
      json::Object members = v.members();
      if (members.empty()) return random() % 2 ? v : Value(json::Object{{"", Value()}});
      json::Member& member = members[random() % members.size()];
      member.second = Changed(member.second, random);
      std::shuffle(members.begin(), members.end(), random);
      return members;
    }
  }
}

TEST(Json, CanonicalTextIsEqualExactlyForEqualValues) {
  int equal = 0, different = 0;
  for (uint32_t seed = 0; seed < 3000; ++seed) {
    RandomJson random(seed);
    std::mt19937 choice(seed);
    const Value a = random.Make(4);
    const Value b = MustParse(random.Spell(seed % 3 == 0 ? random.Make(2) : Changed(a, choice)));
    const auto same = test::SameValue(a, b);
    ASSERT_TRUE(same.has_value());
    ASSERT_EQ(json::Canonical(a) == json::Canonical(b), *same)
        << "seed " << seed << ": " << json::Serialize(a) << " and " << json::Serialize(b);
    ASSERT_EQ(a == b, *same) << "seed " << seed;
    ++(*same ? equal : different);
  }
  EXPECT_GT(equal, 300);
  EXPECT_GT(different, 300);
}

// One number in every spelling has one text; its neighbours, however near, have others.
TEST(Json, SpellingsOfOneNumber) {
  struct Case {
    const char* want;
    std::vector<const char*> spellings, others;
  };
  const Case cases[] = {
      {"0", {"0", "-0", "0.0", "0e5", "-0.000E-7", "0e+0"}, {"1e-400", "-1e-400", "0.1"}},
      {"1", {"1", "1.0", "1e0", "10e-1", "0.1e1", "1.000E+0"}, {"1.0000000000000000001", "-1"}},
      {"100", {"100", "1e2", "1E+2", "1000e-1", "100.00"}, {"99.99999999999999999999", "1e3"}},
      {"9007199254740993",
       {"9007199254740993", "9007199254740993.0", "9.007199254740993e15"},
       {"9007199254740992", "9007199254740994", "9007199254740993.5"}},
      {"0.1", {"0.1", "1e-1", "0.10", "100e-3"}, {"0.1000000000000000055", "0.10000000000000001"}},
  };
  for (const Case& c : cases) {
    for (const char* spelling : c.spellings) EXPECT_EQ(CanonicalOf(spelling), c.want) << spelling;
    for (const char* other : c.others) EXPECT_NE(CanonicalOf(other), c.want) << other;
  }
}

TEST(Json, EqualValuesHaveEqualCanonicalText) {
  for (uint32_t seed = 0; seed < 2000; ++seed) {
    RandomJson random(seed);
    const Value v = random.Make(4);
    const std::string canonical = json::Canonical(v);
    const std::string spelled = random.Spell(v);
    ASSERT_EQ(CanonicalOf(spelled), canonical) << "seed " << seed << ": " << spelled;
    ASSERT_EQ(CanonicalOf(canonical), canonical) << "seed " << seed;
  }
}

}  // namespace
}  // namespace verbatim
