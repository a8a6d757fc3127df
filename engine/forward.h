// The forward pass of numerics.md 12 over a batch: rows of several sequences, prefill and decode
// alike. A row's bits depend on its own sequence alone; the batch, its order and the number of
// workers change only how fast they come.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/kv_cache.h"
#include "engine/model.h"
#include "engine/sampler.h"
#include "engine/worker_pool.h"
#include "kernels/ops.h"
#include "kernels/quantized_rows.h"

namespace verbatim::engine {

// Where a row left the range of the arithmetic first (numerics.md 1.1). The same however the rows
// were batched and chunked.
enum class FaultAt : uint8_t {
  kNone,
  kAttentionNorm,  // the residual before the attention, and its norm
  kQuery,
  kKeyValue,
  kAttentionOutput,  // what the attention's output projection takes
  kFeedForwardNorm,
  kFeedForwardOutput,  // what the down projection takes
  kOutputNorm,         // after the last layer, as the logits
  kLogits,
};
struct NumericFault {
  FaultAt at = FaultAt::kNone;
  uint32_t layer = 0;     // from 0; of the output: how many layers there are
  uint64_t position = 0;  // of the first row of the slice that has one
  explicit operator bool() const { return at != FaultAt::kNone; }
};
// "attention norm", ...; never empty.
const char* FaultName(FaultAt at);
// "layer 3, feed-forward output, position 17".
std::string Describe(const NumericFault& fault);

// Consecutive tokens of one sequence: positions [start, start + tokens.size()). The positions
// before are in the KV cache, computed by earlier passes; pages cover these ones too.
struct Slice {
  std::span<const int32_t> tokens;  // ids below the vocabulary's size
  uint64_t start = 0;
  std::span<uint8_t* const> pages;
  size_t logit_rows = 0;  // logits of that many of the last tokens

  // Results. After a fault the slice's keys, values and logits must not be used.
  NumericFault fault{};     // if it is one, the request that the slice belongs to ends
  std::span<float> logits;  // [logit_rows][vocab]; may be changed; valid until the next pass
  LogitsDigest digest{};    // of the last row of them
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
  size_t GatherLogitRows(std::span<Slice> slices);

  // x[rows][dim] normalised and quantised into `quantized_`; `at`: what a fault of it is called.
  void NormAndQuantise(const std::vector<float>& gain, const float* x, size_t rows, FaultAt at);
  void QuantiseRows(const float* x, size_t rows, size_t columns, FaultAt at);
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

  struct RowFault {
    FaultAt at = FaultAt::kNone;
    uint32_t layer = 0;
  };
  // Keeps the row's first one.
  void Check(bool ok, size_t row, FaultAt at) {
    if (!ok && fault_[row].at == FaultAt::kNone) fault_[row] = {at, layer_};
  }

  uint32_t layer_ = 0;  // that runs
  std::vector<Row> rows_;
  std::vector<RowFault> fault_;  // [rows]; written by the worker that owns the row
  kernels::AlignedVector<float> x_, norm_;
  std::vector<float> q_, k_, v_, attention_, gate_, up_, projected_;
  std::vector<float> cos_, sin_;  // [rows][rope_dim/2]
  kernels::QuantizedRows quantized_, quantized_q_;
  std::vector<float> logits_;          // [rows that want them][vocab]
  std::vector<uint8_t> is_last_;       // [rows that want them]: of its slice, so it has a digest
  std::vector<uint8_t> logits_fault_;  // [worker][rows that want them]
  std::vector<uint64_t> digest_sums_;  // [worker][rows that want them][2]
};

}  // namespace verbatim::engine
