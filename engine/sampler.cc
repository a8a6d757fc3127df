#include "engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <string>
#include <unordered_set>

#include "base/check.h"
#include "base/crypto.h"
#include "base/philox.h"

namespace verbatim::engine {
namespace {

constexpr float kMaxPenalty = 1e6f;

Error Invalid(const char* field, const std::string& what) {
  return Error{Code::kInvalid, std::string(field) + ": " + what};
}

bool Within(double x, double low, double high) { return x >= low && x <= high; }  // false for NaN

}  // namespace

Status CheckSamplingParams(const SamplingParams& p, uint32_t vocab_size) {
  if (!Within(p.temperature, 0, 1e6)) return Invalid("temperature", "must be from 0 to 1e6");
  if (p.top_k < 0) return Invalid("top_k", "must be 0 (off) or a positive number");
  if (!Within(p.top_p, 0, 1)) return Invalid("top_p", "must be from 0 to 1");
  if (!Within(p.min_p, 0, 1)) return Invalid("min_p", "must be from 0 to 1");
  if (!Within(p.repetition_penalty, 1e-6, kMaxPenalty)) {
    return Invalid("repetition_penalty", "must be from 1e-6 to 1e6");
  }
  if (!Within(p.frequency_penalty, -kMaxPenalty, kMaxPenalty)) {
    return Invalid("frequency_penalty", "must be from -1e6 to 1e6");
  }
  if (!Within(p.presence_penalty, -kMaxPenalty, kMaxPenalty)) {
    return Invalid("presence_penalty", "must be from -1e6 to 1e6");
  }
  std::unordered_set<int32_t> ids;
  for (const auto& [id, bias] : p.logit_bias) {
    if (id < 0 || static_cast<uint32_t>(id) >= vocab_size) {
      return Invalid("logit_bias", "token " + std::to_string(id) + " is not in the vocabulary of " +
                                       std::to_string(vocab_size));
    }
    if (!Within(bias, -kMaxPenalty, kMaxPenalty)) {
      return Invalid("logit_bias", "values must be from -1e6 to 1e6");
    }
    if (!ids.insert(id).second) {
      return Invalid("logit_bias", "token " + std::to_string(id) + " occurs twice");
    }
  }
  return {};
}

Sampler::Sampler(const SamplingParams& params, std::span<const int32_t> prompt) : params_(params) {
  penalised_ = params.repetition_penalty != 1 || params.frequency_penalty != 0 ||
               params.presence_penalty != 0;
  if (penalised_) {
    for (const int32_t id : prompt) {
      if (seen_index_.emplace(id, seen_.size()).second) {
        seen_.push_back({static_cast<uint32_t>(id), 0});
      }
    }
  }
  for (const auto& [id, bias] : params.logit_bias) {
    bias_.push_back({static_cast<uint32_t>(id), bias});
  }
}

Result<int32_t> Sampler::Next(const kernels::Ops& ops, std::span<float> logits, uint64_t position,
                              kernels::SamplingScratch& scratch) {
  if (penalised_ || !bias_.empty()) {
    kernels::ApplyPenalties(logits, seen_, params_.repetition_penalty, params_.frequency_penalty,
                            params_.presence_penalty, bias_);
    if (!ops.finish_logits(logits.data(), logits.size())) {
      return Error{Code::kNumericFault,
                   "penalties or bias made a logit infinite; use smaller ones"};
    }
  }
  const kernels::SamplingParams params{params_.temperature, static_cast<uint64_t>(params_.top_k),
                                       params_.top_p, params_.min_p};
  const uint64_t draw = Draw64(params_.seed, position, params_.stream);
  const auto token =
      static_cast<int32_t>(kernels::Sample(ops, logits, params, draw, scratch).token);
  if (penalised_) {
    const auto [it, is_new] = seen_index_.emplace(token, seen_.size());
    if (is_new) seen_.push_back({static_cast<uint32_t>(token), 0});
    ++seen_[it->second].generated;
  }
  return token;
}

TokenLogprobs LogprobsOf(const kernels::Ops& ops, std::span<const float> logits, int32_t token,
                         size_t top) {
  CHECK(token >= 0 && static_cast<size_t>(token) < logits.size());
  const float max = logits[ops.arg_max(logits.data(), logits.size())];
  const uint64_t sum = ops.logprob_sum(logits.data(), logits.size(), max);
  TokenLogprobs out;
  out.logprob = kernels::Logprob(logits[static_cast<size_t>(token)], max, sum);
  if (top == 0) return out;
  // The best so far, in order. An equal logit with a higher id comes later, so it goes behind.
  std::vector<std::pair<float, size_t>> best;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (best.size() == top && !(logits[i] > best.back().first)) continue;
    if (best.size() == top) best.pop_back();
    auto place = best.end();
    while (place != best.begin() && logits[i] > std::prev(place)->first) --place;
    best.insert(place, {logits[i], i});
  }
  for (const auto& [logit, id] : best) {
    out.top.push_back({static_cast<int32_t>(id), kernels::Logprob(logit, max, sum)});
  }
  return out;
}

Digest LogitsChainStart() { return Sha256("verbatim-logits-1"); }

Digest LogitsChainNext(const Digest& chain, const LogitsDigest& digest) {
  std::string bytes(AsBytes(chain));
  bytes.append(reinterpret_cast<const char*>(digest.data()), digest.size());
  return Sha256(bytes);
}

}  // namespace verbatim::engine
