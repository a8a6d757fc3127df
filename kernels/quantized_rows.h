// Activation rows in integers (numerics.md 3): what Quantize writes, and Linear and attention read.
//
// x[r][k] is about q[r][k] * scale[r], |q| <= 32639 or 127. Each row is held twice, since
// instruction sets differ in what they multiply: as int16, and as two signed byte planes q = 256*hi
// + lo. Sums over blocks of 32 serve the block weights (annex A) and the correction of unsigned
// weight bytes. Rows are padded with zeros to `padded` columns, so kernels read whole vectors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/aligned.h"

namespace verbatim::kernels {

// One row, borrowed. Pointers are aligned to 64 bytes.
struct QuantizedRow {
  int16_t* q;          // [padded]
  int8_t* hi;          // [padded]
  int8_t* lo;          // [padded]
  int32_t* block_sum;  // [padded/32]: the sum of q over each block of 32
  float* scale;        // one
};

// A buffer of rows of equal length. Written by one thread per row; read by any thread once written.
class QuantizedRows {
 public:
  // Holds `rows` rows of K values from now on; contents are undefined until quantised. Allocates
  // only where the buffer has never been that large. K in [1, 65536].
  void Resize(size_t rows, size_t K);

  size_t rows() const { return rows_; }
  size_t K() const { return K_; }
  size_t padded() const { return padded_; }  // K rounded up to a multiple of 64

  QuantizedRow row(size_t r) {
    return {q_.data() + r * padded_, hi_.data() + r * padded_, lo_.data() + r * padded_,
            block_sum_.data() + r * sums_, scale_.data() + r};
  }
  const int16_t* q(size_t r) const { return q_.data() + r * padded_; }
  const int8_t* hi(size_t r) const { return hi_.data() + r * padded_; }
  const int8_t* lo(size_t r) const { return lo_.data() + r * padded_; }
  const int32_t* block_sum(size_t r) const { return block_sum_.data() + r * sums_; }
  float scale(size_t r) const { return scale_[r]; }

 private:
  size_t rows_ = 0, K_ = 0, padded_ = 0;
  size_t sums_ = 0;  // int32 per row in block_sum_, padded to whole cache lines
  AlignedVector<int16_t> q_;
  AlignedVector<int8_t> hi_, lo_;
  AlignedVector<int32_t> block_sum_;
  std::vector<float> scale_;
};

}  // namespace verbatim::kernels
