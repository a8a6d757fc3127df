// What an export says of the log as a whole: its keys, its newest checkpoint, and those that
// witnesses cosigned, authorities dated, or the requester kept; each compared with the tree.
//
// Values but for the ledger that they are read from. Errors: kInvalid for a checkpoint that is none
// of the log, or newer than the newest; kCorrupt for one of another tree; kIo.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/result.h"
#include "store/checkpoint.h"
#include "store/reader.h"

namespace verbatim::audit {

class LogEvidence {
 public:
  // Borrows the reader.
  explicit LogEvidence(const store::Reader& reader) : reader_(reader) {}

  // The newest checkpoint, which all the others are older than.
  Status Open(const std::string& newest);
  // A checkpoint of the log. Of one size the signatures of all that are given come together: the
  // log's first, as a timestamp is over these bytes.
  Status Add(const std::string& note);
  // Of what the ledger keeps: the newest cosigned checkpoint; the timestamps of checkpoints that
  // end within the entries from..to; and the first one that covers them all.
  Status AddAnchors(uint64_t from, uint64_t to);

  const store::TreeHead& head() const { return head_; }
  // Those that sign heads up to the newest checkpoint's.
  const std::vector<store::LogKey>& keys() const { return keys_; }
  const std::string& checkpoint() const { return notes_.at(head_.size); }
  // By size; the newest is the last one.
  const std::map<uint64_t, std::string>& checkpoints() const { return notes_; }
  // Responses of time-stamping authorities, by the checkpoint's size.
  const std::map<uint64_t, std::string>& timestamps() const { return timestamps_; }

 private:
  const store::Reader& reader_;
  std::vector<store::LogKey> keys_;
  store::TreeHead head_;
  std::map<uint64_t, std::string> notes_, timestamps_;
};

// Of a note that opens: what a timestamp is over, its bytes up to the first signature's end.
std::string_view StampedPart(std::string_view note);

}  // namespace verbatim::audit
