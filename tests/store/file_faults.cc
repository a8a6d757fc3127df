#include "tests/store/file_faults.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <mutex>
#include <set>

#include "base/check.h"

namespace verbatim::store {
namespace {

// The functions below are the C library's for the whole process, so this is the process's too.
struct Plan {
  std::mutex mutex;  // guards everything below
  std::string folder;
  int n = 0, seen = 0;
  FileFaults::Fault fault = FileFaults::Fault::kNotDone;
  std::set<std::string> unsynced;

  bool Covers(const std::string& path) const {
    return !folder.empty() && path.starts_with(folder) &&
           (path.size() == folder.size() || path[folder.size()] == '/');
  }
};

Plan& ThePlan() {
  static Plan plan;
  return plan;
}

std::string ParentOf(const std::string& path) { return path.substr(0, path.rfind('/')); }

std::string PathOf(int fd) {
  char path[4096];
  const std::string link = "/proc/self/fd/" + std::to_string(fd);
  const ssize_t n = ::readlink(link.c_str(), path, sizeof(path));
  return n > 0 ? std::string(path, static_cast<size_t>(n)) : std::string();
}

// Does the operation, or fails, or both, as planned.
template <typename Operation>
int Run(Plan& plan, bool& done, const Operation& operation) {
  const bool fails = ++plan.seen == plan.n;
  done = false;
  if (!fails || plan.fault == FileFaults::Fault::kDoneButReported) {
    if (operation() != 0) return -1;
    done = true;
  }
  if (!fails) return 0;
  errno = EIO;
  return -1;
}

}  // namespace

FileFaults::FileFaults(const std::string& folder, int n, Fault fault) {
  Plan& plan = ThePlan();
  std::lock_guard lock(plan.mutex);
  CHECK(plan.folder.empty());
  plan.folder = folder;
  plan.n = n;
  plan.seen = 0;
  plan.fault = fault;
  plan.unsynced.clear();
}

FileFaults::~FileFaults() {
  Plan& plan = ThePlan();
  std::lock_guard lock(plan.mutex);
  plan.folder.clear();
}

void FileFaults::StopFailing() {
  Plan& plan = ThePlan();
  std::lock_guard lock(plan.mutex);
  plan.n = 0;
}

int FileFaults::seen() const {
  Plan& plan = ThePlan();
  std::lock_guard lock(plan.mutex);
  return plan.seen;
}

std::vector<std::string> FileFaults::Unsynced() const {
  Plan& plan = ThePlan();
  std::lock_guard lock(plan.mutex);
  return {plan.unsynced.begin(), plan.unsynced.end()};
}

}  // namespace verbatim::store

using verbatim::store::ThePlan;

namespace {

// Under the plan a sync is what the plan knows of it: hundreds of lives need no disk.
int Sync(int fd, long call) {
  auto& plan = ThePlan();
  const std::string path = verbatim::store::PathOf(fd);
  std::lock_guard lock(plan.mutex);
  if (!plan.Covers(path)) return static_cast<int>(::syscall(call, fd));
  bool done = true;
  int status = 0;
  if (plan.fault == verbatim::store::FileFaults::Fault::kNotDone) {
    status = verbatim::store::Run(plan, done, [] { return 0; });
  }
  if (done) plan.unsynced.erase(path);
  return status;
}

}  // namespace

extern "C" int fsync(int fd) { return Sync(fd, SYS_fsync); }
extern "C" int fdatasync(int fd) { return Sync(fd, SYS_fdatasync); }

extern "C" int rename(const char* from, const char* to) noexcept {
  const auto move = [&] { return ::renameat(AT_FDCWD, from, AT_FDCWD, to); };
  auto& plan = ThePlan();
  std::lock_guard lock(plan.mutex);
  if (!plan.Covers(to)) return move();
  bool done = false;
  const int status = verbatim::store::Run(plan, done, move);
  if (done) plan.unsynced.insert(verbatim::store::ParentOf(to));
  return status;
}

extern "C" int mkdir(const char* path, mode_t mode) noexcept {
  auto& plan = ThePlan();
  std::lock_guard lock(plan.mutex);
  const int status = ::mkdirat(AT_FDCWD, path, mode);
  const std::string parent = verbatim::store::ParentOf(path);
  if (status == 0 && plan.Covers(parent)) plan.unsynced.insert(parent);
  return status;
}
