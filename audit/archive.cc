#include "audit/archive.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace verbatim::audit {
namespace {

// PKWARE APPNOTE 6.3.10, sections 4.3.7, 4.3.12, 4.3.14, 4.3.15 and 4.3.16.
constexpr uint32_t kLocal = 0x04034b50, kCentral = 0x02014b50, kEnd = 0x06054b50;
constexpr uint32_t kEnd64 = 0x06064b50, kEnd64Locator = 0x07064b50;
constexpr size_t kLocalBytes = 30;
constexpr unsigned kNeeded = 20, kMadeBy = 3 << 8 | 20, kNeeded64 = 45;  // Unix, 2.0
constexpr unsigned kDate = 0x0021;                                       // 1980-01-01
constexpr uint32_t kAttributes = 0x81A40000;  // a regular file, rw-r--r--
constexpr uint64_t kMaxBytes = 0xFFFFFFFE, kMaxCount16 = 0xFFFF;
constexpr size_t kMaxName = 100;

void AppendLittle(std::string& out, uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) out += static_cast<char>(value >> (8 * i) & 0xFF);
}

uint32_t ReadLittle32(std::string_view bytes) {
  uint32_t value = 0;
  for (size_t i = 0; i < 4; ++i) value |= uint32_t{static_cast<uint8_t>(bytes[i])} << (8 * i);
  return value;
}

uint32_t Crc(std::string_view bytes) {
  return static_cast<uint32_t>(
      ::crc32_z(0, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
}

// What local and central header share, from "version needed" on.
std::string Facts(std::string_view name, std::string_view bytes, uint32_t crc) {
  std::string out;
  AppendLittle(out, kNeeded, 2);
  AppendLittle(out, 0, 2);  // flags
  AppendLittle(out, 0, 2);  // method: stored
  AppendLittle(out, 0, 2);  // time
  AppendLittle(out, kDate, 2);
  AppendLittle(out, crc, 4);
  AppendLittle(out, bytes.size(), 4);
  AppendLittle(out, bytes.size(), 4);
  AppendLittle(out, name.size(), 2);
  AppendLittle(out, 0, 2);  // extra field
  return out;
}

std::string LocalHeader(std::string_view name, const std::string& facts) {
  std::string out;
  AppendLittle(out, kLocal, 4);
  return out + facts + std::string(name);
}

std::string CentralHeader(std::string_view name, const std::string& facts, uint64_t offset) {
  std::string out;
  AppendLittle(out, kCentral, 4);
  AppendLittle(out, kMadeBy, 2);
  out += facts;
  AppendLittle(out, 0, 2);  // comment
  AppendLittle(out, 0, 2);  // disk
  AppendLittle(out, 0, 2);  // internal attributes
  AppendLittle(out, kAttributes, 4);
  AppendLittle(out, offset, 4);
  return out + std::string(name);
}

std::string EndOfDirectory(uint64_t count, uint64_t size, uint64_t offset) {
  std::string out;
  if (count >= kMaxCount16) {
    AppendLittle(out, kEnd64, 4);
    AppendLittle(out, 44, 8);  // bytes of this record after this field
    AppendLittle(out, kNeeded64, 2);
    AppendLittle(out, kNeeded64, 2);
    AppendLittle(out, 0, 8);  // disks
    AppendLittle(out, count, 8);
    AppendLittle(out, count, 8);
    AppendLittle(out, size, 8);
    AppendLittle(out, offset, 8);
    AppendLittle(out, kEnd64Locator, 4);
    AppendLittle(out, 0, 4);
    AppendLittle(out, offset + size, 8);
    AppendLittle(out, 1, 4);
  }
  AppendLittle(out, kEnd, 4);
  AppendLittle(out, 0, 4);  // disks
  AppendLittle(out, std::min(count, kMaxCount16), 2);
  AppendLittle(out, std::min(count, kMaxCount16), 2);
  AppendLittle(out, size, 4);
  AppendLittle(out, offset, 4);
  AppendLittle(out, 0, 2);  // comment
  return out;
}

Error Broken(const std::string& what) {
  return {Code::kCorrupt,
          what + "; ask for the file as verbatim export wrote it, not unpacked and packed again"};
}

}  // namespace

bool IsMemberName(std::string_view name) {
  if (name.empty() || name.size() > kMaxName) return false;
  size_t begin = 0;
  for (size_t i = 0; i <= name.size(); ++i) {
    const char c = i < name.size() ? name[i] : '/';
    if (c == '/') {
      const std::string_view part = name.substr(begin, i - begin);
      if (part.empty() || part == "." || part == "..") return false;
      begin = i + 1;
      continue;
    }
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    if (!letter && !(c >= '0' && c <= '9') && c != '.' && c != '_' && c != '-') return false;
  }
  return true;
}

Result<ArchiveWriter> ArchiveWriter::Create(const std::string& path) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) {
    const Code code = errno == EEXIST ? Code::kAlreadyExists : Code::kIo;
    return Error{code, "cannot make " + path + ": " + std::strerror(errno)};
  }
  std::FILE* file = ::fdopen(fd, "wb");
  CHECK(file != nullptr);
  return ArchiveWriter(file);
}

