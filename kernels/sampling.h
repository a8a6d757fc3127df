// Sampling (numerics.md 11) over one row of logits. Integer sums and a total order: the token
// depends on logits, parameters and the draw alone.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "kernels/aligned.h"
#include "kernels/ops.h"

namespace verbatim::kernels {

struct SamplingParams {
  float temperature = 0;  // f32 of the parsed double; below f32(1e-5): greedy
  uint64_t top_k = 0;     // 0: off
  double top_p = 1;       // in [0, 1]
  double min_p = 0;       // in [0, 1]
};

// A distinct token id of prompt or answer so far.
struct SeenToken {
  uint32_t id;
  uint32_t generated;  // how often it was generated; 0: in the prompt only
};
struct TokenBias {
  uint32_t id;
  float bias;
};

// Repetition over all seen ids, then frequency and presence over the generated ones, then bias; in
// place, each step rounded. Ids are below the row's length (CHECKed) and distinct.
void ApplyPenalties(std::span<float> logits, std::span<const SeenToken> seen, float repetition,
                    float frequency, float presence, std::span<const TokenBias> bias);

// What Sample needs besides its input; one per thread, reused. Contents mean nothing between calls.
struct SamplingScratch {
  static constexpr size_t kBuckets = 4096;
  void Resize(size_t vocab);  // allocates only to grow

  AlignedVector<uint32_t> weight;  // [vocab]
  AlignedVector<uint16_t> bucket;  // [vocab]
  AlignedVector<uint64_t> sorted;  // [vocab]
  std::array<uint32_t, kBuckets> count;
  std::array<uint64_t, kBuckets> sum;
};

struct SampledToken {
  uint32_t token = 0;
  // Where not greedy: how many tokens were kept, their total weight, and the point drawn in it.
  uint64_t kept = 0, total = 0, point = 0;
};

// logits: after finish_logits and penalties, 1 to 2^20 of them, none NaN or infinite. r: Draw64 of
// base/philox.h (seed, position of the token, stream of the choice). scratch: Resize()d to the row.
SampledToken Sample(const Ops& ops, std::span<const float> logits, const SamplingParams& params,
                    uint64_t r, SamplingScratch& scratch);

// The logprob of a token with logit l, where max is the row's largest and sum = logprob_sum of the
// row.
double Logprob(float l, float max, uint64_t sum);

// 16 hex digits of hA, then 16 of hB (10).
std::string FormatDigest(const uint64_t sums[2]);

}  // namespace verbatim::kernels
