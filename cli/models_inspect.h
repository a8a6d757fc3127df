// verbatim models inspect: what a model file holds, and whether this build runs it.
#pragma once

#include <CLI/App.hpp>

namespace verbatim::cli {

// Adds `inspect F [--json]` to the command `models`.
void AddModelsInspect(CLI::App& models);

}  // namespace verbatim::cli
