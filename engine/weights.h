// Tensors of a model file as numbers, and packed for the kernels.
#pragma once

#include <vector>

#include "base/result.h"
#include "engine/gguf.h"
#include "engine/model.h"
#include "kernels/packed_matrix.h"

namespace verbatim::engine {

// Whether annex A of numerics.md has this type: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0.
bool IsBlockQuantised(TensorType type);

// All elements in f32, rounded as ggml rounds them (one product, then one sum). kUnsupported, by
// name, for types outside TensorType; kNumericFault where an element is not finite.
Result<std::vector<float>> Dequantise(const GgufTensor& tensor);

// The matrix [rows][columns] for a fidelity: blocks as the file has them for wba16 (other types at
// 16 bits), else the f32 values at 8 or 16 bits per row. bias: empty, or one per row.
Result<kernels::PackedMatrix> PackTensor(const GgufTensor& tensor, Fidelity fidelity,
                                         const std::vector<float>& bias);

}  // namespace verbatim::engine
