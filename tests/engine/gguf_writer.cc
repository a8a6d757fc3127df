#include "tests/engine/gguf_writer.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/check.h"

namespace verbatim::engine {
namespace {

constexpr size_t kAlignment = 32;

std::string Encoded(std::string_view s) {
  return LittleEndian(uint64_t{s.size()}) + std::string(s);
}

void Pad(std::string& bytes) {
  bytes.resize((bytes.size() + kAlignment - 1) / kAlignment * kAlignment);
}

// splitmix64.
uint64_t Random(uint64_t& state) {
  uint64_t z = state += 0x9e3779b97f4a7c15;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

// Uniform in [-1, 1].
float Uniform(uint64_t& state) {
  return static_cast<float>(static_cast<double>(Random(state) >> 11) * 0x1p-52 - 1.0);
}

// A normal binary16 number next to x, |x| in [2^-14, 65504); else zero.
std::string Half(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  const int exponent = static_cast<int>(bits >> 23 & 255) - 112;
  if (exponent < 1 || exponent > 30) return LittleEndian(uint16_t{0});
  return LittleEndian(static_cast<uint16_t>(
      (bits >> 16 & 0x8000) | (static_cast<uint32_t>(exponent) << 10) | (bits >> 13 & 0x3ff)));
}

// U+0100 and up for the bytes that GPT-2's alphabet does not show as they are.
std::string ByteToken(int byte) {
  const auto shown = [](int b) {
    return (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || (b >= 174 && b <= 255);
  };
  int code = byte;
  if (!shown(byte)) {
    code = 256;
    for (int b = 0; b < byte; ++b) code += !shown(b);
  }
  if (code < 0x80) return std::string(1, static_cast<char>(code));
  return {static_cast<char>(0xc0 | (code >> 6)), static_cast<char>(0x80 | (code & 63))};
}

}  // namespace

void GgufWriter::Raw(const std::string& key, GgufType type, std::string_view value) {
  Remove(key);
  metadata_.emplace_back(key, LittleEndian(static_cast<uint32_t>(type)) + std::string(value));
}
void GgufWriter::Remove(const std::string& key) {
  std::erase_if(metadata_, [&](const auto& m) { return m.first == key; });
}
void GgufWriter::Uint32(const std::string& key, uint32_t v) {
  Raw(key, GgufType::kUint32, LittleEndian(v));
}
void GgufWriter::Float32(const std::string& key, float v) {
  Raw(key, GgufType::kFloat32, LittleEndian(v));
}
void GgufWriter::Bool(const std::string& key, bool v) {
  Raw(key, GgufType::kBool, LittleEndian(uint8_t{v}));
}
void GgufWriter::String(const std::string& key, std::string_view v) {
  Raw(key, GgufType::kString, Encoded(v));
}
void GgufWriter::Strings(const std::string& key, const std::vector<std::string>& v) {
  std::string value =
      LittleEndian(static_cast<uint32_t>(GgufType::kString)) + LittleEndian(uint64_t{v.size()});
  for (const std::string& s : v) value += Encoded(s);
  Raw(key, GgufType::kArray, value);
}
void GgufWriter::Int32s(const std::string& key, const std::vector<int32_t>& v) {
  std::string value =
      LittleEndian(static_cast<uint32_t>(GgufType::kInt32)) + LittleEndian(uint64_t{v.size()});
  for (const int32_t x : v) value += LittleEndian(x);
  Raw(key, GgufType::kArray, value);
}

void GgufWriter::Tensor(const std::string& name, std::vector<uint64_t> dims, TensorType type,
                        std::string bytes) {
  RemoveTensor(name);
  tensors_.push_back({name, std::move(dims), type, std::move(bytes)});
}
void GgufWriter::RemoveTensor(const std::string& name) {
  std::erase_if(tensors_, [&](const Info& t) { return t.name == name; });
}

std::string GgufWriter::Build(size_t* header_size) const {
  std::string file = "GGUF" + LittleEndian(uint32_t{3}) + LittleEndian(uint64_t{tensors_.size()}) +
                     LittleEndian(uint64_t{metadata_.size()});
  for (const auto& [key, value] : metadata_) file += Encoded(key) + value;
  std::string data;
  for (const Info& t : tensors_) {
    file += Encoded(t.name) + LittleEndian(static_cast<uint32_t>(t.dims.size()));
    for (const uint64_t d : t.dims) file += LittleEndian(d);
    file += LittleEndian(static_cast<uint32_t>(t.type)) + LittleEndian(uint64_t{data.size()});
    data += t.bytes;
    Pad(data);
  }
  if (header_size != nullptr) *header_size = file.size();
  Pad(file);
  return file + data;
}

std::string RandomTensor(TensorType type, size_t elements, float scale, uint64_t& state) {
  std::string bytes;
  const auto random_bytes = [&](int n) {
    for (int i = 0; i < n; ++i) bytes += static_cast<char>(Random(state));
  };
  const auto spread = [&](float levels) {  // d: blocks differ by a factor of up to two
    return scale / levels * (0.75f + 0.25f * Uniform(state));
  };
  switch (type) {
    case TensorType::kF32:
      for (size_t i = 0; i < elements; ++i) bytes += LittleEndian(scale * Uniform(state));
      return bytes;
    case TensorType::kF16:
      for (size_t i = 0; i < elements; ++i) bytes += Half(scale * Uniform(state));
      return bytes;
    case TensorType::kBF16:
      for (size_t i = 0; i < elements; ++i) {
        bytes += LittleEndian(
            static_cast<uint16_t>(std::bit_cast<uint32_t>(scale * Uniform(state)) >> 16));
      }
      return bytes;
    case TensorType::kQ4_0:
    case TensorType::kQ4_1:
    case TensorType::kQ5_0:
    case TensorType::kQ5_1:
    case TensorType::kQ8_0:
      break;
  }
  for (size_t block = 0; block < elements / 32; ++block) {
    switch (type) {
      case TensorType::kQ4_0:
        bytes += Half(spread(8));
        random_bytes(16);
        break;
      case TensorType::kQ4_1:
        bytes += Half(spread(7.5f)) + Half(-spread(1));
        random_bytes(16);
        break;
      case TensorType::kQ5_0:
        bytes += Half(spread(16));
        random_bytes(20);
        break;
      case TensorType::kQ5_1:
        bytes += Half(spread(15.5f)) + Half(-spread(1));
        random_bytes(20);
        break;
      default:
        bytes += Half(spread(127));
        random_bytes(32);
    }
  }
  return bytes;
}

GgufWriter MakeSmallModel(const SmallModel& o) {
  constexpr uint32_t kDim = 64, kFfn = 96, kLayers = 2, kHeads = 4, kKvHeads = 2, kVocab = 259;
  constexpr uint32_t kHeadDim = kDim / kHeads;
  GgufWriter w;
  w.String("general.architecture", "llama");
  w.String("general.name", "small");
  w.Uint32("llama.block_count", kLayers);
  w.Uint32("llama.context_length", o.context);
  w.Uint32("llama.embedding_length", kDim);
  w.Uint32("llama.feed_forward_length", kFfn);
  w.Uint32("llama.attention.head_count", kHeads);
  w.Uint32("llama.attention.head_count_kv", kKvHeads);
  w.Float32("llama.attention.layer_norm_rms_epsilon", 1e-5f);
  w.Float32("llama.rope.freq_base", 10000.0f);
  w.Uint32("llama.rope.dimension_count", kHeadDim);
  if (o.with_tokenizer) {
    std::vector<std::string> tokens;
    std::vector<int32_t> types(256, 1);
    for (int b = 0; b < 256; ++b) tokens.push_back(ByteToken(b));
    for (const char* control : {"<|endoftext|>", "<|im_start|>", "<|im_end|>"}) {
      tokens.emplace_back(control);
      types.push_back(3);
    }
    w.String("tokenizer.ggml.model", "gpt2");
    w.String("tokenizer.ggml.pre", "smollm");
    w.Strings("tokenizer.ggml.tokens", tokens);
    w.Int32s("tokenizer.ggml.token_type", types);
    w.Strings("tokenizer.ggml.merges", {});
    w.Uint32("tokenizer.ggml.eos_token_id", 258);
    w.Bool("tokenizer.ggml.add_bos_token", false);
    w.String("tokenizer.chat_template",
             "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
             "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}");
  }
  uint64_t state = o.seed;
  const auto matrix = [&](const std::string& name, uint64_t rows, uint64_t columns, TensorType type,
                          float scale) {
    w.Tensor(name, {columns, rows}, type, RandomTensor(type, rows * columns, scale, state));
  };
  const auto gain = [&](const std::string& name) {
    std::string bytes;
    for (uint32_t i = 0; i < kDim; ++i) bytes += LittleEndian(1.0f + 0.2f * Uniform(state));
    w.Tensor(name, {kDim}, TensorType::kF32, bytes);
  };
  matrix("token_embd.weight", kVocab, kDim, o.embedding, 0.5f);
  if (!o.tied) matrix("output.weight", kVocab, kDim, o.weights, 0.3f);
  gain("output_norm.weight");
  for (uint32_t i = 0; i < kLayers; ++i) {
    const std::string block = "blk." + std::to_string(i) + ".";
    gain(block + "attn_norm.weight");
    matrix(block + "attn_q.weight", kDim, kDim, o.weights, 0.4f);
    matrix(block + "attn_k.weight", kKvHeads * kHeadDim, kDim, o.weights, 0.4f);
    matrix(block + "attn_v.weight", kKvHeads * kHeadDim, kDim, o.weights, 0.3f);
    matrix(block + "attn_output.weight", kDim, kDim, o.weights, 0.3f);
    gain(block + "ffn_norm.weight");
    matrix(block + "ffn_gate.weight", kFfn, kDim, o.weights, 0.3f);
    matrix(block + "ffn_up.weight", kFfn, kDim, o.weights, 0.3f);
    matrix(block + "ffn_down.weight", kDim, kFfn, o.weights, 0.3f);
  }
  return w;
}

}  // namespace verbatim::engine
