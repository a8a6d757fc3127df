#include "cli/files.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>

namespace verbatim::cli {

Result<std::string> ReadWhole(const std::string& path, size_t max_bytes) {
  std::error_code error;
  if (path != "-" && std::filesystem::is_directory(path, error)) {
    return Error{Code::kIo, path + ": is a folder"};
  }
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> opened(
      path == "-" ? nullptr : std::fopen(path.c_str(), "rb"),
      [](std::FILE* f) { return f == nullptr ? 0 : std::fclose(f); });
  if (path != "-" && !opened) {
    return Error{errno == ENOENT ? Code::kNotFound : Code::kIo, path + ": " + std::strerror(errno)};
  }
  std::FILE* in = path == "-" ? stdin : opened.get();
  std::string text;
  char buffer[1 << 16];
  for (size_t n; (n = std::fread(buffer, 1, sizeof buffer, in)) > 0;) {
    text.append(buffer, n);
    if (text.size() > max_bytes) {
      return Error{Code::kInvalid, path + ": longer than " + std::to_string(max_bytes) + " bytes"};
    }
  }
  if (std::ferror(in)) return Error{Code::kIo, path + ": " + std::strerror(errno)};
  return text;
}

Result<json::Value> ReadJson(const std::string& path) {
  const auto text = ReadWhole(path);
  if (!text.ok()) return text.error();
  auto value = json::Parse(*text);
  if (!value.ok()) return Error{value.error().code, path + ": " + value.error().message};
  return value;
}

Result<std::string> DefaultDataFolder() {
  const char* data_home = std::getenv("XDG_DATA_HOME");
  if (data_home != nullptr && data_home[0] == '/') return std::string(data_home) + "/verbatim";
  const char* home = std::getenv("HOME");
  if (home == nullptr || home[0] == '\0') {
    return Error{Code::kNotFound, "HOME is not set; name a data folder with --data"};
  }
  return std::string(home) + "/.local/share/verbatim";
}

}  // namespace verbatim::cli
