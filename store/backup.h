// Copies of a data folder, made while its server runs, and back.
//
// A backup has the form of a data folder: db/, checkpoint, keyring/, keys/, erasures, api-keys.json
// where there is one, and last of all backup.json, without which it is no backup. Keyring, keys and
// erasures can be put apart from the rest: whoever has only one of the two reads no record. The
// folder of the keyring is noted in the data folder, so that later erasures are carried out in it.
//
// Errors: kInvalid (the target is not empty), kCorrupt (the copy does not verify), kIo, and those
// of CarryOut.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/json.h"
#include "base/result.h"

namespace verbatim::store {

struct BackupOptions {
  std::string data;     // the folder that is copied
  std::string out;      // must not exist, or be empty
  std::string keyring;  // likewise; "": in `out`
  std::string reason, authority;
  std::function<void(const std::string& line)> progress = {};
};
struct BackupReport {
  uint64_t entries = 0, hits = 0;
  Digest root{};
  std::string origin;
};
// Consistent as of one moment, and verified after the copy: every file of the database against its
// checksum, every entry, record and proof as fsck does.
Result<BackupReport> MakeBackup(const BackupOptions& options);

struct RestoreOptions {
  std::string from, keyring;  // as they were given to MakeBackup
  std::string data;           // must not exist, or be empty
  std::string erasures;       // a newer copy of the log of erasures; "": none
  std::function<void(const std::string& line)> progress = {};
};
struct RestoreReport {
  uint64_t entries = 0, hits = 0;
  Digest root{};
  std::string origin;
  uint64_t erasures = 0;     // that were carried out again
  bool log_went_on = false;  // an erasure is newer than the backup: so was the log
};
// The folder that it makes is not served from before ConfirmRestored or AcknowledgeRollback
// (restore.h): a log that may have gone on after the backup must not sign a second head of one
// size.
Result<RestoreReport> RestoreBackup(const RestoreOptions& options);

}  // namespace verbatim::store
