// From one version of the database's format to the next, in place.
#pragma once

#include <cstdint>
#include <functional>

#include "store/keyring.h"
#include "store/kv.h"

namespace verbatim::store {

struct MigrationOptions {
  // Called after each durable step with the rows done so far; may be empty.
  std::function<void(uint64_t rows)> progress = {};
  size_t rows_a_step = 1024;
};

// Brings a database of an older format to kFormatVersion; ok at once where it has that, or none.
// The first step marks the database as being migrated, which every build but one that knows how to
// go on refuses; each step is one durable batch that holds its own bookmark, so that a migration
// goes on where a kill or a failed disk ended it. Nothing else may write meanwhile. `hits` is the
// hits' keyring. kFailedPrecondition for a format that this build does not know; kCorrupt where a
// row is damaged, and then nothing of that row is changed; kIo.
Status Migrate(Kv& kv, const Keyring& hits, const MigrationOptions& options);

}  // namespace verbatim::store
