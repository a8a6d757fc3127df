// Intents that no entry has ended, and the entries that end those of which nobody knows the
// outcome.
//
// Threads: plain functions over a Reader; any thread. Errors: kIo, kCorrupt.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "store/prepared_append.h"
#include "store/reader.h"

namespace verbatim::store {

struct OpenIntent {
  uint64_t entry = 0;
  std::string pseudonym;  // 16 bytes
};

// Those from entry `first` on, in their order.
Result<std::vector<OpenIntent>> ReadOpenIntents(const Kv& kv, uint64_t first);

// Outcomes of an `interrupted` entry.
inline constexpr char kOutcomeUnknown[] = "unknown";   // it may have been sent, and answered
inline constexpr char kOutcomeNotSent[] = "not_sent";  // its intent was never acknowledged

// The `interrupted` entry that ends the intent: the intent's own record again, and in `extra` which
// intent it was, of what time, and the digest of its request. Where that record is erased or
// damaged, only tenant and reference remain. kIo alone is an error.
Result<PreparedAppend> InterruptedEntry(const Reader& reader, const OpenIntent& intent,
                                        const char* outcome, Ledger::AppendCallback done);

}  // namespace verbatim::store
