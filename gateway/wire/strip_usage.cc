// Usage that the gateway asked for and its client did not (reply_convert.h).
#include <algorithm>
#include <vector>

#include "gateway/wire/json_read.h"
#include "gateway/wire/reply_convert.h"
#include "gateway/wire/sse.h"

namespace verbatim::gateway {

namespace {

using json::Value;

constexpr json::ParseLimits kEventLimits{
    .max_bytes = size_t{64} << 20, .max_depth = 128, .max_values = size_t{1} << 18};

// A chunk that is there to hold usage: no choices, and nothing else beside what every chunk has.
bool OnlyHoldsUsage(const Value& chunk) {
  const Value* choices = FindArray(chunk, "choices");
  if (choices == nullptr || !choices->items().empty()) return false;
  if (FindObject(chunk, "usage") == nullptr) return false;
  static constexpr std::string_view kEveryChunk[] = {
      "id",    "object",       "created",     "model",    "choices",
      "usage", "service_tier", "obfuscation", "provider", "system_fingerprint"};
  return std::all_of(chunk.members().begin(), chunk.members().end(), [](const auto& member) {
    return member.second.is_null() || std::find(std::begin(kEveryChunk), std::end(kEveryChunk),
                                                member.first) != std::end(kEveryChunk);
  });
}

// The bytes of `text` that hold the member `at` of `object`, with the comma that goes with it.
std::pair<size_t, size_t> MemberRange(std::string_view text, const Value& object, size_t at) {
  const json::Object& members = object.members();
  const size_t end = members[at].second.text_end();
  if (at > 0) return {members[at - 1].second.text_end(), end};
  const size_t begin = object.text_begin() + 1;
  if (members.size() == 1) return {begin, end};
  const size_t comma = text.find(',', end);
  return {begin, comma == std::string_view::npos ? end : comma + 1};
}

// Where `data`, which an event holds, begins in the event's bytes; npos where it is spread over
// several lines.
size_t DataLine(std::string_view bytes, std::string_view data) {
  for (size_t at = bytes.find(data); at != std::string_view::npos; at = bytes.find(data, at + 1)) {
    std::string_view before = bytes.substr(0, at);
    if (before.ends_with(' ')) before.remove_suffix(1);
    if (!before.ends_with("data:")) continue;
    before.remove_suffix(5);
    if (before.empty() || before.back() == '\n' || before.back() == '\r' ||
        before == "\xef\xbb\xbf") {
      return at;
    }
  }
  return std::string_view::npos;
}

}  // namespace

ByteRange UsageIn(std::string_view event_bytes, std::string_view data, const Value& chunk) {
  const auto range = [](size_t begin, size_t end) {
    return ByteRange{static_cast<uint32_t>(begin), static_cast<uint32_t>(end - begin)};
  };
  if (OnlyHoldsUsage(chunk)) return range(0, event_bytes.size());
  const Value* choices = FindArray(chunk, "choices");
  const bool no_choices = choices != nullptr && choices->items().empty();
  const json::Object& members = chunk.members();
  for (size_t i = 0; i < members.size(); ++i) {
    if (members[i].first != "usage" || !(members[i].second.is_null() || no_choices)) continue;
    const size_t line = DataLine(event_bytes, data);
    if (line == std::string_view::npos) return {};
    const auto [begin, end] = MemberRange(data, chunk, i);
    return range(line + begin, line + end);
  }
  return {};
}

ByteRange UsageIn(std::string_view event_bytes) {
  if (event_bytes.find("usage") == std::string_view::npos) return {};
  // After lone CRs a piece may begin with an LF that ends nothing (sse.h).
  const std::string_view event = event_bytes.substr(event_bytes.starts_with('\n') ? 1 : 0);
  const std::vector<SsePiece> pieces = ParseEventStream(event);
  if (pieces.size() != 1 || !pieces[0].event) return {};
  const std::string& data = pieces[0].event->data;
  const Result<Value> chunk = json::Parse(data, kEventLimits);
  return chunk.ok() && chunk->is_object() ? UsageIn(event_bytes, data, *chunk) : ByteRange();
}

std::optional<std::string> WithoutUsage(std::string_view event_bytes) {
  const ByteRange usage = UsageIn(event_bytes);
  if (usage.size == event_bytes.size() && usage.size > 0) return std::nullopt;
  std::string kept(event_bytes);
  kept.erase(usage.begin, usage.size);
  return kept;
}

std::string StreamWithoutUsage(std::string_view stream) {
  std::string out;
  for (const SsePiece& piece : ParseEventStream(stream)) {
    if (const std::optional<std::string> kept = WithoutUsage(piece.bytes)) out += *kept;
  }
  return out;
}

}  // namespace verbatim::gateway
