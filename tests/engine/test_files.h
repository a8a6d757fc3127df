// Files and machines that tests of the engine use.
#pragma once

#include <gtest/gtest.h>
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

// A file that is there as long as this object.
class TemporaryFile {
 public:
  explicit TemporaryFile(std::string_view bytes) {
    path_ = std::filesystem::temp_directory_path() / "verbatim-engine-XXXXXX";
    const int fd = mkstemp(path_.data());
    if (fd >= 0) close(fd);
    Write(bytes);
  }
  ~TemporaryFile() { std::filesystem::remove(path_); }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  const std::string& path() const { return path_; }
  void Write(std::string_view bytes) const {
    std::ofstream out(path_, std::ios::binary | std::ios::trunc);
    out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  }

 private:
  std::string path_;
};

}  // namespace verbatim::engine
