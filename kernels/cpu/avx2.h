// The AVX2 functions of the other files of this set, for its table in avx2.cc.
#pragma once

#include "kernels/ops.h"

namespace verbatim::kernels::cpu {

void Avx2Linear(const PackedMatrix& w, const QuantizedRows& x, size_t r0, size_t r1, size_t n0,
                size_t n1, float* y, size_t y_stride);
void Avx2Attention(const AttentionArgs& args, float* out);
void Avx2AttentionTile(const AttentionArgs& args, size_t t, float* m, float* l, float* o);

}  // namespace verbatim::kernels::cpu
