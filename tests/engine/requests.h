// Small engines and requests to them, for tests.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "engine/engine.h"
#include "tests/engine/gguf_writer.h"
#include "tests/engine/test_files.h"

namespace verbatim::engine {

inline std::unique_ptr<Engine> Load(EngineOptions options,
                                    const GgufWriter& model = MakeSmallModel()) {
  const TemporaryFile file(model.Build());
  options.path = file.path();
  if (options.threads == 0) options.threads = 1;
  Result<std::unique_ptr<Engine>> engine = Engine::Load(options);
  EXPECT_TRUE(engine.ok()) << (engine.ok() ? "" : engine.error().message);
  return engine.ok() ? std::move(*engine) : nullptr;
}

// Token 7 has a value where all others have zero, and a gain that carries it out of range.
inline GgufWriter ModelThatFaultsAtToken7() {
  GgufWriter model = MakeSmallModel();
  uint64_t state = 1;
  std::string table = RandomTensor(TensorType::kF32, 259 * 64, 0.5f, state);
  std::string gain = RandomTensor(TensorType::kF32, 64, 1.0f, state);
  for (size_t row = 0; row < 259; ++row) {
    table.replace(row * 256, 4, LittleEndian(row == 7 ? 1.0f : 0.0f));
  }
  gain.replace(0, 4, LittleEndian(1e25f));
  model.Tensor("token_embd.weight", {64, 259}, TensorType::kF32, table);
  model.Tensor("blk.0.attn_norm.weight", {64}, TensorType::kF32, gain);
  return model;
}

struct Answer {
  std::vector<int32_t> tokens;
  std::vector<LogitsDigest> digests;
  std::string text;
  std::vector<TokenLogprobs> logprobs;
  ChoiceFinish choice;
  Finish finish;
  friend bool operator==(const Answer& a, const Answer& b) {
    return a.tokens == b.tokens && a.digests == b.digests && a.text == b.text &&
           a.logprobs == b.logprobs && a.choice.reason == b.choice.reason &&
           a.choice.logits_chain == b.choice.logits_chain;
  }
};

// A request under way; `at` is called on the engine's thread after each token of choice 0.
class Running {
 public:
  Running(Engine& engine, GenerateRequest request, std::function<void(size_t tokens)> at = {})
      : at_(std::move(at)),
        answers_(request.prompts.size() * request.choices),
        prompt_(request.prompts.size()) {
    GenerateCallbacks callbacks;
    callbacks.on_prompt_token = [this](const PromptTokenEvent& e) {
      prompt_[e.prompt].push_back(e.logprobs);
      EXPECT_EQ(e.position, prompt_[e.prompt].size());
    };
    callbacks.on_token = [this](const TokenEvent& e) {
      Answer& answer = answers_[e.choice];
      answer.tokens.push_back(e.token);
      answer.digests.push_back(e.digest);
      answer.text += e.text;
      if (e.logprobs) answer.logprobs.push_back(*e.logprobs);
      EXPECT_TRUE(IsUtf8(e.text));
      if (at_ && e.choice == 0) at_(answer.tokens.size());
    };
    callbacks.on_choice_finish = [this](const ChoiceFinish& f) {
      answers_[f.choice].choice = f;
      EXPECT_EQ(f.generated_tokens, answers_[f.choice].tokens.size());
    };
    callbacks.on_finish = [this](const Finish& f) {
      size_t generated = 0;
      for (Answer& answer : answers_) {
        answer.finish = f;
        generated += answer.tokens.size();
      }
      EXPECT_EQ(f.generated_tokens, generated);
      done_.set_value();
    };
    Result<uint64_t> id = engine.Submit(std::move(request), std::move(callbacks));
    EXPECT_TRUE(id.ok()) << (id.ok() ? "" : id.error().message);
    if (!id) done_.set_value();
    id_ = id.ok() ? *id : 0;
  }
  Answer Wait() { return WaitForAll()[0]; }
  std::vector<Answer> WaitForAll() {
    done_.get_future().wait();
    return answers_;
  }
  uint64_t id() const { return id_; }
  // After Wait: per prompt, of its tokens but the first.
  const std::vector<std::vector<TokenLogprobs>>& prompt_logprobs() const { return prompt_; }

 private:
  std::function<void(size_t)> at_;
  std::vector<Answer> answers_;
  std::vector<std::vector<TokenLogprobs>> prompt_;
  std::promise<void> done_;
  uint64_t id_ = 0;
};

// When nothing runs and nothing waits: finished requests are counted a moment after they end.
inline EngineStats IdleStats(const Engine& engine) {
  EngineStats stats = engine.stats();
  while (stats.running + stats.waiting + stats.queued > 0) {
    std::this_thread::yield();
    stats = engine.stats();
  }
  return stats;
}

inline std::vector<int32_t> RandomPrompt(size_t size, uint64_t seed) {
  std::vector<int32_t> prompt;
  for (size_t i = 0; i < size; ++i) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    prompt.push_back(static_cast<int32_t>(seed >> 33) % 256);
  }
  return prompt;
}

inline GenerateRequest Request(size_t prompt_size, uint32_t max_tokens, uint64_t seed) {
  GenerateRequest r;
  r.prompts = {RandomPrompt(prompt_size, seed)};
  r.max_tokens = max_tokens;
  r.ignore_eos = true;
  r.sampling.temperature = 1;
  r.sampling.seed = seed;
  return r;
}

}  // namespace verbatim::engine
