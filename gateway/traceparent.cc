#include "gateway/traceparent.h"

#include <algorithm>
#include <set>

#include "base/bytes.h"
#include "base/check.h"

namespace verbatim::gateway {
namespace {

constexpr size_t kLength = 55;         // 00-<32>-<16>-<2>
constexpr uint8_t kKnownFlags = 0x03;  // sampled, and level 2's random trace id
constexpr size_t kMaxMembers = 32;     // of tracestate
constexpr size_t kMaxStateBytes = 512;
constexpr size_t kMaxKey = 256, kMaxValue = 256;

bool IsLowerHex(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

template <size_t N>
bool ReadId(std::string_view hex, std::array<uint8_t, N>* id) {
  if (!IsLowerHex(hex)) return false;
  const Result<std::string> bytes = HexDecode(hex);
  if (!bytes.ok() || bytes->size() != N) return false;
  std::copy(bytes->begin(), bytes->end(), reinterpret_cast<char*>(id->data()));
  return std::any_of(id->begin(), id->end(), [](uint8_t b) { return b != 0; });
}

template <size_t N>
std::string_view Bytes(const std::array<uint8_t, N>& id) {
  return {reinterpret_cast<const char*>(id.data()), N};
}

// An id of all zeros is none.
template <size_t N>
std::array<uint8_t, N> MakeId(std::string_view random) {
  CHECK(random.size() >= N);
  std::array<uint8_t, N> id;
  std::copy_n(random.begin(), N, reinterpret_cast<char*>(id.data()));
  if (std::all_of(id.begin(), id.end(), [](uint8_t b) { return b == 0; })) id[N - 1] = 1;
  return id;
}

std::string_view Trim(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

bool IsKey(std::string_view key) {
  if (key.empty() || key.size() > kMaxKey) return false;
  const auto letter_or_digit = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
  };
  if (!letter_or_digit(key[0])) return false;
  return std::all_of(key.begin(), key.end(), [&](char c) {
    return letter_or_digit(c) || c == '_' || c == '-' || c == '*' || c == '/' || c == '@';
  });
}

bool IsValue(std::string_view value) {
  if (value.empty() || value.size() > kMaxValue) return false;
  return std::all_of(value.begin(), value.end(),
                     [](char c) { return c >= 0x20 && c <= 0x7E && c != ',' && c != '='; });
}

}  // namespace

std::optional<TraceParent> ParseTraceParent(std::string_view text) {
  if (text.size() < kLength || text[2] != '-' || text[35] != '-' || text[52] != '-') {
    return std::nullopt;
  }
  const std::string_view version = text.substr(0, 2);
  const std::string_view flags = text.substr(53, 2);
  if (!IsLowerHex(version) || version == "ff" || !IsLowerHex(flags)) return std::nullopt;
  if (text.size() > kLength && (version == "00" || text[kLength] != '-')) return std::nullopt;
  TraceParent parent;
  if (!ReadId(text.substr(3, 32), &parent.trace_id)) return std::nullopt;
  if (!ReadId(text.substr(36, 16), &parent.parent_id)) return std::nullopt;
  parent.flags = static_cast<uint8_t>(HexDecode(flags).value()[0]);
  return parent;
}

std::string FormatTraceParent(const TraceParent& parent) {
  const char flags = static_cast<char>(parent.flags);
  return "00-" + HexEncode(Bytes(parent.trace_id)) + "-" + HexEncode(Bytes(parent.parent_id)) +
         "-" + HexEncode(std::string_view(&flags, 1));
}

std::string TraceIdText(const TraceParent& parent) { return HexEncode(Bytes(parent.trace_id)); }

std::optional<TraceParent> TraceOf(const Headers& headers) {
  std::optional<TraceParent> parent;
  bool seen = false;
  for (const auto& [name, value] : headers) {
    if (name != "traceparent") continue;
    if (seen) return std::nullopt;
    seen = true;
    parent = ParseTraceParent(value);
  }
  return parent;
}

TraceParent NewTrace(std::string_view random) {
  CHECK(random.size() == kTraceRandomBytes);
  return {MakeId<16>(random), MakeId<8>(random.substr(16)), 0};
}

TraceParent ChildOf(const TraceParent& parent, std::string_view random) {
  return {parent.trace_id, MakeId<8>(random), static_cast<uint8_t>(parent.flags & kKnownFlags)};
}

std::string TraceState(const Headers& headers) {
  std::string out;
  std::set<std::string_view> keys;
  for (const auto& [name, value] : headers) {
    if (name != "tracestate") continue;
    for (std::string_view rest = value; !rest.empty();) {
      const size_t end = std::min(rest.find(','), rest.size());
      const std::string_view member = Trim(rest.substr(0, end));
      rest.remove_prefix(std::min(end + 1, rest.size()));
      if (member.empty()) continue;
      const size_t equals = member.find('=');
      if (equals == std::string_view::npos || !IsKey(member.substr(0, equals)) ||
          !IsValue(member.substr(equals + 1)) || !keys.insert(member.substr(0, equals)).second) {
        return {};
      }
      const size_t more = member.size() + (out.empty() ? 0 : 1);
      if (keys.size() > kMaxMembers || out.size() + more > kMaxStateBytes) return out;
      if (!out.empty()) out += ',';
      out += member;
    }
  }
  return out;
}

std::optional<TraceParent> AddTraceHeaders(const Headers& in, bool generate,
                                           std::string_view random, Headers& out) {
  const std::optional<TraceParent> parent = TraceOf(in);
  if (!parent && !generate) return std::nullopt;
  const TraceParent sent = parent ? ChildOf(*parent, random) : NewTrace(random);
  out.emplace_back("traceparent", FormatTraceParent(sent));
  if (parent) {
    std::string state = TraceState(in);
    if (!state.empty()) out.emplace_back("tracestate", std::move(state));
  }
  return sent;
}

}  // namespace verbatim::gateway
