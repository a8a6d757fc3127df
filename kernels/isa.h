// Which instruction set the CPU kernels use. Every set gives the same bits; they differ in speed
// only.
#pragma once

#include <string_view>
#include <vector>

#include "base/result.h"

namespace verbatim::kernels {

enum class Isa { kScalar, kAvx2, kAvx512Vnni };

// "scalar", "avx2", "avx512vnni".
const char* IsaName(Isa isa);

// Whether this build has kernels for the set and this CPU and operating system run them.
bool IsAvailable(Isa isa);
// All available sets, slowest first. Never empty: kScalar always is.
std::vector<Isa> AvailableIsas();
// The fastest available set.
Isa DetectIsa();

// The set named `name`; an empty name takes the environment variable VERBATIM_ISA, and where that
// is empty too, DetectIsa(). kInvalid for an unknown name, kUnsupported for a set this machine
// lacks.
Result<Isa> ChooseIsa(std::string_view name);

}  // namespace verbatim::kernels
