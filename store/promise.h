// Promises: the log's signed word that an entry is in it, or will be, given before a checkpoint
// covers it. Whoever holds one and is later shown a log without that entry can prove what was
// promised.
//
// A promise is a signed note (c2sp.org/signed-note) by the log's key whose text is
//   verbatim-promise-1
//   <origin>
//   <request id>
//   <tenant's pseudonym>
//   entry <number> <base64 of the leaf's RFC 6962 hash>     or: hit <base64 of the hit's
//   commitment> <when it was given, RFC 3339, microseconds> <until when a published checkpoint
//   covers it, likewise>
// Values only; all functions may be called from any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/bytes.h"
#include "base/result.h"
#include "store/checkpoint.h"

namespace verbatim::store {

// How long the log may take: its maximum merge delay.
inline constexpr int64_t kPromiseMicros = 60'000'000;

struct Promise {
  std::string origin, request_id;
  std::string tenant;             // pseudonym
  std::optional<uint64_t> entry;  // absent: a hit that waits for its batch's entry
  Digest hash{};                  // of the leaf; of a hit its commitment
  int64_t given = 0, until = 0;   // UTC, microseconds
};
// kInvalid where a part cannot stand in a line.
Result<std::string> FormatPromise(const Promise& promise);
Result<Promise> ParsePromise(std::string_view text);
// A promise signed by one of the log's keys.
Result<Promise> OpenPromise(std::string_view note, std::span<const LogKey> keys);

}  // namespace verbatim::store
