// Wall-clock time in UTC microseconds, and its text form.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace verbatim {

// Microseconds since 1970-01-01T00:00:00Z. May go backwards; the ledger copes with that.
int64_t NowMicros();

// Microseconds of a clock that never goes backwards, for durations only.
int64_t MonotonicMicros();

// "2026-11-30T16:10:44.000123Z" (always six decimals), and back. RFC 3339.
std::string FormatTime(int64_t micros);
Result<int64_t> ParseTime(std::string_view text);

}  // namespace verbatim
