#include "store/data_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace verbatim::store {
namespace {

Error IoError(const std::string& what, const std::string& path) {
  const int code = errno;
  std::string advice = "check that the folder exists, is writable by this user and its disk works";
  if (code == ENOSPC || code == EDQUOT) advice = "free some space on that disk";
  if (code == EACCES || code == EPERM) advice = "give this user the right to read and write it";
  return {Code::kIo, what + " " + path + ": " + std::strerror(code) + "; " + advice};
}

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() { Close(); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }
  int Close() {
    const int fd = std::exchange(fd_, -1);
    return fd < 0 ? 0 : ::close(fd);
  }
  int Release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

bool WriteAll(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  return true;
}

std::string ParentOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

// A folder of keys is for its owner alone: takes the rights of others away where that is ours to
// do.
Status KeepToOwner(const std::string& path) {
  struct stat info;
  if (::stat(path.c_str(), &info) != 0) return IoError("cannot open", path);
  if ((info.st_mode & 077) == 0) return {};
  if (info.st_uid != ::geteuid() && ::geteuid() != 0) {
    return Error{Code::kInvalid, path +
                                     " belongs to another user and is open to others; run "
                                     "chmod 700 and chown on it, or name a new folder in it"};
  }
  if (::chmod(path.c_str(), 0700) != 0) return IoError("cannot make private", path);
  return {};
}

// mkdir -p with 0700 for what is made.
Status MakeFolders(const std::string& path) {
  struct stat info;
  if (::stat(path.c_str(), &info) == 0) {
    if (S_ISDIR(info.st_mode)) return {};
    return Error{Code::kInvalid, path + " is not a folder; name another data folder"};
  }
  const std::string parent = ParentOf(path);
  if (parent != path) {
    if (Status made = MakeFolders(parent); !made.ok()) return made;
  }
  return MakeFolder(path);
}

}  // namespace

Result<DataFolder> DataFolder::Open(const std::string& given) {
  std::string path = given;
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  if (path.empty()) return Error{Code::kInvalid, "the data folder's name is empty; use --data DIR"};
  if (Status made = MakeFolders(path); !made.ok()) return made.error();

  const std::string lock_path = path + "/LOCK";
  Descriptor lock(::open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (lock.get() < 0) return IoError("cannot open", lock_path);
  if (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return IoError("cannot lock", lock_path);
    char pid[32] = {};
    const ssize_t n = ::pread(lock.get(), pid, sizeof(pid) - 1, 0);
    std::string holder(pid, n > 0 ? static_cast<size_t>(n) : 0);
    while (!holder.empty() && (holder.back() < '0' || holder.back() > '9')) holder.pop_back();
    return Error{Code::kFailedPrecondition, "data folder " + path + " is in use by process " +
                                                (holder.empty() ? "(unknown)" : holder) +
                                                "; stop that server, or use another --data folder"};
  }
  const std::string pid = std::to_string(::getpid()) + "\n";
  if (::ftruncate(lock.get(), 0) != 0 ||
      ::pwrite(lock.get(), pid.data(), pid.size(), 0) != static_cast<ssize_t>(pid.size())) {
    return IoError("cannot write", lock_path);
  }
  DataFolder folder;
  folder.path_ = path;
  folder.lock_fd_ = lock.Release();
  if (Status kept = KeepToOwner(path); !kept.ok()) return kept.error();
  for (const std::string& part :
       {folder.database(), folder.keyring(), folder.keys(), folder.temporary()}) {
    if (Status made = MakeFolder(part); !made.ok()) return made.error();
    if (Status kept = KeepToOwner(part); !kept.ok()) return kept.error();
  }
  if (Status synced = SyncFolder(path); !synced.ok()) return synced.error();
  return folder;
}

DataFolder DataFolder::Unlocked(const std::string& path) {
  DataFolder folder;
  folder.path_ = path;
  while (folder.path_.size() > 1 && folder.path_.back() == '/') folder.path_.pop_back();
  return folder;
}

DataFolder::DataFolder(DataFolder&& other) noexcept
    : path_(std::move(other.path_)), lock_fd_(std::exchange(other.lock_fd_, -1)) {}

DataFolder& DataFolder::operator=(DataFolder&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(lock_fd_, other.lock_fd_);
  return *this;
}

DataFolder::~DataFolder() {
  if (lock_fd_ >= 0) ::close(lock_fd_);
}

Result<std::string> ReadFile(const std::string& path) {
  Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) {
    if (errno == ENOENT) return Error{Code::kNotFound, path + " does not exist"};
    return IoError("cannot open", path);
  }
  std::string bytes;
  char buffer[65536];
  for (;;) {
    const ssize_t n = ::read(file.get(), buffer, sizeof(buffer));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return IoError("cannot read", path);
    if (n == 0) return bytes;
    bytes.append(buffer, static_cast<size_t>(n));
  }
}

Status WriteFileDurably(const std::string& path, std::string_view bytes) {
  const std::string temporary = path + ".new";
  Descriptor file(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (file.get() < 0) return IoError("cannot create", temporary);
  if (!WriteAll(file.get(), bytes) || ::fsync(file.get()) != 0 || file.Close() != 0) {
    const Error error = IoError("cannot write", temporary);
    ::unlink(temporary.c_str());
    return error;
  }
  if (::rename(temporary.c_str(), path.c_str()) != 0) {
    const Error error = IoError("cannot rename to", path);
    ::unlink(temporary.c_str());  // it may hold keys that are erased later
    return error;
  }
  return SyncFolder(ParentOf(path));
}

Status ReplaceAndOverwrite(const std::string& path, std::string_view bytes) {
  Descriptor old(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
  if (old.get() < 0) return IoError("cannot open", path);
  struct stat info;
  if (::fstat(old.get(), &info) != 0) return IoError("cannot open", path);
  if (Status written = WriteFileDurably(path, bytes); !written.ok()) return written;
  const std::string zeros(static_cast<size_t>(info.st_size), '\0');
  if (!WriteAll(old.get(), zeros) || ::fsync(old.get()) != 0) {
    return IoError("cannot overwrite the old bytes of", path);
  }
  return {};
}

Status SyncFile(const std::string& path) {
  Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) return IoError("cannot open", path);
  if (::fsync(file.get()) != 0) return IoError("cannot sync", path);
  return {};
}

Status SyncFolder(const std::string& path) {
  Descriptor folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (folder.get() < 0) return IoError("cannot open", path);
  if (::fsync(folder.get()) != 0) return IoError("cannot sync", path);
  return {};
}

Status MakeFolder(const std::string& path) {
  if (::mkdir(path.c_str(), 0700) == 0) return SyncFolder(ParentOf(path));
  if (errno != EEXIST) return IoError("cannot make", path);
  struct stat info;
  if (::stat(path.c_str(), &info) != 0) return IoError("cannot open", path);
  if (!S_ISDIR(info.st_mode)) {
    return Error{Code::kInvalid, path + " is not a folder; move that file away"};
  }
  return {};
}

}  // namespace verbatim::store
