// The control socket of a data folder: readers (fsck, export, replay) get a snapshot from the
// server that owns the folder. One line each way: "snapshot\n" -> "ok <folder>\n" or "error
// <message>\n"; the snapshot, in the data folder's tmp/, lives until the client closes the
// connection or dies. Where the server stops first, it lives on for the client, which deletes it
// (the next server deletes what nobody holds).
//
// A snapshot is a data folder of its own but for keys/: db/, keyring/, checkpoint.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "store/data_folder.h"
#include "store/kv.h"

namespace verbatim::store {

class ControlServer {
 public:
  // Removes what a killed server left in tmp/, listens, and answers on a thread of its own.
  static Result<std::unique_ptr<ControlServer>> Start(const DataFolder& folder, Kv& kv);
  ~ControlServer();
  ControlServer(const ControlServer&) = delete;
  ControlServer& operator=(const ControlServer&) = delete;

 private:
  struct Client;
  ControlServer(const DataFolder& folder, Kv& kv) : folder_(folder), kv_(kv) {}
  void Run();
  std::string Answer(Client& client, std::string_view command);
  Status MakeSnapshot(const std::string& path);

  const DataFolder& folder_;
  Kv& kv_;
  int listener_ = -1;
  int wake_[2] = {-1, -1};
  uint64_t next_snapshot_ = 0;
  std::thread thread_;
};

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
  explicit SnapshotLease(int fd) : fd_(fd) {}
  int fd_;            // the connection
  int hold_fd_ = -1;  // the snapshot's folder, locked: nobody else deletes it
  std::string path_;
};

}  // namespace verbatim::store
