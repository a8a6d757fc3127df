// A data folder: what lies where, its permissions, and the lock that makes one server its owner.
// Files that are not ours are left alone and are no damage.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"

namespace verbatim::store {

class DataFolder {
 public:
  // Makes the folder and its parents (0700, synced) where they are missing, and takes its lock. An
  // existing folder of this user's loses the rights of others; another user's that has such is
  // refused (kInvalid). kFailedPrecondition where
  // another process has it: the message names the folder and that process. kIo with what to do
  // otherwise.
  static Result<DataFolder> Open(const std::string& path);

  // The paths alone, without lock (for a snapshot's copy, or a client of the control socket).
  static DataFolder Unlocked(const std::string& path);

  DataFolder(DataFolder&& other) noexcept;
  DataFolder& operator=(DataFolder&& other) noexcept;
  ~DataFolder();  // gives the lock back

  const std::string& path() const { return path_; }
  std::string database() const { return path_ + "/db"; }
  std::string keyring() const { return path_ + "/keyring"; }
  std::string keys() const { return path_ + "/keys"; }
  std::string checkpoint() const { return path_ + "/checkpoint"; }
  // What erasures destroyed (erasures.h), and where backups were made to (one path a line).
  std::string erasures() const { return path_ + "/erasures"; }
  std::string backups() const { return path_ + "/backups"; }
  // There while the folder must not be served from (restore.h).
  std::string restored() const { return path_ + "/restored"; }
  // The log that a new one in this folder continues (restore.h).
  std::string continues() const { return path_ + "/continues"; }
  std::string temporary() const { return path_ + "/tmp"; }
  std::string control_socket() const { return path_ + "/control.sock"; }

 private:
  DataFolder() = default;
  std::string path_;
  int lock_fd_ = -1;
};

// Whole files. Write: to a temporary name, synced, renamed over, folder synced; mode 0600.
Result<std::string> ReadFile(const std::string& path);
Status WriteFileDurably(const std::string& path, std::string_view bytes);
// The same over an existing file, whose old bytes are overwritten with zeros (synced) once no name
// leads to them any more. Where a disk keeps old blocks all the same, only encrypting it helps.
Status ReplaceAndOverwrite(const std::string& path, std::string_view bytes);
Status SyncFolder(const std::string& path);
Status SyncFile(const std::string& path);
// mkdir -p of one level with 0700; ok where it exists.
Status MakeFolder(const std::string& path);

}  // namespace verbatim::store
