#include "base/clock.h"

#include <gtest/gtest.h>

namespace verbatim {
namespace {

TEST(Clock, FormatAndParse) {
  struct Case {
    int64_t micros;
    const char* text;
  };
  const Case cases[] = {
      {0, "1970-01-01T00:00:00.000000Z"},
      {951'782'400'000'001, "2000-02-29T00:00:00.000001Z"},
      {1'796'055'044'000'123, "2026-11-30T16:10:44.000123Z"},
      {-1, "1969-12-31T23:59:59.999999Z"},
  };
  for (const Case& c : cases) {
    EXPECT_EQ(FormatTime(c.micros), c.text);
    EXPECT_EQ(*ParseTime(c.text), c.micros);
  }
  EXPECT_EQ(*ParseTime("1970-01-01T00:00:01Z"), 1'000'000);
  EXPECT_EQ(*ParseTime("1970-01-01T00:00:00.5Z"), 500'000);
  for (const char* bad :
       {"", "1970-01-01", "1970-01-01T00:00:00", "1970-13-01T00:00:00Z", "1970-02-30T00:00:00Z",
        "1970-01-01T24:00:00Z", "1970-01-01T00:00:00.Z", "1970-01-01T00:00:00.1234567Z",
        "1970-01-01T00:00:00+01:00", "1970-01-01 00:00:00Z", "1970-01-01T00:00:00.12x4Z"}) {
    EXPECT_FALSE(ParseTime(bad).ok()) << bad;
  }
}

TEST(Clock, Runs) {
  EXPECT_GT(NowMicros(), 1'700'000'000'000'000);
  const int64_t a = MonotonicMicros();
  EXPECT_GE(MonotonicMicros(), a);
}

}  // namespace
}  // namespace verbatim
