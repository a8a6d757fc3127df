// A model as loaded: its configuration, checked, and its weights in the layout that the kernels
// read. Immutable after Load; any thread may read it. The file is not needed afterwards.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/result.h"
#include "engine/gguf.h"
#include "engine/worker_pool.h"
#include "kernels/ops.h"
#include "kernels/packed_matrix.h"
#include "kernels/rope.h"

namespace verbatim::engine {

// How weights are held (numerics.md 14, 17). Activations and KV have 16 bits in all of them.
enum class Fidelity { kWBA16, kW8A16, kW16A16 };
const char* FidelityName(Fidelity fidelity);  // "wba16"
Result<Fidelity> ParseFidelity(std::string_view name);

// The metadata of a `llama` file (keys llama.*), with every value checked against what the kernels
// and numerics.md 13 allow.
struct ModelConfig {
  std::string architecture;
  uint32_t layers = 0;
  uint32_t dim = 0;      // embedding_length
  uint32_t ffn_dim = 0;  // feed_forward_length
  uint32_t heads = 0, kv_heads = 0;
  uint32_t head_dim = 0;
  uint32_t rope_dim = 0;
  uint32_t vocab = 0;
  uint32_t context_length = 0;
  float eps = 0;
  float attention_scale = 0;  // f32(LOG2E / sqrt(head_dim))
  kernels::RopeLayout rope_layout = kernels::RopeLayout::kInterleaved;
  kernels::RopeTable rope;
};

struct LayerWeights {
  std::vector<float> attn_norm, ffn_norm;  // [dim]
  kernels::PackedMatrix q, k, v;           // [heads*head_dim | kv_heads*head_dim][dim]
  kernels::PackedMatrix o;                 // [dim][heads*head_dim]
  kernels::PackedMatrix gate, up;          // [ffn_dim][dim]
  kernels::PackedMatrix down;              // [dim][ffn_dim]
};

struct Model {
  ModelConfig config;
  Fidelity fidelity = Fidelity::kWBA16;
  Digest digest{};  // ModelDigest of the file
  std::string display_name;
  uint64_t parameters = 0;

  kernels::PackedMatrix embedding;  // [vocab][dim]
  kernels::PackedMatrix output;     // [vocab][dim]; empty: the embedding is the head too
  std::vector<float> output_norm;   // [dim]
  std::vector<LayerWeights> layers;

  const kernels::PackedMatrix& head() const { return output.N() == 0 ? embedding : output; }
  std::vector<const kernels::PackedMatrix*> matrices() const;  // all of them, each once
};

// The configuration alone: what `models inspect` shows. Errors: kUnsupported (architecture, rope
// scaling, anything that changes the graph, by name), kCorrupt (a value that cannot be, or
// missing).
Result<ModelConfig> ReadConfig(const GgufFile& file);

// The file's default: wba16 where a matrix is block-quantised, else w8a16 (numerics.md 17).
Fidelity DefaultFidelity(const GgufFile& file);

// progress(done): the share of the file's bytes that is packed; called on the calling thread.
Result<Model> LoadModel(const GgufFile& file, Fidelity fidelity, WorkerPool& workers,
                        const std::function<void(double)>& progress);

// Identity of the weights, the configuration, the tokenizer and the template; the same for every
// fidelity, which is a part of the identity of its own. SHA-256 over, in this order:
//   "verbatim-model-1" and a zero byte;
//   for every metadata key that is general.architecture or begins with <architecture>. or
//   tokenizer.,
//     in byte order: key, u32 type, value;
//   for every tensor, in byte order of the names: name, u32 type, u32 count of dimensions, u64
//   each,
//     SHA-256 of its bytes.
// Integers are big-endian; a string is its u64 length and its bytes; an integer, float or bool
// value is 8 bytes (integers two's complement, floats the bits of their double); an array is u32
// element type, u64 count and its elements, strings as above, others as the file has them. Names of
// the model, its licence and other general.* keys do not count, nor does where in the file a tensor
// lies. tensor_digests: in the file's order of tensors.
Digest ModelDigest(const GgufFile& file, std::string_view architecture,
                   const std::vector<Digest>& tensor_digests);

}  // namespace verbatim::engine
