// Sampling without sorting the vocabulary: tokens fall into buckets of descending logit, whole
// buckets are skipped by their counts and weights, and only a bucket in which a cut falls is
// sorted. The result is that of the total order of numerics.md 11, whatever the buckets are.
#include "kernels/sampling.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "base/check.h"
#include "kernels/numerics.h"

namespace verbatim::kernels {
namespace {

constexpr float kGreedyBelow = 1e-5f;

uint64_t MulShift(uint64_t a, uint64_t b, int shift) {
  __extension__ using Wide = unsigned __int128;
  return static_cast<uint64_t>((Wide{a} * b) >> shift);
}

// Ascending keys are descending logits, then ascending ids. Both zeros are one logit.
uint64_t OrderKey(float logit, size_t id) {
  const uint32_t bits = BitsOf(logit + 0.0f);
  const uint32_t ascending = bits >> 31 ? ~bits : bits | 0x80000000;
  return uint64_t{~ascending} << 32 | id;
}

// The first tokens of the order, up to a cut.
struct Prefix {
  uint64_t n = 0;      // how many
  uint64_t total = 0;  // their weight
  size_t bucket = 0;   // the bucket in which the cut falls
};

class Order {
 public:
  // ct: as in the weights, which are zero from about 31/ct below the maximum on. So all tokens
  // without weight share the last bucket or two, where no cut but an outsized top_k can fall.
  Order(std::span<const float> logits, float max, float ct, SamplingScratch& scratch)
      : logits_(logits), s_(scratch) {
    constexpr float kLast = static_cast<float>(SamplingScratch::kBuckets - 1);
    const float per_unit = ct * (kLast / 31.5f);
    for (size_t i = 0; i < logits.size(); ++i) {
      const float b = (max - logits[i]) * per_unit;
      s_.bucket[i] = static_cast<uint16_t>(static_cast<int32_t>(b < kLast ? b : kLast));
    }
    s_.count.fill(0);
    s_.sum.fill(0);
    for (size_t i = 0; i < logits.size(); ++i) {
      s_.count[s_.bucket[i]] += 1;
      s_.sum[s_.bucket[i]] += s_.weight[i];
      total_ += s_.weight[i];
    }
  }

  // The weight of all tokens.
  uint64_t total() const { return total_; }

  // The shortest prefix of at least one token of which done(n, total) holds, or all tokens. done
  // must stay true once it is. Leaves that token in `last`.
  template <typename Done>
  Prefix Shortest(Done done, size_t* last = nullptr) {
    Prefix p;
    size_t filled = 0;
    bool found = false;
    for (size_t b = 0; b < SamplingScratch::kBuckets; ++b) {
      if (s_.count[b] == 0) continue;
      filled = b;
      found = done(p.n + s_.count[b], p.total + s_.sum[b]);
      if (found) break;
      p.n += s_.count[b];
      p.total += s_.sum[b];
    }
    p.bucket = filled;
    const size_t members = Sort(filled);
    if (!found) {
      if (last != nullptr) *last = s_.sorted[members - 1] & 0xffffffff;
      return p;
    }
    for (size_t i = 0; i < members; ++i) {
      const size_t id = s_.sorted[i] & 0xffffffff;
      p.n += 1;
      p.total += s_.weight[id];
      if (last != nullptr) *last = id;
      if (done(p.n, p.total)) break;
    }
    return p;
  }

  // How many of the prefix's tokens weigh at least `least`. Right after the prefix was found.
  uint64_t CountAtLeast(const Prefix& p, uint64_t least) const {
    uint64_t whole = 0, heavy = 0;
    for (size_t i = 0; i < logits_.size(); ++i) {
      if (s_.bucket[i] >= p.bucket) continue;
      ++whole;
      heavy += s_.weight[i] >= least;
    }
    for (uint64_t i = 0; i < p.n - whole; ++i) {
      heavy += s_.weight[s_.sorted[i] & 0xffffffff] >= least;
    }
    return heavy;
  }

