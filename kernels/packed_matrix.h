// A weight matrix [N][K] in the layout that Linear reads: integers as numerics.md 4 and annex A
// define them, 16 output rows side by side so that vector lanes are rows. Made once at load;
// immutable, so any thread may read it.
//
// Layout, per group of 16 rows (rows beyond N are zero), read front to back. Byte [4*row + i] of a
// 64-byte line belongs to row `row` of the group and column k = 4*line + i. Stored codes are
// unsigned; `code_offset` is what was added.
//   kW8   per 4 columns: 64 bytes q + 128.                       K is padded to a multiple of 32.
//   kW16  per 4 columns: 64 bytes q & 255, 64 bytes (q >> 8) + 128.
//   kWB4  per block of 32: D int32[16], M int32[16], then 4 lines; the low nibbles of line j hold
//   the
//         columns 4j..4j+3 of the block, the high nibbles the columns 16+4j..16+4j+3.
//   kWB8  per block of 32: D int32[16], (M int32[16] if has_m), then 8 lines of one byte per code.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/result.h"
#include "kernels/aligned.h"

namespace verbatim::kernels {

// Block-quantised weights as a model file holds them: w[n][k] = d[n][k/32] * (code[n][k] - offset)
// + m[n][k/32]. codes: N*K values below 2^bits; d, m: N*K/32 floats, exact from the file (m may be
// empty: all zero). qm: annex A's QM of the format.
//   Q4_0: bits 4, offset 8, qm 8      Q4_1: bits 4, offset 0, qm 15     Q8_0: bits 8, offset 128,
//   qm 127 Q5_0: bits 5, offset 16, qm 16    Q5_1: bits 5, offset 0, qm 31     Q4_K, Q5_K: as Q4_1,
//   Q5_1
struct BlockWeights {
  std::span<const uint8_t> codes;
  std::span<const float> d, m;
  int bits = 0;
  int offset = 0;
  int qm = 0;
};

class PackedMatrix {
 public:
  enum class Kind { kW8, kW16, kWB4, kWB8 };
  static constexpr size_t kGroup = 16;    // rows side by side
  static constexpr size_t kBlock = 32;    // columns that share D and M
  static constexpr size_t kMaxK = 65536;  // numerics.md 13

  PackedMatrix() = default;  // empty: N() == 0

  // Quantises each row of w [N][K] to 8 or 16 bits. bias: empty, or N floats. kInvalid where a size
  // is wrong, kNumericFault where a row faults or a bias is not finite; messages start with `name`.
  static Result<PackedMatrix> PackRows(const std::string& name, std::span<const float> w, size_t N,
                                       size_t K, int bits, std::span<const float> bias = {});
  // Annex A. K must be a multiple of 32. Errors as above.
  static Result<PackedMatrix> PackBlocks(const std::string& name, const BlockWeights& w, size_t N,
                                         size_t K, std::span<const float> bias = {});

  Kind kind() const { return kind_; }
  size_t N() const { return N_; }
  size_t K() const { return K_; }
  size_t padded_k() const { return padded_k_; }  // a multiple of 32
  bool has_bias() const { return !bias_.empty(); }
  bool has_m() const { return has_m_; }
  int code_offset() const { return code_offset_; }
  size_t bytes() const { return data_.size(); }  // what one pass over the matrix reads

  // For kernels: the first byte of a group of rows, and its size.
  const uint8_t* group(size_t g) const { return data_.data() + g * group_bytes_; }
  size_t group_bytes() const { return group_bytes_; }
  const float* scale() const { return scale_.data(); }  // [N rounded up to 16]
  const float* bias() const { return bias_.data(); }    // [N rounded up to 16], where has_bias()

  // The integers of the specification: q of row n in block k/32 (zeros beyond K), and D and M of
  // that block (WB kinds only).
  void Codes(size_t n, size_t block, int32_t q[kBlock]) const;
  int32_t D(size_t n, size_t block) const;
  int32_t M(size_t n, size_t block) const;

 private:
  Status Init(const std::string& name, Kind kind, size_t N, size_t K, std::span<const float> bias);
  size_t BlockBytes() const;

  Kind kind_ = Kind::kW8;
  size_t N_ = 0, K_ = 0, padded_k_ = 0, group_bytes_ = 0;
  bool has_m_ = false;
  int code_offset_ = 0;
  AlignedVector<uint8_t> data_;
  AlignedVector<float> scale_, bias_;
};

}  // namespace verbatim::kernels
