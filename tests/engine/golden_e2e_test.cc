// The whole graph against the golden runs of numerics.md: every token, every logits digest, and the
// residual after the embedding, each attention and each layer, for the three weight types.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <string>
#include <tuple>
#include <vector>

#include "base/bytes.h"
#include "base/json.h"
#include "engine/forward.h"
#include "engine/gguf.h"
#include "engine/kv_cache.h"
#include "engine/model.h"
#include "engine/sampler.h"
#include "engine/weights.h"
#include "engine/worker_pool.h"
#include "kernels/isa.h"
#include "tests/engine/test_files.h"

namespace verbatim::engine {
namespace {

std::string Hex(const LogitsDigest& d) {
  return HexEncode({reinterpret_cast<const char*>(d.data()), d.size()});
}

std::vector<int32_t> Ids(const json::Value& v) {
  std::vector<int32_t> ids;
  for (const json::Value& id : v.items()) ids.push_back(static_cast<int32_t>(*id.AsInt64()));
  return ids;
}

uint64_t FromHex(const json::Value& v) { return std::stoull(v.as_string(), nullptr, 16); }

// What one golden run samples with: f32 and f64 as bit patterns.
SamplingParams Params(const json::Value& run) {
  SamplingParams p;
  const auto temperature = static_cast<uint32_t>(FromHex(*run.Find("T")));
  std::memcpy(&p.temperature, &temperature, sizeof(p.temperature));
  p.top_k = *run.Find("top_k")->AsInt64();
  const uint64_t top_p = FromHex(*run.Find("top_p")), min_p = FromHex(*run.Find("min_p"));
  std::memcpy(&p.top_p, &top_p, sizeof(p.top_p));
  std::memcpy(&p.min_p, &min_p, sizeof(p.min_p));
  p.seed = FromHex(*run.Find("seed"));
  p.stream = *run.Find("stream")->AsUint64();
  return p;
}

struct Choice {
  Choice(const SamplingParams& params, const std::vector<int32_t>& prompt)
      : tokens(prompt), sampler(params, prompt) {}
  std::vector<int32_t> tokens;
  size_t computed = 0;
  Sampler sampler;
  std::vector<uint8_t*> pages;
};

LogitsDigest DigestOf(const kernels::Ops& ops, const std::vector<float>& x) {
  uint64_t sums[2] = {0, 0};
  ops.digest(x.data(), x.size(), 0, sums);
  return MakeDigest(sums);
}

// The golden trace was made with integers held in doubles, where rint(-0.3) is -0; numerics.md 5
// takes f32 of an integer, which has no -0. The two differ in the sign of zeros of the embedding's
// digest and in nothing after it: x + y is the same for both. This gives zeros the sign of the
// file's weight.
void RestoreSignsOfZeros(const GgufFile& file, int32_t token, std::vector<float>& row) {
  GgufTensor table = *file.FindTensor("token_embd.weight");
  const size_t row_bytes = table.bytes.size() / table.rows();
  table.bytes = table.bytes.substr(static_cast<size_t>(token) * row_bytes, row_bytes);
  table.dims = {row.size()};
  const std::vector<float> weights = *Dequantise(table);
  for (size_t i = 0; i < row.size(); ++i) {
    if (row[i] == 0) row[i] = std::copysign(0.0f, weights[i]);
  }
}

using Case = std::tuple<Fidelity, const char*>;  // weights, golden file's variant
class GoldenEndToEnd : public ::testing::TestWithParam<Case> {};

TEST_P(GoldenEndToEnd, TokensDigestsAndTrace) {
  const auto [fidelity, variant] = GetParam();
  const std::string path = DefaultModelPath();
  if (path.empty()) GTEST_SKIP() << "no model; tools/fetch-model gets it";
  const json::Value golden =
      ReadJson(VERBATIM_SOURCE_DIR "/tests/golden/e2e_" + std::string(variant) + ".json");

  Result<GgufFile> file = GgufFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.error().message;
  WorkerPool workers(2);
  Result<Model> model = LoadModel(*file, fidelity, workers, {});
  ASSERT_TRUE(model.ok()) << model.error().message;
  const ModelConfig& c = model->config;

  size_t compared = 0;
  for (const kernels::Isa isa : FastIsas()) {
    const kernels::Ops& ops = kernels::Select(isa);
    Result<KvCache> cache =
        KvCache::Create({.head_dim = c.head_dim, .bits = 16}, c.layers, c.kv_heads, 1024);
    ASSERT_TRUE(cache.ok()) << cache.error().message;
    Forward forward(*model, ops, *cache, workers);
    kernels::SamplingScratch scratch;
    scratch.Resize(c.vocab);

    bool first = true;
    for (const json::Value& prompt : golden.Find("prompts")->items()) {
      SCOPED_TRACE(std::string(kernels::IsaName(isa)) + ": " + prompt.Find("text")->as_string());
      // Both runs of a prompt in one batch.
      const json::Value* runs[] = {prompt.Find("greedy"), prompt.Find("sampled")};
      const std::vector<int32_t> ids = Ids(*prompt.Find("ids"));
      std::vector<Choice> choices;
      choices.emplace_back(SamplingParams{}, ids);
      choices.emplace_back(Params(*runs[1]), ids);
      for (size_t step = 0; step < runs[0]->Find("tokens")->items().size(); ++step) {
        std::vector<Slice> slices(2);
        for (size_t i = 0; i < 2; ++i) {
          Choice& choice = choices[i];
          ASSERT_TRUE(cache->Grow(choice.pages, choice.tokens.size()));
          slices[i].tokens = std::span(choice.tokens).subspan(choice.computed);
          slices[i].start = choice.computed;
          slices[i].pages = choice.pages;
          slices[i].logit_rows = 1;
        }
        ForwardTrace trace;
        forward.Run(slices, first ? &trace : nullptr);
        if (first) {
          const json::Value& want = *golden.Find("trace_prompt0");
          std::vector<float> row(c.dim);
          ops.embedding(model->embedding, static_cast<size_t>(ids.back()), row.data());
          EXPECT_EQ(Hex(trace.embedding), Hex(DigestOf(ops, row)));
          RestoreSignsOfZeros(*file, ids.back(), row);
          EXPECT_EQ(Hex(DigestOf(ops, row)), want.Find("embedding")->as_string());
          for (size_t l = 0; l < c.layers; ++l) {
            ASSERT_EQ(Hex(trace.after_attention[l]),
                      want.Find("after_attention")->items()[l].as_string())
                << "after the attention of layer " << l;
            ASSERT_EQ(Hex(trace.after_layer[l]), want.Find("after_layer")->items()[l].as_string())
                << "after layer " << l;
          }
          compared += 1 + 2 * c.layers;
          first = false;
        }
        for (size_t i = 0; i < 2; ++i) {
          Choice& choice = choices[i];
          ASSERT_FALSE(slices[i].fault);
          ASSERT_EQ(Hex(slices[i].digest), runs[i]->Find("digests")->items()[step].as_string())
              << "run " << i << ", step " << step;
          choice.computed = choice.tokens.size();
          Result<int32_t> token =
              choice.sampler.Next(ops, slices[i].logits, choice.tokens.size(), scratch);
          ASSERT_TRUE(token.ok()) << token.error().message;
          ASSERT_EQ(*token, *runs[i]->Find("tokens")->items()[step].AsInt64())
              << "run " << i << ", step " << step;
          choice.tokens.push_back(*token);
          compared += 2;
        }
      }
      for (Choice& choice : choices) cache->Release(choice.pages);
    }
  }
  std::printf("%s: %zu values compared, all equal\n", variant, compared);
}

INSTANTIATE_TEST_SUITE_P(Variants, GoldenEndToEnd,
                         ::testing::Values(Case{Fidelity::kWBA16, "WBA16"},
                                           Case{Fidelity::kW8A16, "W8A16"},
                                           Case{Fidelity::kW16A16, "W16A16"}),
                         [](const auto& test) { return std::get<1>(test.param); });

}  // namespace
}  // namespace verbatim::engine
