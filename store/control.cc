#include "store/control.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>
#include <vector>

#include "base/log.h"

namespace verbatim::store {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxLine = 65536;
constexpr size_t kMaxClients = 32;
constexpr int kAnswerTimeoutMillis = 120'000;

Error SocketError(const std::string& what, const std::string& path) {
  return {Code::kIo, what + " " + path + ": " + std::strerror(errno) +
                         "; check that the data folder is on a local disk and writable"};
}

// A socket's path may have 107 bytes; through the folder's descriptor it is always short.
struct SocketAddress {
  int folder_fd = -1;
  sockaddr_un address{};
  explicit SocketAddress(const std::string& folder) {
    folder_fd = ::open(folder.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC);
    address.sun_family = AF_UNIX;
    const std::string path = "/proc/self/fd/" + std::to_string(folder_fd) + "/control.sock";
    CHECK(path.size() < sizeof(address.sun_path));
    std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  }
  ~SocketAddress() {
    if (folder_fd >= 0) ::close(folder_fd);
  }
  SocketAddress(const SocketAddress&) = delete;
  SocketAddress& operator=(const SocketAddress&) = delete;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }
};

void RemoveTree(const std::string& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (error) LogWarning("cannot remove " + path + ": " + error.message());
}

// Opens a snapshot's folder and locks it; -1 where that cannot be.
int Hold(const std::string& path, int operation) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd >= 0 && ::flock(fd, operation) == 0) return fd;
  if (fd >= 0) ::close(fd);
  return -1;
}

// Whether a client of an earlier server still reads the snapshot.
bool IsHeld(const std::string& path) {
  const int fd = Hold(path, LOCK_EX | LOCK_NB);
  if (fd >= 0) ::close(fd);
  return fd < 0;
}

// Segment files are replaced, never changed, so that a second name for one is a copy of it.
Status LinkKeyring(const std::string& from, const std::string& to) {
  std::error_code error;
  fs::create_directory(to, error);
  if (error) return Error{Code::kIo, "cannot make " + to + ": " + error.message()};
  for (const char* ring : {"/entries", "/hits"}) {
    fs::create_directory(to + ring, error);
    if (error) return Error{Code::kIo, "cannot make " + to + ring + ": " + error.message()};
    for (fs::directory_iterator file(from + ring, error), end; !error && file != end;
         file.increment(error)) {
      if (file->path().extension() != ".keys") continue;
      fs::create_hard_link(file->path(), to + ring + "/" + file->path().filename().string(), error);
      if (error) break;
    }
    if (error) return Error{Code::kIo, "cannot copy " + from + ring + ": " + error.message()};
  }
  return {};
}

}  // namespace

struct ControlServer::Client {
  int fd = -1;
  std::string line;
  std::vector<std::string> snapshots;
};

bool SnapshotsInUse(const DataFolder& folder) {
  bool in_use = false;
  std::error_code error;
  for (fs::directory_iterator left(folder.temporary(), error), end; !error && left != end;
       left.increment(error)) {
    if (!left->path().filename().string().starts_with("snapshot-")) continue;
    if (IsHeld(left->path())) {
      in_use = true;
    } else {
      RemoveTree(left->path());
    }
  }
  return in_use;
}

Result<std::unique_ptr<ControlServer>> ControlServer::Start(const DataFolder& folder, Kv& kv,
                                                            ControlCommands commands) {
  std::unique_ptr<ControlServer> server(new ControlServer(folder, kv, std::move(commands)));
  (void)SnapshotsInUse(folder);  // removes what nobody holds
  const SocketAddress address(folder.path());
  if (address.folder_fd < 0) return SocketError("cannot open", folder.path());
  if (::unlink(address.address.sun_path) != 0 && errno != ENOENT) {
    return SocketError("cannot remove the old", folder.control_socket());
  }
  server->listener_ = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (server->listener_ < 0 ||
      ::bind(server->listener_, address.get(), sizeof(address.address)) != 0 ||
      ::chmod(address.address.sun_path, 0600) != 0 || ::listen(server->listener_, 16) != 0 ||
      ::pipe2(server->wake_, O_CLOEXEC) != 0) {
    return SocketError("cannot listen at", folder.control_socket());
  }
  server->thread_ = std::thread([s = server.get()] { s->Run(); });
  return server;
}

