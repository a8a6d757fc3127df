// The tokenizer of a model file (keys tokenizer.* of docs/gguf.md).
#pragma once

#include <memory>

#include "base/result.h"
#include "engine/gguf.h"
#include "engine/tokenizer.h"

namespace verbatim::engine {

// Errors: those of Tokenizer::Create; kCorrupt where a key is missing or of the wrong type.
Result<std::unique_ptr<const Tokenizer>> LoadTokenizer(const GgufFile& file);

}  // namespace verbatim::engine
