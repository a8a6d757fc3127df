// From logits to a token: penalties, bias, the integer sampler and the draw (numerics.md 11), and
// the digests of what was sampled from (numerics.md 10). Pure functions; any thread may call them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/result.h"

namespace verbatim::engine {

// 16 bytes: hA then hB of numerics.md 10, big-endian, so that their hex is the digest's text.
using LogitsDigest = std::array<uint8_t, 16>;

struct SamplingParams {
  float temperature = 0;  // the double as parsed, converted to f32; below 1e-5 means greedy
  int64_t top_k = 0;      // 0: off
  double top_p = 1;       // [0, 1]
  double min_p = 0;       // [0, 1]
  uint64_t seed = 0;
  uint64_t stream = 0;                                // index of the choice where n > 1
  float repetition_penalty = 1;                       // > 0; over prompt and generated ids
  float frequency_penalty = 0;                        // over generated ids
  float presence_penalty = 0;                         // over generated ids
  std::vector<std::pair<int32_t, float>> logit_bias;  // token id, added; each id at most once
};

// Ranges and finiteness. Errors: kInvalid whose message begins with the field's name.
Status CheckSamplingParams(const SamplingParams& params, uint32_t vocab_size);

// Penalties and bias in the order and rounding of numerics.md 11, in place.
void ApplyPenalties(const SamplingParams& params, std::span<const int32_t> prompt,
                    std::span<const int32_t> generated, std::span<float> logits);

struct Sampled {
  int32_t token = 0;
  size_t kept = 0;     // how many candidates were left after top_k, top_p and min_p
  uint64_t total = 0;  // their integer weight
  uint64_t u = 0;      // the point drawn in [0, total)
};

// The token for the 64-bit draw r. logits: finite, without -0 (numerics.md 10), after
// ApplyPenalties, at most 2^20 of them. Greedy (temperature < 1e-5) ignores r and leaves the other
// fields 0.
Sampled Sample(const SamplingParams& params, std::span<const float> logits, uint64_t r);

// The chain over a choice's digests: c0 = SHA-256("verbatim-logits-1"), c = SHA-256(c || digest)
// for each sampled token, end-of-text and matched stop tokens included.
Digest LogitsChainStart();
Digest LogitsChainNext(const Digest& chain, const LogitsDigest& digest);

}  // namespace verbatim::engine
