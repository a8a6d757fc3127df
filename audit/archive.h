// The zip file that a bundle is (audit/FORMAT.md, Archive): members stored as they are, with fixed
// times and no extra fields, so that the same members give the same bytes on every machine.
//
// Reading is strict: a file is an archive only where it is byte for byte what the writer makes of
// its members. So nothing hides between members, no name comes twice, nothing is unpacked, and no
// two readers see two different contents.
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace verbatim::audit {

// 1 to 100 letters, digits, '.', '_', '-' and '/', relative, without empty parts, "." and "..".
bool IsMemberName(std::string_view name);

// Not thread-safe. A writer that goes away before Finish leaves an incomplete file.
class ArchiveWriter {
 public:
  // A new file of mode 0600; kAlreadyExists where there is one.
  static Result<ArchiveWriter> Create(const std::string& path);
  // kInvalid where the archive would be too large, or the name is none or comes twice; kIo.
  Status Add(std::string_view name, std::string_view bytes);
  // Writes the list of members and syncs the file. Nothing may be added after it.
  Status Finish();

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  explicit ArchiveWriter(std::FILE* file) : file_(file) {}
  Status Write(std::string_view bytes);

  std::unique_ptr<std::FILE, Close> file_;
  std::set<std::string, std::less<>> names_;
  std::string directory_;
  uint64_t offset_ = 0;
};

struct Member {
  std::string_view name, bytes;  // borrowed from the archive
};
// In the archive's order. kCorrupt says what is wrong.
Result<std::vector<Member>> ReadArchive(std::string_view archive);

// A file's bytes without reading them all at once. Another process must not shorten it meanwhile.
class MappedFile {
 public:
  // kNotFound, kIo.
  static Result<MappedFile> Open(const std::string& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&&) = delete;
  ~MappedFile();
  std::string_view bytes() const { return {static_cast<const char*>(data_), size_}; }

 private:
  MappedFile(void* data, size_t size) : data_(data), size_(size) {}
  void* data_;
  size_t size_;
};

}  // namespace verbatim::audit
