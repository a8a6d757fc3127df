// Where test data of others lies (VERBATIM_VECTORS, by default ../shared/vectors beside the
// project), and files read whole. For tests of every folder.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace verbatim::test {

inline std::filesystem::path Vectors(const std::string& folder) {
  const char* env = std::getenv("VERBATIM_VECTORS");
  const std::filesystem::path root =
      env != nullptr ? env : std::filesystem::path(VERBATIM_SOURCE_DIR) / "../shared/vectors";
  return root / folder;
}

inline std::string ReadFile(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in.good()) << path;
  return {std::istreambuf_iterator<char>(in), {}};
}

}  // namespace verbatim::test

// Skips the test, with one line that says so, where outside vectors are absent.
#define SKIP_WITHOUT_VECTORS(folder)                                                     \
  if (!std::filesystem::exists(::verbatim::test::Vectors(folder))) {                     \
    GTEST_SKIP() << "outside vectors are absent: " << ::verbatim::test::Vectors(folder); \
  }
