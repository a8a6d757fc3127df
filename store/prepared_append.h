// A request to the ledger whose record's bytes and digests are made: what its thread takes.
#pragma once

#include <string>

#include "base/bytes.h"
#include "base/result.h"
#include "store/ledger.h"

namespace verbatim::store {

struct PreparedAppend {
  AppendRequest request;
  std::string record_bytes;
  Digest record_digest{};
  Ledger::AppendCallback done;
  std::string pseudonym;  // where it is not that of record.tenant: a batch of hits
  std::string hit_batch;  // HitBatchKey of the batch whose leaf this is
};

// Checks the request against the format's rules and makes its record (kInvalid says what is wrong).
Result<PreparedAppend> PrepareAppend(AppendRequest request, Ledger::AppendCallback done);

}  // namespace verbatim::store
