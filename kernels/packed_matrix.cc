#include "kernels/packed_matrix.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/numerics.h"

namespace verbatim::kernels {
namespace {

constexpr size_t kLine = 64;                                           // 16 rows x 4 columns
constexpr size_t kIntsBytes = PackedMatrix::kGroup * sizeof(int32_t);  // D or M of a block

Error Invalid(const std::string& name, const std::string& what) {
  return Error{Code::kInvalid, name + ": " + what};
}

Error Fault(const std::string& name, size_t row) {
  return Error{Code::kNumericFault,
               name + ": row " + std::to_string(row) +
                   " holds a NaN, an infinity or a weight of 2^60 or more; the file is damaged"};
}

uint32_t MaxMagnitude(const float* x, size_t n) {
  uint32_t max = 0;
  for (size_t i = 0; i < n; ++i) max = std::max(max, BitsOf(x[i]) & kMagnitudeMask);
  return max;
}

int32_t ReadInt(const uint8_t* p) {
  int32_t v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
void WriteInt(uint8_t* p, int32_t v) { std::memcpy(p, &v, sizeof v); }

}  // namespace

size_t PackedMatrix::BlockBytes() const {
  switch (kind_) {
    case Kind::kW8:
      return 8 * kLine;
    case Kind::kW16:
      return 16 * kLine;
    case Kind::kWB4:
      return 2 * kIntsBytes + 4 * kLine;
    case Kind::kWB8:
      return (has_m_ ? 2 : 1) * kIntsBytes + 8 * kLine;
  }
  return 0;
}

Status PackedMatrix::Init(const std::string& name, Kind kind, size_t N, size_t K,
                          std::span<const float> bias) {
  if (N == 0 || N > (size_t{1} << 24)) return Invalid(name, "1 to 2^24 rows are supported");
  if (K == 0 || K > kMaxK) return Invalid(name, "1 to 65536 columns are supported");
  if (!bias.empty() && bias.size() != N) return Invalid(name, "the bias has another length");
  if (!std::all_of(bias.begin(), bias.end(), [](float b) { return std::isfinite(b); })) {
    return Error{Code::kNumericFault, name + ": the bias is not finite; the file is damaged"};
  }
  kind_ = kind;
  N_ = N;
  K_ = K;
  padded_k_ = (K + kBlock - 1) / kBlock * kBlock;
  const size_t groups = (N + kGroup - 1) / kGroup;
  group_bytes_ = padded_k_ / kBlock * BlockBytes();
  data_.assign(groups * group_bytes_, 0);
  scale_.assign(groups * kGroup, 0.0f);
  if (!bias.empty()) {
    bias_.assign(groups * kGroup, 0.0f);
    std::copy(bias.begin(), bias.end(), bias_.begin());
  }
  return {};
}

Result<PackedMatrix> PackedMatrix::PackRows(const std::string& name, std::span<const float> w,
                                            size_t N, size_t K, int bits,
                                            std::span<const float> bias) {
  if (bits != 8 && bits != 16) return Invalid(name, "rows have 8 or 16 bits");
  PackedMatrix out;
  out.code_offset_ = 128;
  const bool wide = bits == 16;
  if (Status s = out.Init(name, wide ? Kind::kW16 : Kind::kW8, N, K, bias); !s) return s.error();
  if (w.size() != N * K) return Invalid(name, "the data do not have N*K values");

  const size_t line = wide ? 2 * kLine : kLine;
  const size_t rows = out.scale_.size();
  for (size_t n = 0; n < rows; ++n) {
    const float* x = w.data() + n * K;
    const uint32_t max = n < N ? MaxMagnitude(x, K) : 0;
    if (max >= kFaultBits) return Fault(name, n);
    const QuantizeStep step = StepOf(max, wide ? kQ16 : kQ8);
    out.scale_[n] = step.scale;
    uint8_t* group = out.data_.data() + n / kGroup * out.group_bytes_;
    const size_t lane = n % kGroup * 4;
    for (size_t k = 0; k < out.padded_k_; ++k) {
      const int32_t q = n < N && k < K ? QuantizeOne(x[k], step.r) : 0;
      uint8_t* p = group + k / 4 * line + lane + k % 4;
      if (wide) {
        p[0] = static_cast<uint8_t>(q & 255);
        p[kLine] = static_cast<uint8_t>((q >> 8) + 128);
      } else {
        p[0] = static_cast<uint8_t>(q + 128);
      }
    }
  }
  return out;
}

Result<PackedMatrix> PackedMatrix::PackBlocks(const std::string& name, const BlockWeights& w,
                                              size_t N, size_t K, std::span<const float> bias) {
  if (w.bits < 1 || w.bits > 8) return Invalid(name, "block codes have 1 to 8 bits");
  if (w.offset < 0 || w.offset > 128 || w.qm < 1 || w.qm > 128) {
    return Invalid(name, "code offset and QM must lie within 128");
  }
  if (K % kBlock != 0) return Invalid(name, "columns must be a multiple of 32");
  PackedMatrix out;
  out.has_m_ = !w.m.empty();
  out.code_offset_ = w.offset;
  const bool nibbles = w.bits <= 4;
  if (Status s = out.Init(name, nibbles ? Kind::kWB4 : Kind::kWB8, N, K, bias); !s) {
    return s.error();
  }
  const size_t blocks = K / kBlock;
  if (w.codes.size() != N * K || w.d.size() != N * blocks ||
      (out.has_m_ && w.m.size() != N * blocks)) {
    return Invalid(name, "codes, d and m do not have the sizes of the matrix");
  }
  const int limit = 1 << w.bits;
  const float qm = static_cast<float>(w.qm);
  const size_t block_bytes = out.BlockBytes();
  const size_t codes_at = (nibbles || out.has_m_ ? 2 : 1) * kIntsBytes;
  for (size_t n = 0; n < N; ++n) {
    const float* d = w.d.data() + n * blocks;
    const float* m = out.has_m_ ? w.m.data() + n * blocks : nullptr;
    float largest = 0.0f;
    for (size_t g = 0; g < blocks; ++g) {
      const float dg = std::fabs(d[g]) * qm;
      const float mg = m != nullptr ? std::fabs(m[g]) : 0.0f;
      if (!std::isfinite(dg) || !std::isfinite(mg)) return Fault(name, n);
      largest = std::max({largest, dg, mg});
    }
    if (BitsOf(largest) >= kFaultBits) return Fault(name, n);
    const bool zero = BitsOf(largest) < kTinyBits;
    const float r = zero ? 0.0f : 0x1p20f / largest;
    out.scale_[n] = zero ? 0.0f : largest / 0x1p20f;

    const size_t lane = n % kGroup * 4;
    for (size_t g = 0; g < blocks; ++g) {
      uint8_t* block = out.data_.data() + n / kGroup * out.group_bytes_ + g * block_bytes;
      WriteInt(block + lane, QuantizeOne(d[g], r));
      if (m != nullptr) WriteInt(block + kIntsBytes + lane, QuantizeOne(m[g], r));
      const uint8_t* codes = w.codes.data() + n * K + g * kBlock;
      for (size_t k = 0; k < kBlock; ++k) {
        if (codes[k] >= limit) return Invalid(name, "a code has more bits than its format");
        if (nibbles) {
          uint8_t& p = block[codes_at + k % 16 / 4 * kLine + lane + k % 4];
          p = static_cast<uint8_t>(k < 16 ? codes[k] : p | codes[k] << 4);
        } else {
          block[codes_at + k / 4 * kLine + lane + k % 4] = codes[k];
        }
      }
    }
  }
  return out;
}

void PackedMatrix::Codes(size_t n, size_t block, int32_t q[kBlock]) const {
  const uint8_t* p = group(n / kGroup) + block * BlockBytes() + n % kGroup * 4;
  switch (kind_) {
    case Kind::kW8:
      for (size_t k = 0; k < kBlock; ++k) q[k] = p[k / 4 * kLine + k % 4] - 128;
      return;
    case Kind::kW16:
      for (size_t k = 0; k < kBlock; ++k) {
        const uint8_t* b = p + k / 4 * 2 * kLine + k % 4;
        q[k] = 256 * (b[kLine] - 128) + b[0];
      }
      return;
    case Kind::kWB4:
      p += 2 * kIntsBytes;
      for (size_t k = 0; k < kBlock; ++k) {
        const uint8_t b = p[k % 16 / 4 * kLine + k % 4];
        q[k] = (k < 16 ? b & 15 : b >> 4) - code_offset_;
      }
      return;
    case Kind::kWB8:
      p += (has_m_ ? 2 : 1) * kIntsBytes;
      for (size_t k = 0; k < kBlock; ++k) q[k] = p[k / 4 * kLine + k % 4] - code_offset_;
      return;
  }
}

int32_t PackedMatrix::D(size_t n, size_t block) const {
  return ReadInt(group(n / kGroup) + block * BlockBytes() + n % kGroup * 4);
}

int32_t PackedMatrix::M(size_t n, size_t block) const {
  if (!has_m_) return 0;
  return ReadInt(group(n / kGroup) + block * BlockBytes() + kIntsBytes + n % kGroup * 4);
}

}  // namespace verbatim::kernels