 private:
  // The bucket's tokens in order, at the front of `sorted`.
  size_t Sort(size_t bucket) {
    const size_t members = s_.count[bucket];
    if (bucket == sorted_bucket_) return members;
    sorted_bucket_ = bucket;
    size_t n = 0;
    for (size_t i = 0; n < members; ++i) {
      if (s_.bucket[i] == bucket) s_.sorted[n++] = OrderKey(logits_[i], i);
    }
    std::sort(s_.sorted.begin(), s_.sorted.begin() + static_cast<ptrdiff_t>(n));
    return members;
  }

  std::span<const float> logits_;
  SamplingScratch& s_;
  uint64_t total_ = 0;
  size_t sorted_bucket_ = SamplingScratch::kBuckets;  // none
};

}  // namespace

void ApplyPenalties(std::span<float> logits, std::span<const SeenToken> seen, float repetition,
                    float frequency, float presence, std::span<const TokenBias> bias) {
  for (const SeenToken& t : seen) {
    CHECK(t.id < logits.size());
    float l = logits[t.id];
    l = l > 0.0f ? l / repetition : l * repetition;
    if (t.generated > 0) {
      l = l - static_cast<float>(t.generated) * frequency;
      l = l - presence;
    }
    logits[t.id] = l;
  }
  for (const TokenBias& b : bias) {
    CHECK(b.id < logits.size());
    logits[b.id] = logits[b.id] + b.bias;
  }
}

void SamplingScratch::Resize(size_t vocab) {
  if (weight.size() >= vocab) return;
  weight.resize(vocab);
  bucket.resize(vocab);
  sorted.resize(vocab);
}

SampledToken Sample(const Ops& ops, std::span<const float> logits, const SamplingParams& params,
                    uint64_t r, SamplingScratch& scratch) {
  const size_t V = logits.size();
  CHECK(V >= 1 && V <= size_t{1} << 20);
  const size_t best = ops.arg_max(logits.data(), V);
  if (params.temperature < kGreedyBelow) return {.token = static_cast<uint32_t>(best)};

  CHECK(scratch.weight.size() >= V);
  const float max = logits[best];
  const float ct = kLog2eF / params.temperature;
  ops.sampling_weights(logits.data(), V, max, ct, scratch.weight.data());
  Order order(logits, max, ct, scratch);

  uint64_t total1 = order.total();
  if (params.top_k != 0 && params.top_k < V) {
    total1 = order.Shortest([&](uint64_t n, uint64_t) { return n >= params.top_k; }).total;
  }
  const uint64_t share = static_cast<uint64_t>(std::floor(params.top_p * 0x1p32));
  const uint64_t threshold = MulShift(total1, share, 32);
  Prefix kept = order.Shortest([&](uint64_t, uint64_t total) { return total >= threshold; });
  const uint64_t least = static_cast<uint64_t>(std::rint(params.min_p * 0x1p30));
  if (least > 0) {
    const uint64_t n3 = std::max<uint64_t>(1, order.CountAtLeast(kept, least));
    if (n3 < kept.n) kept = order.Shortest([&](uint64_t n, uint64_t) { return n >= n3; });
  }
  const uint64_t point = MulShift(r, kept.total, 64);
  size_t token = best;
  (void)order.Shortest([&](uint64_t, uint64_t total) { return total > point; }, &token);
  return {static_cast<uint32_t>(token), kept.n, kept.total, point};
}

double Logprob(float l, float max, uint64_t sum) {
  return (static_cast<double>(l) - static_cast<double>(max)) -
         (Log2d(static_cast<double>(sum)) - 40.0) * kLn2;
}

std::string FormatDigest(const uint64_t sums[2]) {
  char text[33];
  std::snprintf(text, sizeof text, "%016llx%016llx", static_cast<unsigned long long>(sums[0]),
                static_cast<unsigned long long>(sums[1]));
  return text;
}

}  // namespace verbatim::kernels