ControlServer::~ControlServer() {
  if (thread_.joinable()) {
    const char byte = 0;
    CHECK(::write(wake_[1], &byte, 1) == 1);
    thread_.join();
    const SocketAddress address(folder_.path());
    ::unlink(address.address.sun_path);
  }
  for (const int fd : {listener_, wake_[0], wake_[1]}) {
    if (fd >= 0) ::close(fd);
  }
}

void ControlServer::Run() {
  std::vector<Client> clients;
  const auto drop = [](Client& client) {
    for (const std::string& snapshot : client.snapshots) RemoveTree(snapshot);
    ::close(client.fd);
  };
  for (;;) {
    std::vector<pollfd> polled = {{wake_[0], POLLIN, 0}, {listener_, POLLIN, 0}};
    for (const Client& client : clients) polled.push_back({client.fd, POLLIN, 0});
    if (::poll(polled.data(), polled.size(), -1) < 0 && errno != EINTR) break;
    if (polled[0].revents) break;
    for (size_t i = clients.size(); i-- > 0;) {
      if (!polled[i + 2].revents) continue;
      Client& client = clients[i];
      char buffer[512];
      const ssize_t n = ::read(client.fd, buffer, sizeof(buffer));
      if (n < 0 && (errno == EAGAIN || errno == EINTR)) continue;
      bool alive = n > 0;
      if (alive) client.line.append(buffer, static_cast<size_t>(n));
      for (size_t end; alive && (end = client.line.find('\n')) != std::string::npos;) {
        const std::string answer = Answer(client, client.line.substr(0, end)) + "\n";
        client.line.erase(0, end + 1);
        alive = ::send(client.fd, answer.data(), answer.size(), MSG_NOSIGNAL) ==
                static_cast<ssize_t>(answer.size());
      }
      if (alive && client.line.size() <= kMaxLine) continue;
      drop(client);
      clients.erase(clients.begin() + static_cast<std::ptrdiff_t>(i));
    }
    if (polled[1].revents) {
      const int fd = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
      if (fd >= 0 && clients.size() >= kMaxClients) {
        ::close(fd);
      } else if (fd >= 0) {
        clients.push_back({fd, {}, {}});
      }
    }
  }
  // Who still reads keeps the snapshot (SnapshotLease deletes it).
  for (const Client& client : clients) ::close(client.fd);
}

std::string ControlServer::Answer(Client& client, std::string_view line) {
  const size_t space = std::min(line.find(' '), line.size());
  const std::string_view command = line.substr(0, space);
  if (const auto found = commands_.find(command); found != commands_.end()) {
    Result<std::string> done = found->second(line.substr(std::min(space + 1, line.size())));
    std::string answer = done.ok() ? "ok " + *done : "error " + done.error().message;
    std::replace(answer.begin(), answer.end(), '\n', ' ');
    return answer;
  }
  if (line != "snapshot") return "error this server does not know the command; is it older?";
  const std::string path = folder_.temporary() + "/snapshot-" + std::to_string(::getpid()) + "-" +
                           std::to_string(next_snapshot_++);
  client.snapshots.push_back(path);
  if (Status made = MakeSnapshot(path); !made.ok()) return "error " + made.error().message;
  return "ok tmp/" + fs::path(path).filename().string();
}

// The checkpoint first: the database then holds every entry that it covers.
Status ControlServer::MakeSnapshot(const std::string& path) {
  if (Status made = MakeFolder(path); !made.ok()) return made;
  Result<std::string> checkpoint = ReadFile(folder_.checkpoint());
  if (checkpoint.ok()) {
    if (Status written = WriteFileDurably(path + "/checkpoint", *checkpoint); !written.ok()) {
      return written;
    }
  } else if (checkpoint.error().code != Code::kNotFound) {
    return checkpoint.error();
  }
  if (Status copied = kv_.Snapshot(path + "/db"); !copied.ok()) return copied;
  return LinkKeyring(folder_.keyring(), path + "/keyring");
}

