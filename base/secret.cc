#include "base/secret.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

namespace verbatim {
namespace {

constexpr size_t kMaxSecretBytes = 64 << 10;

Result<std::string> ReadFile(const std::string& path) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (!std::filesystem::exists(status)) return Error{Code::kNotFound, path + ": no such file"};
  if (std::filesystem::is_directory(status)) return Error{Code::kIo, path + ": is a folder"};
  std::ifstream in(path, std::ios::binary);
  if (!in) return Error{Code::kIo, path + ": " + std::strerror(errno)};
  std::string text(kMaxSecretBytes + 1, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (in.bad()) return Error{Code::kIo, path + ": cannot be read"};
  text.resize(static_cast<size_t>(in.gcount()));
  if (text.size() <= kMaxSecretBytes && text.ends_with('\n')) text.pop_back();
  return text;
}

}  // namespace

Result<std::string> ReadSecret(const std::string& reference) {
  std::string value;
  if (reference.starts_with("env:")) {
    const char* text = std::getenv(reference.c_str() + 4);
    if (text == nullptr) {
      return Error{Code::kNotFound, "the environment has no " + reference.substr(4) +
                                        ", which holds a secret of the configuration; set it"};
    }
    value = text;
  } else if (reference.starts_with("file:")) {
    Result<std::string> text = ReadFile(reference.substr(5));
    if (!text.ok()) return text;
    value = std::move(*text);
  } else {
    return Error{Code::kInvalid, "a secret is given as env:NAME or file:PATH"};
  }
  if (value.empty() || value.size() > kMaxSecretBytes) {
    return Error{Code::kInvalid, reference + ": the secret is empty or longer than 64 KiB"};
  }
  return value;
}

}  // namespace verbatim
