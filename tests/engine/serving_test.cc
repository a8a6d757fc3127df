// Many requests at one engine: prefixes that are there already, several choices and prompts,
// logprobs, turns among tenants, the bounded queue.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <latch>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/memory.h"
#include "tests/engine/gguf_writer.h"
#include "tests/engine/requests.h"

namespace verbatim::engine {
namespace {

std::string Name(const char* what, size_t n) { return std::string(what) + " " + std::to_string(n); }

// Cold, warm, with a prefix of every length around a page's border, and with part of it evicted.
TEST(Serving, APrefixThatIsThereChangesNoAnswer) {
  const GgufWriter model = MakeSmallModel();
  const auto plain =
      Load({.max_batch = 1, .prefill_chunk = 512, .prefix_cache = false, .isa = "scalar"}, model);
  const auto engine = Load({.max_batch = 3, .kv_tokens = 640, .prefill_chunk = 100}, model);
  const std::vector<int32_t> base = RandomPrompt(200, 9);
  size_t hits = 0;
  for (const size_t same : {0, 1, 63, 64, 65, 127, 128, 129, 191, 192, 193, 199, 200}) {
    GenerateRequest r = Request(200, 12, 50 + same);
    std::copy_n(base.begin(), same, r.prompts[0].begin());
    const Answer want = Running(*plain, r).Wait();
    for (int time = 0; time < 2; ++time) {
      const uint64_t before = IdleStats(*engine).prefix_hit_tokens;
      EXPECT_TRUE(Running(*engine, r).Wait() == want) << Name("same", same);
      const uint64_t hit = IdleStats(*engine).prefix_hit_tokens - before;
      hits += hit;
      EXPECT_TRUE(time == 0 || hit == 192) << Name("same", same);
    }
  }
  EXPECT_GT(hits, 13u * 192);
  EXPECT_EQ(IdleStats(*plain).prefix_hit_tokens, 0u);
  EXPECT_EQ(IdleStats(*plain).kv_pages_cached, 0u);

  // Others push out the end of what is kept, page by page.
  GenerateRequest first = Request(300, 10, 77);
  const Answer want = Running(*plain, first).Wait();
  std::map<uint64_t, int> seen;
  for (const size_t room : {64, 128, 192, 256, 320, 400, 500}) {
    EXPECT_TRUE(Running(*engine, first).Wait() == want);
    Running(*engine, Request(room, 10, 1000 + room)).Wait();
    const uint64_t before = IdleStats(*engine).prefix_hit_tokens;
    EXPECT_TRUE(Running(*engine, first).Wait() == want) << Name("evicted", room);
    ++seen[IdleStats(*engine).prefix_hit_tokens - before];
  }
  EXPECT_GE(seen.size(), 3u) << "some of it was evicted, some was not";
  EXPECT_LE(IdleStats(*engine).kv_pages_cached, IdleStats(*engine).kv_pages);
}

TEST(Serving, AnAnswerIsAPrefixToo) {
  const auto engine = Load({});
  GenerateRequest r = Request(100, 60, 1);
  const Answer first = Running(*engine, r).Wait();
  r.prompts[0].insert(r.prompts[0].end(), first.tokens.begin(), first.tokens.end());
  r.prompts[0].push_back(5);
  Running(*engine, r).Wait();
  EXPECT_EQ(IdleStats(*engine).prefix_hit_tokens, 128u);
}

// Requests at the same time compute a common beginning once.
TEST(Serving, RunningSequencesShareTheirPrefix) {
  const auto engine = Load({.max_batch = 8, .prefill_chunk = 64});
  std::vector<std::unique_ptr<Running>> all;
  std::latch submitted(1);
  for (uint64_t i = 0; i < 8; ++i) {
    GenerateRequest r = Request(270, 20, i);
    r.prompts[0] = RandomPrompt(270, 1);
    r.prompts[0].back() = static_cast<int32_t>(i);
    all.push_back(std::make_unique<Running>(*engine, r, [&](size_t n) {
      if (n == 1) submitted.wait();
    }));
  }
  submitted.count_down();
  for (const auto& r : all) r->Wait();
  EXPECT_LE(IdleStats(*engine).prompt_rows, 256u + 8 * 14);
  EXPECT_EQ(IdleStats(*engine).kv_pages_used, 0u);
}

TEST(Serving, TenantsShareNoPrefix) {
  const auto engine = Load({});
  GenerateRequest r = Request(150, 5, 1);
  r.tenant = "a";
  const Answer want = Running(*engine, r).Wait();
  r.tenant = "b";
  EXPECT_TRUE(Running(*engine, r).Wait() == want);
  EXPECT_EQ(IdleStats(*engine).prefix_hit_tokens, 0u);
  EXPECT_TRUE(Running(*engine, r).Wait() == want);
  EXPECT_EQ(IdleStats(*engine).prefix_hit_tokens, 128u);
}

// What gave way goes on where it was.
TEST(Serving, ResumptionTakesUpWhatWasComputed) {
  for (const bool cache : {true, false}) {
    const auto engine = Load({.max_batch = 1, .prefix_cache = cache});
    GenerateRequest low = Request(200, 30, 1);
    low.low_priority = true;
    std::latch running(1), submitted(1);
    Running verification(*engine, low, [&](size_t n) {
      if (n == 2) {
        running.count_down();
        submitted.wait();
      }
    });
    running.wait();
    Running normal(*engine, Request(3, 5, 2));
    submitted.count_down();
    const Answer got = verification.Wait();
    const EngineStats stats = IdleStats(*engine);
    EXPECT_EQ(stats.preempted, 1u);
    // Of the 201 rows that were computed, 192 are taken up.
    EXPECT_EQ(stats.rows, 200u + 29 + 3 + 4 + (cache ? 9 : 201));
    EXPECT_TRUE(Running(*engine, low).Wait() == got);
  }
}

TEST(Serving, ChoicesAreThoseOfTheirStreamsAndThePromptIsComputedOnce) {
  const GgufWriter model = MakeSmallModel();
  const auto alone = Load({.max_batch = 1, .prefix_cache = false}, model);
  const struct {
    uint32_t batch, kv_tokens;
    bool cache;
  } engines[] = {{8, 0, true},  {8, 0, false},  {3, 0, true},
                 {3, 0, false}, {8, 512, true}, {8, 512, false}};
  for (const size_t prompt : {5, 64, 100}) {
    GenerateRequest r = Request(prompt, 24, 3);
    r.logprobs = 2;
    r.sampling.frequency_penalty = 0.3f;
    r.sampling.repetition_penalty = 1.2f;
    std::vector<Answer> want;
    for (uint64_t i = 0; i < 7; ++i) {
      GenerateRequest one = r;
      one.sampling.stream = i;
      want.push_back(Running(*alone, one).Wait());
    }
    EXPECT_FALSE(want[0] == want[1]);
    r.choices = 7;
    for (const auto& e : engines) {
      const std::string what = Name("prompt", prompt) + Name(", batch", e.batch) +
                               (e.cache ? "" : ", no cache") + (e.kv_tokens ? ", small" : "");
      const auto engine = Load({.max_batch = e.batch,
                                .kv_tokens = e.kv_tokens,
                                .prefill_chunk = 33,
                                .prefix_cache = e.cache},
                               model);
      Running running(*engine, r);
      const std::vector<Answer> got = running.WaitForAll();
      for (size_t i = 0; i < 7; ++i) {
        EXPECT_TRUE(got[i] == want[i]) << what << Name(", choice", i);
      }
      EXPECT_EQ(got[0].finish.prompt_tokens, prompt);
      const EngineStats stats = IdleStats(*engine);
      EXPECT_EQ(stats.kv_pages_used, 0u) << what;
      EXPECT_EQ(stats.sampled_tokens, 7u * 24);
      // Choices that have no place at once take up whole pages later, or compute them again.
      const bool at_once = e.batch >= 7 && e.kv_tokens == 0;
      EXPECT_TRUE(!at_once || stats.rows == prompt + 7 * 23) << what << Name(", rows", stats.rows);
    }
  }
}

TEST(Serving, ChoicesEndEachByItself) {
  const auto engine = Load({});
  GenerateRequest r = Request(6, 200, 1);
  r.choices = 12;
  r.ignore_eos = false;
  r.sampling.logit_bias = {{258, 3.0f}};
  const std::vector<Answer> got = Running(*engine, r).WaitForAll();
  std::map<size_t, int> lengths;
  for (const Answer& a : got) {
    ++lengths[a.tokens.size()];
    EXPECT_EQ(a.tokens.back() == 258, a.choice.reason == FinishReason::kStop);
  }
  EXPECT_GT(lengths.size(), 4u);
}

TEST(Serving, PromptsOfAListAreAnsweredAsIfAlone) {
  const auto engine = Load({.max_batch = 4, .kv_tokens = 1024});
  GenerateRequest r = Request(10, 15, 4);
  r.choices = 2;
  r.prompts = {RandomPrompt(70, 1), RandomPrompt(3, 2), RandomPrompt(70, 1), RandomPrompt(130, 3)};
  const std::vector<Answer> got = Running(*engine, r).WaitForAll();
  ASSERT_EQ(got.size(), 8u);
  EXPECT_EQ(got[0].finish.prompt_tokens, 70u + 3 + 70 + 130);
  EXPECT_EQ(got[0].finish.generated_tokens, 8u * 15);
  for (size_t p = 0; p < r.prompts.size(); ++p) {
    GenerateRequest one = r;
    one.prompts = {r.prompts[p]};
    const std::vector<Answer> want = Running(*engine, one).WaitForAll();
    for (size_t i = 0; i < 2; ++i) {
      EXPECT_TRUE(got[2 * p + i] == want[i]) << Name("prompt", p) << Name(", choice", i);
    }
  }
  EXPECT_TRUE(got[0] == got[4]);
}

// A prompt's logprobs are those with which the same tokens were drawn, as the same doubles, however
// it is computed.
TEST(Serving, ScoresOfAPromptAreThoseOfItsDrawing) {
  const GgufWriter model = MakeSmallModel();
  const auto alone = Load({.max_batch = 1, .isa = "scalar"}, model);
  GenerateRequest draw = Request(40, 150, 6);
  draw.logprobs = 3;
  const Answer drawn = Running(*alone, draw).Wait();
  ASSERT_EQ(drawn.logprobs.size(), 150u);
  for (size_t i = 0; i < 150; ++i) {
    const TokenLogprobs& l = drawn.logprobs[i];
    ASSERT_EQ(l.top.size(), 3u);
    EXPECT_LT(l.logprob, 0);
    EXPECT_LE(l.logprob, l.top[0].logprob);
    EXPECT_GE(l.top[0].logprob, l.top[1].logprob);
    EXPECT_GE(l.top[1].logprob, l.top[2].logprob);
    for (const TokenLogprob& t : l.top) {
      EXPECT_TRUE(t.token != drawn.tokens[i] || t.logprob == l.logprob);
    }
  }
  GenerateRequest score = draw;
  score.prompts[0].insert(score.prompts[0].end(), drawn.tokens.begin(), drawn.tokens.end());
  score.prompt_logprobs = true;
  for (const uint32_t chunk : {1u, 9u, 63u, 64u, 65u, 257u}) {
    for (const uint32_t kv_tokens : {0u, 512u}) {
      const auto engine = Load(
          {.threads = 2, .max_batch = 4, .kv_tokens = kv_tokens, .prefill_chunk = chunk}, model);
      std::vector<std::unique_ptr<Running>> others;
      for (uint64_t i = 0; i < 3; ++i) {
        others.push_back(std::make_unique<Running>(*engine, Request(60 + 70 * i, 80, i)));
      }
      for (const uint32_t tokens : {0u, 1u, 5u}) {
        score.max_tokens = tokens;
        Running running(*engine, score);
        const Answer answer = running.Wait();
        EXPECT_EQ(answer.tokens.size(), tokens);
        EXPECT_EQ(answer.choice.reason, FinishReason::kLength);
        const std::vector<TokenLogprobs>& got = running.prompt_logprobs()[0];
        ASSERT_EQ(got.size(), 189u) << Name("chunk", chunk);
        EXPECT_TRUE(std::equal(drawn.logprobs.begin(), drawn.logprobs.end(), got.begin() + 39))
            << Name("chunk", chunk) << Name(", tokens", tokens);
      }
      for (const auto& other : others) other->Wait();
    }
  }
}

TEST(Serving, ScoringNeedsNoMoreRowsThanItHasTokens) {
  const auto engine = Load({});
  GenerateRequest r = Request(100, 0, 1);
  EXPECT_EQ(Running(*engine, r).Wait().choice.reason, FinishReason::kLength);
  EXPECT_EQ(IdleStats(*engine).rows, 0u);
  r.choices = 3;
  r.logprobs = 0;
  r.prompt_logprobs = true;
  Running scored(*engine, r);
  EXPECT_EQ(scored.WaitForAll()[2].choice.logits_chain, LogitsChainStart());
  EXPECT_EQ(scored.prompt_logprobs()[0].size(), 99u);
  EXPECT_EQ(IdleStats(*engine).rows, 99u);
  r.prompts = {{4}};
  Running one(*engine, r);
  one.Wait();
  EXPECT_TRUE(one.prompt_logprobs()[0].empty());
}

// One tenant has a hundred requests; another's one does not wait for them.
TEST(Serving, TenantsTakeTurns) {
  for (const uint32_t batch : {1u, 2u, 4u}) {
    const auto engine = Load({.max_batch = batch, .prefill_chunk = 64});
    std::mutex mutex;  // guards ended
    std::string ended;
    std::latch running(1), submitted(1);
    std::vector<std::unique_ptr<Running>> all;
    const auto submit = [&](const char* tenant, size_t prompt, uint64_t seed) {
      GenerateRequest r = Request(prompt, 10, seed);
      r.tenant = tenant;
      all.push_back(std::make_unique<Running>(*engine, r, [&, tenant, seed](size_t n) {
        if (n == 1 && seed == 0) {
          running.count_down();
          submitted.wait();
        }
        const std::lock_guard lock(mutex);
        if (n == 10) ended += tenant;
      }));
    };
    submit("a", 100, 0);
    running.wait();
    for (uint64_t i = 1; i < 100; ++i) submit("a", 100, i);
    for (uint64_t i = 100; i < 103; ++i) submit("b", 20, i);
    submit("c", 20, 103);
    submitted.count_down();
    for (const auto& r : all) r->Wait();
    ASSERT_EQ(ended.size(), 104u);
    EXPECT_LE(ended.find('c'), 4u + 2 * batch) << ended;
    EXPECT_LE(ended.rfind('b'), 10u + 2 * batch) << ended;
  }
}

// A long prompt of one tenant does not delay another's short one by more than a chunk or two.
TEST(Serving, TenantsTakeTurnsAtPrefill) {
  const auto engine = Load({.max_batch = 4, .prefill_chunk = 32});
  std::latch running(1), submitted(1);
  Running first(*engine, Request(2, 3, 1), [&](size_t n) {
    if (n != 1) return;
    running.count_down();
    submitted.wait();
  });
  running.wait();
  GenerateRequest a = Request(450, 1, 1), b = Request(30, 1, 1);
  a.tenant = "a";
  b.tenant = "b";
  uint64_t rows_at_b = 0;
  Running of_a(*engine, a), again_a(*engine, a);
  Running of_b(*engine, b, [&](size_t) { rows_at_b = engine->stats().prompt_rows; });
  submitted.count_down();
  of_b.Wait();
  of_a.Wait();
  again_a.Wait();
  EXPECT_LE(rows_at_b, 2u + 30 + 3 * 32);
}

TEST(Serving, TheQueueOfATenantIsItsOwn) {
  const auto engine = Load({.max_batch = 1, .queue_limit = 2});
  std::latch running(1), go(1);
  Running first(*engine, Request(3, 5, 1), [&](size_t n) {
    if (n != 1) return;
    running.count_down();
    go.wait();
  });
  running.wait();
  std::vector<std::unique_ptr<Running>> all;
  GenerateRequest r = Request(3, 5, 2);
  for (int i = 0; i < 8; ++i) {
    r.tenant = std::to_string(i);
    for (int j = 0; j < 2; ++j) all.push_back(std::make_unique<Running>(*engine, r));
    const Result<uint64_t> third = engine->Submit(r, {});
    ASSERT_FALSE(third.ok());
    EXPECT_EQ(third.error().code, Code::kUnavailable);
  }
  r.tenant = "another";
  EXPECT_FALSE(engine->Submit(r, {}).ok()) << "eight times the limit wait";
  EXPECT_EQ(engine->stats().queued, 16u);
  EXPECT_GT(engine->stats().queue_seconds, 0);
  engine->Cancel(all[0]->id());
  go.count_down();
  for (size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(all[i]->Wait().tokens.size(), i == 0 ? 0u : 5u);
  }
  EXPECT_EQ(IdleStats(*engine).queued, 0u);
  EXPECT_EQ(IdleStats(*engine).queue_seconds, 0);
}

TEST(Serving, ACacheThatDoesNotFitIsRefused) {
  const TemporaryFile file(MakeSmallModel().Build());
  const auto engine = Engine::Load({.path = file.path(), .kv_tokens = UINT32_MAX});
  ASSERT_FALSE(engine.ok());
  EXPECT_EQ(engine.error().code, Code::kInvalid);
  EXPECT_NE(engine.error().message.find("tokens fit (kv_tokens)"), std::string::npos)
      << engine.error().message;
}

TEST(Serving, WhatIsAvailableIsTheLeastOfMachineAndGroups) {
  const std::string folder = testing::TempDir() + "verbatim-cgroup-" + std::to_string(getpid());
  std::filesystem::create_directories(folder + "/a/b");
  const auto write = [&](const std::string& name, const std::string& text) {
    std::ofstream(folder + name) << text;
    return folder + name;
  };
  const std::string meminfo = write("/meminfo", "MemTotal: 9 kB\nMemAvailable:    3072 kB\n");
  const std::string group = write("/group", "1:cpu:/x\n0::/a/b\n");
  EXPECT_EQ(AvailableMemory(meminfo, group, folder), 3072u << 10);
  EXPECT_GT(AvailableMemory("/nonexistent", group, folder), 3072u << 10);
  write("/a/b/memory.max", "max\n");
  EXPECT_EQ(AvailableMemory(meminfo, group, folder), 3072u << 10);
  write("/a/memory.max", "1000000\n");
  EXPECT_EQ(AvailableMemory(meminfo, group, folder), 1000000u);
  write("/a/memory.stat", "file 7\nanon 400000\nanon_thp 5\n");
  EXPECT_EQ(AvailableMemory(meminfo, group, folder), 600000u);
  write("/a/b/memory.max", "1000\n");
  write("/a/b/memory.stat", "anon 4000\n");
  EXPECT_EQ(AvailableMemory(meminfo, group, folder), 0u);
  std::filesystem::remove_all(folder);
}

// Token 7 alone leads out of range: where it is drawn or stands in a list, its request ends, and
// nothing else.
TEST(Serving, AFaultOfOneChoiceOrPromptEndsTheWholeRequest) {
  const auto engine = Load({.threads = 2}, ModelThatFaultsAtToken7());

  GenerateRequest good = Request(100, 20, 1);
  for (int32_t& id : good.prompts[0]) id = 20 + id % 50;
  good.sampling.logit_bias = {{7, -1000.0f}};
  const Answer want = Running(*engine, good).Wait();
  GenerateRequest list = good, drawn = good;
  list.choices = 2;
  list.prompts.push_back(good.prompts[0]);
  list.prompts[1][80] = 7;
  drawn.choices = 4;
  drawn.sampling.logit_bias = {{7, 4.0f}};
  std::vector<std::unique_ptr<Running>> all;
  for (const GenerateRequest& r : {good, list, drawn, good}) {
    all.push_back(std::make_unique<Running>(*engine, r));
  }
  EXPECT_TRUE(all[0]->Wait() == want);
  const Answer of_list = all[1]->Wait(), of_drawn = all[2]->Wait();
  EXPECT_TRUE(all[3]->Wait() == want);
  for (const Answer* a : {&of_list, &of_drawn}) {
    EXPECT_EQ(a->finish.outcome, Finish::Outcome::kFault);
    EXPECT_NE(a->finish.error.message.find("layer 0, attention norm"), std::string::npos);
  }
  EXPECT_NE(of_list.finish.error.message.find("position 80"), std::string::npos);
  EXPECT_EQ(IdleStats(*engine).kv_pages_used, 0u);
  EXPECT_EQ(IdleStats(*engine).waiting, 0u);
  EXPECT_TRUE(Running(*engine, good).Wait() == want);
}

}  // namespace
}  // namespace verbatim::engine
