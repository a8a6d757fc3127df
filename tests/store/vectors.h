// The vectors that others published, read in place.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "base/json.h"
#include "store/data_folder.h"

namespace verbatim::store {

inline std::string VectorsFolder() {
  const char* folder = std::getenv("VERBATIM_VECTORS");
  return folder ? folder : VERBATIM_SOURCE_DIR "/../shared/vectors";
}

}  // namespace verbatim::store

// Loads a JSON file of vectors into `name`, or skips the test.
#define VERBATIM_LOAD_VECTORS(name, file)                                                    \
  const auto name##_text =                                                                   \
      ::verbatim::store::ReadFile(::verbatim::store::VectorsFolder() + "/" file);            \
  if (!name##_text.ok()) GTEST_SKIP() << "no vectors: set VERBATIM_VECTORS to their folder"; \
  const ::verbatim::json::Value name = ::verbatim::json::Parse(*name##_text).value()
