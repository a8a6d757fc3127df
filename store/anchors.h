// What others say of the log's heads, kept beside them: witnesses' cosignatures (the newest
// checkpoint that has a quorum of them, and the last one of each hour) and RFC 3161 timestamps.
//
// Threads: every method may be called from any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "store/anchor_options.h"
#include "store/kv.h"
#include "store/reader.h"
#include "store/timestamp.h"

namespace verbatim::store {

// A checkpoint as the log signed it, and the response of the authority that dated these bytes.
struct StoredTimestamp {
  uint64_t size = 0;
  std::string checkpoint, response;
};

class Anchors {
 public:
  // Borrows kv and reader. failed: called after a write that failed.
  Anchors(Kv& kv, const Reader& reader, AnchorOptions options, std::function<int64_t()> now,
          std::function<void()> failed);
  // Reads what is stored.
  Status Load();

  // Signature lines that a witness gave for a checkpoint of this log. Lines of others and strange
  // times are not taken. kNotFound where none was a cosignature by `witness`; kCorrupt where one
  // was wrong; kInvalid where they are no signature lines, or the checkpoint is not this log's.
  Status AddCosignatures(std::string_view checkpoint, std::string_view lines,
                         const CosignerKey& witness);
  // The newest checkpoint with a quorum, cosignatures included; "" while there is none.
  std::string Cosigned() const;
  // Its size, and how old the quorum is (by the witnesses' clocks, and never newer than ours).
  // {0, -1} while there is none.
  struct Quorum {
    uint64_t size = 0;
    int64_t age_micros = -1;
  };
  Quorum quorum() const;
  // Why the quorum is too old, in one line; "" while it is not, or none is demanded.
  std::string Stale() const;

  // Keeps the response where it holds for this checkpoint (VerifyTimestamp) and has this nonce.
  Result<Timestamp> AddTimestamp(std::string_view checkpoint, std::string_view response,
                                 uint64_t nonce);

  // Newest first, `limit` at most.
  Result<std::vector<StoredTimestamp>> Timestamps(size_t limit) const;

  const AnchorOptions& options() const { return options_; }

 private:
  struct Collected {
    std::string checkpoint;                      // as the log signed it
    std::map<std::string, Cosignature> by_name;  // the newest of each witness
  };
  std::string NoteOf(const Collected& collected) const;
  int64_t TimeOf(const Collected& collected) const;
  Status Keep(uint64_t size, const Collected& collected);

  Kv& kv_;
  const Reader& reader_;
  const AnchorOptions options_;
  const std::function<int64_t()> now_;
  const std::function<void()> failed_;
  const int64_t opened_;      // since when a quorum is missing where there never was one
  mutable std::mutex mutex_;  // guards what follows
  std::map<uint64_t, Collected> waiting_;  // by size; without a quorum yet, or the newest with one
  uint64_t newest_ = 0;                    // size of the newest with a quorum; 0: none
};

// Anchors as they are stored (FORMAT.md, Anchors), for readers of a ledger at rest.
// The newest cosigned checkpoint of at most `size` entries; "" where there is none.
Result<std::string> ReadCosigned(const Kv& kv, uint64_t size);
// Timestamps, newest first, `limit` at most.
Result<std::vector<StoredTimestamp>> ReadTimestamps(const Kv& kv, size_t limit);

}  // namespace verbatim::store
