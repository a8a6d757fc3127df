// Files that commands read whole.
#pragma once

#include <cstddef>
#include <string>

#include "base/result.h"

namespace verbatim::cli {

// The file's bytes; "-" is standard input. kNotFound, kIo, and kInvalid where it is longer.
Result<std::string> ReadWhole(const std::string& path, size_t max_bytes = size_t{64} << 20);

}  // namespace verbatim::cli
