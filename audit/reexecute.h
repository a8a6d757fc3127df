// Executes answers of the embedded engine again, from what a bundle holds and the model's file
// alone: the request as received, the sampling in force as recorded, the seed, the clock that the
// template read and the second in which the run began. Apart from the checks (verify.h), which need
// no engine; a library of its own.
#pragma once

#include <string>

#include "audit/verify.h"
#include "base/result.h"

namespace verbatim::audit {

// The model is loaded at the first entry that needs it, in that entry's fidelity, and again where
// another one comes. The executor is not thread-safe, and blocks for as long as the runs take.
// kNotFound where there is no such file.
Result<Executor> MakeExecutor(const std::string& model_file);

}  // namespace verbatim::audit
