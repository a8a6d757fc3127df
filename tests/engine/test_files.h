// Files and machines that tests of the engine use.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "kernels/isa.h"

namespace verbatim::engine {

// The default model's path, or empty where it has not been fetched.
inline std::string DefaultModelPath() {
  const char* env = std::getenv("VERBATIM_MODEL");
  const char* home = std::getenv("HOME");
  const std::string path = env != nullptr ? env
                                          : std::string(home != nullptr ? home : "") +
                                                "/.cache/verbatim/SmolLM2-135M-Instruct.Q4_1.gguf";
  return std::filesystem::exists(path) ? path : "";
}

// The instruction sets that are fast enough for the default model here: all but the plain one,
// which the kernels' own tests compare with the others.
inline std::vector<kernels::Isa> FastIsas() {
  std::vector<kernels::Isa> isas = kernels::AvailableIsas();
  if (isas.size() > 1) isas.erase(isas.begin());
  return isas;
}

inline json::Value ReadJson(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  const std::string text(std::istreambuf_iterator<char>(in), {});
  Result<json::Value> value = json::Parse(text);
  if (!value) {
    ADD_FAILURE() << path << ": " << value.error().message;
    return {};
  }
  return std::move(*value);
}

// A file in memory, which has a path as long as this object lives.
class TemporaryFile {
 public:
  explicit TemporaryFile(std::string_view bytes) : fd_(memfd_create("verbatim-test", MFD_CLOEXEC)) {
    Write(bytes);
  }
  ~TemporaryFile() { close(fd_); }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  std::string path() const { return "/proc/self/fd/" + std::to_string(fd_); }
  // Not while it is mapped.
  void Write(std::string_view bytes) const {
    EXPECT_EQ(ftruncate(fd_, static_cast<off_t>(bytes.size())), 0);
    EXPECT_EQ(pwrite(fd_, bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
  }

 private:
  const int fd_;
};

}  // namespace verbatim::engine
