// How fast Linear and attention are on this machine, one thread, for the shapes of SmolLM2-135M:
// medians of repeated passes over matrices that together exceed the caches.
//
//   kernels_bench [ISA]
#include <time.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "base/philox.h"
#include "kernels/numerics.h"
#include "kernels/ops.h"
#include "kernels/sampling.h"

namespace verbatim::kernels {
namespace {

// CPU time of the calling thread in microseconds: what else runs on the machine disturbs it less
// than the wall clock.
double ThreadMicros() {
  timespec t;
  CHECK(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t) == 0);
  return static_cast<double>(t.tv_sec) * 1e6 + static_cast<double>(t.tv_nsec) * 1e-3;
}

template <typename F>
double MedianMicros(int runs, F f) {
  std::vector<double> us;
  for (int i = 0; i < runs; ++i) {
    const double start = ThreadMicros();
    f();
    us.push_back(ThreadMicros() - start);
  }
  std::sort(us.begin(), us.end());
  return us[us.size() / 2];
}

std::vector<float> Random(size_t n, uint64_t seed) {
  std::vector<float> x(n);
  for (size_t i = 0; i < n; ++i) {
    x[i] = static_cast<float>(static_cast<int32_t>(Draw64(seed, i, 0) >> 32)) * 0x1p-31f;
  }
  return x;
}

enum class Weights { kQ4, kQ8, kW8, kW16 };

PackedMatrix Make(Weights kind, size_t N, size_t K, uint64_t seed) {
  if (kind == Weights::kW8 || kind == Weights::kW16) {
    const int bits = kind == Weights::kW8 ? 8 : 16;
    Result<PackedMatrix> m = PackedMatrix::PackRows("bench", Random(N * K, seed), N, K, bits);
    CHECK(m.ok());
    return *std::move(m);
  }
  const bool q4 = kind == Weights::kQ4;
  std::vector<uint8_t> codes(N * K);
  for (size_t i = 0; i < codes.size(); ++i)
    codes[i] = static_cast<uint8_t>(i * 7 & (q4 ? 15 : 255));
  const std::vector<float> d = Random(N * K / 32, seed), m = Random(N * K / 32, seed + 1);
  BlockWeights w;
  w.codes = codes;
  w.d = d;
  if (q4) w.m = m;
  w.bits = q4 ? 4 : 8;
  w.offset = q4 ? 0 : 128;
  w.qm = q4 ? 15 : 127;
  Result<PackedMatrix> packed = PackedMatrix::PackBlocks("bench", w, N, K);
  CHECK(packed.ok());
  return *std::move(packed);
}

struct Shape {
  const char* name;
  size_t N, K;
};

// One decoder layer's matrices; 30 of them and the head make a token.
constexpr Shape kLayer[] = {{"q", 576, 576},    {"k", 192, 576},     {"v", 192, 576},
                            {"o", 576, 576},    {"gate", 1536, 576}, {"up", 1536, 576},
                            {"down", 576, 1536}};
constexpr size_t kLayers = 30;

void BenchLinear(const Ops& ops, const char* name, Weights layer_kind, Weights head_kind) {
  std::vector<PackedMatrix> matrices;
  for (size_t l = 0; l < kLayers; ++l) {
    for (const Shape& s : kLayer) matrices.push_back(Make(layer_kind, s.N, s.K, l));
  }
  matrices.push_back(Make(head_kind, 49152, 576, 99));
  size_t bytes = 0;
  for (const PackedMatrix& m : matrices) bytes += m.bytes();
  for (size_t rows : {size_t{1}, size_t{2}, size_t{4}, size_t{16}}) {
    QuantizedRows narrow, wide;
    narrow.Resize(rows, 576);
    wide.Resize(rows, 1536);
    const std::vector<float> x = Random(1536, 5);
    for (size_t r = 0; r < rows; ++r) {
      CHECK(ops.quantize(x.data(), 576, kQ16, narrow.row(r)));
      CHECK(ops.quantize(x.data(), 1536, kQ16, wide.row(r)));
    }
    std::vector<float> y(rows * 49152);
    const auto pass = [&](size_t begin, size_t end) {
      for (size_t i = begin; i < end; ++i) {
        const PackedMatrix& m = matrices[i];
        ops.linear(m, m.K() == 576 ? narrow : wide, 0, rows, 0, m.N(), y.data(), m.N());
      }
    };
    const int runs = rows > 4 ? 5 : 11;
    const double layers = MedianMicros(runs, [&] { pass(0, matrices.size() - 1); });
    const double head = MedianMicros(runs, [&] { pass(matrices.size() - 1, matrices.size()); });
    const double total = layers + head;
    std::printf("%-6s rows %2zu: layers %8.0f us, head %7.0f us, per token %7.0f us, %5.1f GB/s\n",
                name, rows, layers, head, total / static_cast<double>(rows),
                static_cast<double>(bytes) / total / 1e3);
  }
}

void BenchAttention(const Ops& ops, int bits) {
  const KvTileLayout layout{64, bits};
  constexpr size_t kKeys = 2048;
  std::vector<AlignedVector<uint8_t>> pages(kKeys / 64, AlignedVector<uint8_t>(layout.bytes()));
  std::vector<const uint8_t*> pointers;
  const std::vector<float> kv = Random(kKeys * 64, 3);
  for (size_t i = 0; i < kKeys; ++i) {
    CHECK(
        ops.kv_store(layout, pages[i / 64].data(), i % 64, kv.data() + i * 64, kv.data() + i * 64));
  }
  for (const auto& p : pages) pointers.push_back(p.data());
  QuantizedRows q;
  q.Resize(3, 64);
  for (size_t h = 0; h < 3; ++h) CHECK(ops.quantize(kv.data() + h * 64, 64, kQ16, q.row(h)));
  float out[3 * 64];
  const AttentionArgs args{layout, pointers.data(), 0, kKeys - 1, 0, AttentionScale(64), &q, 0, 3};
  const double us = MedianMicros(51, [&] { ops.attention(args, out); });
  std::printf("attention KV%d, 3 heads of 64 on one KV head, 2048 keys: %.1f us\n", bits, us);
}

void BenchRows(const Ops& ops) {
  constexpr size_t kVocab = 49152;
  std::vector<float> x = Random(kVocab, 8);
  for (float& v : x) v = v * 12.0f;
  const std::vector<float> gain = Random(576, 9);
  std::vector<float> y(kVocab);
  QuantizedRows rows;
  rows.Resize(1, 576);
  const auto report = [](const char* name, double us) {
    std::printf("%-28s %8.2f us\n", name, us);
  };
  report("quantize 576",
         MedianMicros(101, [&] { (void)ops.quantize(x.data(), 576, kQ16, rows.row(0)); }));
  report("rms_norm 576", MedianMicros(101, [&] {
           (void)ops.rms_norm(x.data(), gain.data(), 1e-5f, 576, y.data());
         }));
  report("swiglu 1536",
         MedianMicros(101, [&] { ops.swiglu(x.data(), x.data() + 1536, 1536, y.data()); }));
  uint64_t sums[2] = {0, 0};
  report("digest 49152", MedianMicros(21, [&] { ops.digest(x.data(), kVocab, 0, sums); }));
  report("finish_logits 49152",
         MedianMicros(21, [&] { (void)ops.finish_logits(x.data(), kVocab); }));
  SamplingScratch scratch;
  scratch.Resize(kVocab);
  uint64_t draw = 1;
  report("greedy 49152", MedianMicros(21, [&] { (void)Sample(ops, x, {}, draw++, scratch); }));
  report("sample T 1", MedianMicros(21, [&] {
           (void)Sample(ops, x, {.temperature = 1}, draw++ << 40, scratch);
         }));
  report("sample T 0.8, k 40, p 0.95", MedianMicros(21, [&] {
           (void)Sample(ops, x, {0.8f, 40, 0.95, 0.05}, draw++ << 40, scratch);
         }));
}

int Main(const std::string& name) {
  const Result<Isa> isa = ChooseIsa(name);
  if (!isa) {
    std::fprintf(stderr, "%s\n", isa.error().message.c_str());
    return 2;
  }
  const Ops& ops = Select(*isa);
  std::printf("instruction set %s, one thread\n", IsaName(*isa));
  BenchRows(ops);
  BenchAttention(ops, 16);
  BenchAttention(ops, 8);
  BenchLinear(ops, "WBA16", Weights::kQ4, Weights::kQ8);
  BenchLinear(ops, "W8A16", Weights::kW8, Weights::kW8);
  BenchLinear(ops, "W16A16", Weights::kW16, Weights::kW16);
  return 0;
}

}  // namespace
}  // namespace verbatim::kernels

int main(int argc, char** argv) { return verbatim::kernels::Main(argc > 1 ? argv[1] : ""); }
