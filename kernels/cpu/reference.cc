// The operations in plain C++: numerics.md as directly as it can be written. The other instruction
// sets are held against this file.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "kernels/cpu/attention_loop.h"
#include "kernels/cpu/tables.h"
#include "kernels/numerics.h"

namespace verbatim::kernels::cpu {
namespace {

uint32_t MaxMagnitude(const float* x, size_t n) {
  uint32_t max = 0;
  for (size_t i = 0; i < n; ++i) max = std::max(max, BitsOf(x[i]) & kMagnitudeMask);
  return max;
}

bool Quantize(const float* x, size_t K, int qmax, QuantizedRow out) {
  const uint32_t max = MaxMagnitude(x, K);
  const bool ok = max < kFaultBits;
  const QuantizeStep step = StepOf(max, qmax);
  *out.scale = step.scale;
  const size_t padded = (K + 63) / 64 * 64;
  for (size_t k = 0; k < padded; ++k) {
    const int32_t q = ok && k < K ? QuantizeOne(x[k], step.r) : 0;
    if (k % 32 == 0) out.block_sum[k / 32] = 0;
    out.block_sum[k / 32] += q;
    out.q[k] = static_cast<int16_t>(q);
    out.lo[k] = static_cast<int8_t>(((q + 128) & 255) - 128);
    out.hi[k] = static_cast<int8_t>((q + 128) >> 8);
  }
  return ok;
}

// Blocks of W8 and W16 count as D = 1, M = 0.
void Linear(const PackedMatrix& w, const QuantizedRows& x, size_t r0, size_t r1, size_t n0,
            size_t n1, float* y, size_t y_stride) {
  CHECK(x.K() == w.K() && n0 <= n1 && n1 <= w.N() && r1 <= x.rows());
  const bool blocks = w.kind() == PackedMatrix::Kind::kWB4 || w.kind() == PackedMatrix::Kind::kWB8;
  constexpr size_t kRows = 16;
  for (size_t n = n0; n < n1; ++n) {
    for (size_t r = r0; r < r1; r += kRows) {
      const size_t rows = std::min(kRows, r1 - r);
      int64_t acc[kRows] = {};
      for (size_t g = 0; g < w.padded_k() / 32; ++g) {
        int32_t q[32];
        w.Codes(n, g, q);
        const int64_t D = blocks ? w.D(n, g) : 1;
        const int64_t M = blocks ? w.M(n, g) : 0;
        for (size_t i = 0; i < rows; ++i) {
          const int16_t* qx = x.q(r + i) + g * 32;
          int64_t sum = 0;
          for (size_t k = 0; k < 32; ++k) sum += int64_t{q[k]} * qx[k];
          acc[i] += D * sum + M * x.block_sum(r + i)[g];
        }
      }
      for (size_t i = 0; i < rows; ++i) {
        float v = FloatOf(acc[i]) * (x.scale(r + i) * w.scale()[n]);
        if (w.has_bias()) v = v + w.bias()[n];
        y[(r + i) * y_stride + n] = v;
      }
    }
  }
}

bool RmsNorm(const float* x, const float* gain, float eps, size_t K, float* y) {
  const uint32_t max = MaxMagnitude(x, K);
  const bool ok = max < kFaultBits;
  const QuantizeStep step = StepOf(max, kQ16);
  int64_t ss = 0;
  for (size_t k = 0; k < K && ok; ++k) {
    const int64_t q = QuantizeOne(x[k], step.r);
    ss += q * q;
  }
  const float ms = (FloatOf(ss) / static_cast<float>(K)) * (step.scale * step.scale);
  const float inv = 1.0f / std::sqrt(ms + eps);
  for (size_t k = 0; k < K; ++k) y[k] = ok ? (x[k] * inv) * gain[k] : 0.0f;
  return ok;
}

bool KvStore(const KvTileLayout& layout, uint8_t* tile, size_t slot, const float* k,
             const float* v) {
  const size_t D = layout.head_dim;
  const uint32_t max_k = MaxMagnitude(k, D);
  const uint32_t max_v = MaxMagnitude(v, D);
  const bool ok = max_k < kFaultBits && max_v < kFaultBits;
  const QuantizeStep step_k = StepOf(ok ? max_k : 0, layout.qmax());
  const QuantizeStep step_v = StepOf(ok ? max_v : 0, layout.qmax());
  int16_t qk[KvTileLayout::kMaxHeadDim], qv[KvTileLayout::kMaxHeadDim];
  for (size_t d = 0; d < D; ++d) {
    qk[d] = ok ? static_cast<int16_t>(QuantizeOne(k[d], step_k.r)) : int16_t{0};
    qv[d] = ok ? static_cast<int16_t>(QuantizeOne(v[d], step_v.r)) : int16_t{0};
  }
  StoreKey(layout, tile, slot, qk, step_k.scale, qv, step_v.scale);
  return ok;
}

// Reads a stored integer back: p points to its byte in the low (or only) plane.
int32_t Stored(const uint8_t* p, size_t plane_bytes, size_t planes) {
  return planes == 2 ? 256 * (p[plane_bytes] - 128) + p[0] : p[0] - 128;
}

void Tile(const AttentionArgs& a, size_t t, size_t first_head, size_t heads, float* m, float* l,
          float* o) {
  const KvTileLayout& layout = a.layout;
  const uint8_t* tile = a.pages[t] + a.tile_offset;
  const VisibleKeys keys = VisibleIn(a, t);
  float scales[2 * kTileKeys];
  std::memcpy(scales, tile, sizeof scales);
  const uint8_t* k_plane = tile + layout.k_offset();
  const uint8_t* v_plane = tile + layout.v_offset();
  for (size_t h = 0; h < heads; ++h) {
    const int16_t* q = a.q->q(a.q_row + first_head + h);
    const float scale = a.q->scale(a.q_row + first_head + h) * a.scale;
    float s[kTileKeys];
    int32_t W[kTileKeys];
    m[h] = FromBits(kInfBits | 0x80000000);
    for (size_t j = keys.begin; j < keys.end; ++j) {
      int64_t acc = 0;
      for (size_t d = 0; d < layout.head_dim; ++d) {
        acc += int64_t{q[d]} * Stored(k_plane + d / 4 * 256 + j * 4 + d % 4, layout.k_plane_bytes(),
                                      layout.planes());
      }
      s[j] = FloatOf(acc) * (scale * scales[j]);
      m[h] = std::max(m[h], s[j]);
    }
    int64_t sum = 0;
    float largest = 0.0f;
    for (size_t j = keys.begin; j < keys.end; ++j) {
      const float p = Exp2(s[j] - m[h]);
      sum += static_cast<int64_t>(rintf(p * 0x1p24f));
      s[j] = p * scales[kTileKeys + j];  // w_j from here on
      largest = std::max(largest, s[j]);
    }
    l[h] = FloatOf(sum) * 0x1p-24f;
    const QuantizeStep step = StepOf(BitsOf(largest), kQ16);
    for (size_t j = keys.begin; j < keys.end; ++j) W[j] = QuantizeOne(s[j], step.r);
    for (size_t d = 0; d < layout.head_dim; ++d) {
      int64_t acc = 0;
      for (size_t j = keys.begin; j < keys.end; ++j) {
        acc += int64_t{W[j]} * Stored(v_plane + j / 4 * 4 * layout.padded_dim() + d * 4 + j % 4,
                                      layout.v_plane_bytes(), layout.planes());
      }
      o[h * kOutStride + d] = FloatOf(acc) * step.scale;
    }
  }
}

void Attention(const AttentionArgs& a, float* out) { AttentionLoop(a, out, Tile); }

void AttentionTile(const AttentionArgs& a, size_t t, float* m, float* l, float* o) {
  AttentionOneTile(a, t, m, l, o, Tile);
}

void SwiGluRow(const float* gate, const float* up, size_t n, float* y) {
  for (size_t i = 0; i < n; ++i) y[i] = SwiGlu(gate[i], up[i]);
}

void Add(float* x, const float* y, size_t n) {
  for (size_t i = 0; i < n; ++i) x[i] = x[i] + y[i];
}

void Exp2Row(const float* x, size_t n, float* y) {
  for (size_t i = 0; i < n; ++i) y[i] = Exp2(x[i]);
}

bool FinishLogits(float* logits, size_t n) {
  for (size_t i = 0; i < n; ++i) logits[i] = logits[i] + 0.0f;
  return MaxMagnitude(logits, n) < kInfBits;
}

void DigestRow(const float* x, size_t n, uint64_t first, uint64_t sums[2]) {
  for (size_t i = 0; i < n; ++i) {
    sums[0] += DigestTerm(first + i, x[i], kDigestA);
    sums[1] += DigestTerm(first + i, x[i], kDigestB);
  }
}

size_t ArgMax(const float* x, size_t n) {
  size_t best = 0;
  for (size_t i = 1; i < n; ++i) {
    if (x[i] > x[best]) best = i;
  }
  return best;
}

void SamplingWeights(const float* x, size_t n, float max, float ct, uint32_t* p) {
  for (size_t i = 0; i < n; ++i) {
    p[i] = static_cast<uint32_t>(rintf(Exp2((x[i] - max) * ct) * 0x1p30f));
  }
}

uint64_t LogprobSum(const float* x, size_t n, float max) {
  uint64_t sum = 0;
  for (size_t i = 0; i < n; ++i) {
    sum += static_cast<uint64_t>(rintf(Exp2((x[i] - max) * kLog2eF) * 0x1p40f));
  }
  return sum;
}

}  // namespace

void Embedding(const PackedMatrix& table, size_t n, float* x) {
  CHECK(n < table.N());
  const bool blocks =
      table.kind() == PackedMatrix::Kind::kWB4 || table.kind() == PackedMatrix::Kind::kWB8;
  const float scale = table.scale()[n];
  for (size_t g = 0; g < table.padded_k() / 32; ++g) {
    int32_t q[32];
    table.Codes(n, g, q);
    const int32_t D = blocks ? table.D(n, g) : 1;
    const int32_t M = blocks ? table.M(n, g) : 0;
    for (size_t k = 0; k < 32 && g * 32 + k < table.K(); ++k) {
      x[g * 32 + k] = FloatOf(int64_t{D} * q[k] + M) * scale;
    }
  }
}

void Rope(float* x, size_t heads, size_t head_dim, size_t d, const float* cos, const float* sin,
          RopeLayout layout) {
  const bool interleaved = layout == RopeLayout::kInterleaved;
  for (size_t h = 0; h < heads; ++h, x += head_dim) {
    for (size_t i = 0; i < d / 2; ++i) {
      float& a = x[interleaved ? 2 * i : i];
      float& b = x[interleaved ? 2 * i + 1 : i + d / 2];
      const float y0 = (a * cos[i]) - (b * sin[i]);
      const float y1 = (a * sin[i]) + (b * cos[i]);
      a = y0;
      b = y1;
    }
  }
}

void StoreKey(const KvTileLayout& layout, uint8_t* tile, size_t slot, const int16_t* k,
              float k_scale, const int16_t* v, float v_scale) {
  CHECK(slot < kTileKeys);
  std::memcpy(tile + slot * sizeof(float), &k_scale, sizeof k_scale);
  std::memcpy(tile + (kTileKeys + slot) * sizeof(float), &v_scale, sizeof v_scale);
  uint8_t* kp = tile + layout.k_offset() + slot * 4;
  uint8_t* vp = tile + layout.v_offset() + slot / 4 * 4 * layout.padded_dim() + slot % 4;
  for (size_t d = 0; d < layout.head_dim; ++d) {
    uint8_t* pk = kp + d / 4 * 256 + d % 4;
    uint8_t* pv = vp + d * 4;
    if (layout.planes() == 2) {
      pk[0] = static_cast<uint8_t>(k[d] & 255);
      pk[layout.k_plane_bytes()] = static_cast<uint8_t>((k[d] >> 8) + 128);
      pv[0] = static_cast<uint8_t>(v[d] & 255);
      pv[layout.v_plane_bytes()] = static_cast<uint8_t>((v[d] >> 8) + 128);
    } else {
      pk[0] = static_cast<uint8_t>(k[d] + 128);
      pv[0] = static_cast<uint8_t>(v[d] + 128);
    }
  }
}

const Ops& ReferenceOps() {
  static constexpr Ops kOps = {
      .isa = Isa::kScalar,
      .quantize = Quantize,
      .linear = Linear,
      .rms_norm = RmsNorm,
      .embedding = Embedding,
      .rope = Rope,
      .kv_store = KvStore,
      .attention = Attention,
      .attention_tile = AttentionTile,
      .swiglu = SwiGluRow,
      .add = Add,
      .exp2 = Exp2Row,
      .finish_logits = FinishLogits,
      .digest = DigestRow,
      .arg_max = ArgMax,
      .sampling_weights = SamplingWeights,
      .logprob_sum = LogprobSum,
  };
  return kOps;
}

}  // namespace verbatim::kernels::cpu
