// The engine as the gateway sees it: what a request gets does not depend on its neighbours, batch,
// chunks, threads, instruction set or a small cache; and stops, cancellation, bounds and faults.
#include "engine/engine.h"

#include <gtest/gtest.h>

#include <functional>
#include <latch>
#include <memory>
#include <string>
#include <vector>

#include "kernels/isa.h"
#include "tests/engine/gguf_writer.h"
#include "tests/engine/requests.h"
#include "tests/engine/test_files.h"

namespace verbatim::engine {
namespace {

constexpr int32_t kEnd = 258;  // <|im_end|> of the small model

// Three requests whose answers everything is compared with: greedy, sampled with penalties, and one
// that crosses pages of the cache.
std::vector<GenerateRequest> Probes() {
  std::vector<GenerateRequest> probes = {Request(5, 20, 1), Request(40, 20, 2),
                                         Request(120, 20, 3)};
  probes[0].sampling.temperature = 0;
  probes[1].sampling.top_k = 50;
  probes[1].sampling.top_p = 0.9;
  probes[1].sampling.repetition_penalty = 1.1f;
  probes[1].sampling.frequency_penalty = 0.2f;
  return probes;
}

std::vector<Answer> Alone(const GgufWriter& model) {
  std::vector<Answer> answers;
  const auto engine = Load({.max_batch = 1, .prefill_chunk = 512, .isa = "scalar"}, model);
  for (const GenerateRequest& r : Probes()) answers.push_back(Running(*engine, r).Wait());
  return answers;
}

// The probes with `neighbours` random others around them.
void ExpectSame(Engine& engine, const std::vector<Answer>& want, size_t neighbours,
                const std::string& what) {
  std::vector<std::unique_ptr<Running>> probes, others;
  const auto add_other = [&](uint64_t i) {
    others.push_back(std::make_unique<Running>(
        engine, Request(3 + 29 * i % 150, 5 + static_cast<uint32_t>(i) % 40, 100 + i)));
  };
  for (size_t i = 0; i < neighbours; ++i) add_other(i);
  for (const GenerateRequest& r : Probes()) {
    probes.push_back(std::make_unique<Running>(engine, r));
    if (neighbours > 0) add_other(50 + probes.size());
  }
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_TRUE(probes[i]->Wait() == want[i]) << what << ", probe " << i;
  }
  for (const auto& other : others) other->Wait();
}

TEST(Engine, NothingAroundARequestChangesItsAnswer) {
  const GgufWriter model = MakeSmallModel();
  const std::vector<Answer> want = Alone(model);
  uint64_t shared = 0;
  size_t compared = 0;
  for (const kernels::Isa isa : kernels::AvailableIsas()) {
    for (const uint32_t threads : {1u, 2u}) {
      for (const uint32_t batch : {1u, 2u, 7u}) {
        for (const uint32_t chunk : {1u, 16u, 500u}) {
          const auto engine = Load({.threads = threads,
                                    .max_batch = batch,
                                    .prefill_chunk = chunk,
                                    .isa = kernels::IsaName(isa)},
                                   model);
          const std::string what = std::string(kernels::IsaName(isa)) + ", " +
                                   std::to_string(threads) + " threads, batch " +
                                   std::to_string(batch) + ", chunk " + std::to_string(chunk);
          ExpectSame(*engine, want, batch - 1, what);
          shared += IdleStats(*engine).shared_steps;
          compared += 3 * 20;
        }
      }
    }
  }
  EXPECT_GT(shared, 0u);
  std::printf("%zu digests compared, %llu forward passes shared\n", compared,
              static_cast<unsigned long long>(shared));
}

TEST(Engine, EveryWeightTypeIsInvariantToo) {
  for (const char* fidelity : {"wba16", "w8a16", "w16a16"}) {
    for (const TensorType type : {TensorType::kF16, TensorType::kQ4_0, TensorType::kQ5_1}) {
      const GgufWriter model = MakeSmallModel({.weights = type, .embedding = type, .tied = false});
      std::vector<Answer> want;
      const auto alone = Load({.fidelity = fidelity, .max_batch = 1, .isa = "scalar"}, model);
      for (const GenerateRequest& r : Probes()) want.push_back(Running(*alone, r).Wait());
      for (const kernels::Isa isa : kernels::AvailableIsas()) {
        const auto engine = Load({.fidelity = fidelity,
                                  .threads = 2,
                                  .max_batch = 7,
                                  .prefill_chunk = 33,
                                  .isa = kernels::IsaName(isa)},
                                 model);
        ExpectSame(*engine, want, 4,
                   std::string(fidelity) + ", " + std::string(TensorTypeName(type)) + ", " +
                       kernels::IsaName(isa));
      }
    }
  }
}

// Pages run out: sequences give theirs up and are computed again, with equal results.
TEST(Engine, ASmallCacheChangesNoAnswer) {
  const GgufWriter model = MakeSmallModel();
  const std::vector<Answer> want = Alone(model);
  const auto engine = Load({.max_batch = 7, .kv_tokens = 256, .prefill_chunk = 64}, model);
  EXPECT_EQ(engine->info().context_length, 256u);
  std::vector<std::unique_ptr<Running>> others;
  for (uint64_t i = 0; i < 4; ++i) {
    others.push_back(std::make_unique<Running>(*engine, Request(50, 150, 200 + i)));
  }
  ExpectSame(*engine, want, 4, "4 pages");
  for (const auto& other : others) other->Wait();
  const EngineStats stats = IdleStats(*engine);
  EXPECT_GT(stats.preempted, 0u);
  EXPECT_EQ(stats.kv_pages, 4u);
}

TEST(Engine, ConcurrentRequestsShareAForwardPass) {
  const auto engine = Load({});
  std::latch submitted(1);
  Running first(*engine, Request(3, 30, 1), [&](size_t n) {
    if (n == 1) submitted.wait();
  });
  Running second(*engine, Request(3, 30, 2));
  submitted.count_down();
  first.Wait();
  second.Wait();
  EXPECT_GE(IdleStats(*engine).shared_steps, 25u);
}

TEST(Engine, EndOfTextEndsTheAnswerAndCountsInTheDigests) {
  const auto engine = Load({});
  GenerateRequest r = Request(4, 10, 1);
  r.ignore_eos = false;
  r.sampling.logit_bias = {{kEnd, 1000.0f}};
  const Answer answer = Running(*engine, r).Wait();
  EXPECT_EQ(answer.tokens, std::vector<int32_t>{kEnd});
  EXPECT_EQ(answer.text, "");
  EXPECT_EQ(answer.choice.reason, FinishReason::kStop);
  EXPECT_EQ(answer.choice.stop, "");
  EXPECT_EQ(answer.finish.prompt_tokens, 4u);
  EXPECT_EQ(answer.choice.logits_chain, LogitsChainNext(LogitsChainStart(), answer.digests[0]));

  r.ignore_eos = true;
  const Answer longer = Running(*engine, r).Wait();
  EXPECT_EQ(longer.tokens, std::vector<int32_t>(10, kEnd));
  EXPECT_EQ(longer.text, "");
  EXPECT_EQ(longer.choice.reason, FinishReason::kLength);
}

TEST(Engine, StopStringsEndTheTextBeforeThem) {
  const auto engine = Load({});
  GenerateRequest r = Request(4, 60, 5);
  for (int32_t letter = 'a'; letter <= 'f'; ++letter) {
    r.sampling.logit_bias.emplace_back(letter, 100.0f);
  }
  const Answer whole = Running(*engine, r).Wait();
  ASSERT_EQ(whole.text.size(), 60u);
  const std::string stop = whole.text.substr(20, 4);
  const size_t at = whole.text.find(stop);
  r.stop = {"never", stop};
  const Answer stopped = Running(*engine, r).Wait();
  EXPECT_EQ(stopped.text, whole.text.substr(0, at));
  EXPECT_EQ(stopped.choice.reason, FinishReason::kStop);
  EXPECT_EQ(stopped.choice.stop, stop);
  EXPECT_EQ(stopped.tokens.size(), at + 4);  // the tokens of the stop string are in the chain
}

TEST(Engine, LengthIsBoundedByMaxTokensAndContext) {
  const auto engine = Load({.context_limit = 40});
  EXPECT_EQ(engine->info().context_length, 40u);
  EXPECT_EQ(Running(*engine, Request(30, 4, 1)).Wait().tokens.size(), 4u);
  const Answer full = Running(*engine, Request(30, 100, 1)).Wait();
  EXPECT_EQ(full.tokens.size(), 10u);
  EXPECT_EQ(full.choice.reason, FinishReason::kLength);
  EXPECT_EQ(Running(*engine, Request(39, UINT32_MAX, 1)).Wait().tokens.size(), 1u);
}

TEST(Engine, WrongRequestsAreRefusedByField) {
  const auto engine = Load({.context_limit = 40});
  const std::pair<const char*, std::function<void(GenerateRequest&)>> cases[] = {
      {"prompt:", [](GenerateRequest& r) { r.prompts[0].clear(); }},
      {"prompt:", [](GenerateRequest& r) { r.prompts[0].resize(40); }},
      {"prompt:", [](GenerateRequest& r) { r.prompts[0][0] = 259; }},
      {"prompt:", [](GenerateRequest& r) { r.prompts[0][0] = -1; }},
      {"prompt:", [](GenerateRequest& r) { r.prompts.clear(); }},
      {"prompt:", [](GenerateRequest& r) { r.prompts.emplace_back(); }},
      {"n:", [](GenerateRequest& r) { r.choices = 0; }},
      {"n:",
       [](GenerateRequest& r) {
         r.prompts.assign(2, {1});
         r.choices = 513;
       }},
      {"logprobs:", [](GenerateRequest& r) { r.logprobs = 101; }},
      {"logprobs:", [](GenerateRequest& r) { r.prompt_logprobs = true; }},
      {"stop:", [](GenerateRequest& r) { r.stop = {""}; }},
      {"stop:", [](GenerateRequest& r) { r.stop = {"\xff"}; }},
      {"stop:", [](GenerateRequest& r) { r.stop.assign(65, "x"); }},
      {"top_p:", [](GenerateRequest& r) { r.sampling.top_p = 2; }},
  };
  for (const auto& [field, edit] : cases) {
    GenerateRequest r = Request(4, 4, 1);
    edit(r);
    GenerateCallbacks none;
    none.on_finish = [](const Finish&) { ADD_FAILURE() << "a refused request has no callbacks"; };
    const Result<uint64_t> id = engine->Submit(r, none);
    ASSERT_FALSE(id.ok()) << field;
    EXPECT_EQ(id.error().code, Code::kInvalid);
    EXPECT_TRUE(id.error().message.starts_with(field)) << id.error().message;
  }
}

TEST(Engine, TheQueueIsBounded) {
  const auto engine = Load({.max_batch = 1, .queue_limit = 2});
  std::latch running(1), go(1);
  Running first(*engine, Request(3, 5, 1), [&](size_t n) {
    if (n == 1) {
      running.count_down();
      go.wait();
    }
  });
  running.wait();
  Running second(*engine, Request(3, 5, 2)), third(*engine, Request(3, 5, 3));
  const Result<uint64_t> fourth = engine->Submit(Request(3, 5, 4), {});
  ASSERT_FALSE(fourth.ok());
  EXPECT_EQ(fourth.error().code, Code::kUnavailable);
  EXPECT_EQ(engine->stats().waiting, 2u);
  go.count_down();
  for (Running* r : {&first, &second, &third}) EXPECT_EQ(r->Wait().tokens.size(), 5u);
}

TEST(Engine, CancelEndsARequestAndOnlyThatOne) {
  const auto engine = Load({.max_batch = 2});
  const Answer want = Running(*engine, Request(3, 20, 2)).Wait();
  std::latch ready(1);
  uint64_t cancel = 0;
  Running cancelled(*engine, Request(3, 200, 1), [&](size_t n) {
    if (n == 1) ready.wait();
    if (n == 3) engine->Cancel(cancel);
  });
  cancel = cancelled.id();
  Running neighbour(*engine, Request(3, 20, 2));
  Running waiting(*engine, Request(3, 200, 3));
  engine->Cancel(waiting.id());
  engine->Cancel(123456);  // unknown
  ready.count_down();
  const Answer answer = cancelled.Wait();
  EXPECT_EQ(answer.finish.outcome, Finish::Outcome::kCancelled);
  EXPECT_EQ(answer.tokens.size(), 3u);
  EXPECT_EQ(waiting.Wait().finish.outcome, Finish::Outcome::kCancelled);
  EXPECT_TRUE(neighbour.Wait() == want);
}

TEST(Engine, LowPriorityGivesUpItsPlaceAndLosesNothing) {
  const auto engine = Load({.max_batch = 1});
  GenerateRequest low = Request(3, 30, 1);
  low.low_priority = true;
  const Answer want = Running(*engine, low).Wait();
  std::latch running(1), submitted(1);
  std::vector<int> order;
  Running verification(*engine, low, [&](size_t n) {
    if (n == 2) {
      running.count_down();
      submitted.wait();
    }
    if (n == 30) order.push_back(2);
  });
  running.wait();
  Running normal(*engine, Request(3, 30, 2), [&](size_t n) {
    if (n == 30) order.push_back(1);
  });
  submitted.count_down();
  EXPECT_TRUE(verification.Wait() == want);
  normal.Wait();
  EXPECT_EQ(order, (std::vector<int>{1, 2}));
  EXPECT_GT(IdleStats(*engine).preempted, 0u);
}

TEST(Engine, StoppingTheEngineEndsWhatRuns) {
  auto engine = Load({.max_batch = 1});
  std::latch ready(1);
  Running running(*engine, Request(3, 400, 1), [&](size_t n) {
    if (n == 1) ready.wait();
  });
  Running waiting(*engine, Request(3, 400, 1));
  ready.count_down();
  engine.reset();
  EXPECT_EQ(running.Wait().finish.outcome, Finish::Outcome::kCancelled);
  EXPECT_EQ(waiting.Wait().finish.outcome, Finish::Outcome::kCancelled);
}

TEST(Engine, AFaultEndsItsRequestAndNoOther) {
  const auto engine = Load({.threads = 2}, ModelThatFaultsAtToken7());

  GenerateRequest good = Request(6, 20, 1), bad = Request(6, 20, 1);
  for (int32_t& id : good.prompts[0]) id = 20 + id % 50;
  good.sampling.logit_bias = {{7, -1000.0f}};
  bad.prompts = good.prompts;
  bad.prompts[0][3] = 7;
  const Answer want = Running(*engine, good).Wait();
  EXPECT_EQ(want.choice.reason, FinishReason::kLength);
  std::latch submitted(1);
  Running neighbour(*engine, good, [&](size_t n) {
    if (n == 1) submitted.wait();
  });
  Running faulty(*engine, bad);
  submitted.count_down();
  const Answer fault = faulty.Wait();
  EXPECT_EQ(fault.finish.outcome, Finish::Outcome::kFault);
  EXPECT_EQ(fault.finish.error.code, Code::kNumericFault);
  EXPECT_NE(fault.finish.error.message.find("layer 0, attention norm, position 3"),
            std::string::npos)
      << fault.finish.error.message;
  EXPECT_TRUE(fault.tokens.empty());
  EXPECT_TRUE(neighbour.Wait() == want);
}

TEST(Engine, OptionsOutOfRangeAreRefused) {
  const TemporaryFile file(MakeSmallModel().Build());
  const std::pair<const char*, EngineOptions> cases[] = {
      {"max_batch", {.path = file.path(), .max_batch = 0}},
      {"prefill_chunk", {.path = file.path(), .prefill_chunk = 0}},
      {"threads", {.path = file.path(), .threads = 100000}},
      {"queue_limit", {.path = file.path(), .queue_limit = 0}},
      {"fidelity", {.path = file.path(), .fidelity = "q4"}},
      {"vax", {.path = file.path(), .isa = "vax"}},
      {"cannot open", {.path = "/nonexistent.gguf"}},
  };
  for (const auto& [message, options] : cases) {
    Result<std::unique_ptr<Engine>> engine = Engine::Load(options);
    ASSERT_FALSE(engine.ok()) << message;
    EXPECT_NE(engine.error().message.find(message), std::string::npos) << engine.error().message;
  }
}

// The real model, a few ways: alone and among others.
TEST(Engine, TheDefaultModelIsInvariant) {
  const std::string path = DefaultModelPath();
  if (path.empty()) GTEST_SKIP() << "no model; tools/fetch-model gets it";
  const auto probe = [] {
    GenerateRequest r;
    r.prompts = {{1, 9690, 198, 2683, 359, 253, 5356, 5646}};
    r.max_tokens = 12;
    r.ignore_eos = true;
    return r;
  };
  Answer want;
  for (const uint32_t batch : {1u, 2u, 7u}) {
    Result<std::unique_ptr<Engine>> engine = Engine::Load({.path = path,
                                                           .threads = batch == 2 ? 1u : 2u,
                                                           .max_batch = batch,
                                                           .prefill_chunk = 5 * batch});
    ASSERT_TRUE(engine.ok()) << engine.error().message;
    std::vector<std::unique_ptr<Running>> others;
    for (uint64_t i = 1; i < batch; ++i) {
      others.push_back(std::make_unique<Running>(**engine, Request(4 + 3 * i, 8, i)));
    }
    const Answer got = Running(**engine, probe()).Wait();
    for (const auto& other : others) other->Wait();
    if (batch == 1) want = got;
    EXPECT_TRUE(got == want) << "batch " << batch;
    EXPECT_EQ(IdleStats(**engine).shared_steps > 0, batch > 1);
  }
}

}  // namespace
}  // namespace verbatim::engine
