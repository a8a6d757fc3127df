// The operations of a forward pass, as function pointers: numerics.md in code, once per instruction
// set. Every table gives the same bits for the same arguments; kernels/cpu/reference.cc is the
// specification, the others are compared with it.
//
// Contract for all of them:
// - No allocation, no threads, no state: the caller owns all memory and splits work by rows, by
// output
//   ranges or by heads, and may do so from any threads as long as no two write the same place. No
//   split changes a bit.
// - Floats are f32; rows are contiguous. Pointers need no alignment unless stated.
// - A row op returns false on a numeric fault (numerics.md 1.1) and then leaves zeros or finite
//   numbers that must not be used; other rows are untouched.
// - The float environment is the default one (CheckFloatEnvironment in self_test.h).
//
// A forward pass over a mixed batch (rows of several requests, prefill and decode alike) is, per
// layer:
//   for each row: rms_norm, quantize;   linear(q), linear(k), linear(v) over all rows
//   for each row: rope on q and k; quantize each head of q; kv_store each KV head of k and v
//   for each row and KV head: attention over the tiles of that row's sequence
//   for each row: quantize;   linear(o);   for each row: add, rms_norm, quantize; linear(gate),
//   linear(up) for each row: swiglu, quantize;   linear(down);   for each row: add
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/isa.h"
#include "kernels/kv_tile.h"
#include "kernels/packed_matrix.h"
#include "kernels/quantized_rows.h"

namespace verbatim::kernels {

enum class RopeLayout {
  kInterleaved,  // pairs (2i, 2i+1): llama files
  kHalves,       // pairs (i, i+d/2): NeoX-type architectures
};

// One token row against one KV head: `heads` query heads that share it.
struct AttentionArgs {
  KvTileLayout layout;
  const uint8_t* const* pages;  // page t of the row's sequence holds positions [64t, 64t+64)
  size_t tile_offset;           // bytes from a page's start to this layer's and KV head's tile
  uint64_t position;            // of the row; keys at positions <= it are visible
  uint64_t window;              // 0, or how many positions back are visible, the own one included
  float scale;                  // AttentionScale(head_dim), numerics.md 8
  const QuantizedRows* q;       // K = head_dim, Q = 32639
  size_t q_row;                 // row of the first query head; the others follow
  size_t heads;
};

struct Ops {
  Isa isa;

  // x[K] -> out, qmax 32639 or 127. out: a row of a QuantizedRows with that K; the padding is
  // zeroed. A fault leaves a zero row. (3)
  bool (*quantize)(const float* x, size_t K, int qmax, QuantizedRow out);

  // y[r][n] for rows r in [r0, r1) and outputs n in [n0, n1), y at y + r*y_stride + n. n0 must be a
  // multiple of 16, n1 too unless it is N. x.K() == w.K(). (4, annex A)
  void (*linear)(const PackedMatrix& w, const QuantizedRows& x, size_t r0, size_t r1, size_t n0,
                 size_t n1, float* y, size_t y_stride);

  // y[K] = RMSNorm(x[K]) * gain[K]; y may be x. (6)
  bool (*rms_norm)(const float* x, const float* gain, float eps, size_t K, float* y);

  // x[K] = row n of the table. (5, annex A)
  void (*embedding)(const PackedMatrix& table, size_t n, float* x);

  // In place on x[heads][head_dim], the first d of each head; cos, sin: [d/2] of the row's position
  // (RopeTable in rope.h). (7.3)
  void (*rope)(float* x, size_t heads, size_t head_dim, size_t d, const float* cos,
               const float* sin, RopeLayout layout);

  // Quantises k[head_dim] and v[head_dim] and stores them as key `slot` (position % 64) of the
  // tile. A fault stores zeros. (8)
  bool (*kv_store)(const KvTileLayout& layout, uint8_t* tile, size_t slot, const float* k,
                   const float* v);

  // out[heads][head_dim]. Writes no state; any row and KV head at any time after the keys are
  // stored. (8)
  void (*attention)(const AttentionArgs& args, float* out);
  // One tile of it, not merged: m[heads], l[heads], o[heads][head_dim], of the visible keys of tile
  // t, which must hold one. For split KV and tests. (8.2)
  void (*attention_tile)(const AttentionArgs& args, size_t t, float* m, float* l, float* o);

  // y[n] = SwiGLU(gate[n], up[n]); y may be either. (9)
  void (*swiglu)(const float* gate, const float* up, size_t n, float* y);
  // x[n] += y[n]. (9)
  void (*add)(float* x, const float* y, size_t n);
  // y[n] = exp2(x[n]); y may be x. (2)
  void (*exp2)(const float* x, size_t n, float* y);

  // Logits: adds +0.0f in place; false on a fault. May be called on parts of a row. (10)
  bool (*finish_logits)(float* logits, size_t n);
  // Adds the digest sums hA, hB of x[0..n), whose first element has index `first` in its row, to
  // sums[0..1]. So a row may be summed in parts, in any order. (10)
  void (*digest)(const float* x, size_t n, uint64_t first, uint64_t sums[2]);

  // The index of the largest of x[n], n >= 1; the lowest one on ties. (11)
  size_t (*arg_max)(const float* x, size_t n);
  // p[i] = rint(exp2((x[i] - max) * ct) * 2^30). (11)
  void (*sampling_weights)(const float* x, size_t n, float max, float ct, uint32_t* p);
  // sum of rint(exp2((x[i] - max) * LOG2E_F) * 2^40): S of the logprobs. Sums of parts add up. (11)
  uint64_t (*logprob_sum)(const float* x, size_t n, float max);
};

// The table of an available set (CHECKed). Lives for ever.
const Ops& Select(Isa isa);

}  // namespace verbatim::kernels
