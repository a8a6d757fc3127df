#include "gateway/upstream/retry.h"

#include <gtest/gtest.h>

#include "gateway/upstream/breaker.h"

namespace verbatim::gateway {
namespace {

constexpr int64_t kSecond = 1'000'000;

TEST(Retry, WhichRepliesAreAskedAgain) {
  struct Case {
    int status;
    const char* advice;  // x-should-retry; "": none
    bool want;
  };
  const Case cases[] = {
      {408, "", true},      {409, "", true},     {429, "", true},       {500, "", true},
      {502, "", true},      {503, "", true},     {504, "", true},       {529, "", true},
      {400, "", false},     {401, "", false},    {404, "", false},      {422, "", false},
      {501, "", false},     {400, "true", true}, {429, "false", false}, {500, "false", false},
      {429, "maybe", true}, {301, "", false},
  };
  for (const Case& c : cases) {
    Headers headers;
    if (*c.advice != '\0') headers.emplace_back("x-should-retry", c.advice);
    EXPECT_EQ(WorthRetrying(c.status, headers), c.want) << c.status << " " << c.advice;
  }
}

TEST(Retry, HowLongTheUpstreamAsksToWait) {
  const int64_t now = int64_t{784'111'777} * kSecond;  // Sun, 06 Nov 1994 08:49:37 GMT
  struct Case {
    const char* name;
    const char* value;
    int64_t want;  // -1: it does not say
  };
  const Case cases[] = {
      {"retry-after", "3", 3 * kSecond},
      {"retry-after", "0", 0},
      {"retry-after", "1.5", 1'500'000},
      {"retry-after", "0.0000009", 0},
      {"retry-after", "99999999999999999999", 86'400 * kSecond},
      {"retry-after", "-3", -1},
      {"retry-after", "soon", -1},
      {"retry-after", "", -1},
      {"retry-after", ".5", -1},
      {"retry-after", "1e3", -1},
      {"retry-after", "Sun, 06 Nov 1994 08:49:42 GMT", 5 * kSecond},
      {"retry-after", "Sunday, 06-Nov-94 08:49:42 GMT", 5 * kSecond},
      {"retry-after", "Sun Nov  6 08:49:42 1994", 5 * kSecond},
      {"retry-after", "Sun, 06 Nov 1994 08:49:37 GMT", 0},
      {"retry-after", "Sun, 06 Nov 1994 08:00:00 GMT", 0},
      {"retry-after", "Sun, 06 Nov 2094 08:49:42 GMT", 86'400 * kSecond},
      {"retry-after", "Sun, 06 Nov 1994 08:49:42 GMT, or later", -1},
      {"retry-after-ms", "250", 250'000},
      {"retry-after-ms", "0.5", 500},
      {"x-other", "3", -1},
  };
  for (const Case& c : cases) {
    EXPECT_EQ(AskedDelay({{c.name, c.value}}, now).value_or(-1), c.want)
        << c.name << ": " << c.value;
  }
  EXPECT_EQ(AskedDelay({{"retry-after", "3"}, {"retry-after-ms", "20"}}, now), 20'000)
      << "the more exact one counts";
  EXPECT_EQ(AskedDelay({{"retry-after", "3"}, {"retry-after-ms", "x"}}, now), 3 * kSecond);
}

TEST(Retry, WaitsGrowWithJitterAndAreBounded) {
  for (const double random : {0.0, 0.5, 0.999}) {
    Backoff backoff(500'000, 8 * kSecond, [random] { return random; });
    int64_t last = 500'000;
    for (int i = 0; i < 10; ++i) {
      const auto wait = backoff.Next(std::nullopt);
      ASSERT_TRUE(wait);
      EXPECT_GE(*wait, 500'000);
      EXPECT_LE(*wait, std::min<int64_t>(8 * kSecond, 3 * last));
      last = *wait;
    }
    EXPECT_EQ(last, random == 0.0 ? 500'000 : 8 * kSecond);
  }
}

TEST(Retry, AnAskedWaitIsKept) {
  Backoff backoff(500'000, 8 * kSecond, [] { return 0.5; });
  for (const int64_t asked : {int64_t{0}, 100 * kSecond / 1000, 2 * kSecond, 8 * kSecond}) {
    const auto wait = backoff.Next(asked);
    ASSERT_TRUE(wait);
    EXPECT_GE(*wait, asked);
    EXPECT_LE(*wait, 8 * kSecond);
  }
  EXPECT_EQ(backoff.Next(8 * kSecond + 1), std::nullopt) << "no use in asking before that";
}

using State = CircuitBreaker::State;
using Outcome = CircuitBreaker::Outcome;

constexpr BreakerOptions kThree{
    .failures = 3, .window_micros = 10 * kSecond, .open_micros = 5 * kSecond};

void Call(CircuitBreaker& breaker, Outcome outcome, int64_t now) {
  const auto ticket = breaker.Enter(now);
  ASSERT_TRUE(ticket) << "at " << now;
  breaker.Leave(*ticket, outcome, now);
}

TEST(Breaker, OpensAfterFailuresWithinTheWindow) {
  CircuitBreaker breaker(kThree);
  Call(breaker, Outcome::kUnhealthy, 0);
  Call(breaker, Outcome::kUnhealthy, kSecond);
  EXPECT_EQ(breaker.state(kSecond), State::kClosed);
  EXPECT_EQ(breaker.OpenFor(kSecond), 0);
  Call(breaker, Outcome::kUnhealthy, 2 * kSecond);
  EXPECT_EQ(breaker.state(2 * kSecond), State::kOpen);
  EXPECT_FALSE(breaker.Enter(2 * kSecond));
  EXPECT_EQ(breaker.OpenFor(3 * kSecond), 4 * kSecond);
}

TEST(Breaker, OldFailuresAndThoseOfFewCallsDoNotCount) {
  CircuitBreaker slow(kThree);
  for (int64_t i = 0; i < 20; ++i) Call(slow, Outcome::kUnhealthy, i * 6 * kSecond);
  EXPECT_EQ(slow.state(120 * kSecond), State::kClosed) << "never three within ten seconds";

  CircuitBreaker busy(kThree);
  for (int64_t i = 0; i < 100; ++i) {
    Call(busy, i % 10 == 9 ? Outcome::kUnhealthy : Outcome::kHealthy, i * kSecond / 20);
  }
  EXPECT_EQ(busy.state(5 * kSecond), State::kClosed) << "one call of ten is no outage";

  CircuitBreaker never({.failures = 0});
  for (int i = 0; i < 100; ++i) Call(never, Outcome::kUnhealthy, 0);
  EXPECT_EQ(never.state(0), State::kClosed);
}

TEST(Breaker, OneCallProbesAndDecides) {
  CircuitBreaker breaker(kThree);
  for (int i = 0; i < 3; ++i) Call(breaker, Outcome::kUnhealthy, 0);
  int64_t now = 5 * kSecond;
  EXPECT_EQ(breaker.state(now), State::kHalfOpen);
  auto probe = breaker.Enter(now);
  ASSERT_TRUE(probe);
  EXPECT_FALSE(breaker.Enter(now)) << "one at a time";
  breaker.Leave(*probe, Outcome::kUnhealthy, now);
  EXPECT_EQ(breaker.state(now), State::kOpen);

  now += 5 * kSecond;
  probe = breaker.Enter(now);
  ASSERT_TRUE(probe);
  breaker.Leave(*probe, Outcome::kUnknown, now);
  probe = breaker.Enter(now);
  ASSERT_TRUE(probe) << "a cancelled probe makes place for another";
  breaker.Leave(*probe, Outcome::kHealthy, now);
  EXPECT_EQ(breaker.state(now), State::kClosed);
  Call(breaker, Outcome::kUnhealthy, now);
  Call(breaker, Outcome::kUnhealthy, now);
  EXPECT_EQ(breaker.state(now), State::kClosed) << "what was before it opened is forgotten";
}

TEST(Breaker, StragglersOfAnEarlierTimeSayNothing) {
  CircuitBreaker breaker(kThree);
  const auto early = breaker.Enter(0);
  for (int i = 0; i < 3; ++i) Call(breaker, Outcome::kUnhealthy, 0);
  breaker.Leave(*early, Outcome::kHealthy, kSecond);
  EXPECT_EQ(breaker.state(kSecond), State::kOpen);
  const auto probe = breaker.Enter(5 * kSecond);
  ASSERT_TRUE(probe);
  breaker.Leave(*early, Outcome::kUnhealthy, 5 * kSecond);
  EXPECT_EQ(breaker.state(5 * kSecond), State::kHalfOpen);
}

}  // namespace
}  // namespace verbatim::gateway
