#include "gateway/limits.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <thread>

#include "base/clock.h"
#include "store/data_folder.h"
#include "tests/store/ledger_fixture.h"

namespace verbatim::gateway {
namespace {

constexpr int64_t kSecond = 1'000'000;

std::unique_ptr<Limiter> Make(policies::Tenants tenants, const std::string& file = "") {
  auto limiter = Limiter::Open(std::move(tenants), file);
  EXPECT_TRUE(limiter.ok()) << (limiter.ok() ? "" : limiter.error().message);
  return *std::move(limiter);
}

policies::Tenants Acme(policies::RateLimits limits, policies::Budget budget = {}) {
  return {{"acme", {{}, limits, budget}}};
}

Principal Caller(policies::RateLimits of_key = {}, const char* key = "k1",
                 policies::Budget budget = {}) {
  Principal principal;
  principal.tenant = "acme";
  principal.key_id = key;
  if (of_key.any() || budget.tokens != 0) {
    principal.grant = std::make_shared<const Grant>(Grant{{}, of_key, budget});
  }
  return principal;
}

std::map<std::string, std::string> AsMap(const Headers& headers) {
  return {headers.begin(), headers.end()};
}

TEST(Limits, RequestsPerMinute) {
  const auto limiter = Make(Acme({.requests_per_minute = 3}));
  const int64_t t = NowMicros();
  for (const char* remaining : {"2", "1", "0"}) {
    const Allowance a = limiter->Admit(Caller(), 0, t);
    ASSERT_FALSE(a.refusal);
    const auto headers = AsMap(a.headers);
    EXPECT_EQ(headers.at("x-ratelimit-limit-requests"), "3");
    EXPECT_EQ(headers.at("x-ratelimit-remaining-requests"), remaining);
    EXPECT_FALSE(headers.contains("x-ratelimit-limit-tokens"));
  }
  const Allowance refused = limiter->Admit(Caller(), 0, t);
  ASSERT_TRUE(refused.refusal);
  EXPECT_EQ(refused.refusal->status, 429);
  EXPECT_EQ(refused.refusal->code, "rate_limit_exceeded");
  EXPECT_EQ(refused.refusal->type, "requests");
  const auto headers = AsMap(refused.refusal->headers);
  EXPECT_EQ(headers.at("retry-after"), "20");
  EXPECT_EQ(headers.at("retry-after-ms"), "20000");
  EXPECT_EQ(headers.at("x-ratelimit-remaining-requests"), "0");
  EXPECT_EQ(headers.at("x-ratelimit-reset-requests"), "1m0s");
  // One more each 20 seconds, to the microsecond; a refused request costs nothing.
  EXPECT_TRUE(limiter->Admit(Caller(), 0, t + 20 * kSecond - 1).refusal);
  EXPECT_FALSE(limiter->Admit(Caller(), 0, t + 20 * kSecond).refusal);
  EXPECT_TRUE(limiter->Admit(Caller(), 0, t + 20 * kSecond).refusal);
  EXPECT_TRUE(limiter->Admit(Caller(), 0, t - 3600 * kSecond).refusal) << "the clock goes back";
  // A long rest fills it once.
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(limiter->Admit(Caller(), 0, t + 9000 * kSecond).refusal);
  EXPECT_TRUE(limiter->Admit(Caller(), 0, t + 9000 * kSecond).refusal);
}

TEST(Limits, TokensAreEstimatedThenSettled) {
  const auto limiter = Make(Acme({.tokens_per_minute = 600}));
  const int64_t t = NowMicros();
  const auto remaining = [&] {
    return AsMap(limiter->Admit(Caller(), 0, t).headers).at("x-ratelimit-remaining-tokens");
  };
  {
    Allowance a = limiter->Admit(Caller(), 500, t);
    ASSERT_FALSE(a.refusal);
    EXPECT_EQ(AsMap(a.headers).at("x-ratelimit-remaining-tokens"), "100");
    const Allowance refused = limiter->Admit(Caller(), 200, t);
    ASSERT_TRUE(refused.refusal);
    EXPECT_EQ(refused.refusal->type, "tokens");
    EXPECT_EQ(AsMap(refused.refusal->headers).at("retry-after"), "10");  // 100 more, at 10 a second
    a.ticket.Settle(50, t);
    EXPECT_EQ(remaining(), "550");
  }
  EXPECT_EQ(remaining(), "550") << "a settled ticket gives nothing more back";
  { const Allowance dropped = limiter->Admit(Caller(), 500, t); }
  EXPECT_EQ(remaining(), "550") << "a ticket that was not settled took nothing";
  {
    Allowance a = limiter->Admit(Caller(), 10, t);
    a.ticket.Settle(1150, t);  // more than was thought: in debt
  }
  EXPECT_EQ(remaining(), "0");
  EXPECT_FALSE(limiter->Admit(Caller(), 0, t).refusal) << "a hit takes no tokens";
  EXPECT_TRUE(limiter->Admit(Caller(), 1, t + 60 * kSecond).refusal);
  EXPECT_FALSE(limiter->Admit(Caller(), 1, t + 61 * kSecond).refusal);
  const Allowance too_large = limiter->Admit(Caller(), 601, t + 9000 * kSecond);
  ASSERT_TRUE(too_large.refusal);
  EXPECT_EQ(AsMap(too_large.refusal->headers).at("x-should-retry"), "false");
}

TEST(Limits, ReserveAfterAMiss) {
  const auto limiter = Make(Acme({.requests_per_minute = 60, .tokens_per_minute = 100}));
  const int64_t t = NowMicros();
  Allowance a = limiter->Admit(Caller(), 0, t);
  EXPECT_FALSE(limiter->Reserve(a.ticket, 60, t));
  EXPECT_TRUE(limiter->Reserve(a.ticket, 60, t)) << "nothing of it is taken";
  EXPECT_FALSE(limiter->Reserve(a.ticket, 40, t));
  a.ticket.Settle(30, t);
  EXPECT_EQ(AsMap(limiter->Admit(Caller(), 0, t).headers).at("x-ratelimit-remaining-tokens"), "70");
  Ticket none;
  EXPECT_FALSE(limiter->Reserve(none, 1000, t)) << "who has no limits has an empty ticket";
  none.Settle(5, t);
}

TEST(Limits, Concurrent) {
  const auto limiter = Make(Acme({.concurrent = 2}));
  const int64_t t = NowMicros();
  Allowance first = limiter->Admit(Caller(), 0, t), second = limiter->Admit(Caller(), 0, t);
  const Allowance third = limiter->Admit(Caller(), 0, t);
  ASSERT_TRUE(third.refusal);
  EXPECT_EQ(AsMap(third.refusal->headers).at("retry-after"), "1");
  EXPECT_TRUE(first.headers.empty());
  Ticket moved = std::move(first.ticket);
  EXPECT_TRUE(limiter->Admit(Caller(), 0, t).refusal) << "the place moved with the ticket";
  moved = Ticket();
  EXPECT_FALSE(limiter->Admit(Caller(), 0, t).refusal);
}

TEST(Limits, TheKeysAndTheTenants) {
  const auto limiter = Make(Acme({.requests_per_minute = 3}));
  const int64_t t = NowMicros();
  const Principal one = Caller({.requests_per_minute = 2}, "k1"), two = Caller({}, "k2");
  EXPECT_EQ(AsMap(limiter->Admit(one, 0, t).headers).at("x-ratelimit-limit-requests"), "2");
  EXPECT_FALSE(limiter->Admit(one, 0, t).refusal);
  const Allowance of_key = limiter->Admit(one, 0, t);
  ASSERT_TRUE(of_key.refusal);
  EXPECT_NE(of_key.refusal->message.find("the key"), std::string::npos);
  // What the key refused was not taken from the tenant.
  EXPECT_FALSE(limiter->Admit(two, 0, t).refusal);
  const Allowance of_tenant = limiter->Admit(two, 0, t);
  ASSERT_TRUE(of_tenant.refusal);
  EXPECT_NE(of_tenant.refusal->message.find("the tenant"), std::string::npos);
  Principal stranger = two;
  stranger.tenant = "globex";
  EXPECT_FALSE(limiter->Admit(stranger, 1 << 30, t).refusal) << "no limits are named for it";
}

TEST(Limits, EveryOtherTenantByItself) {
  const auto limiter = Make({{"*", {{}, {.requests_per_minute = 1}, {}}}});
  const int64_t t = NowMicros();
  Principal a, b;
  a.tenant = "a";
  b.tenant = "b";
  EXPECT_FALSE(limiter->Admit(a, 0, t).refusal);
  EXPECT_FALSE(limiter->Admit(b, 0, t).refusal);
  EXPECT_TRUE(limiter->Admit(a, 0, t).refusal);
}

TEST(Limits, ReplacedLimitsKeepWhatWasUsed) {
  const auto limiter = Make(Acme({.requests_per_minute = 2}));
  const int64_t t = NowMicros();
  EXPECT_FALSE(limiter->Admit(Caller(), 0, t).refusal);
  EXPECT_FALSE(limiter->Admit(Caller(), 0, t).refusal);
  limiter->Replace(Acme({.requests_per_minute = 3}));
  EXPECT_FALSE(limiter->Admit(Caller(), 0, t).refusal);
  EXPECT_TRUE(limiter->Admit(Caller(), 0, t).refusal);
  limiter->Replace({});
  EXPECT_FALSE(limiter->Admit(Caller(), 0, t).refusal);
}

TEST(Limits, BudgetsOfDayAndMonth) {
  struct Case {
    policies::Period per;
    const char* start;
    const char* same;
    const char* next;
    const char* whole_again;
  };
  const Case cases[] = {
      {policies::Period::kDay, "2026-11-30T00:00:00Z", "2026-11-30T23:59:59Z",
       "2026-12-01T00:00:00Z", "2026-12-01"},
      {policies::Period::kMonth, "2026-12-01T00:00:00Z", "2026-12-31T23:59:59Z",
       "2027-01-01T00:00:00Z", "2027-01-01"},
      {policies::Period::kDay, "2028-02-28T12:00:00Z", "2028-02-28T13:00:00Z",
       "2028-02-29T00:00:00Z", "2028-02-29"},
  };
  for (const Case& c : cases) {
    const auto limiter = Make({{"*", {{}, {}, {.tokens = 100, .per = c.per}}}});
    const int64_t start = ParseTime(c.start).value(), same = ParseTime(c.same).value();
    Allowance a = limiter->Admit(Caller(), 60, start);
    ASSERT_FALSE(a.refusal) << c.start;
    a.ticket.Settle(60, start);
    const Allowance refused = limiter->Admit(Caller(), 41, same);
    ASSERT_TRUE(refused.refusal) << c.same;
    EXPECT_EQ(refused.refusal->status, 429);
    EXPECT_EQ(refused.refusal->code, "insufficient_quota");
    EXPECT_NE(refused.refusal->message.find(c.whole_again), std::string::npos)
        << refused.refusal->message;
    EXPECT_NE(refused.refusal->message.find("up to 41"), std::string::npos);
    const Allowance never = limiter->Admit(Caller(), 101, same);
    ASSERT_TRUE(never.refusal);
    EXPECT_NE(never.refusal->message.find("more than the whole budget: set max_tokens"),
              std::string::npos)
        << never.refusal->message;
    EXPECT_FALSE(limiter->Admit(Caller(), 40, same).refusal);
    const int64_t next = ParseTime(c.next).value();
    EXPECT_FALSE(limiter->Admit(Caller(), 100, next).refusal) << c.next;
    Allowance later = limiter->Admit(Caller(), 100, next);
    later.ticket.Settle(100, next);
    EXPECT_TRUE(limiter->Admit(Caller(), 1, same).refusal) << "the clock goes back";
  }
}

// A key's budget counts beside its tenant's, and survives a restart as that does.
TEST(Limits, BudgetsOfKeys) {
  store::TemporaryFolder folder;
  std::filesystem::create_directory(folder.path());
  const std::string file = folder.path() + "/budgets.json";
  const policies::Budget of_key{.tokens = 100, .per = policies::Period::kMonth};
  const policies::Tenants tenants = Acme({}, {.tokens = 150, .per = policies::Period::kMonth});
  const int64_t t = NowMicros();
  const auto spend = [&](Limiter& limiter, const char* key, uint64_t tokens) {
    Allowance a = limiter.Admit(Caller({}, key, of_key), tokens, t);
    if (a.refusal) return a.refusal->message.substr(0, a.refusal->message.find('\''));
    a.ticket.Settle(tokens, t);
    return std::string("spent");
  };
  {
    const auto limiter = Make(tenants, file);
    EXPECT_EQ(spend(*limiter, "k1", 90), "spent");
    EXPECT_EQ(spend(*limiter, "k1", 11), "The key");
  }
  const auto limiter = Make(tenants, file);
  EXPECT_EQ(spend(*limiter, "k1", 11), "The key");
  EXPECT_EQ(spend(*limiter, "k1", 10), "spent");
  EXPECT_EQ(spend(*limiter, "k2", 51), "The tenant");
  EXPECT_EQ(spend(*limiter, "k2", 50), "spent");
}

TEST(Limits, BudgetsSurviveARestart) {
  store::TemporaryFolder folder;
  std::filesystem::create_directory(folder.path());
  const std::string file = folder.path() + "/budgets.json", copy = folder.path() + "/copy";
  const policies::Tenants tenants = Acme({}, {.tokens = 1000, .per = policies::Period::kMonth});
  const int64_t t = NowMicros();
  const auto affords = [&](Limiter& limiter, uint64_t tokens) {
    return !limiter.Admit(Caller(), tokens, t).refusal;
  };
  Allowance running;
  {
    const auto limiter = Make(tenants, file);
    Allowance a = limiter->Admit(Caller(), 400, t);
    a.ticket.Settle(300, t);
    running = limiter->Admit(Caller(), 100, t);
    ASSERT_TRUE(limiter->Save().ok());
    std::filesystem::copy_file(file, copy);  // what a crash would leave
    running.ticket = Ticket();
  }
  {
    const auto limiter = Make(tenants, file);  // ended well: 300 are spent
    EXPECT_TRUE(affords(*limiter, 700));
    EXPECT_FALSE(affords(*limiter, 701));
  }
  {
    const auto limiter = Make(tenants, copy);  // 300, what was reserved, and a hundredth
    EXPECT_TRUE(affords(*limiter, 590));
    EXPECT_FALSE(affords(*limiter, 591));
  }
  // Files of before, without budgets of keys, are read.
  const char* before = R"({"version":1,"tenants":{"acme":{"period":"2026-11","spent":5}}})";
  ASSERT_TRUE(store::WriteFileDurably(file, before).ok());
  EXPECT_TRUE(Limiter::Open(tenants, file).ok());
  for (const char* text : {"", "{\"version\":2,\"tenants\":{}}", "{}", "[]",
                           "{\"version\":3,\"tenants\":{},\"keys\":{}}",
                           "{\"version\":1,\"tenants\":{\"acme\":{\"period\":\"2026-11\"}}}",
                           "{\"version\":1,\"tenants\":{\"acme\":{\"period\":1,\"spent\":-5}}}"}) {
    ASSERT_TRUE(store::WriteFileDurably(file, text).ok());
    const auto broken = Limiter::Open(tenants, file);
    ASSERT_FALSE(broken.ok()) << text;
    EXPECT_EQ(broken.error().code, Code::kCorrupt);
  }
}

TEST(Limits, ManyThreadsNeverGetMoreThanThereIs) {
  const auto limiter = Make(Acme({.requests_per_minute = 1000, .concurrent = 7},
                                 {.tokens = 5000, .per = policies::Period::kMonth}));
  const int64_t t = NowMicros();
  std::atomic<int> running = 0, most = 0, admitted = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      for (int n = 0; n < 500; ++n) {
        Allowance a = limiter->Admit(Caller(), 10, t);
        if (a.refusal) continue;
        const int now = ++running;
        for (int seen = most; now > seen && !most.compare_exchange_weak(seen, now);) {
        }
        ++admitted;
        --running;
        a.ticket.Settle(10, t);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(most, 7);
  EXPECT_LE(admitted, 500) << "5000 tokens, 10 each";
  EXPECT_GT(admitted, 0);
}

TEST(Limits, ManyTenantsDoNotFillTheMemory) {
  const auto limiter = Make({{"*", {{}, {.requests_per_minute = 60}, {}}}});
  const int64_t t = NowMicros();
  Principal principal;
  for (int i = 0; i < 30'000; ++i) {
    principal.tenant = "t" + std::to_string(i);
    EXPECT_FALSE(limiter->Admit(principal, 0, t + i * 2 * kSecond).refusal);
  }
}

TEST(Limits, Durations) {
  const std::pair<int64_t, const char*> cases[] = {{-5, "0s"},
                                                   {0, "0s"},
                                                   {1, "1ms"},
                                                   {17'000, "17ms"},
                                                   {999'001, "1s"},
                                                   {1'000'000, "1s"},
                                                   {8'640'000, "8.64s"},
                                                   {60'000'000, "1m0s"},
                                                   {360'000'000, "6m0s"},
                                                   {61'005'000, "1m1.005s"},
                                                   {3'723'000'000, "1h2m3s"},
                                                   {3'600'000'000, "1h0m0s"}};
  for (const auto& [micros, want] : cases) EXPECT_EQ(FormatReset(micros), want) << micros;
}

TEST(Limits, Estimates) {
  struct Case {
    const char* request;
    uint64_t want;
  };
  const Case cases[] = {
      {R"({"max_tokens":100})", 110},
      {R"({"max_completion_tokens":100,"max_tokens":1})", 110},
      {R"({"max_output_tokens":100})", 110},
      {R"({"max_tokens":100,"n":3})", 310},
      {R"({"max_tokens":100,"n":2,"best_of":4})", 410},
      {R"({"max_tokens":100,"prompt":["a","b"]})", 210},
      {R"({"max_tokens":100,"prompt":[1,2,3]})", 110},
      {R"({"max_tokens":100,"prompt":[[1],[2]],"n":2})", 410},
      {R"({})", 26},
      {R"({"max_tokens":null})", 26},
      {R"({"max_tokens":18446744073709551615,"n":18446744073709551615})", 10'000'000'000},
      {R"({"max_tokens":"many","n":-1})", 26},
  };
  for (const Case& c : cases) {
    EXPECT_EQ(EstimateTokens(json::Parse(c.request).value(), 40, 16), c.want) << c.request;
  }
}

}  // namespace
}  // namespace verbatim::gateway