namespace {

// A connection and the text behind the "ok" of its first answer.
struct Asked {
  int fd = -1;
  std::string text{};
  Asked() = default;
  Asked(Asked&& other) noexcept : fd(std::exchange(other.fd, -1)), text(std::move(other.text)) {}
  Asked& operator=(Asked&&) = delete;
  ~Asked() {
    if (fd >= 0) ::close(fd);
  }
};

// waiting: where it is set, called every second, and the answer may take as long as it wants.
Result<Asked> Ask(const DataFolder& folder, std::string_view line,
                  const std::function<void()>& waiting = nullptr) {
  const SocketAddress address(folder.path());
  const Error absent{Code::kNotFound, "no server answers at " + folder.control_socket()};
  if (address.folder_fd < 0) return absent;
  Asked asked;
  asked.fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (asked.fd < 0) return SocketError("cannot open a socket for", folder.path());
  if (::connect(asked.fd, address.get(), sizeof(address.address)) != 0) return absent;
  const std::string sent = std::string(line) + "\n";
  if (sent.size() > kMaxLine || line.find('\n') != std::string_view::npos) {
    return Error{Code::kInvalid, "too much for one command to the server; ask for less at once"};
  }
  if (::send(asked.fd, sent.data(), sent.size(), MSG_NOSIGNAL) !=
      static_cast<ssize_t>(sent.size())) {
    return SocketError("cannot write to", folder.control_socket());
  }
  std::string answer;
  while (answer.find('\n') == std::string::npos && answer.size() <= kMaxLine) {
    pollfd polled{asked.fd, POLLIN, 0};
    const int ready = ::poll(&polled, 1, waiting ? 1000 : kAnswerTimeoutMillis);
    if (ready < 0 && errno == EINTR) continue;
    if (ready == 0 && waiting) {
      waiting();
      continue;
    }
    char buffer[512];
    const ssize_t n = ready > 0 ? ::read(asked.fd, buffer, sizeof(buffer)) : 0;
    if (n <= 0) {
      return Error{Code::kUnavailable,
                   "the server at " + folder.path() + " did not answer; try again, or stop it"};
    }
    answer.append(buffer, static_cast<size_t>(n));
  }
  constexpr std::string_view kOk = "ok ";
  const size_t end = answer.find('\n');
  if (end == std::string::npos || !answer.starts_with(kOk)) {
    return Error{Code::kUnavailable, "the server at " + folder.path() + " answered: " +
                                         answer.substr(0, std::min<size_t>(end, 500))};
  }
  asked.text = answer.substr(kOk.size(), end - kOk.size());
  return asked;
}

}  // namespace

Result<std::string> AskServer(const DataFolder& folder, std::string_view line,
                              const std::function<void()>& waiting) {
  Result<Asked> asked = Ask(folder, line, waiting);
  if (!asked.ok()) return asked.error();
  return std::move(asked->text);
}

Result<SnapshotLease> SnapshotLease::Request(const DataFolder& folder) {
  Result<Asked> asked = Ask(folder, "snapshot");
  if (!asked.ok()) return asked.error();
  constexpr std::string_view kPlace = "tmp/snapshot-";
  if (!asked->text.starts_with(kPlace) ||
      asked->text.find('/', kPlace.size()) != std::string::npos) {
    return Error{Code::kUnavailable,
                 "the server at " + folder.path() + " answered: " + asked->text.substr(0, 200)};
  }
  SnapshotLease lease;
  lease.fd_ = std::exchange(asked->fd, -1);
  lease.path_ = folder.path() + "/" + asked->text;
  lease.hold_fd_ = Hold(lease.path_, LOCK_SH | LOCK_NB);
  if (lease.hold_fd_ < 0) {
    return Error{Code::kUnavailable, "the server at " + folder.path() + " is stopping; try again"};
  }
  return lease;
}

SnapshotLease::SnapshotLease(SnapshotLease&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)),
      hold_fd_(std::exchange(other.hold_fd_, -1)),
      path_(std::exchange(other.path_, {})) {}

SnapshotLease::~SnapshotLease() {
  if (!path_.empty()) RemoveTree(path_);
  if (hold_fd_ >= 0) ::close(hold_fd_);
  if (fd_ >= 0) ::close(fd_);
}

}  // namespace verbatim::store
