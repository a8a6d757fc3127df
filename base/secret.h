// Secrets of the configuration are named, never written: "env:NAME" or "file:PATH".
#pragma once

#include <string>

#include "base/result.h"

namespace verbatim {

// What the reference stands for (a file's one trailing newline is not part of it). kNotFound says
// what is missing; kInvalid: no such reference, or the secret is empty or over 64 KiB. kIo.
Result<std::string> ReadSecret(const std::string& reference);

}  // namespace verbatim
