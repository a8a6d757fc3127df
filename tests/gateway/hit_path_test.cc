// Hits from memory: nobody can tell them from hits that went the long way through the store, and
// each leaves the same trace.
#include <gtest/gtest.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/use_future.hpp>
#include <future>
#include <regex>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "base/crypto.h"
#include "fake_client.h"
#include "gateway/hit_cache.h"
#include "gateway/hit_groups.h"
#include "gateway/request_memo.h"
#include "store/rows.h"

namespace verbatim::gateway {
namespace {

namespace asio = boost::asio;

const char kChat[] = R"({"model":"m","messages":[{"role":"user","content":"hi"}]})";

Ask With(std::string body, std::string path = "/v1/chat/completions") {
  Ask ask;
  ask.body = std::move(body);
  ask.path = std::move(path);
  return ask;
}

int Prepared(Harness& h) {
  std::lock_guard lock(h.script->mutex);
  return h.script->prepared;
}

// What a client sees.
std::string Seen(const FakeSink& sink) {
  std::string text = std::to_string(sink.status()) + "\n";
  for (const auto& [name, value] : sink.headers()) text += name + ": " + value + "\n";
  return text + "\n" + sink.body() + (sink.finished() ? "" : "(not finished)");
}

// The same, but for what tells two gateways apart: when they ran, and what else is in their logs.
std::string SeenAnywhere(const FakeSink& sink) {
  std::string text;
  std::istringstream lines(Seen(sink));
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("Verbatim-Entry: ") || line.starts_with("Verbatim-Output-Digest: ")) {
      line.resize(line.find(':'));
    }
    text += line + "\n";
  }
  return std::regex_replace(text, std::regex("\"created\":[0-9]+"), "\"created\":0");
}

// How many requests of each kind were counted.
std::string Counted(Harness& h) {
  std::string text;
  std::istringstream lines(h.metrics->Render());
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("verbatim_requests_total{") || line.starts_with("verbatim_tokens")) {
      text += line + "\n";
    }
  }
  return text;
}

// What its hit's record says, but for id, time and the log's own numbers.
std::string Recorded(Harness& h, const std::string& request_id) {
  const auto receipt = h.ledger->FindReceipt(request_id);
  if (!receipt.ok() || !receipt->hit) return "no hit";
  json::Value record = json::Parse(receipt->hit->record).value();
  record.Erase("request_id");
  record.Erase("time");
  record.Erase("result");
  return json::Canonical(record);
}

// Every request four times, by gateways that remember and by one that does not.
TEST(HitPath, RememberedHitsAreLikeAllOthers) {
  std::vector<Ask> asks = {
      With(kChat),
      With(R"({"model":"m","messages":[{"role":"user","content":"hi"}],"stream":true})"),
      With(R"({"model":"m","messages":[{"role":"user","content":"hi"}],"stream":true,)"
           R"("stream_options":{"include_usage":true}})"),
      With(R"({"model":"m","prompt":"hi"})", "/v1/completions"),
      With(R"({"model":"m","prompt":"hi","stream":true})", "/v1/completions"),
      With(R"({"model":"m","prompt":"hi","seed":-5,"temperature":0.5})", "/v1/completions"),
      With(R"({"model":"m","prompt":"hi","whim":[1,2],"user":"u"})", "/v1/completions"),
      With(R"({"model":"m","prompt":"too long"})", "/v1/completions"),
      With(R"({"model":"no such","prompt":"hi"})", "/v1/completions"),
      With("not json"),
      With(std::string(R"({"model":"m","prompt":")") + std::string(40'000, 'x') + "\"}",
           "/v1/completions"),
  };
  for (const char* control :
       {"no-cache", "no-store", "only-if-cached", "max-age=0", "max-age=60"}) {
    asks.push_back(With(kChat));
    asks.back().cache_control = control;
  }
  asks.push_back(With(kChat));
  asks.back().tenant = "globex";
  asks.push_back(With(kChat));
  asks.back().query = "api-version=1";

  std::vector<policies::Policy> policies(6);
  policies[1].mode = policies::Mode::kVerify;
  policies[2].mode = policies::Mode::kObserve;
  policies[3].mode = policies::Mode::kReplay;
  policies[4].strict_hits = true;
  policies[5].name_space = policies::Namespace::kShared;
  policies[5].enforce = {{"temperature", json::Value(0), policies::How::kOverride}};
  for (const policies::Policy& policy : policies) {
    SCOPED_TRACE(policies::ModeName(policy.mode));
    Harness remembers(policy), forgets(policy, "", 0);
    for (const Ask& ask : asks) {
      SCOPED_TRACE(ask.cache_control + " " + ask.tenant + " " + ask.body.substr(0, 80));
      std::string first_hit;
      for (int round = 0; round < 4; ++round) {
        SCOPED_TRACE(round);
        Exchange a = remembers.Start(ask), b = forgets.Start(ask);
        const std::string seen = Seen(a.Wait());
        EXPECT_EQ(SeenAnywhere(*a.sink), SeenAnywhere(b.Wait()));
        EXPECT_EQ(Recorded(remembers, a.request->id), Recorded(forgets, b.request->id));
        // The first hit went the long way.
        if (a.sink->header("verbatim-cache") != "hit") continue;
        if (first_hit.empty()) first_hit = seen;
        EXPECT_EQ(seen, first_hit);
      }
    }
    EXPECT_LE(Prepared(remembers), Prepared(forgets));
    EXPECT_EQ(Counted(remembers), Counted(forgets));
  }
}

