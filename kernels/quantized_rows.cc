#include "kernels/quantized_rows.h"

#include "base/check.h"
#include "kernels/packed_matrix.h"

namespace verbatim::kernels {
namespace {

template <typename Vector>
void Grow(Vector& v, size_t n) {
  if (v.size() < n) v.resize(n);
}

}  // namespace

void QuantizedRows::Resize(size_t rows, size_t K) {
  CHECK(K >= 1 && K <= PackedMatrix::kMaxK);
  rows_ = rows;
  K_ = K;
  padded_ = (K + 63) / 64 * 64;
  sums_ = (padded_ / 32 + 15) / 16 * 16;
  Grow(q_, rows * padded_);
  Grow(hi_, rows * padded_);
  Grow(lo_, rows * padded_);
  Grow(block_sum_, rows * sums_);
  Grow(scale_, rows);
}

}  // namespace verbatim::kernels
