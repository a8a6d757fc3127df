// Checks a whole ledger and names each thing that is wrong with it. Changes nothing.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/json.h"
#include "base/result.h"
#include "store/data_folder.h"
#include "store/reader.h"

namespace verbatim::store {

struct FsckFinding {
  std::string kind;  // "leaf", "record", "payload", "index", "node", "keyring", "checkpoint", ...
  std::optional<uint64_t> entry;
  std::string what;
};

struct FsckReport {
  uint64_t entries = 0, hits = 0;
  uint64_t erased = 0;            // entries whose keys were destroyed, pruned ones included
  uint64_t erased_hits_rows = 0;  // likewise, rows of hits
  uint64_t pruned_before = 0;     // the newest pruning's; 0: none
  uint64_t checkpoint_size = 0;
  Digest root{};                      // recomputed from the leaves
  bool snapshot = false;              // of a running server
  std::vector<FsckFinding> findings;  // the first kMaxFindings
  uint64_t findings_omitted = 0;
  bool clean() const { return findings.empty(); }
};
inline constexpr size_t kMaxFindings = 1000;

struct FsckOptions {
  bool deep = false;  // also every database file against its checksum
  std::function<void(uint64_t done, uint64_t total)> progress = {};  // per entry; may be empty
  // The folder's log of erasures, where it is known: it has to name every erasure of the database;
  // and of what it says with the log key's signature, beyond the end of the database, the keys may
  // be gone without an entry (a restored backup).
  std::optional<std::string> erasures = {};
  // Also the keyring's rows that nothing has used yet (some 10 ms a segment).
  bool unused_keys = true;
};

// kept_checkpoint: the bytes of the checkpoint file, where it could be read. Errors only where the
// check could not go on (kIo); damage is a finding.
Result<FsckReport> CheckLedger(const Reader& reader,
                               const std::optional<std::string>& kept_checkpoint,
                               const FsckOptions& options);

// The database and checkpoint of one folder, the keyring (and its log of erasures) of another, the
// keys of a third. Nobody writes to them meanwhile.
Result<FsckReport> CheckFolder(const DataFolder& tables, const DataFolder& rings,
                               const DataFolder& secrets, FsckOptions options);

// Opens the folder itself, or asks the server that owns it for a snapshot.
Result<FsckReport> Fsck(const std::string& folder, const FsckOptions& options);

json::Value ToJson(const FsckReport& report);

}  // namespace verbatim::store