Status ArchiveWriter::Write(std::string_view bytes) {
  if (std::fwrite(bytes.data(), 1, bytes.size(), file_.get()) != bytes.size()) {
    return Error{Code::kIo, std::string("cannot write the bundle: ") + std::strerror(errno)};
  }
  return {};
}

Status ArchiveWriter::Add(std::string_view name, std::string_view bytes) {
  if (!IsMemberName(name)) return Error{Code::kInvalid, "no name of a file: " + std::string(name)};
  if (!names_.emplace(name).second) return Error{Code::kInvalid, "twice: " + std::string(name)};
  const uint64_t rest = directory_.size() + 2 * (kLocalBytes + name.size()) + 1024;
  if (bytes.size() > kMaxBytes || offset_ + bytes.size() + rest > kMaxBytes) {
    return Error{Code::kInvalid, "the bundle would be larger than 4 GiB; export smaller ranges"};
  }
  const std::string facts = Facts(name, bytes, Crc(bytes));
  const std::string header = LocalHeader(name, facts);
  directory_ += CentralHeader(name, facts, offset_);
  if (Status written = Write(header); !written.ok()) return written;
  offset_ += header.size() + bytes.size();
  return Write(bytes);
}

Status ArchiveWriter::Finish() {
  if (Status s = Write(directory_ + EndOfDirectory(names_.size(), directory_.size(), offset_));
      !s.ok()) {
    return s;
  }
  if (std::fflush(file_.get()) != 0 || ::fsync(::fileno(file_.get())) != 0) {
    return Error{Code::kIo, std::string("cannot write the bundle: ") + std::strerror(errno)};
  }
  return {};
}

Result<std::vector<Member>> ReadArchive(std::string_view archive) {
  if (archive.size() > kMaxBytes) return Broken("it is larger than 4 GiB");
  std::vector<Member> members;
  std::set<std::string_view> names;
  std::string directory;
  uint64_t offset = 0;
  while (archive.size() - offset >= kLocalBytes && ReadLittle32(archive.substr(offset)) == kLocal) {
    const std::string_view header = archive.substr(offset);
    const uint64_t size = ReadLittle32(header.substr(22));
    const uint64_t name_size = ReadLittle32(header.substr(26)) & 0xFFFF;
    const std::string place = "the member at byte " + std::to_string(offset);
    if (kLocalBytes + name_size + size > header.size()) return Broken(place + " is cut off");
    const std::string_view name = header.substr(kLocalBytes, name_size);
    const std::string_view bytes = header.substr(kLocalBytes + name_size, size);
    if (!IsMemberName(name)) return Broken(place + " has a name that no bundle has");
    const std::string facts = Facts(name, bytes, Crc(bytes));
    if (LocalHeader(name, facts) != header.substr(0, kLocalBytes + name_size)) {
      return Broken(place + " (" + std::string(name) + ") is damaged or packed otherwise");
    }
    if (!names.insert(name).second) return Broken(std::string(name) + " is there twice");
    directory += CentralHeader(name, facts, offset);
    members.push_back({name, bytes});
    offset += kLocalBytes + name_size + size;
  }
  if (members.empty()) return Broken("it is no bundle: no zip file of stored members");
  if (archive.substr(offset) !=
      directory + EndOfDirectory(members.size(), directory.size(), offset)) {
    return Broken("from byte " + std::to_string(offset) +
                  " on it is not the list of the members before: cut off, damaged or changed");
  }
  return members;
}

Result<MappedFile> MappedFile::Open(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    const Code code = errno == ENOENT ? Code::kNotFound : Code::kIo;
    return Error{code, "cannot open " + path + ": " + std::strerror(errno)};
  }
  struct stat facts {};
  const bool regular = ::fstat(fd, &facts) == 0 && S_ISREG(facts.st_mode);
  const auto size = regular ? static_cast<size_t>(facts.st_size) : 0;
  void* data = size > 0 ? ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0) : nullptr;
  ::close(fd);
  if (!regular) return Error{Code::kIo, path + " is no regular file"};
  if (data == MAP_FAILED) return Error{Code::kIo, "cannot read " + path};
  return MappedFile(data, size);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile::~MappedFile() {
  if (data_) ::munmap(data_, size_);
}

}  // namespace verbatim::audit
