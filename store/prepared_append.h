// A request to the ledger whose record's bytes and digests are made: what its thread takes.
#pragma once

#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/result.h"
#include "store/ledger.h"
#include "store/ranges.h"

namespace verbatim::store {

struct PreparedAppend {
  AppendRequest request;
  std::string record_bytes;
  Digest record_digest{};
  Ledger::AppendCallback done;
  std::string pseudonym;  // where it is not that of record.tenant: a batch of hits
  std::string hit_batch;  // HitBatchKey of the batch whose leaf this is
  // No entry of its own: ends the open interval of hits; done once everything before it is stored.
  bool barrier = false;
  // Rows of Table::kMeta in the same commit: put at meta_prefix || entry u64, and removed.
  std::string meta_prefix, meta_value;
  std::vector<std::string> meta_removed;
  // Rows of the index that are removed in it, where they name one of these entries.
  std::vector<std::string> index_removed;
  Ranges erased;
};

// Checks the request against the format's rules and makes its record (kInvalid says what is wrong).
Result<PreparedAppend> PrepareAppend(AppendRequest request, Ledger::AppendCallback done);

}  // namespace verbatim::store
