// Files that commands read whole.
#pragma once

#include <cstddef>
#include <string>

#include "base/json.h"
#include "base/result.h"

namespace verbatim::cli {

// The file's bytes; "-" is standard input. kNotFound, kIo, and kInvalid where it is longer.
Result<std::string> ReadWhole(const std::string& path, size_t max_bytes = size_t{64} << 20);

// The file as one JSON value; the message names the file.
Result<json::Value> ReadJson(const std::string& path);

// The data folder where none is named: $XDG_DATA_HOME/verbatim, else ~/.local/share/verbatim (XDG
// Base Directory Specification). kNotFound where HOME is not set either.
Result<std::string> DefaultDataFolder();

}  // namespace verbatim::cli
