// W3C Trace Context (Recommendation of 2021-11-23): which trace a request belongs to, and what is
// sent on to an upstream. Pure functions; any thread. Randomness is the caller's.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "gateway/headers.h"

namespace verbatim::gateway {

struct TraceParent {
  std::array<uint8_t, 16> trace_id{};  // never all zero
  std::array<uint8_t, 8> parent_id{};  // never all zero
  uint8_t flags = 0;                   // bit 0: sampled
  friend bool operator==(const TraceParent&, const TraceParent&) = default;
};

// Strict: lower-case hexadecimal, version 00 in exactly its 55 bytes, a later version (but not ff)
// by its first 55 and a '-' behind them; nothing where it is anything else.
std::optional<TraceParent> ParseTraceParent(std::string_view text);
std::string FormatTraceParent(const TraceParent& parent);  // version 00
std::string TraceIdText(const TraceParent& parent);        // 32 hex digits

// What a request's headers say. Nothing where there is no traceparent, more than one, or a
// malformed one (which, by the specification, counts as none).
std::optional<TraceParent> TraceOf(const Headers& headers);

inline constexpr size_t kTraceRandomBytes = 24;
// A trace of our own. random: kTraceRandomBytes bytes.
TraceParent NewTrace(std::string_view random);
// The same trace and flags, as the parent of what we send: a new parent id. random: 8 bytes.
TraceParent ChildOf(const TraceParent& parent, std::string_view random);

// The tracestate fields of a request as one value, cut to its first members: at most 32, and 512
// bytes (section 3.3.1.5: whole members only). "" where there is none or its form is wrong.
std::string TraceState(const Headers& headers);

// Appends traceparent, and tracestate where there is one, for an upstream. in: the client's
// headers. generate: also where the client sent none. Gives the trace that was sent on.
std::optional<TraceParent> AddTraceHeaders(const Headers& in, bool generate,
                                           std::string_view random, Headers& out);

}  // namespace verbatim::gateway
