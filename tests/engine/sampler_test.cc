// The sampler's own part: parameters, penalties over the right ids, the draw by position, and the
// chain.
#include "engine/sampler.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/crypto.h"

namespace verbatim::engine {
namespace {

const kernels::Ops& Plain() { return kernels::Select(kernels::Isa::kScalar); }

int32_t Next(Sampler& sampler, std::vector<float> logits, uint64_t position) {
  kernels::SamplingScratch scratch;
  scratch.Resize(logits.size());
  Result<int32_t> token = sampler.Next(Plain(), logits, position, scratch);
  EXPECT_TRUE(token.ok());
  return token.ok() ? *token : -1;
}

TEST(Sampler, ParametersOutOfRangeAreNamed) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const auto infinity = std::numeric_limits<float>::infinity();
  const std::pair<const char*, std::function<void(SamplingParams&)>> cases[] = {
      {"temperature", [&](SamplingParams& p) { p.temperature = -1; }},
      {"temperature", [&](SamplingParams& p) { p.temperature = infinity; }},
      {"top_k", [&](SamplingParams& p) { p.top_k = -1; }},
      {"top_p", [&](SamplingParams& p) { p.top_p = 1.5; }},
      {"top_p", [&](SamplingParams& p) { p.top_p = nan; }},
      {"min_p", [&](SamplingParams& p) { p.min_p = -0.1; }},
      {"repetition_penalty", [&](SamplingParams& p) { p.repetition_penalty = 0; }},
      {"frequency_penalty", [&](SamplingParams& p) { p.frequency_penalty = infinity; }},
      {"presence_penalty", [&](SamplingParams& p) { p.presence_penalty = -infinity; }},
      {"logit_bias",
       [&](SamplingParams& p) {
         p.logit_bias = {{10, 1.0f}};
       }},
      {"logit_bias",
       [&](SamplingParams& p) {
         p.logit_bias = {{-1, 1.0f}};
       }},
      {"logit_bias",
       [&](SamplingParams& p) {
         p.logit_bias = {{1, infinity}};
       }},
      {"logit_bias",
       [&](SamplingParams& p) {
         p.logit_bias = {{1, 1.0f}, {1, 2.0f}};
       }},
  };
  for (const auto& [field, edit] : cases) {
    SamplingParams p;
    edit(p);
    const Status status = CheckSamplingParams(p, 10);
    ASSERT_FALSE(status.ok()) << field;
    EXPECT_EQ(status.error().code, Code::kInvalid);
    EXPECT_TRUE(status.error().message.starts_with(std::string(field) + ":"))
        << status.error().message;
  }
  EXPECT_TRUE(CheckSamplingParams(SamplingParams{}, 10).ok());
}

TEST(Sampler, PenaltiesSeeTheRightIds) {
  // Repetition sees the prompt, frequency and presence only what was generated.
  SamplingParams repetition;
  repetition.repetition_penalty = 2;
  Sampler a(repetition, std::vector<int32_t>{1, 1});
  EXPECT_EQ(Next(a, {1.5f, 2.5f, 1.0f}, 2), 0);     // id 1: 2.5 / 2
  EXPECT_EQ(Next(a, {-1.5f, -1.5f, -2.5f}, 3), 2);  // ids 0 and 1: -1.5 * 2
  SamplingParams frequency;
  frequency.frequency_penalty = 1;
  Sampler b(frequency, std::vector<int32_t>{1, 1});
  EXPECT_EQ(Next(b, {1.0f, 3.0f, 2.0f}, 2), 1);
  EXPECT_EQ(Next(b, {1.0f, 3.5f, 2.0f}, 3), 1);  // once: 2.5
  EXPECT_EQ(Next(b, {1.0f, 3.5f, 2.0f}, 4), 2);  // twice: 1.5
  SamplingParams presence;
  presence.presence_penalty = 1;
  Sampler c(presence, std::vector<int32_t>{1});
  EXPECT_EQ(Next(c, {1.0f, 3.5f, 2.0f}, 1), 1);
  EXPECT_EQ(Next(c, {1.0f, 3.5f, 2.0f}, 2), 1);  // always 2.5
  EXPECT_EQ(Next(c, {1.0f, 3.5f, 2.0f}, 3), 1);
  SamplingParams bias;
  bias.logit_bias = {{0, 5.0f}};
  Sampler d(bias, std::vector<int32_t>{1});
  EXPECT_EQ(Next(d, {1.0f, 3.5f, 2.0f}, 1), 0);
}

TEST(Sampler, AnInfiniteLogitIsAFault) {
  SamplingParams p;
  p.repetition_penalty = 1e-6f;
  Sampler sampler(p, std::vector<int32_t>{0});
  std::vector<float> logits = {1e38f, 0.0f};
  kernels::SamplingScratch scratch;
  scratch.Resize(logits.size());
  Result<int32_t> token = sampler.Next(Plain(), logits, 1, scratch);
  ASSERT_FALSE(token.ok());
  EXPECT_EQ(token.error().code, Code::kNumericFault);
}

TEST(Sampler, TheDrawDependsOnSeedPositionAndStreamAlone) {
  const std::vector<float> logits(64, 0.0f);
  const auto draw = [&](uint64_t seed, uint64_t stream, uint64_t position) {
    SamplingParams p;
    p.temperature = 1;
    p.seed = seed;
    p.stream = stream;
    Sampler sampler(p, {});
    return Next(sampler, logits, position);
  };
  const auto sequence = [&](uint64_t seed, uint64_t stream) {
    std::vector<int32_t> tokens;
    for (uint64_t position = 0; position < 16; ++position) {
      tokens.push_back(draw(seed, stream, position));
    }
    return tokens;
  };
  EXPECT_EQ(sequence(1, 0), sequence(1, 0));
  EXPECT_NE(sequence(1, 0), sequence(2, 0));
  EXPECT_NE(sequence(1, 0), sequence(1, 1));
}

TEST(LogitsChain, IsTheHashOfAllBeforeAndTheDigest) {
  EXPECT_EQ(LogitsChainStart(), Sha256("verbatim-logits-1"));
  LogitsDigest digest;
  digest.fill('d');
  const Digest chain = LogitsChainNext(LogitsChainStart(), digest);
  EXPECT_EQ(chain, Sha256(std::string(AsBytes(LogitsChainStart())) + std::string(16, 'd')));
}

}  // namespace
}  // namespace verbatim::engine