TEST(HitPath, AnEqualRequestIsPreparedTwiceAtMost) {
  Harness h;
  for (int i = 0; i < 5; ++i) h.Do(With(kChat));
  EXPECT_EQ(Prepared(h), 2);  // the miss, and the hit that was remembered
  // Other bytes of the same value are another request to the memo, and the same result.
  auto spaced = h.Do(With(std::string(" ") + kChat));
  EXPECT_EQ(spaced->header("verbatim-cache"), "hit");
  EXPECT_EQ(Prepared(h), 3);
}

TEST(HitPath, WhatReadTheClockIsPreparedEachTime) {
  Harness h;
  {
    std::lock_guard lock(h.script->mutex);
    h.script->reads_clock = true;
  }
  for (int i = 0; i < 5; ++i) h.Do(With(kChat));
  EXPECT_EQ(Prepared(h), 5);
}

TEST(HitPath, AHitThatCannotBeRecordedIsNoAnswer) {
  Harness h;
  for (int i = 0; i < 3; ++i) h.Do(With(kChat));
  h.kv->FailCommit(1, store::KvMemory::Fault::kNotPersisted);
  auto refused = h.Do(With(kChat));
  EXPECT_EQ(refused->status(), 500);
  EXPECT_EQ(refused->body().find("Hello"), std::string::npos);
  EXPECT_EQ(h.Do(With(kChat))->header("verbatim-cache"), "hit");  // recovered
}

Request RequestOf(std::string body) {
  Request http;
  http.method = "POST";
  http.path = "/v1/chat/completions";
  http.body = std::move(body);
  http.headers = {{"content-type", "application/json"}, {"content-length", "9"}};
  return http;
}

TEST(RequestMemo, KeysDifferByAllThatCounts) {
  const Request base = RequestOf("{\"a\":1}");
  const Digest key = RequestMemo::KeyOf(Endpoint::kChatCompletions, base);
  const auto same = [&](auto change) {
    Request other = base;
    change(other);
    return RequestMemo::KeyOf(Endpoint::kChatCompletions, other) == key;
  };
  EXPECT_TRUE(same([](Request& r) { r.id = "req_2"; }));
  EXPECT_TRUE(same([](Request& r) { r.received_micros = 5; }));
  EXPECT_TRUE(same([](Request& r) { r.remote = "127.0.0.1:9"; }));
  for (const char* name : {"traceparent", "date", "x-request-id", "x-stainless-retry-count"}) {
    EXPECT_TRUE(same([&](Request& r) { r.headers.emplace_back(name, "1"); })) << name;
  }
  EXPECT_FALSE(same([](Request& r) { r.body += " "; }));
  EXPECT_FALSE(same([](Request& r) { r.query = "a"; }));
  EXPECT_FALSE(same([](Request& r) { r.path += "x"; }));
  EXPECT_FALSE(same([](Request& r) { r.headers.emplace_back("anthropic-beta", "x"); }));
  EXPECT_FALSE(same([](Request& r) { r.headers.emplace_back("cache-control", "no-cache"); }));
  EXPECT_FALSE(same([](Request& r) { r.headers[0].second = "text/plain"; }));
  EXPECT_FALSE(same([](Request& r) { r.principal.tenant = "b"; }));
  EXPECT_FALSE(same([](Request& r) { r.principal.subject = "b"; }));
  EXPECT_FALSE(same([](Request& r) { r.principal.key_id = "b"; }));
  EXPECT_FALSE(same([](Request& r) { r.principal.roles = 4; }));
  EXPECT_FALSE(same([](Request& r) { r.principal.groups = {"g"}; }));
  // What moves between neighbouring parts is told apart.
  EXPECT_FALSE(same([](Request& r) {
    r.principal.tenant += r.principal.subject;
    r.principal.subject.clear();
  }));
  EXPECT_FALSE(same([](Request& r) { r.headers.emplace_back("", ""); }));
  EXPECT_NE(RequestMemo::KeyOf(Endpoint::kCompletions, base), key);
}

