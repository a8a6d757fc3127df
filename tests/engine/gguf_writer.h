// Writes GGUF version 3 files for tests: sound ones, and small random models that run in
// milliseconds.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/gguf.h"

namespace verbatim::engine {

class GgufWriter {
 public:
  void Uint32(const std::string& key, uint32_t v);
  void Float32(const std::string& key, float v);
  void Bool(const std::string& key, bool v);
  void String(const std::string& key, std::string_view v);
  void Strings(const std::string& key, const std::vector<std::string>& v);
  void Int32s(const std::string& key, const std::vector<int32_t>& v);
  // Any value, already encoded.
  void Raw(const std::string& key, GgufType type, std::string_view value);
  void Remove(const std::string& key);

  void Tensor(const std::string& name, std::vector<uint64_t> dims, TensorType type,
              std::string bytes);
  void RemoveTensor(const std::string& name);

  // The file. header_size, where not null: how many bytes stand before the tensors' data.
  std::string Build(size_t* header_size = nullptr) const;

 private:
  struct Info {
    std::string name;
    std::vector<uint64_t> dims;
    TensorType type;
    std::string bytes;
  };
  std::vector<std::pair<std::string, std::string>> metadata_;  // key, type and value encoded
  std::vector<Info> tensors_;
};

// A number of a file: little-endian.
template <typename T>
std::string LittleEndian(T v) {
  return {reinterpret_cast<const char*>(&v), sizeof(v)};
}

struct SmallModel {
  uint64_t seed = 1;
  TensorType weights = TensorType::kQ4_1;
  TensorType embedding = TensorType::kQ8_0;
  bool tied = true;
  bool with_tokenizer = true;
  uint32_t context = 512;
};

// A `llama` file of 2 layers, dimension 64, 4 heads that share 2 KV heads, random weights and
// (where wanted) a byte-level tokenizer: one token per byte, then <|endoftext|> 256, <|im_start|>
// 257,
// <|im_end|> 258, which is the end-of-text token.
GgufWriter MakeSmallModel(const SmallModel& options = {});

// Random bytes of a tensor of this type whose weights lie about in [-scale, scale].
std::string RandomTensor(TensorType type, size_t elements, float scale, uint64_t& state);

}  // namespace verbatim::engine
