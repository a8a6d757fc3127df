// The life of a request, seen from clients and from the ledger: what runs, what is served again,
// who waits for whom, and what becomes of everything that does not end well.
#include "gateway/pipeline.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/crypto.h"
#include "base/json.h"
#include "fake_client.h"

namespace verbatim::gateway {
namespace {

using Kinds = std::vector<std::string>;

const char kChat[] = R"({"model":"m","messages":[{"role":"user","content":"hi"}]})";
const char kStreamed[] =
    R"({"model":"m","messages":[{"role":"user","content":"hi"}],"stream":true})";
const char kWithUsage[] =
    R"({"model":"m","messages":[{"role":"user","content":"hi"}],"stream":true,)"
    R"("stream_options":{"include_usage":true}})";

Ask Chat() { return {}; }
Ask Streamed() {
  Ask ask;
  ask.body = kStreamed;
  return ask;
}
Ask With(std::string body) {
  Ask ask;
  ask.body = std::move(body);
  return ask;
}

std::string Code(const FakeSink& sink) {
  auto body = json::Parse(sink.body());
  const json::Value* error = body.ok() ? body->Find("error") : nullptr;
  const json::Value* code = error ? error->Find("code") : nullptr;
  return code && code->is_string() ? code->as_string() : "no code in " + sink.body();
}

TEST(Pipeline, MissThenHitWithEqualBytes) {
  struct Case {
    const char* name;
    Ask ask;
  };
  Ask completion = With(R"({"model":"m","prompt":"hi"})");
  completion.path = "/v1/completions";
  Ask completion_streamed = With(R"({"model":"m","prompt":"hi","stream":true})");
  completion_streamed.path = "/v1/completions";
  for (const auto& [name, ask] :
       {Case{"chat", Chat()}, Case{"streamed", Streamed()}, Case{"usage", With(kWithUsage)},
        Case{"completion", completion}, Case{"completion, streamed", completion_streamed}}) {
    SCOPED_TRACE(name);
    Harness h;
    auto miss = h.Do(ask), hit = h.Do(ask);
    EXPECT_EQ(miss->status(), 200);
    EXPECT_EQ(hit->status(), 200);
    EXPECT_TRUE(miss->finished());
    EXPECT_TRUE(hit->finished());
    EXPECT_EQ(miss->header("Verbatim-Cache"), "miss");
    EXPECT_EQ(hit->header("Verbatim-Cache"), "hit");
    EXPECT_EQ(miss->body(), hit->body());
    EXPECT_EQ(hit->header("Verbatim-Output-Digest"), HexEncode(Sha256(hit->body())));
    EXPECT_EQ(h.script->started, 1);
    for (const char* name_of : {"Verbatim-Fingerprint", "Verbatim-Manifest"}) {
      EXPECT_EQ(miss->header(name_of).size(), 64u) << name_of;
      EXPECT_EQ(miss->header(name_of), hit->header(name_of)) << name_of;
    }
    const auto entry = h.Entry(std::stoull(hit->header("Verbatim-Entry")));
    EXPECT_EQ(entry.response, miss->body());
    EXPECT_EQ(entry.request, ask.body);
    EXPECT_EQ(entry.leaf.kind, store::Kind::kGenerated);
  }
}

TEST(Pipeline, PlainAnswersNameTheirEntry) {
  Harness h;
  auto miss = h.Do(Chat());
  EXPECT_EQ(miss->header("Verbatim-Output-Digest"), HexEncode(Sha256(miss->body())));
  EXPECT_EQ(h.Entry(std::stoull(miss->header("Verbatim-Entry"))).response, miss->body());
}

// What a converted hit says is what a run in that form would have said.
TEST(Pipeline, EveryFormServesEveryOther) {
  const char* forms[] = {kChat, kStreamed, kWithUsage};
  for (const char* recorded : forms) {
    Harness h;
    h.Do(With(recorded));
    for (const char* asked : forms) {
      SCOPED_TRACE(std::string(recorded) + " serves " + asked);
      auto hit = h.Do(With(asked));
      EXPECT_EQ(hit->header("Verbatim-Cache"), recorded == asked ? "hit" : "hit; converted");
      auto fresh = h.Do({.body = asked, .cache_control = "no-store, no-cache"});
      EXPECT_EQ(fresh->header("Verbatim-Cache"), "miss");
      // `created` is of the run; all else is equal.
      auto without_created = [](std::string s) {
        for (size_t at = 0; (at = s.find("\"created\":", at)) != std::string::npos;) {
          at += 10;
          s.erase(at, s.find(',', at) - at);
        }
        return s;
      };
      EXPECT_EQ(without_created(hit->body()), without_created(fresh->body()));
    }
    EXPECT_EQ(h.script->started, 4);
  }
}

TEST(Pipeline, StreamIsOneEventPerToken) {
  Harness h;
  auto sink = h.Do(With(kWithUsage));
  std::string text;
  size_t events = 0;
  std::string body = sink->body();
  EXPECT_EQ(body.substr(body.size() - 14), "data: [DONE]\n\n");
  for (size_t at = 0; at < body.size();) {
    const size_t end = body.find("\n\n", at);
    const std::string data = body.substr(at + 6, end - at - 6);
    at = end + 2;
    if (data == "[DONE]") break;
    auto event = json::Parse(data);
    ASSERT_TRUE(event.ok()) << data;
    ++events;
    const auto& choices = event->Find("choices")->items();
    if (choices.empty()) {
      EXPECT_EQ(event->Find("usage")->Find("completion_tokens")->AsInt64(), 4);
      EXPECT_EQ(event->Find("usage")->Find("prompt_tokens")->AsInt64(), 7);
      continue;
    }
    if (events == 1) {
      EXPECT_EQ(choices[0].Find("delta")->Find("role")->as_string(), "assistant");
    }
    if (const json::Value* content = choices[0].Find("delta")->Find("content")) {
      text += content->as_string();
    }
  }
  EXPECT_EQ(events, 1u + 4u + 1u + 1u);  // role, tokens, finish_reason, usage
  EXPECT_EQ(text, "Hello, wörld");
}

TEST(Pipeline, FiftyAtOnceRunOnce) {
  Harness h;
  h.script->gate = 2;
  std::vector<Exchange> all;
  for (int i = 0; i < 50; ++i) all.push_back(h.Start(Streamed()));
  // Late ones get what was sent already, and everyone gets it before the run has ended.
  for (Exchange& e : all) e.sink->WaitForBody("\", \"");
  EXPECT_EQ(h.pipeline->runs_in_flight(), 1u);
  h.script->OpenGate();
  const std::string body = all[0].Wait().body();
  for (size_t i = 1; i < all.size(); ++i) {
    EXPECT_EQ(all[i].Wait().body(), body) << "client " << i;
    EXPECT_EQ(all[i].sink->header("Verbatim-Cache"), "shared");
  }
  EXPECT_EQ(h.script->started, 1);
  EXPECT_EQ(h.pipeline->runs_in_flight(), 0u);
  h.WaitForEntries("hits", 1);
  EXPECT_EQ(h.Kinds()[0], "generated");
}

TEST(Pipeline, SlowReadersHoldNobodyUp) {
  Harness h;
  h.script->texts.assign(2'000, "word ");
  h.script->gate = 1;
  Exchange leader = h.Start(Streamed());
  leader.sink->WaitForBody("word");
  Exchange follower = h.Start(Streamed());
  follower.sink->WaitForBody("word");
  leader.sink->Stall();
  h.script->OpenGate();
  EXPECT_TRUE(follower.Wait().finished());
  EXPECT_FALSE(leader.sink->finished());
  leader.sink->Resume();
  EXPECT_EQ(leader.Wait().body(), follower.sink->body());
}

TEST(Pipeline, FollowersMayWantAnotherForm) {
  Harness h;
  h.script->gate = 1;
  Exchange leader = h.Start(Streamed());
  leader.sink->WaitForBody("Hello");
  Exchange plain = h.Start(Chat()), usage = h.Start(With(kWithUsage));
  usage.sink->WaitForBody("Hello");
  h.script->OpenGate();
  leader.Wait();
  EXPECT_EQ(plain.Wait().header("Verbatim-Cache"), "shared; converted");
  EXPECT_EQ(usage.Wait().header("Verbatim-Cache"), "shared; converted");
  EXPECT_EQ(plain.sink->body(), h.Do(Chat())->body());
  EXPECT_EQ(usage.sink->body(), h.Do(With(kWithUsage))->body());
  EXPECT_EQ(h.script->started, 1);
}

TEST(Pipeline, LeaderHangsUpAndNobodyElseNotices) {
  Harness h;
  h.script->gate = 2;
  Exchange leader = h.Start(Streamed());
  leader.sink->WaitForBody("Hello");
  Exchange streamed = h.Start(Streamed()), plain = h.Start(Chat());
  streamed.sink->WaitForBody("Hello");
  leader.sink->HangUp();
  leader.Wait();
  h.script->OpenGate();
  EXPECT_TRUE(streamed.Wait().finished());
  EXPECT_TRUE(plain.Wait().finished());
  EXPECT_EQ(streamed.sink->body(), h.Do(Streamed())->body());
  EXPECT_EQ(plain.sink->body(), h.Do(Chat())->body());
  EXPECT_EQ(h.script->started, 1);
  EXPECT_EQ(h.script->cancelled, 0);
  EXPECT_EQ(h.Kinds()[0], "generated");
}

TEST(Pipeline, FollowerHangsUpAndLeavesItsEntry) {
  Harness h;
  h.script->gate = 2;
  Exchange leader = h.Start(Streamed());
  leader.sink->WaitForBody("Hello");
  Exchange follower = h.Start(Streamed());
  follower.sink->WaitForBody("Hello");
  follower.sink->HangUp();
  follower.Wait();
  h.script->OpenGate();
  EXPECT_TRUE(leader.Wait().finished());
  EXPECT_EQ(h.Kinds(), (Kinds{"cancelled", "generated"}));
}

TEST(Pipeline, NobodyWaitsAnyMore) {
  Harness h;
  h.script->gate = 2;
  Exchange first = h.Start(Streamed());
  first.sink->WaitForBody("Hello");
  first.sink->HangUp();
  first.Wait();
  h.WaitForEntries("cancelled", 1);
  EXPECT_EQ(h.script->cancelled, 1);
  for (int i = 0; i < 500 && h.pipeline->runs_in_flight() > 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_EQ(h.pipeline->runs_in_flight(), 0u);
  EXPECT_EQ(h.Entry(h.ledger->Size() - 1).response, "");  // nothing of the partial answer
  h.script->OpenGate();
  auto again = h.Do(Streamed());
  EXPECT_EQ(again->header("Verbatim-Cache"), "miss");
  EXPECT_TRUE(again->finished());
  EXPECT_EQ(h.script->started, 2);
}

TEST(Pipeline, NothingCompletesWithoutItsEntry) {
  for (auto fault :
       {store::KvMemory::Fault::kNotPersisted, store::KvMemory::Fault::kPersistedButReported}) {
    Harness h;
    h.script->gate = 2;
    h.kv->FailCommit(1, fault);
    Exchange exchange = h.Start(Streamed());
    exchange.sink->WaitForBody("Hello");
    h.script->OpenGate();
    const FakeSink* streamed = &exchange.Wait();
    EXPECT_TRUE(streamed->aborted());
    EXPECT_FALSE(streamed->finished());
    EXPECT_EQ(streamed->body().find("[DONE]"), std::string::npos);
    EXPECT_EQ(streamed->body().find("\"finish_reason\":\"stop\""), std::string::npos);
    EXPECT_NE(streamed->body().find("ledger_unavailable"), std::string::npos);

    Harness other;
    other.kv->FailCommit(1, fault);
    auto plain = other.Do(Chat());
    EXPECT_EQ(plain->status(), 500);
    EXPECT_EQ(Code(*plain), "ledger_unavailable");
  }
}

TEST(Pipeline, WherePolicyBreaksTheGlassAnswersGoOnAndTheGapIsAnEntry) {
  policies::Policy policy;
  policy.break_glass_seconds = 60;
  Harness h(policy);
  h.kv->FailCommit(1, store::KvMemory::Fault::kNotPersisted);
  auto plain = h.Do(Chat());
  EXPECT_EQ(plain->status(), 200);
  EXPECT_EQ(plain->header("Verbatim-Cache"), "miss");
  EXPECT_EQ(plain->header("Verbatim-Entry"), "");  // it has none
  // Nobody can prove it, so nobody is served it again.
  auto again = h.Do(Chat());
  EXPECT_EQ(again->header("Verbatim-Cache"), "miss");
  EXPECT_NE(again->header("Verbatim-Entry"), "");
  h.WaitForEntries("unrecorded", 1);
}

// What is erased while it is in memory is no hit any more.
TEST(Pipeline, AnErasedResultIsNoHit) {
  Harness h;
  const std::string entry(h.Do(Chat())->header("Verbatim-Entry"));
  EXPECT_EQ(h.Do(Chat())->header("Verbatim-Cache"), "hit");
  store::LifeCommand shred;
  shred.verb = store::LifeCommand::Verb::kShred;
  shred.entries = {std::stoull(entry), std::stoull(entry)};
  shred.reason = "r";
  shred.authority = "a";
  ASSERT_EQ(h.ledger->Apply(shred).value().entries, 1u);
  EXPECT_EQ(h.Do(Chat())->header("Verbatim-Cache"), "miss");
  EXPECT_EQ(h.Do(Chat())->header("Verbatim-Cache"), "hit");
  EXPECT_EQ(h.script->started, 2);
}

TEST(Pipeline, FailuresAreNeverServedAgain) {
  Harness h;
  h.script->gate = h.script->fail_at = 2;
  Exchange exchange = h.Start(Streamed());
  exchange.sink->WaitForBody("Hello");
  h.script->OpenGate();
  const FakeSink* streamed = &exchange.Wait();
  EXPECT_TRUE(streamed->aborted());
  EXPECT_NE(streamed->body().find("numeric_fault"), std::string::npos);
  auto plain = h.Do(Chat());
  EXPECT_EQ(plain->status(), 500);
  EXPECT_EQ(Code(*plain), "numeric_fault");
  EXPECT_EQ(h.script->started, 2);
  EXPECT_EQ(h.Kinds(), (Kinds{"failed", "failed"}));
  h.script->fail_at = SIZE_MAX;
  EXPECT_EQ(h.Do(Chat())->header("Verbatim-Cache"), "miss");
}

TEST(Pipeline, FollowersOfAFailureHaveTheirOwnEntries) {
  Harness h;
  h.script->gate = 1;
  h.script->fail_at = 1;
  Exchange leader = h.Start(Streamed());
  leader.sink->WaitForBody("Hello");
  Exchange plain = h.Start(Chat()), streamed = h.Start(Streamed());
  streamed.sink->WaitForBody("Hello");
  h.script->OpenGate();
  EXPECT_TRUE(leader.Wait().aborted());
  EXPECT_TRUE(streamed.Wait().aborted());
  EXPECT_EQ(plain.Wait().status(), 500);
  EXPECT_EQ(h.Kinds(), (Kinds{"failed", "failed", "failed"}));
  EXPECT_EQ(h.pipeline->runs_in_flight(), 0u);
}

TEST(Pipeline, EveryRefusalLeavesAnEntry) {
  Ask too_long = With(R"({"model":"m","prompt":"too long"})");
  too_long.path = "/v1/completions";
  struct Case {
    Ask ask;
    int status;
    std::string outcome;
  };
  const std::vector<Case> cases = {
      {With(R"({"model":"other","messages":[{"role":"user","content":"hi"}]})"), 404,
       "model_not_found"},
      {too_long, 400, "context_length_exceeded"},
      {{.cache_control = "only-if-cached"}, 504, "not_recorded"},
      {With("{"), 400, ""},
      {With(R"({"model":"m","messages":[],"temperature":"hot"})"), 400, ""},
  };
  Harness h;
  for (const Case& c : cases) {
    SCOPED_TRACE(c.ask.body);
    const uint64_t before = h.ledger->Size();
    auto sink = h.Do(c.ask);
    EXPECT_EQ(sink->status(), c.status);
    ASSERT_EQ(h.ledger->Size(), before + 1);
    const auto entry = h.Entry(before);
    EXPECT_EQ(entry.leaf.kind, store::Kind::kRefused);
    if (!c.outcome.empty()) {
      EXPECT_EQ(entry.leaf.outcome, c.outcome);
      EXPECT_EQ(Code(*sink), c.outcome);
    }
    EXPECT_EQ(entry.request, c.ask.body);
    EXPECT_EQ(entry.record->tenant, "acme");
  }
  h.script->refuse = true;
  auto sink = h.Do(Chat());
  EXPECT_EQ(sink->status(), 429);
  EXPECT_EQ(h.Entry(h.ledger->Size() - 1).leaf.kind, store::Kind::kRefused);
  EXPECT_EQ(h.pipeline->runs_in_flight(), 0u);
}

TEST(Pipeline, SoftwareLockRefusesAndSaysSo) {
  Harness h({}, "rocksdb 9 is pinned, 7 runs");
  EXPECT_NE(h.pipeline->NotServing(), "");
  EXPECT_TRUE(h.pipeline->RecordConfiguration().ok());
  auto sink = h.Do(Chat());
  EXPECT_EQ(sink->status(), 503);
  EXPECT_EQ(Code(*sink), "software_lock");
  EXPECT_NE(sink->body().find("rocksdb 9 is pinned"), std::string::npos);
  EXPECT_EQ(h.Do({.path = "/healthz", .method = "GET"})->status(), 503);
  EXPECT_EQ(h.Kinds(), (Kinds{"configuration_changed", "refused"}));
  EXPECT_EQ(h.script->started, 0);
}

// A start with the same software and policy adds nothing; another machine does.
TEST(Pipeline, TheConfigurationIsRecordedWhereItChanged) {
  Harness h;
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(h.pipeline->RecordConfiguration().ok());
    h.Do(Chat());
    h.Restart("avx2");
  }
  EXPECT_TRUE(h.pipeline->RecordConfiguration().ok());
  auto kinds = h.Kinds();
  EXPECT_EQ(std::count(kinds.begin(), kinds.end(), "configuration_changed"), 2);
}

TEST(Pipeline, AReplayMissNamesTheNearestRequest) {
  Harness h;
  h.Do(With(R"({"model":"m","messages":[{"role":"user","content":"x"}],"seed":7,"top_k":3})"));
  auto near = h.Do(With(R"({"model":"m","messages":[{"role":"user","content":"a"}]})"));
  auto miss = h.Do({.body = R"({"model":"m","messages":[{"role":"user","content":"b"}]})",
                    .cache_control = "only-if-cached"});
  EXPECT_EQ(miss->status(), 504);
  const std::string text = "The nearest recorded request is entry " +
                           near->header("Verbatim-Entry") + "; it differs in /messages/0/content. ";
  EXPECT_NE(miss->body().find(text), std::string::npos) << miss->body();
  auto other = h.Do({.tenant = "umbrella", .cache_control = "only-if-cached"});
  EXPECT_EQ(other->status(), 504);
  EXPECT_EQ(other->body().find("nearest"), std::string::npos) << other->body();
}

TEST(Pipeline, TenantsNeverShare) {
  Harness h;
  h.script->gate = 1;
  Exchange a = h.Start({.tenant = "acme"}), b = h.Start({.tenant = "umbrella"});
  h.script->WaitUntil([&] { return h.script->started == 2; });
  h.script->OpenGate();
  EXPECT_EQ(a.Wait().header("Verbatim-Cache"), "miss");
  EXPECT_EQ(b.Wait().header("Verbatim-Cache"), "miss");
  EXPECT_NE(a.sink->header("Verbatim-Fingerprint"), b.sink->header("Verbatim-Fingerprint"));
  EXPECT_EQ(h.Do({.tenant = "initech"})->header("Verbatim-Cache"), "miss");
  EXPECT_EQ(h.Do({.tenant = "umbrella"})->header("Verbatim-Cache"), "hit");
}

TEST(Pipeline, AnotherMachineStillHits) {
  Harness h;
  auto miss = h.Do(Streamed());
  h.Restart("avx2");
  auto hit = h.Do(Streamed());
  EXPECT_EQ(hit->header("Verbatim-Cache"), "hit");
  EXPECT_EQ(hit->body(), miss->body());
  EXPECT_EQ(hit->header("Verbatim-Manifest"), miss->header("Verbatim-Manifest"));
  auto other = h.Do(With(R"({"model":"m","messages":[{"role":"user","content":"other"}]})"));
  EXPECT_NE(other->header("Verbatim-Manifest"), miss->header("Verbatim-Manifest"));
}

TEST(Pipeline, Modes) {
  struct Case {
    policies::Mode mode;
    std::string first, second;
    int runs;
    Kinds kinds;
  };
  const std::vector<Case> cases = {
      {policies::Mode::kRecord, "miss", "hit", 1, {"generated", "hits"}},
      {policies::Mode::kObserve, "observed", "observed", 2, {"generated", "generated"}},
      {policies::Mode::kVerify, "miss", "hit", 1, {"generated", "verified", "hits"}},
      {policies::Mode::kBypass, "bypass", "bypass", 2, {"generated", "generated"}},
      {policies::Mode::kReplay, "", "", 0, {"refused", "refused"}},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(policies::ModeName(c.mode));
    policies::Policy policy;
    policy.mode = c.mode;
    Harness h(policy);
    auto first = h.Do(Chat()), second = h.Do(Chat());
    EXPECT_EQ(first->header("Verbatim-Cache"), c.first);
    EXPECT_EQ(second->header("Verbatim-Cache"), c.second);
    EXPECT_EQ(h.script->started, c.runs);
    for (const std::string& kind : c.kinds) h.WaitForEntries(kind, 1);
    EXPECT_EQ(h.Kinds().size(), c.kinds.size());
    if (c.mode == policies::Mode::kReplay) {
      EXPECT_EQ(first->status(), 504);
      EXPECT_EQ(first->header("x-should-retry"), "false");
    }
    if (c.mode == policies::Mode::kBypass) {
      EXPECT_EQ(h.Entry(1).request, "");
      EXPECT_EQ(h.Entry(1).response, "");
    }
  }
}

TEST(Pipeline, CacheControl) {
  Harness h;
  h.Do(Chat());
  auto again = h.Do({.cache_control = "no-cache"});
  EXPECT_EQ(again->header("Verbatim-Cache"), "miss");
  h.WaitForEntries("verified", 1);  // compared with what is stored
  EXPECT_EQ(h.Do({.cache_control = "only-if-cached"})->header("Verbatim-Cache"), "hit");
  EXPECT_EQ(h.Do({.cache_control = "max-age=60"})->header("Verbatim-Cache"), "hit");
  EXPECT_EQ(h.script->started, 2);

  const std::string other = R"({"model":"m","messages":[{"role":"user","content":"other"}]})";
  h.Do({.body = other, .cache_control = "no-store"});
  EXPECT_EQ(h.Do(With(other))->header("Verbatim-Cache"), "miss");
}

TEST(Pipeline, ExecutedAgainInTheBackground) {
  for (bool differs : {false, true}) {
    policies::Policy policy;
    policy.verify_rate = 1;
    Harness h(policy);
    h.script->background_differs = differs;
    h.Do(Streamed());
    const std::string kind = differs ? "diverged" : "verified";
    h.WaitForEntries(kind, 1);
    const uint64_t last = h.ledger->Size() - 1;
    const auto entry = h.Entry(last);
    EXPECT_EQ(store::KindName(entry.leaf.kind), kind);
    ASSERT_EQ(entry.leaf.references.size(), 1u);
    EXPECT_EQ(entry.leaf.references[0].relation, "verifies");
    EXPECT_EQ(entry.leaf.references[0].entry, last - 1);
    if (differs) {
      EXPECT_EQ(entry.leaf.outcome, "logits");
      EXPECT_EQ(entry.leaf.detail.Find("step")->AsInt64(), 2);
    }
    EXPECT_EQ(h.script->background, 1);
    for (int i = 0; i < 100 && h.pipeline->verify_backlog() > 0; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    const std::string line = std::string("verbatim_verifications_total{outcome=\"") +
                             (differs ? "diverged" : "equal") + "\"} 1";
    EXPECT_NE(h.metrics->Render().find(line), std::string::npos) << h.metrics->Render();
  }
}

TEST(Pipeline, DrainEndsWhatRuns) {
  Harness h;
  h.script->gate = 2;
  Exchange running = h.Start(Streamed());
  running.sink->WaitForBody("Hello");
  h.pipeline->Drain();
  EXPECT_TRUE(running.Wait().aborted());
  EXPECT_EQ(h.Kinds(), (Kinds{"failed"}));
}

TEST(Pipeline, Models) {
  Harness h;
  auto list = json::Parse(h.Do({.path = "/v1/models", .method = "GET"})->body());
  ASSERT_TRUE(list.ok());
  EXPECT_EQ(list->Find("data")->items()[0].Find("id")->as_string(), "m");
  EXPECT_EQ(h.Do({.path = "/v1/models/m", .method = "GET"})->status(), 200);
  EXPECT_EQ(h.Do({.path = "/v1/models/x", .method = "GET"})->status(), 404);
}

}  // namespace
}  // namespace verbatim::gateway
