// From logits to a token: penalties, bias, the integer sampler and the draw (numerics.md 11), and
// the digests of what was sampled from (numerics.md 10). Pure functions; any thread may call them.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/result.h"
#include "kernels/ops.h"
#include "kernels/sampling.h"

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

// Picks the tokens of one choice: what was seen so far, penalties, and the draw of each position.
// Used by one thread at a time.
class Sampler {
 public:
  // params: checked. prompt: ids below the vocabulary's size.
  Sampler(const SamplingParams& params, std::span<const int32_t> prompt);

  // The token that will stand at absolute position `position`, from finished logits (numerics.md
  // 10), which penalties change in place. kNumericFault where they leave a logit infinite.
  Result<int32_t> Next(const kernels::Ops& ops, std::span<float> logits, uint64_t position,
                       kernels::SamplingScratch& scratch);

 private:
  SamplingParams params_;
  bool penalised_ = false;
  std::vector<kernels::SeenToken> seen_;  // where penalised: each id of prompt and answer, once
  std::unordered_map<int32_t, size_t> seen_index_;
  std::vector<kernels::TokenBias> bias_;
};

// What a token cost, and what others would have (numerics.md 11): of the logits it was drawn from,
// after penalties and bias, at temperature 1 and without top_k, top_p or min_p.
struct TokenLogprob {
  int32_t token = 0;
  double logprob = 0;
  friend bool operator==(const TokenLogprob&, const TokenLogprob&) = default;
};
struct TokenLogprobs {
  double logprob = 0;             // of the token itself
  std::vector<TokenLogprob> top;  // the most likely ones: by logit, then id
  friend bool operator==(const TokenLogprobs&, const TokenLogprobs&) = default;
};
// logits: finished (numerics.md 10), none infinite. `top` of them, or all where there are fewer.
TokenLogprobs LogprobsOf(const kernels::Ops& ops, std::span<const float> logits, int32_t token,
                         size_t top);

// The chain over a choice's digests: c0 = SHA-256("verbatim-logits-1"), c = SHA-256(c || digest)
// for each sampled token, end-of-text and matched stop tokens included.
Digest LogitsChainStart();
Digest LogitsChainNext(const Digest& chain, const LogitsDigest& digest);

}  // namespace verbatim::engine
