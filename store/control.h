// The control socket of a data folder: readers (fsck, export, replay) get a snapshot from the
// server that owns the folder, and what writes is done by that server. One line each way:
// "<command>[ <argument>]\n" -> "ok <text>\n" or "error <message>\n". "snapshot" gives a folder in
// the data folder's tmp/, which lives until the client closes the connection or dies. Where the
// server stops first, it lives on for the client, which deletes it (the next server deletes what
// nobody holds).
//
// A snapshot is a data folder of its own but for keys/: db/, keyring/, checkpoint.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <thread>

#include "store/data_folder.h"
#include "store/kv.h"

namespace verbatim::store {

// What the server does for a line with this command: its argument -> one line of text. Runs on the
// control server's thread, and may block it.
using ControlCommand = std::function<Result<std::string>(std::string_view argument)>;
using ControlCommands = std::map<std::string, ControlCommand, std::less<>>;

class ControlServer {
 public:
  // Removes what a killed server left in tmp/, listens, and answers on a thread of its own.
  static Result<std::unique_ptr<ControlServer>> Start(const DataFolder& folder, Kv& kv,
                                                      ControlCommands commands);
  ~ControlServer();
  ControlServer(const ControlServer&) = delete;
  ControlServer& operator=(const ControlServer&) = delete;

 private:
  struct Client;
  ControlServer(const DataFolder& folder, Kv& kv, ControlCommands commands)
      : folder_(folder), kv_(kv), commands_(std::move(commands)) {}
  void Run();
  std::string Answer(Client& client, std::string_view line);
  Status MakeSnapshot(const std::string& path);

  const DataFolder& folder_;
  Kv& kv_;
  const ControlCommands commands_;
  int listener_ = -1;
  int wake_[2] = {-1, -1};
  uint64_t next_snapshot_ = 0;
  std::thread thread_;
};

// Sends the server of that folder one line, without its newline, and gives the text of its "ok".
// kNotFound where no server answers, kUnavailable with its message otherwise.
// waiting: where it is set, it is called about every second, and the answer may take as long as it
// wants; else some two minutes.
Result<std::string> AskServer(const DataFolder& folder, std::string_view line,
                              const std::function<void()>& waiting = nullptr);

// Whether anybody reads a snapshot in the folder's tmp/; those that nobody holds are removed.
bool SnapshotsInUse(const DataFolder& folder);

// A client's hold on a snapshot, which is deleted when this goes away.
class SnapshotLease {
 public:
  // kNotFound where no server answers at that folder's socket.
  static Result<SnapshotLease> Request(const DataFolder& folder);
  SnapshotLease(SnapshotLease&& other) noexcept;
  SnapshotLease& operator=(SnapshotLease&&) = delete;
  ~SnapshotLease();
  const std::string& path() const { return path_; }

 private:
  SnapshotLease() = default;
  int fd_ = -1;       // the connection
  int hold_fd_ = -1;  // the snapshot's folder, locked: nobody else deletes it
  std::string path_;
};

}  // namespace verbatim::store
