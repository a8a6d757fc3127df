// Which traceparent and tracestate count, and what is sent on (W3C Trace Context).
#include "gateway/traceparent.h"

#include <gtest/gtest.h>

namespace verbatim::gateway {
namespace {

const std::string kTrace = "0af7651916cd43dd8448eb211c80319c";
const std::string kParent = "b7ad6b7169203331";
const std::string kGood = "00-" + kTrace + "-" + kParent + "-01";

TEST(TraceParent, IsParsedStrictly) {
  struct Case {
    const char* what;
    std::string text;
    bool ok;
  };
  const Case cases[] = {
      {"the specification's example", kGood, true},
      {"not sampled", "00-" + kTrace + "-" + kParent + "-00", true},
      {"a later version", "01-" + kTrace + "-" + kParent + "-01", true},
      {"a later version with more", "cc-" + kTrace + "-" + kParent + "-01-what-the-future", true},
      {"a later version with more, undivided", "cc-" + kTrace + "-" + kParent + "-01.x", false},
      {"version 00 with more", kGood + "-x", false},
      {"version ff", "ff-" + kTrace + "-" + kParent + "-01", false},
      {"upper case", "00-0AF7651916CD43DD8448EB211C80319C-" + kParent + "-01", false},
      {"upper case version", "0A-" + kTrace + "-" + kParent + "-01", false},
      {"trace id of zeros", "00-" + std::string(32, '0') + "-" + kParent + "-01", false},
      {"parent id of zeros", "00-" + kTrace + "-" + std::string(16, '0') + "-01", false},
      {"a short trace id", "00-" + kTrace.substr(1) + "-" + kParent + "-01", false},
      {"a digit that is none", "00-" + kTrace.substr(1) + "g-" + kParent + "-01", false},
      {"flags that are none", "00-" + kTrace + "-" + kParent + "-0g", false},
      {"flags of one digit", "00-" + kTrace + "-" + kParent + "-1", false},
      {"a space before", " " + kGood, false},
      {"a space behind", kGood + " ", false},
      {"underscores", "00_" + kTrace + "_" + kParent + "_01", false},
      {"nothing", "", false},
      {"a NUL byte", "00-" + kTrace + "-" + kParent + std::string("-0\0", 3), false},
  };
  for (const Case& c : cases) {
    EXPECT_EQ(ParseTraceParent(c.text).has_value(), c.ok) << c.what << ": " << c.text;
  }
  EXPECT_EQ(FormatTraceParent(*ParseTraceParent(kGood)), kGood);
  EXPECT_EQ(TraceIdText(*ParseTraceParent(kGood)), kTrace);
}

TEST(TraceParent, IsPassedOnWithAParentOfOurOwn) {
  const std::string random = "abcdefghijklmnopqrstuvwx";
  Headers out;
  const auto sent = AddTraceHeaders(
      {{"traceparent", "00-" + kTrace + "-" + kParent + "-ff"}, {"tracestate", "a=1"}}, false,
      random, out);
  ASSERT_TRUE(sent.has_value());
  EXPECT_EQ(out, (Headers{{"traceparent", "00-" + kTrace + "-6162636465666768-03"},
                          {"tracestate", "a=1"}}));
  // None, two, or a malformed one: none is sent, and no tracestate of a trace that is not known.
  const Headers without[] = {
      {},
      {{"tracestate", "a=1"}},
      {{"traceparent", kGood}, {"traceparent", kGood}},
      {{"traceparent", kGood + "x"}, {"tracestate", "a=1"}},
  };
  for (const Headers& in : without) {
    out.clear();
    EXPECT_FALSE(AddTraceHeaders(in, false, random, out).has_value());
    EXPECT_EQ(out, Headers{});
    // Where one is to be made, it is a new one.
    const auto made = AddTraceHeaders(in, true, random, out);
    ASSERT_EQ(out.size(), 1u);
    EXPECT_EQ(out[0].second, "00-6162636465666768696a6b6c6d6e6f70-7172737475767778-00");
    EXPECT_EQ(*made, *ParseTraceParent(out[0].second));
  }
  EXPECT_TRUE(ParseTraceParent(FormatTraceParent(NewTrace(std::string(24, '\0')))).has_value());
}

std::string StateOf(std::vector<std::string> values) {
  Headers headers;
  for (std::string& value : values) headers.emplace_back("tracestate", std::move(value));
  return TraceState(headers);
}

TEST(TraceState, IsBoundedAndWellFormed) {
  EXPECT_EQ(StateOf({"rojo=00f067aa0ba902b7,congo=t61rcWkgMzE"}),
            "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE");
  EXPECT_EQ(StateOf({"a=1 , b=2", "", "c@d=3"}), "a=1,b=2,c@d=3");
  EXPECT_EQ(StateOf({"a=1,,b=2"}), "a=1,b=2");
  for (const char* bad : {"a", "=1", "a=", "A=1", "a=1=2", "a=1,a=2", "a=\x01", "a=\xC3\xA9",
                          "a b=1", "-a=1", "a=x\r\nx-injected: 1"}) {
    EXPECT_EQ(StateOf({bad}), "") << bad;
  }
  EXPECT_EQ(StateOf({std::string(257, 'a') + "=1"}), "");
  EXPECT_EQ(StateOf({"a=" + std::string(257, 'x')}), "");

  std::vector<std::string> many, big;
  for (int i = 0; i < 40; ++i) many.push_back("k" + std::to_string(i) + "=v");
  const std::string kept = StateOf(many);
  EXPECT_EQ(std::count(kept.begin(), kept.end(), '='), 32);
  EXPECT_TRUE(kept.ends_with("k31=v"));
  for (int i = 0; i < 5; ++i) big.push_back("k" + std::to_string(i) + "=" + std::string(200, 'v'));
  EXPECT_EQ(StateOf(big).size(), 2 * 203u + 1);
}

}  // namespace
}  // namespace verbatim::gateway
