// The log of erasures: which slots of the keyrings were destroyed, in a file outside the database
// that backups get a copy of, so that a restored older keyring can be brought to the same state.
// One signed line per erasure (store/FORMAT.md). Functions only; errors: kIo, kCorrupt.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "store/checkpoint.h"
#include "store/keyring.h"
#include "store/ranges.h"

namespace verbatim::store {

struct Erasure {
  uint64_t entry = 0;  // the one that says so
  std::string origin;
  Ranges entries, slots;
};

// A line of the file, with its newline.
Result<std::string> EncodeErasure(const Erasure& erasure, const Signer& signer);
// All lines of this origin; one that does not parse is kCorrupt, of a torn last one nothing is
// taken. Where `keys` are given, a line that none of them signed is kFailedPrecondition: whom it
// erases has to stay erased, and nobody else.
Result<std::vector<Erasure>> ParseErasures(std::string_view file, std::string_view origin,
                                           std::span<const LogKey> keys);

// Adds the line to the file at `path`, synced, unless its entry is there already.
Status AddErasure(const std::string& path, const Erasure& erasure, const Signer& signer);

}  // namespace verbatim::store
