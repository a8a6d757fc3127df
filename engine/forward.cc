#include "engine/forward.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "kernels/numerics.h"

namespace verbatim::engine {
namespace {

constexpr size_t kMinRowsToShare = 4;  // fewer cost less than waking a worker
constexpr size_t kGrain = kernels::PackedMatrix::kGroup;
constexpr int kQ16 = kernels::kQ16;

void PutBigEndian(uint64_t v, uint8_t* out) {
  for (int i = 0; i < 8; ++i) out[i] = static_cast<uint8_t>(v >> (56 - 8 * i));
}

}  // namespace

const char* FaultName(FaultAt at) {
  switch (at) {
    case FaultAt::kAttentionNorm:
      return "attention norm";
    case FaultAt::kQuery:
      return "attention query";
    case FaultAt::kKeyValue:
      return "attention key or value";
    case FaultAt::kAttentionOutput:
      return "attention output";
    case FaultAt::kFeedForwardNorm:
      return "feed-forward norm";
    case FaultAt::kFeedForwardOutput:
      return "feed-forward output";
    case FaultAt::kOutputNorm:
      return "output norm";
    case FaultAt::kLogits:
      return "logits";
    case FaultAt::kNone:
      break;
  }
  return "none";
}

std::string Describe(const NumericFault& fault) {
  return "layer " + std::to_string(fault.layer) + ", " + FaultName(fault.at) + ", position " +
         std::to_string(fault.position);
}

LogitsDigest MakeDigest(const uint64_t sums[2]) {
  LogitsDigest d;
  PutBigEndian(sums[0], d.data());
  PutBigEndian(sums[1], d.data() + 8);
  return d;
}

Forward::Forward(const Model& model, const kernels::Ops& ops, const KvCache& cache,
                 WorkerPool& workers)
    : model_(model), ops_(ops), cache_(cache), workers_(workers) {}

void Forward::Run(std::span<Slice> slices, ForwardTrace* trace) {
  const ModelConfig& c = model_.config;
  const auto digest_of_last_row = [&] {
    uint64_t sums[2] = {0, 0};
    ops_.digest(x_.data() + (rows_.size() - 1) * c.dim, c.dim, 0, sums);
    return MakeDigest(sums);
  };

  PlaceRows(slices);
  ForRows(rows_.size(), [&](size_t r) {
    ops_.embedding(model_.embedding, static_cast<size_t>(rows_[r].token), &x_[r * c.dim]);
    c.rope.CosSin(rows_[r].position, &cos_[r * c.rope_dim / 2], &sin_[r * c.rope_dim / 2]);
  });
  if (trace != nullptr) *trace = ForwardTrace{digest_of_last_row(), {}, {}};

  for (uint32_t i = 0; i < c.layers; ++i) {
    layer_ = i;
    Attention(model_.layers[i], i);
    if (trace != nullptr) trace->after_attention.push_back(digest_of_last_row());
    FeedForward(model_.layers[i]);
    if (trace != nullptr) trace->after_layer.push_back(digest_of_last_row());
  }
  layer_ = c.layers;
  Logits(slices);
}

void Forward::PlaceRows(std::span<Slice> slices) {
  const ModelConfig& c = model_.config;
  rows_.clear();
  for (const Slice& s : slices) {
    CHECK(!s.tokens.empty() && s.logit_rows <= s.tokens.size());
    CHECK(s.pages.size() * KvCache::kPageTokens >= s.start + s.tokens.size());
    for (size_t i = 0; i < s.tokens.size(); ++i) {
      rows_.push_back({s.tokens[i], s.start + i, s.pages.data()});
    }
  }
  const size_t n = rows_.size();
  fault_.assign(n, {});
  x_.resize(n * c.dim);
  norm_.resize(n * c.dim);
  q_.resize(n * c.heads * c.head_dim);
  attention_.resize(q_.size());
  k_.resize(n * c.kv_heads * c.head_dim);
  v_.resize(k_.size());
  gate_.resize(n * c.ffn_dim);
  up_.resize(gate_.size());
  projected_.resize(n * c.dim);
  cos_.resize(n * c.rope_dim / 2);
  sin_.resize(cos_.size());
}

void Forward::Attention(const LayerWeights& layer, uint32_t index) {
  const ModelConfig& c = model_.config;
  const size_t n = rows_.size(), head_dim = c.head_dim;

  // h = RMSNorm(x); q, k, v = Linear(h)
  NormAndQuantise(layer.attn_norm, x_.data(), n, FaultAt::kAttentionNorm);
  workers_.Run([&](uint32_t worker) {
    LinearPart(layer.q, n, q_, worker);
    LinearPart(layer.k, n, k_, worker);
    LinearPart(layer.v, n, v_, worker);
  });

  // RoPE(q, k); q quantised per head, k and v stored: also this row's own are read back quantised.
  quantized_q_.Resize(n * c.heads, head_dim);
  ForRows(n, [&](size_t r) {
    const Row& row = rows_[r];
    float* q = &q_[r * c.heads * head_dim];
    float* k = &k_[r * c.kv_heads * head_dim];
    const float* v = &v_[r * c.kv_heads * head_dim];
    const float* cos = &cos_[r * c.rope_dim / 2];
    const float* sin = &sin_[r * c.rope_dim / 2];
    ops_.rope(q, c.heads, head_dim, c.rope_dim, cos, sin, c.rope_layout);
    ops_.rope(k, c.kv_heads, head_dim, c.rope_dim, cos, sin, c.rope_layout);
    bool ok = true;
    for (size_t h = 0; h < c.heads; ++h) {
      ok &= ops_.quantize(q + h * head_dim, head_dim, kQ16, quantized_q_.row(r * c.heads + h));
    }
    Check(ok, r, FaultAt::kQuery);
    ok = true;
    uint8_t* page = row.pages[row.position / KvCache::kPageTokens];
    const size_t slot = row.position % KvCache::kPageTokens;
    for (uint32_t h = 0; h < c.kv_heads; ++h) {
      ok &= ops_.kv_store(cache_.layout(), page + cache_.TileOffset(index, h), slot,
                          k + h * head_dim, v + h * head_dim);
    }
    Check(ok, r, FaultAt::kKeyValue);
  });

  // o = Attention, one row and KV head after the other.
  const size_t group = c.heads / c.kv_heads;
  workers_.Run([&](uint32_t worker) {
    const Range part = PartOf(n * c.kv_heads, 1, worker, workers_.size());
    for (size_t i = part.begin; i < part.end; ++i) {
      const size_t r = i / c.kv_heads, h = i % c.kv_heads;
      const size_t head = r * c.heads + h * group;
      const kernels::AttentionArgs args{.layout = cache_.layout(),
                                        .pages = rows_[r].pages,
                                        .tile_offset = cache_.TileOffset(index, uint32_t(h)),
                                        .position = rows_[r].position,
                                        .window = 0,
                                        .scale = c.attention_scale,
                                        .q = &quantized_q_,
                                        .q_row = head,
                                        .heads = group};
      ops_.attention(args, &attention_[head * head_dim]);
    }
  });

  // x = x + Linear_o(o): all heads of a row quantised as one.
  QuantiseRows(attention_.data(), n, c.heads * head_dim, FaultAt::kAttentionOutput);
  LinearAndAdd(layer.o);
}

void Forward::FeedForward(const LayerWeights& layer) {
  const ModelConfig& c = model_.config;
  const size_t n = rows_.size();

  // h = RMSNorm(x); y = SwiGLU(Linear_gate(h), Linear_up(h))
  NormAndQuantise(layer.ffn_norm, x_.data(), n, FaultAt::kFeedForwardNorm);
  workers_.Run([&](uint32_t worker) {
    const Range part = LinearPart(layer.gate, n, gate_, worker);
    LinearPart(layer.up, n, up_, worker);
    for (size_t r = 0; r < n; ++r) {
      float* gate = gate_.data() + r * c.ffn_dim + part.begin;
      ops_.swiglu(gate, up_.data() + r * c.ffn_dim + part.begin, part.size(), gate);
    }
  });

  // x = x + Linear_down(y)
  QuantiseRows(gate_.data(), n, c.ffn_dim, FaultAt::kFeedForwardOutput);
  LinearAndAdd(layer.down);
}

// Takes the faults to the slices, and the rows that want logits to the front of x_ and fault_.
// Returns how many these are.
size_t Forward::GatherLogitRows(std::span<Slice> slices) {
  const size_t dim = model_.config.dim;
  size_t row = 0, wanted = 0;
  is_last_.clear();
  for (Slice& s : slices) {
    const size_t end = row + s.tokens.size(), first_wanted = end - s.logit_rows;
    for (; row < end; ++row) {
      if (const RowFault& f = fault_[row]; !s.fault && f.at != FaultAt::kNone) {
        s.fault = {f.at, f.layer, rows_[row].position};
      }
      if (row < first_wanted) continue;
      // Rows before `wanted` were moved or are not wanted.
      std::memmove(&x_[wanted * dim], &x_[row * dim], dim * sizeof(float));
      fault_[wanted++] = {};
      is_last_.push_back(row + 1 == end);
    }
  }
  return wanted;
}

void Forward::Logits(std::span<Slice> slices) {
  const ModelConfig& c = model_.config;
  const size_t wanted = GatherLogitRows(slices);
  if (wanted == 0) return;
  const uint32_t workers = workers_.size();
  logits_.resize(wanted * c.vocab);
  logits_fault_.assign(workers * wanted, 0);
  digest_sums_.assign(workers * wanted * 2, 0);

  // logits = Linear_head(RMSNorm(x)) + 0, their digest in parts that add up.
  NormAndQuantise(model_.output_norm, x_.data(), wanted, FaultAt::kOutputNorm);
  workers_.Run([&](uint32_t worker) {
    const Range part = LinearPart(model_.head(), wanted, logits_, worker);
    for (size_t i = 0; i < wanted; ++i) {
      float* logits = logits_.data() + i * c.vocab + part.begin;
      logits_fault_[worker * wanted + i] = !ops_.finish_logits(logits, part.size());
      if (!is_last_[i]) continue;
      ops_.digest(logits, part.size(), part.begin, &digest_sums_[(worker * wanted + i) * 2]);
    }
  });

  size_t i = 0;
  for (Slice& s : slices) {
    if (s.logit_rows == 0) continue;
    s.logits = {logits_.data() + i * c.vocab, s.logit_rows * c.vocab};
    uint64_t position = s.start + s.tokens.size() - s.logit_rows;
    for (const size_t end = i + s.logit_rows; i < end; ++i, ++position) {
      for (uint32_t w = 0; w < workers; ++w) {
        Check(logits_fault_[w * wanted + i] == 0, i, FaultAt::kLogits);
      }
      const RowFault& f = fault_[i];
      if (f.at == FaultAt::kNone || (s.fault && s.fault.position <= position)) continue;
      s.fault = {f.at, f.layer, position};
    }
    uint64_t sums[2] = {0, 0};
    for (uint32_t w = 0; w < workers; ++w) {
      sums[0] += digest_sums_[(w * wanted + i - 1) * 2];
      sums[1] += digest_sums_[(w * wanted + i - 1) * 2 + 1];
    }
    s.digest = MakeDigest(sums);
  }
}

void Forward::NormAndQuantise(const std::vector<float>& gain, const float* x, size_t rows,
                              FaultAt at) {
  const ModelConfig& c = model_.config;
  quantized_.Resize(rows, c.dim);
  ForRows(rows, [&](size_t r) {
    float* h = &norm_[r * c.dim];
    bool ok = ops_.rms_norm(x + r * c.dim, gain.data(), c.eps, c.dim, h);
    ok &= ops_.quantize(h, c.dim, kQ16, quantized_.row(r));
    Check(ok, r, at);
  });
}

void Forward::QuantiseRows(const float* x, size_t rows, size_t columns, FaultAt at) {
  quantized_.Resize(rows, columns);
  ForRows(rows, [&](size_t r) {
    Check(ops_.quantize(x + r * columns, columns, kQ16, quantized_.row(r)), r, at);
  });
}

Range Forward::LinearPart(const kernels::PackedMatrix& w, size_t rows, std::vector<float>& y,
                          uint32_t worker) const {
  const Range part = PartOf(w.N(), kGrain, worker, workers_.size());
  if (part.size() > 0) {
    ops_.linear(w, quantized_, 0, rows, part.begin, part.end, y.data(), w.N());
  }
  return part;
}

void Forward::LinearAndAdd(const kernels::PackedMatrix& w) {
  const size_t dim = model_.config.dim;
  workers_.Run([&](uint32_t worker) {
    const Range part = LinearPart(w, rows_.size(), projected_, worker);
    for (size_t r = 0; r < rows_.size(); ++r) {
      ops_.add(x_.data() + r * dim + part.begin, projected_.data() + r * dim + part.begin,
               part.size());
    }
  });
}

template <typename F>
void Forward::ForRows(size_t rows, F&& f) {
  if (rows < kMinRowsToShare) {
    for (size_t r = 0; r < rows; ++r) f(r);
    return;
  }
  workers_.Run([&](uint32_t worker) {
    const Range part = PartOf(rows, 1, worker, workers_.size());
    for (size_t r = part.begin; r < part.end; ++r) f(r);
  });
}

}  // namespace verbatim::engine
