// What leaves a stream of tokens as text, whatever the tokens' borders.
#include "engine/text_stream.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace verbatim::engine {
namespace {

struct Case {
  std::vector<std::string> stops;
  std::string bytes;  // of all tokens
  std::string text;
  std::string stop;  // the one that matched, if any
};

const Case kCases[] = {
    {{}, "plain", "plain", ""},
    {{"\nUser:"}, "answer\nUser: more", "answer", "\nUser:"},
    {{"\nUser:"}, "answer\nUse", "answer\nUse", ""},
    {{"aab"}, "aaab", "a", "aab"},
    {{"abab"}, "ababab", "", "abab"},
    {{"b", "abc"}, "xabc", "xa", "b"},   // the first that is complete
    {{"c", "abc"}, "xabc", "x", "abc"},  // together: the longest
    {{"abc", "c"}, "xabc", "x", "abc"},  // in whatever order they are given
    {{"abcd", "bc"}, "abce", "a", "bc"},
    {{"caf\xc3\xa9"}, "un caf\xc3\xa9 noir", "un ", "caf\xc3\xa9"},
    {{}, "\xf0\x9f\x99\x82", "\xf0\x9f\x99\x82", ""},
    {{}, "cut \xf0\x9f\x99", "cut \xef\xbf\xbd", ""},
    {{}, "bad \xff byte", "bad \xef\xbf\xbd byte", ""},
    {{"\xef\xbf\xbd!"}, "a\xff!b", "a", "\xef\xbf\xbd!"},
};

// Every way to cut the bytes into tokens (up to 16 bytes), and no text that would have to be taken
// back.
TEST(TextStream, EveryCutGivesTheSameText) {
  for (const Case& c : kCases) {
    const size_t borders = std::min<size_t>(c.bytes.size() - 1, 15);
    for (uint32_t cut = 0; cut < (1u << borders); ++cut) {
      TextStream stream(c.stops);
      std::string text, token;
      for (size_t i = 0; i < c.bytes.size(); ++i) {
        token += c.bytes[i];
        if (i < borders && (cut >> i & 1) == 0) continue;
        text += stream.Push(token);
        ASSERT_TRUE(c.text.starts_with(text)) << c.bytes << ": " << text;
        token.clear();
      }
      text += stream.Push(token);
      text += stream.Finish();
      ASSERT_EQ(text, c.text) << c.bytes << ", cut " << cut;
      ASSERT_EQ(stream.stopped() ? stream.stop() : "", c.stop) << c.bytes << ", cut " << cut;
      ASSERT_EQ(stream.Push("more"), stream.stopped() ? "" : "more");
    }
  }
}

TEST(TextStream, HoldsBackNoMoreThanItMust) {
  TextStream stream({"stop"});
  EXPECT_EQ(stream.Push("no st"), "no ");
  EXPECT_EQ(stream.Push("ep"), "step");
  EXPECT_EQ(stream.Push("\xc3"), "");
  EXPECT_EQ(stream.Push("\xa9s"), "\xc3\xa9");
  EXPECT_EQ(stream.Finish(), "s");
}

}  // namespace
}  // namespace verbatim::engine
