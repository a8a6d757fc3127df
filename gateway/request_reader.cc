#include "gateway/request_reader.h"

#include <algorithm>
#include <utility>

#include "gateway/http_body.h"

namespace verbatim::gateway {
namespace {

using boost::asio::awaitable;
using Got = ConnectionIo::Got;
using Kind = ReadOutcome::Kind;

// A length is only announced: this much of it is believed before bytes arrive.
constexpr uint64_t kReserve = uint64_t{1} << 20;

ReadOutcome Refused(int status, std::string message) {
  ReadOutcome outcome;
  outcome.kind = Kind::kRefused;
  outcome.error.status = status;
  outcome.error.message = std::move(message);
  return outcome;
}

ReadOutcome Of(Kind kind) {
  ReadOutcome outcome;
  outcome.kind = kind;
  return outcome;
}

// What is wrong with a head of which only a part is there, if that can be said already.
ReadOutcome CheckBeginning(std::string_view received, HeadScan scan, const ServerLimits& limits) {
  if (received.starts_with("\x16\x03")) {
    return Refused(400, "This port speaks plain HTTP; use http://, not https://.");
  }
  if (scan == HeadScan::kBareNewline) {
    return Refused(400, "Lines of a request head must end with CRLF.");
  }
  if (received.size() >= limits.header_bytes) {
    return Refused(431, "The request line and headers are larger than " +
                            std::to_string(limits.header_bytes) + " bytes.");
  }
  return ReadOutcome();
}

}  // namespace

HttpError BodyTooLarge(const ServerLimits& limits) {
  HttpError error;
  error.status = 413;
  error.message =
      "The request body is larger than " + std::to_string(limits.body_bytes) + " bytes.";
  return error;
}

awaitable<ReadOutcome> ReadHead(ConnectionIo& io, const ServerLimits& limits, bool first,
                                const std::atomic<bool>& draining, size_t* length) {
  size_t position = 0;
  bool begun = !io.kept().empty();
  io.LimitReads(begun || first ? limits.header_time : limits.keep_alive_idle);
  for (;;) {
    // Empty lines before a request are skipped (RFC 9112, section 2.2).
    while (position == 0 && io.kept().starts_with("\r\n")) io.Use(2);
    const std::string_view received = io.kept();
    const HeadScan scan = ScanHead(received, &position);
    if (scan == HeadScan::kEnd && position <= limits.header_bytes) {
      *length = position;
      co_return ReadOutcome();
    }
    ReadOutcome wrong = CheckBeginning(received, scan, limits);
    if (wrong.kind != Kind::kOk) co_return wrong;
    if (!begun && draining) co_return Of(Kind::kClosed);
    io.set_idle(!begun);
    std::string_view bytes;
    const Got got = co_await io.Receive(&bytes);
    io.set_idle(false);
    if (got == Got::kTimedOut && begun) {
      co_return Refused(408, "The request's headers took too long to arrive.");
    }
    if (got != Got::kBytes) co_return Of(Kind::kClosed);
    io.Keep(bytes);
    if (!begun) {
      begun = true;
      io.LimitReads(limits.header_time);
    }
  }
}

awaitable<ReadOutcome> ReadBody(ConnectionIo& io, const ServerLimits& limits,
                                const RequestHead& head, bool expects_continue, std::string* body) {
  if (!head.has_body()) co_return ReadOutcome();
  if (expects_continue && head.version == 11 && io.kept().empty()) {
    const bool sent = co_await io.Send("HTTP/1.1 100 Continue\r\n\r\n", limits.write_stall);
    if (!sent) co_return Of(Kind::kBroken);
  }
  ChunkDecoder decoder(limits.body_bytes);
  if (!head.chunked) body->reserve(std::min(head.content_length, kReserve));
  io.LimitReads(limits.body_time);
  std::string_view bytes = io.kept();
  bool kept = true;  // bytes are the connection's own; later ones are the shard's
  for (;;) {
    size_t used = 0;
    ChunkDecoder::State state = ChunkDecoder::State::kMore;
    if (head.chunked) {
      state = decoder.Feed(bytes, &used, body);
    } else {
      used = std::min<uint64_t>(head.content_length - body->size(), bytes.size());
      body->append(bytes.substr(0, used));
      if (body->size() == head.content_length) state = ChunkDecoder::State::kDone;
    }
    if (kept) {
      io.Use(used);
    } else {
      io.Keep(bytes.substr(used));
    }
    if (state == ChunkDecoder::State::kDone) break;
    if (state == ChunkDecoder::State::kTooLarge) {
      ReadOutcome outcome = Of(Kind::kRefused);
      outcome.error = BodyTooLarge(limits);
      co_return outcome;
    }
    if (state == ChunkDecoder::State::kMalformed) {
      co_return Refused(400, "The request body's chunks are malformed.");
    }
    const Got got = co_await io.Receive(&bytes);
    kept = false;
    if (got == Got::kTimedOut) {
      co_return Refused(408, "The request's body took too long to arrive.");
    }
    if (got != Got::kBytes) co_return Of(Kind::kBroken);
  }
  io.LiftLimit();
  co_return ReadOutcome();
}

}  // namespace verbatim::gateway