// A ledger with results of 10 kB under fingerprints of their numbers.
class HitCacheTest : public ::testing::Test {
 protected:
  HitCacheTest() {
    for (int i = 0; i < 20; ++i) {
      store::AppendRequest entry;
      entry.record.tenant = entry.record.name_space = "acme";
      entry.record.fingerprint = Of(i);
      entry.record.serves_hits = true;
      entry.response = std::string(10'000, static_cast<char>('a' + i));
      entries_.push_back(h_.ledger->Append(std::move(entry))->entry);
    }
  }
  static Digest Of(int i) { return Sha256(std::to_string(i)); }

  Harness h_;
  std::vector<uint64_t> entries_;
};

TEST_F(HitCacheTest, HoldsWhatWasServedLastWithinItsBytes) {
  HitCache cache(*h_.ledger, 60'000);
  EXPECT_EQ(cache.Find("acme", Of(0)), nullptr);
  for (int i = 0; i < 20; ++i) {
    const SharedResult result = cache.Lookup("acme", Of(i)).value();
    ASSERT_TRUE(result);
    EXPECT_EQ(result->entry, entries_[i]);
    EXPECT_EQ(result->response[0], 'a' + i);
    EXPECT_LE(cache.bytes(), 60'000u);
    ASSERT_TRUE(cache.Find("acme", Of(0)));  // is used each time, and so stays
  }
  EXPECT_GT(cache.bytes(), 30'000u);
  EXPECT_TRUE(cache.Find("acme", Of(19)));
  EXPECT_FALSE(cache.Find("acme", Of(5)));
  EXPECT_FALSE(cache.Find("globex", Of(19)));
  EXPECT_EQ(cache.Lookup("globex", Of(19)).value(), nullptr);
}

TEST_F(HitCacheTest, OffOrTooSmallItStillLooksUp) {
  for (const uint64_t bytes : {uint64_t{0}, uint64_t{20'000}}) {
    HitCache cache(*h_.ledger, bytes);
    EXPECT_EQ(cache.Lookup("acme", Of(1)).value()->entry, entries_[1]);
    EXPECT_EQ(cache.Find("acme", Of(1)), nullptr);
    EXPECT_EQ(cache.bytes(), 0u);
  }
}

TEST_F(HitCacheTest, WhatIsForgottenIsGone) {
  HitCache cache(*h_.ledger, 1'000'000);
  const SharedResult held = cache.Lookup("acme", Of(1)).value();
  ASSERT_TRUE(cache.Lookup("acme", Of(2)).value());
  cache.Forget(entries_[1]);
  EXPECT_EQ(cache.Find("acme", Of(1)), nullptr);
  EXPECT_TRUE(cache.Find("acme", Of(2)));
  EXPECT_EQ(held->entry, entries_[1]);  // whoever serves it at the moment does so
  cache.Forget(entries_[2]);
  EXPECT_EQ(cache.bytes(), 0u);
}

TEST(HitGroups, ManyAtOnceAreAllRecorded) {
  Harness h;
  h.Do(With(kChat));
  const uint64_t result = h.ledger->Size() - 1;
  HitGroups groups(*h.ledger);
  asio::io_context one(1), other(1);
  std::vector<std::future<Status>> waiting;
  const auto record = [&](std::string id, bool strict) -> asio::awaitable<Status> {
    store::HitRequest hit;
    hit.tenant = "acme";
    hit.result = result;
    hit.request_id = std::move(id);
    hit.strict = strict;
    co_return co_await groups.Record(std::move(hit));
  };
  for (int i = 0; i < 300; ++i) {
    waiting.push_back(asio::co_spawn(
        i % 3 ? one : other, record("id-" + std::to_string(i), i % 50 == 0), asio::use_future));
  }
  std::thread thread([&] { one.run(); });
  other.run();
  thread.join();
  for (int i = 0; i < 300; ++i) {
    EXPECT_TRUE(waiting[i].get().ok()) << i;
    EXPECT_TRUE(h.ledger->FindReceipt("id-" + std::to_string(i)).ok()) << i;
  }
}

TEST(HitGroups, WhoeverWaitsWhenItsExecutorEndsIsLetGo) {
  Harness h;
  HitGroups groups(*h.ledger);
  auto io = std::make_unique<asio::io_context>(1);
  const auto record = [&]() -> asio::awaitable<void> {
    store::HitRequest hit;
    (void)co_await groups.Record(std::move(hit));
  };
  asio::co_spawn(*io, record(), [](std::exception_ptr) {});
  io->run_one();
  io.reset();
}

}  // namespace
}  // namespace verbatim::gateway
