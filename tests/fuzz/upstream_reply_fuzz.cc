// Replies of hostile upstreams: headers, chunks, content codings. However a reply is cut into
// packets, it is whole or not, with the same head and body. The first byte says how it is cut.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/check.h"
#include "gateway/upstream/content_coding.h"
#include "gateway/upstream/response_parser.h"

using namespace verbatim;
using namespace verbatim::gateway;

namespace {

constexpr size_t kHeaderBytes = 64 << 10;
constexpr size_t kBodyBytes = 256 << 10;

struct Reply final : ResponseEvents {
  FetchHead head;
  std::string body;
  std::unique_ptr<ContentDecoder> decoder;
  bool done = false;

  bool OnHead(FetchHead got, int64_t) override {
    head = std::move(got);
    std::string codings;
    for (const auto& [name, value] : head.headers) {
      if (name == "content-encoding") codings += value + ",";
    }
    auto made = MakeContentDecoder(codings);
    if (!made.ok()) return false;
    decoder = *std::move(made);
    return true;
  }
  bool OnBody(std::string_view bytes) override {
    const DecodedSink take = [this](std::string_view decoded) {
      body += decoded;
      return body.size() <= kBodyBytes;
    };
    if (!decoder) return take(bytes);
    return decoder->Decode(bytes, take) == ContentDecoder::State::kOk;
  }
};

void Read(std::string_view bytes, size_t packet, Reply& reply) {
  ResponseParser parser(reply, kHeaderBytes, kBodyBytes, false);
  std::string waiting;
  auto state = ResponseParser::State::kMore;
  while (!bytes.empty() && state == ResponseParser::State::kMore) {
    waiting += bytes.substr(0, packet);
    bytes.remove_prefix(std::min(packet, bytes.size()));
    const size_t taken = parser.Put(waiting, state);
    CHECK(taken <= waiting.size());
    CHECK(taken == waiting.size() || !parser.has_head() || state != ResponseParser::State::kMore);
    waiting.erase(0, taken);
  }
  if (state == ResponseParser::State::kMore) state = parser.PutEnd();
  reply.done = state == ResponseParser::State::kDone && (!reply.decoder || reply.decoder->AtEnd());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 1) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  Reply whole, cut;
  Read(bytes, size, whole);
  Read(bytes, 1 + data[0] % 16, cut);
  CHECK(whole.done == cut.done);
  if (whole.done) {
    CHECK(whole.head.status == cut.head.status && whole.head.headers == cut.head.headers);
    CHECK(whole.body == cut.body);
  }
  return 0;
}
