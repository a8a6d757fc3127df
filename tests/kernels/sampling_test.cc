// Sampling against the specification written the slow way: sort everything, then cut.
#include "kernels/sampling.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "tests/kernels/golden.h"

namespace verbatim::kernels {
namespace {

__extension__ using Wide = unsigned __int128;

SampledToken SampleBySorting(std::span<const float> l, const SamplingParams& p, uint64_t r) {
  std::vector<size_t> order(l.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return l[a] > l[b]; });
  const float ct = kLog2eF / p.temperature;
  std::vector<uint64_t> weight;
  for (size_t id : order) {
    weight.push_back(static_cast<uint64_t>(std::rint(Exp2((l[id] - l[order[0]]) * ct) * 0x1p30f)));
  }
  const size_t n1 = p.top_k == 0 ? l.size() : std::min<size_t>(l.size(), p.top_k);
  const uint64_t total1 = std::accumulate(weight.begin(), weight.begin() + n1, uint64_t{0});
  const uint64_t share = static_cast<uint64_t>(std::floor(p.top_p * 0x1p32));
  const uint64_t threshold = static_cast<uint64_t>((Wide{total1} * share) >> 32);
  size_t n2 = 1;
  uint64_t sum = weight[0];
  while (sum < threshold) sum += weight[n2++];
  const uint64_t least = static_cast<uint64_t>(std::rint(p.min_p * 0x1p30));
  const size_t heavy = static_cast<size_t>(
      std::count_if(weight.begin(), weight.begin() + n2, [&](uint64_t w) { return w >= least; }));
  const size_t n3 = std::max<size_t>(1, heavy);
  const uint64_t total = std::accumulate(weight.begin(), weight.begin() + n3, uint64_t{0});
  const uint64_t point = static_cast<uint64_t>((Wide{r} * total) >> 64);
  size_t j = 0;
  for (sum = weight[0]; sum <= point;) sum += weight[++j];
  return {static_cast<uint32_t>(order[j]), n3, total, point};
}

TEST(Sampling, EqualsSortingEverything) {
  const Ops& ops = Select(DetectIsa());
  std::mt19937_64 random(11);
  SamplingScratch scratch;
  Compared compared;
  for (int round = 0; round < 600; ++round) {
    const size_t V = 1 + random() % (round % 20 == 0 ? 5000 : 100);
    std::vector<float> l(V);
    std::normal_distribution<float> normal(0.0f, round % 3 == 0 ? 0.1f : 8.0f);
    for (float& x : l) x = normal(random);
    if (round % 4 == 0) {
      for (float& x : l) x = std::rint(x);  // ties, and both zeros
    }
    scratch.Resize(V);
    const float temperatures[] = {1e-5f, 0.3f, 1.0f, 5.0f, 1000.0f};
    const uint64_t top_ks[] = {0, 1, 3, 40, 1000};
    const double top_ps[] = {0.0, 0.3, 0.9, 0.999, 1.0}, min_ps[] = {0.0, 0.01, 0.4, 1.0};
    const SamplingParams p{temperatures[random() % 5], top_ks[random() % 5], top_ps[random() % 5],
                           min_ps[random() % 4]};
    for (uint64_t r : {uint64_t{0}, ~uint64_t{0}, static_cast<uint64_t>(random())}) {
      const SampledToken want = SampleBySorting(l, p, r);
      const SampledToken got = Sample(ops, l, p, r, scratch);
      const std::string what = "round " + std::to_string(round);
      compared.Equal(want.token, got.token, what + " token");
      compared.Equal(want.kept, got.kept, what + " kept");
      compared.Equal(want.total, got.total, what + " total");
      compared.Equal(want.point, got.point, what + " point");
    }
  }
}

TEST(Sampling, GreedyTakesTheLowestOfEqualLogits) {
  SamplingScratch scratch;
  const std::vector<float> l = {-1.0f, 3.0f, 2.0f, 3.0f};
  EXPECT_EQ(Sample(Select(Isa::kScalar), l, {.temperature = 0.0f}, 1, scratch).token, 1u);
  EXPECT_EQ(Sample(Select(Isa::kScalar), l, {.temperature = 0x1.4f8b56p-17f}, 1, scratch).token,
            1u);
}

TEST(Sampling, PenaltiesInTheirOrder) {
  std::vector<float> l = {2.0f, -2.0f, 1.0f, 1.0f, 5.0f};
  const SeenToken seen[] = {{0, 0}, {1, 2}, {2, 1}};
  const TokenBias bias[] = {{2, 10.0f}, {3, -100.0f}};
  ApplyPenalties(l, seen, 2.0f, 0.5f, 0.25f, bias);
  EXPECT_EQ(l[0], 1.0f);                           // prompt only: repetition
  EXPECT_EQ(l[1], -4.0f - 2 * 0.5f - 0.25f);       // generated twice, negative: multiplied
  EXPECT_EQ(l[2], (0.5f - 0.5f - 0.25f) + 10.0f);  // bias last
  EXPECT_EQ(l[3], -99.0f);
  EXPECT_EQ(l[4], 5.0f);
}

TEST(Sampling, LogprobsSumToOne) {
  const std::vector<float> l = {0.5f, -1.0f, 3.0f, 2.0f, -40.0f};
  const uint64_t sum = Select(DetectIsa()).logprob_sum(l.data(), l.size(), 3.0f);
  double total = 0;
  for (float x : l) total += std::exp(Logprob(x, 3.0f, sum));
  EXPECT_NEAR(total, 1.0, 1e-6);
  EXPECT_EQ(Logprob(3.0f, 3.0f, uint64_t{1} << 40), 0.0);
}

}  // namespace
}  // namespace verbatim::kernels
