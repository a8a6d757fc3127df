// Model configuration and weights: what is refused, and that equal files are equal models.
#include "engine/model.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "engine/weights.h"
#include "engine/worker_pool.h"
#include "tests/engine/gguf_writer.h"
#include "tests/engine/test_files.h"

namespace verbatim::engine {
namespace {

Result<Model> Load(const GgufWriter& writer, Fidelity fidelity = Fidelity::kWBA16) {
  const TemporaryFile bytes(writer.Build());
  Result<GgufFile> file = GgufFile::Open(bytes.path());
  if (!file) return file.error();
  WorkerPool workers(1);
  return LoadModel(*file, fidelity, workers, {});
}

TEST(Model, ReadsTheConfiguration) {
  Result<Model> model = Load(MakeSmallModel());
  ASSERT_TRUE(model.ok()) << model.error().message;
  const ModelConfig& c = model->config;
  EXPECT_EQ(c.layers, 2u);
  EXPECT_EQ(c.dim, 64u);
  EXPECT_EQ(c.heads, 4u);
  EXPECT_EQ(c.kv_heads, 2u);
  EXPECT_EQ(c.head_dim, 16u);
  EXPECT_EQ(c.rope_dim, 16u);
  EXPECT_EQ(c.vocab, 259u);
  EXPECT_EQ(c.context_length, 512u);
  EXPECT_EQ(c.eps, 1e-5f);
  EXPECT_EQ(model->display_name, "small");
  EXPECT_EQ(&model->head(), &model->embedding);
  EXPECT_EQ(Load(MakeSmallModel({.tied = false}))->output.N(), 259u);
}

TEST(Model, RefusesWhatItCannotCompute) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  struct Case {
    const char* message;
    std::function<void(GgufWriter&)> edit;
  };
  const auto uint32 = [](const char* key, uint32_t v) {
    return [=](GgufWriter& w) { w.Uint32(key, v); };
  };
  const auto float32 = [](const char* key, float v) {
    return [=](GgufWriter& w) { w.Float32(key, v); };
  };
  const auto remove = [](const char* key) { return [=](GgufWriter& w) { w.Remove(key); }; };
  const Case cases[] = {
      {"architecture \"gpt2\"", [](GgufWriter& w) { w.String("general.architecture", "gpt2"); }},
      {"general.architecture", remove("general.architecture")},
      {"llama.block_count", remove("llama.block_count")},
      {"llama.block_count is 0", uint32("llama.block_count", 0)},
      {"llama.block_count is 4294967295", uint32("llama.block_count", UINT32_MAX)},
      {"no tensor blk.2.attn_norm.weight", uint32("llama.block_count", 3)},
      {"has no place in the llama graph", uint32("llama.block_count", 1)},
      {"needs 32 259",
       [](GgufWriter& w) {
         w.Uint32("llama.embedding_length", 32);
         w.Uint32("llama.attention.head_count", 2);
       }},
      {"llama.embedding_length is 65568", uint32("llama.embedding_length", 65568)},
      {"no multiple of 4 heads", uint32("llama.embedding_length", 66)},
      {"needs 64 128", uint32("llama.feed_forward_length", 128)},
      {"llama.attention.head_count is 0", uint32("llama.attention.head_count", 0)},
      {"cannot share 3", uint32("llama.attention.head_count_kv", 3)},
      {"head size 4 ",
       [](GgufWriter& w) {
         w.Uint32("llama.attention.head_count", 16);
         w.Remove("llama.rope.dimension_count");
       }},
      {"(values: 8)", uint32("llama.attention.value_length", 8)},
      {"llama.attention.key_length is 512", uint32("llama.attention.key_length", 512)},
      {"llama.context_length is 0", uint32("llama.context_length", 0)},
      {"below 1e-12", float32("llama.attention.layer_norm_rms_epsilon", 1e-13f)},
      {"rms_epsilon", float32("llama.attention.layer_norm_rms_epsilon", nan)},
      {"rms_epsilon", float32("llama.attention.layer_norm_rms_epsilon", -1)},
      {"rope.freq_base", float32("llama.rope.freq_base", 0)},
      {"rope.freq_base", float32("llama.rope.freq_base", nan)},
      {"rope.dimension_count 17 is odd", uint32("llama.rope.dimension_count", 17)},
      {"rope.dimension_count 18 is odd or larger", uint32("llama.rope.dimension_count", 18)},
      {"rope scaling \"longrope\"",
       [](GgufWriter& w) { w.String("llama.rope.scaling.type", "longrope"); }},
      {"llama.rope.scaling.factor",
       [](GgufWriter& w) {
         w.String("llama.rope.scaling.type", "yarn");
         w.Float32("llama.rope.scaling.factor", 0.5f);
       }},
      {"rope.scaling.original_context_length",
       [](GgufWriter& w) {
         w.String("llama.rope.scaling.type", "yarn");
         w.Float32("llama.rope.scaling.factor", 4);
       }},
      {"llama.expert_count", uint32("llama.expert_count", 8)},
      {"llama.vocab_size is not", uint32("llama.vocab_size", 1000)},
      {"blk.0.attn_q_norm.weight\" has no place",
       [](GgufWriter& w) {
         uint64_t state = 1;
         w.Tensor("blk.0.attn_q_norm.weight", {16}, TensorType::kF32,
                  RandomTensor(TensorType::kF32, 16, 1, state));
       }},
      {"no tensor token_embd.weight", [](GgufWriter& w) { w.RemoveTensor("token_embd.weight"); }},
      {"no tensor blk.1.ffn_down.weight",
       [](GgufWriter& w) { w.RemoveTensor("blk.1.ffn_down.weight"); }},
      {"not finite",
       [](GgufWriter& w) {
         w.Tensor("output_norm.weight", {64}, TensorType::kF32, std::string(256, '\xff'));
       }},
      {"blk.0.attn_q.weight",
       [](GgufWriter& w) {  // f16 infinities as d and m
         w.Tensor("blk.0.attn_q.weight", {64, 64}, TensorType::kQ4_1, [] {
           std::string bytes;
           for (int i = 0; i < 128; ++i) {
             bytes += std::string("\x00\x7c\x00\x7c", 4) + std::string(16, 'q');
           }
           return bytes;
         }());
       }},
  };
  for (const Case& c : cases) {
    GgufWriter w = MakeSmallModel();
    c.edit(w);
    for (const Fidelity fidelity : {Fidelity::kWBA16, Fidelity::kW8A16}) {
      Result<Model> model = Load(w, fidelity);
      ASSERT_FALSE(model.ok()) << c.message;
      EXPECT_NE(model.error().message.find(c.message), std::string::npos)
          << "want: " << c.message << "\ngot:  " << model.error().message;
    }
  }
}

TEST(Model, UnsupportedTensorTypesAreNamed) {
  GgufTensor tensor;
  tensor.name = "blk.0.attn_q.weight";
  tensor.type = static_cast<TensorType>(14);
  tensor.dims = {256, 1};
  const std::string bytes(210, ' ');
  tensor.bytes = bytes;
  Result<kernels::PackedMatrix> packed = PackTensor(tensor, Fidelity::kWBA16, {});
  ASSERT_FALSE(packed.ok());
  EXPECT_EQ(packed.error().code, Code::kUnsupported);
  EXPECT_NE(packed.error().message.find("Q6_K"), std::string::npos) << packed.error().message;
}

// d = 2, m = -3 (f16 0x4000, 0xc200), codes 0..15 in the low nibbles and 15..0 in the high ones.
TEST(Weights, BlocksMeanWhatGgmlSays) {
  std::string nibbles;
  for (int i = 0; i < 16; ++i) nibbles += static_cast<char>(i | (15 - i) << 4);
  const std::string d("\x00\x40", 2), m("\x00\xc2", 2), fifth("\x01\x00\x00\x80", 4);
  std::string bytes8;
  for (int i = 0; i < 32; ++i) bytes8 += static_cast<char>(i - 16);
  struct Case {
    TensorType type;
    std::string block;
    float first, second, middle, last;  // elements 0, 1, 16 and 31
  };
  const Case cases[] = {
      {TensorType::kQ4_0, d + nibbles, -16, -14, 14, -16},
      {TensorType::kQ4_1, d + m + nibbles, -3, -1, 27, -3},
      {TensorType::kQ5_0, d + fifth + nibbles, 0, -30, -2, 0},
      {TensorType::kQ5_1, d + m + fifth + nibbles, 29, -1, 27, 29},
      {TensorType::kQ8_0, d + bytes8, -32, -30, 0, 30},
  };
  for (const Case& c : cases) {
    GgufTensor tensor;
    tensor.name = "t";
    tensor.type = c.type;
    tensor.dims = {32};
    tensor.bytes = c.block;
    Result<std::vector<float>> x = Dequantise(tensor);
    ASSERT_TRUE(x.ok()) << x.error().message;
    const float got[] = {(*x)[0], (*x)[1], (*x)[16], (*x)[31]};
    const float want[] = {c.first, c.second, c.middle, c.last};
    for (int i = 0; i < 4; ++i) EXPECT_EQ(got[i], want[i]) << TensorTypeName(c.type) << " " << i;
    EXPECT_TRUE(IsBlockQuantised(c.type));
  }
}

TEST(Weights, HalvesAreExact) {
  const std::pair<uint16_t, float> cases[] = {
      {0x0000, 0.0f},     {0x8000, -0.0f}, {0x0001, 0x1p-24f},  {0x83ff, -0x1.ff8p-15f},
      {0x0400, 0x1p-14f}, {0x3c00, 1.0f},  {0xfbff, -65504.0f}, {0x3555, 0x1.554p-2f}};
  for (const auto& [half, want] : cases) {
    const std::string bytes = LittleEndian(half);
    GgufTensor tensor;
    tensor.type = TensorType::kF16;
    tensor.dims = {1};
    tensor.bytes = bytes;
    const float got = (*Dequantise(tensor))[0];
    EXPECT_EQ(LittleEndian(got), LittleEndian(want)) << std::hex << half;
  }
}

// The digest sees weights, configuration, tokenizer and template, and no names.
TEST(Model, DigestCountsWhatChangesAnswers) {
  const Digest base = Load(MakeSmallModel())->digest;
  EXPECT_EQ(Load(MakeSmallModel())->digest, base);
  EXPECT_EQ(Load(MakeSmallModel(), Fidelity::kW8A16)->digest, base);
  const auto with = [](const std::function<void(GgufWriter&)>& edit) {
    GgufWriter w = MakeSmallModel();
    edit(w);
    Result<Model> model = Load(w);
    EXPECT_TRUE(model.ok()) << model.error().message;
    return model->digest;
  };
  EXPECT_EQ(with([](GgufWriter& w) { w.String("general.name", "other"); }), base);
  EXPECT_EQ(with([](GgufWriter& w) { w.String("general.license", "mit"); }), base);
  // The same metadata in another order.
  EXPECT_EQ(with([](GgufWriter& w) { w.Uint32("llama.block_count", 2); }), base);
  EXPECT_NE(with([](GgufWriter& w) { w.Float32("llama.rope.freq_base", 10001); }), base);
  EXPECT_NE(with([](GgufWriter& w) { w.String("tokenizer.chat_template", "x"); }), base);
  EXPECT_NE(with([](GgufWriter& w) { w.Uint32("tokenizer.ggml.eos_token_id", 1); }), base);
  EXPECT_NE(with([](GgufWriter& w) {
              w.Tensor("blk.1.ffn_norm.weight", {64}, TensorType::kF32, std::string(256, '?'));
            }),
            base);
}

// Every tensor type in every place where it may stand, tied or not, packs in every fidelity.
TEST(Model, LoadsEveryTensorType) {
  for (const TensorType type :
       {TensorType::kF32, TensorType::kF16, TensorType::kBF16, TensorType::kQ4_0, TensorType::kQ4_1,
        TensorType::kQ5_0, TensorType::kQ5_1, TensorType::kQ8_0}) {
    const GgufWriter w = MakeSmallModel({.weights = type, .embedding = type, .tied = false});
    for (const Fidelity f : {Fidelity::kWBA16, Fidelity::kW8A16, Fidelity::kW16A16}) {
      Result<Model> model = Load(w, f);
      EXPECT_TRUE(model.ok()) << TensorTypeName(type) << " " << FidelityName(f) << ": "
                              << model.error().message;
    }
    const TemporaryFile bytes(w.Build());
    Result<GgufFile> file = GgufFile::Open(bytes.path());
    ASSERT_TRUE(file.ok());
    EXPECT_EQ(DefaultFidelity(*file), IsBlockQuantised(type) ? Fidelity::kWBA16 : Fidelity::kW8A16);
  }
}

TEST(Model, FidelityNames) {
  EXPECT_EQ(*ParseFidelity("w16a16"), Fidelity::kW16A16);
  EXPECT_NE(ParseFidelity("fp8").error().message.find("wba16, w8a16 or w16a16"), std::string::npos);
}

}  // namespace
}  // namespace verbatim::engine
