// What comes after a log whose database is behind what it has published: never a second head of
// one size, but a new log that names the old one.
//
// Functions lock the folder; kFailedPrecondition where a server has it. Each goes on from where a
// killed call of it ended.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/json.h"
#include "base/result.h"
#include "store/data_folder.h"

namespace verbatim::store {

// Where a new log comes from: the old one's newest known checkpoint, and how far its database got.
struct Continuation {
  std::string checkpoint, vkey;  // of the old log: signed note, verifier key
  uint64_t entries = 0;          // that its database held
  std::string origin;            // of the new log
  std::string former;            // the old one's folder, within the data folder
};
// The file `continues` of the folder; kNotFound where there is none.
Result<Continuation> ReadContinuation(const DataFolder& folder);
// `continues` of the first leaf: origin, vkey, size, root and checkpoint of the old log, and the
// number of entries that its database held.
Result<json::Value> ContinuesDetail(const Continuation& continuation);

// Moves the old log (database, keyring, keys, checkpoint) to former/<n>, where fsck and export read
// it, and begins a new one with another key and origin ("" for one made from the old name), the
// same tenant pseudonyms, and a first leaf that names the old log's newest checkpoint. Refused
// (kInvalid) where the database is as new as its checkpoint and was not restored.
Result<Continuation> AcknowledgeRollback(const std::string& folder, std::string_view origin);

// For a restored folder whose log did not go on after the backup: where the newest checkpoint that
// was ever published (a signed note) is of what the database holds, the log may go on. Else
// kFailedPrecondition.
Status ConfirmRestored(const std::string& folder, std::string_view newest_checkpoint);

}  // namespace verbatim::store
