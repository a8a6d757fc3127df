// The op tables of the instruction sets, for isa.cc, and the functions that make them up.
#pragma once

#include "kernels/ops.h"

namespace verbatim::kernels::cpu {

const Ops& ReferenceOps();
const Ops& Avx2Ops();
const Ops& Avx512VnniOps();

// Shared by all tables: a copy, cheap beside everything else.
void Embedding(const PackedMatrix& table, size_t n, float* x);
void Rope(float* x, size_t heads, size_t head_dim, size_t d, const float* cos, const float* sin,
          RopeLayout layout);
// Stores key `slot` of a tile from rows that are already integers.
void StoreKey(const KvTileLayout& layout, uint8_t* tile, size_t slot, const int16_t* k,
              float k_scale, const int16_t* v, float v_scale);

}  // namespace verbatim::kernels::cpu
