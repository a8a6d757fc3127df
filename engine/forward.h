// The forward pass of numerics.md 12 over a batch: rows of several sequences, prefill and decode
// alike. A row's bits depend on its own sequence alone; the batch, its order and the number of
// workers change only how fast they come.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/kv_cache.h"
#include "engine/model.h"
#include "engine/sampler.h"
#include "engine/worker_pool.h"
#include "kernels/ops.h"
#include "kernels/quantized_rows.h"

namespace verbatim::engine {

// Consecutive tokens of one sequence: positions [start, start + tokens.size()). The positions
// before are in the KV cache, computed by earlier passes; pages cover these ones too.
struct Slice {
  std::span<const int32_t> tokens;  // ids below the vocabulary's size
  uint64_t start = 0;
  std::span<uint8_t* const> pages;
  bool want_logits = false;  // of the last token

  // Results. After a fault the slice's keys, values and logits must not be used.
  bool fault = false;       // numerics.md 1.1: the request that the slice belongs to ends
  std::span<float> logits;  // [vocab], where wanted; may be changed; valid until the next pass
  LogitsDigest digest{};    // of them
};

// Digests of one row's residual, as in the traces of the golden vectors.
struct ForwardTrace {
  LogitsDigest embedding{};
  std::vector<LogitsDigest> after_attention, after_layer;
};

// hA, hB of numerics.md 10 as bytes.
LogitsDigest MakeDigest(const uint64_t sums[2]);

class Forward {
 public:
  // All borrowed; they outlive this object. Buffers grow to the largest batch and stay.
  Forward(const Model& model, const kernels::Ops& ops, const KvCache& cache, WorkerPool& workers);

  // Runs the batch. Slices belong to different sequences. One thread at a time. trace, where not
  // null, is filled for the last row of the batch.
  void Run(std::span<Slice> slices, ForwardTrace* trace = nullptr);

 private:
  struct Row {
    int32_t token;
    uint64_t position;
    uint8_t* const* pages;
  };
  void PlaceRows(std::span<Slice> slices);
  void Attention(const LayerWeights& layer, uint32_t index);
  void FeedForward(const LayerWeights& layer);
  void Logits(std::span<Slice> slices);

  // x[rows][dim] normalised and quantised into `quantized_`.
  void NormAndQuantise(const std::vector<float>& gain, const float* x, size_t rows);
  void QuantiseRows(const float* x, size_t rows, size_t columns);
  // y[rows][w.N()] of the quantised rows, for this worker's part of the outputs.
  Range LinearPart(const kernels::PackedMatrix& w, size_t rows, std::vector<float>& y,
                   uint32_t worker) const;
  // x += w * quantised rows.
  void LinearAndAdd(const kernels::PackedMatrix& w);
  // f(row) for all rows: by the workers where there are enough to share out.
  template <typename F>
  void ForRows(size_t rows, F&& f);

  const Model& model_;
  const kernels::Ops& ops_;
  const KvCache& cache_;
  WorkerPool& workers_;

  std::vector<Row> rows_;
  std::vector<uint8_t> fault_;  // [rows]; written by the worker that owns the row
  kernels::AlignedVector<float> x_, norm_;
  std::vector<float> q_, k_, v_, attention_, gate_, up_, projected_;
  std::vector<float> cos_, sin_;  // [rows][rope_dim/2]
  kernels::QuantizedRows quantized_, quantized_q_;
  std::vector<float> logits_;          // [slices that want them][vocab]
  std::vector<uint8_t> logits_fault_;  // [worker][slices that want them]
  std::vector<uint64_t> digest_sums_;  // [worker][slices that want them][2]
};

}  // namespace verbatim::engine
