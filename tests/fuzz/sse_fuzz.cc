// Event streams of hostile upstreams: the parser, the reader of replies, the conversions.
// The first byte chooses the API, the second how the rest is cut into packets.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/json.h"
#include "gateway/wire/reply_convert.h"
#include "gateway/wire/reply_reader.h"
#include "gateway/wire/sse.h"

using namespace verbatim;
using namespace verbatim::gateway;

namespace {

std::vector<std::string_view> Packets(std::string_view bytes, uint8_t seed) {
  std::vector<std::string_view> packets;
  uint32_t state = seed;
  while (!bytes.empty()) {
    state = state * 1664525 + 1013904223;
    const size_t length = std::min<size_t>(1 + (state >> 24) % (1 + seed % 64), bytes.size());
    packets.push_back(bytes.substr(0, length));
    bytes.remove_prefix(length);
  }
  return packets;
}

void CheckParser(std::string_view bytes, uint8_t seed) {
  const std::vector<SsePiece> whole = ParseEventStream(bytes);
  SseParser parser(bytes.size());
  std::vector<SsePiece> cut;
  for (std::string_view packet : Packets(bytes, seed)) parser.Feed(packet, cut);
  parser.Finish(cut);
  CHECK(cut.size() == whole.size());
  std::string joined;
  for (size_t i = 0; i < cut.size(); ++i) {
    CHECK(cut[i].bytes == whole[i].bytes);
    CHECK(cut[i].event.has_value() == whole[i].event.has_value());
    if (cut[i].event) CHECK(cut[i].event->data == whole[i].event->data);
    joined += cut[i].bytes;
  }
  CHECK(joined == bytes);
}

ReplySummary CheckReader(Endpoint endpoint, bool streamed, std::string_view bytes, uint8_t seed) {
  ReplyReader reader(endpoint, streamed, {.max_event_bytes = 1 << 16, .choices = 1});
  std::string joined;
  for (std::string_view packet : Packets(bytes, seed)) {
    for (const ReplyPiece& piece : reader.Feed(packet)) joined += piece.bytes;
  }
  std::vector<ReplyPiece> rest;
  ReplySummary summary = reader.Finish(true, rest);
  for (const ReplyPiece& piece : rest) joined += piece.bytes;
  CHECK(joined == bytes);
  CHECK(summary.complete == summary.why_not.empty());
  return summary;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const Endpoint endpoint = AllEndpoints()[data[0] % AllEndpoints().size()];
  const uint8_t seed = data[1];
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 2, size - 2);

  CheckParser(bytes, seed);
  CheckReader(endpoint, true, bytes, seed);
  CheckReader(endpoint, false, bytes, seed);

  // What a stream becomes is JSON; and what can be a stream again says the same.
  if (const auto plain = StreamToPlain(endpoint, bytes)) {
    CHECK(json::Parse(*plain).ok());
    if (const auto stream = PlainToStream(endpoint, *plain, true)) {
      CHECK(FirstDifference(ComparableAnswer(endpoint, *plain, false),
                            ComparableAnswer(endpoint, *stream, true))
                .empty());
    }
  }
  (void)PlainToStream(endpoint, bytes, seed % 2 == 0);
  (void)ComparableAnswer(endpoint, bytes, true);
  (void)ComparableAnswer(endpoint, bytes, false);

  // Stripping twice is stripping once.
  const std::string stripped = StreamWithoutUsage(bytes);
  CHECK(stripped.size() <= bytes.size());
  CHECK(StreamWithoutUsage(stripped) == stripped);
  return 0;
}
