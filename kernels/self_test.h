// The check before serving (numerics.md 15): compiled-in unit vectors run on the selected kernels
// of this machine. Wrong compiler flags, flushed subnormals or a faulty unit show here. Under 20
// ms.
#pragma once

#include "base/result.h"
#include "kernels/ops.h"

namespace verbatim::kernels {

// Rounding to nearest, no flushing of subnormals, for the calling thread (MXCSR). kNumericFault
// names what is set otherwise.
Status CheckFloatEnvironment();

// CheckFloatEnvironment, then every op. kNumericFault names the op and instruction set that differ.
Status SelfTest(const Ops& ops);

}  // namespace verbatim::kernels
