// The forward pass by itself: logits of several rows at once, and where a fault is said to be.
#include "engine/forward.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/gguf.h"
#include "engine/weights.h"
#include "tests/engine/gguf_writer.h"
#include "tests/engine/test_files.h"

namespace verbatim::engine {
namespace {

struct Machine {
  explicit Machine(const GgufWriter& writer, uint32_t threads = 1) : workers(threads) {
    const TemporaryFile file(writer.Build());
    Result<GgufFile> opened = GgufFile::Open(file.path());
    EXPECT_TRUE(opened.ok());
    Result<Model> loaded = LoadModel(*opened, DefaultFidelity(*opened), workers, {});
    EXPECT_TRUE(loaded.ok());
    model = std::move(*loaded);
    const ModelConfig& c = model.config;
    Result<KvCache> made =
        KvCache::Create({.head_dim = c.head_dim, .bits = 16}, c.layers, c.kv_heads, 256);
    EXPECT_TRUE(made.ok());
    cache = std::make_unique<KvCache>(std::move(*made));
    EXPECT_TRUE(cache->Grow(pages, 256));
    forward = std::make_unique<Forward>(model, kernels::Select(kernels::AvailableIsas().back()),
                                        *cache, workers);
  }
  ~Machine() { cache->Release(pages); }

  Slice SliceOf(std::span<const int32_t> tokens, size_t from, size_t to, size_t logit_rows) const {
    Slice s;
    s.tokens = tokens.subspan(from, to - from);
    s.start = from;
    s.pages = pages;
    s.logit_rows = logit_rows;
    return s;
  }

  WorkerPool workers;
  Model model;
  std::unique_ptr<KvCache> cache;
  std::vector<uint8_t*> pages;
  std::unique_ptr<Forward> forward;
};

std::vector<int32_t> Tokens(size_t n) {
  std::vector<int32_t> tokens;
  for (size_t i = 0; i < n; ++i) tokens.push_back(static_cast<int32_t>((i * 37 + 11) % 250));
  return tokens;
}

TEST(Forward, LogitsOfSeveralRowsAreThoseOfEachAlone) {
  const std::vector<int32_t> tokens = Tokens(70);
  Machine one(MakeSmallModel());
  const size_t vocab = one.model.config.vocab;
  std::vector<std::vector<float>> want;
  std::vector<LogitsDigest> digests;
  for (size_t i = 0; i < tokens.size(); ++i) {
    Slice s = one.SliceOf(tokens, i, i + 1, 1);
    one.forward->Run({&s, 1});
    want.emplace_back(s.logits.begin(), s.logits.end());
    digests.push_back(s.digest);
  }
  Machine many(MakeSmallModel(), 2);
  size_t compared = 0;
  for (const size_t rows : {1, 2, 30, 70}) {
    Slice s = many.SliceOf(tokens, 0, tokens.size(), rows);
    many.forward->Run({&s, 1});
    ASSERT_FALSE(s.fault);
    ASSERT_EQ(s.logits.size(), rows * vocab);
    EXPECT_EQ(s.digest, digests.back());
    for (size_t r = 0; r < rows; ++r, ++compared) {
      const std::vector<float>& row = want[tokens.size() - rows + r];
      EXPECT_TRUE(std::equal(row.begin(), row.end(), &s.logits[r * vocab])) << rows << ", " << r;
    }
  }
  EXPECT_EQ(compared, 103u);
}

// Token 7 alone has a value that a gain carries out of range, in one place after the other.
TEST(Forward, AFaultSaysWhereItIs) {
  const struct {
    const char* gain;
    const char* want;
  } cases[] = {
      {"blk.0.attn_norm.weight", "layer 0, attention norm, position 5"},
      {"blk.1.attn_norm.weight", "layer 1, attention norm, position 5"},
      {"blk.0.ffn_norm.weight", "layer 0, feed-forward norm, position 5"},
      {"blk.1.ffn_norm.weight", "layer 1, feed-forward norm, position 5"},
      {"output_norm.weight", "layer 2, output norm, position 5"},
  };
  for (const auto& c : cases) {
    GgufWriter writer = MakeSmallModel();
    uint64_t state = 1;
    std::string table = RandomTensor(TensorType::kF32, 259 * 64, 0.5f, state);
    for (size_t row = 0; row < 259; ++row) {
      table.replace(row * 256, 4, LittleEndian(row == 7 ? 1.0f : 0.0f));
    }
    // Nothing else reaches element 0 of the residual: the layers' outputs leave it alone.
    for (const char* layer : {"blk.0.", "blk.1."}) {
      std::string o = RandomTensor(TensorType::kF32, 64 * 64, 0.1f, state);
      std::string down = RandomTensor(TensorType::kF32, 64 * 96, 0.1f, state);
      o.replace(0, 64 * 4, std::string(64 * 4, '\0'));
      down.replace(0, 96 * 4, std::string(96 * 4, '\0'));
      writer.Tensor(std::string(layer) + "attn_output.weight", {64, 64}, TensorType::kF32, o);
      writer.Tensor(std::string(layer) + "ffn_down.weight", {96, 64}, TensorType::kF32, down);
    }
    std::string gain = RandomTensor(TensorType::kF32, 64, 1.0f, state);
    gain.replace(0, 4, LittleEndian(1e25f));
    writer.Tensor("token_embd.weight", {64, 259}, TensorType::kF32, table);
    writer.Tensor(c.gain, {64}, TensorType::kF32, gain);

    Machine machine(writer);
    std::vector<int32_t> tokens = Tokens(9);
    tokens[5] = 7;
    tokens[8] = 7;
    for (const size_t chunk : {1, 4, 9}) {
      NumericFault found;
      for (size_t at = 0; at < tokens.size() && !found; at += chunk) {
        const size_t end = std::min(at + chunk, tokens.size());
        Slice s = machine.SliceOf(tokens, at, end, end - at);
        machine.forward->Run({&s, 1});
        found = s.fault;
      }
      EXPECT_EQ(found ? Describe(found) : "", c.want) << c.gain << ", chunk " << chunk;
    }
  }
}

}  // namespace
}  // namespace verbatim::engine
