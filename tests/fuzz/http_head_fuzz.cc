// What the server's HTTP layer does with bytes: heads, chunked bodies, routes, and the head of an
// answer that echoes them. The first byte decides how the rest is cut into packets.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/check.h"
#include "gateway/http_body.h"
#include "gateway/http_head.h"
#include "gateway/http_response.h"

using namespace verbatim;
using namespace verbatim::gateway;

namespace {

constexpr size_t kMaxFields = 100;
constexpr uint64_t kBodyLimit = 4096;

bool HasControl(std::string_view text) {
  return std::any_of(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) < 0x20 && c != '\t') || c == 0x7f;
  });
}

size_t NextCut(uint32_t* state, size_t left) {
  *state = *state * 1664525 + 1013904223;
  return std::min<size_t>(1 + (*state >> 26), left);
}

// The head's length, 0 where there is none; looked for with ever more bytes, and in one go.
size_t FindHead(std::string_view bytes, uint32_t seed) {
  size_t whole = 0;
  const HeadScan want = ScanHead(bytes, &whole);
  size_t position = 0, received = 0;
  HeadScan got = HeadScan::kMore;
  while (got == HeadScan::kMore && received < bytes.size()) {
    received += NextCut(&seed, bytes.size() - received);
    got = ScanHead(bytes.substr(0, received), &position);
  }
  CHECK(got == want);
  if (got != HeadScan::kEnd) return 0;
  CHECK(position == whole);
  return whole;
}

// The head as the server understood it, written out anew.
std::string Write(const RequestHead& head) {
  std::string out = head.method + " " + head.raw_path;
  if (!head.query.empty()) out += "?" + head.query;
  out += head.version == 10 ? " HTTP/1.0\r\n" : " HTTP/1.1\r\n";
  for (const auto& [name, value] : head.headers)
    out.append(name).append(": ").append(value).append("\r\n");
  return out + "\r\n";
}

void CheckHead(const RequestHead& head) {
  CHECK(IsHttpToken(head.method));
  CHECK(!HasControl(head.raw_path) && !HasControl(head.path) && !HasControl(head.query));
  CHECK(!HasControl(head.host) && IsUtf8(head.path));
  CHECK(head.raw_path == "*" || head.raw_path.starts_with('/'));
  CHECK(head.headers.size() <= kMaxFields);
  for (const auto& [name, value] : head.headers) {
    CHECK(IsHttpToken(name) && ToLowerCase(name) == name && !HasControl(value));
  }
  CHECK(!(head.chunked && head.content_length > 0));
  CHECK(!head.chunked || FindHeader(head.headers, "content-length").empty());

  const std::string written = Write(head);
  size_t length = 0;
  CHECK(ScanHead(written, &length) == HeadScan::kEnd && length == written.size());
  RequestHead again;
  CHECK(!ParseHead(written, kMaxFields, &again));
  CHECK(Write(again) == written);
  CHECK(again.path == head.path && again.chunked == head.chunked);
  CHECK(again.content_length == head.content_length && again.keep_alive == head.keep_alive);
}

void CheckRoute(const Router& router, const RequestHead& head) {
  const Router::Match match = router.Find(head.method, head.raw_path);
  if (match.route == nullptr) return;
  const std::string_view pattern = match.route->pattern;
  const bool parameter = pattern.find('{') != std::string_view::npos;
  CHECK(match.params.size() == (parameter ? 1u : 0u));
  for (const std::string& param : match.params) CHECK(!param.empty() && !HasControl(param));
  if (!parameter) CHECK(head.path == pattern);
}

void CheckBody(std::string_view bytes, uint32_t seed) {
  std::string whole, body;
  size_t want_used = 0, used = 0, at = 0;
  ChunkDecoder one(kBodyLimit), two(kBodyLimit);
  const ChunkDecoder::State want = one.Feed(bytes, &want_used, &whole);
  ChunkDecoder::State got = ChunkDecoder::State::kMore;
  while (got == ChunkDecoder::State::kMore && at < bytes.size()) {
    got = two.Feed(bytes.substr(at, NextCut(&seed, bytes.size() - at)), &used, &body);
    at += used;
  }
  CHECK(got == want && at == want_used && body == whole);
  CHECK(body.size() <= kBodyLimit && at <= bytes.size());
}

// Nothing that a client sent ends a line of an answer, or sets one of the server's own fields.
void CheckEcho(const RequestHead& head, std::string_view raw) {
  Headers headers = head.headers;
  headers.emplace_back("x-echo", raw);
  headers.emplace_back(raw, "value");
  ResponseForm form;
  form.length = 5;
  const std::string answer = ResponseHead(200, headers, form, "req_1", "now");
  CHECK(answer.find("\r\n\r\n") == answer.size() - 4);
  size_t lines = 0, lengths = 0;
  for (size_t at = 0, end; (end = answer.find("\r\n", at)) != std::string::npos; at = end + 2) {
    const std::string_view line(answer.data() + at, end - at);
    CHECK(line.find_first_of(std::string_view("\r\n\0", 3)) == std::string_view::npos);
    const std::string name = ToLowerCase(line.substr(0, line.find(':')));
    CHECK(name != "transfer-encoding" && name != "connection");
    if (name == "content-length") ++lengths;
    ++lines;
  }
  CHECK(lengths == 1);
  CHECK(lines <= headers.size() + 7);
}

Router MakeRouter() {
  const Handler none = [](const Request&, ResponseSink&) -> boost::asio::awaitable<void> {
    co_return;
  };
  Router router;
  router.Add({"POST", "/v1/chat/completions", 1, none});
  router.Add({"GET", "/v1/models", 1, none});
  router.Add({"GET", "/v1/models/{}", 1, none});
  router.Add({"GET", "/log/tile/{*}", 0, none});
  return router;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Router router = MakeRouter();
  if (size < 1) return 0;
  const uint32_t seed = data[0];
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  CheckBody(bytes, seed);
  RequestHead head;
  const size_t length = FindHead(bytes, seed);
  if (length > 0) {
    const auto error = ParseHead(bytes.substr(0, length), kMaxFields, &head);
    if (error) {
      CHECK(error->status >= 400 && error->status <= 505 && !error->message.empty());
      head = RequestHead();
    } else {
      CheckHead(head);
      CheckRoute(router, head);
      (void)CheckBrowserOrigin(head, seed % 2 == 0);
      if (head.chunked) CheckBody(bytes.substr(length), seed);
    }
  }
  CheckEcho(head, bytes);
  return 0;
}
