// Reads one request off a connection: its head, then its body. Coroutines on the connection's
// thread.
#pragma once

#include <atomic>
#include <boost/asio/awaitable.hpp>
#include <cstddef>
#include <string>

#include "gateway/connection_io.h"
#include "gateway/http_head.h"
#include "gateway/server.h"

namespace verbatim::gateway {

struct ReadOutcome {
  enum class Kind {
    kOk,
    kClosed,   // the connection is over and nothing was begun
    kBroken,   // the client hung up within the request
    kRefused,  // `error` is the answer, and the connection ends
  };
  Kind kind = Kind::kOk;
  HttpError error{};
};

// Waits for a whole head. At kOk, io.kept() begins with it and *length is its size; it is checked
// no further. Where nothing was received yet, the wait ends with a drain (Shard::CloseIdle) or at
// the idle limit; `first`: nobody has asked anything on this connection, so the limit is the
// head's.
boost::asio::awaitable<ReadOutcome> ReadHead(ConnectionIo& io, const ServerLimits& limits,
                                             bool first, const std::atomic<bool>& draining,
                                             size_t* length);

// The body that the head (no longer among io.kept()) announced, de-chunked. Sends 100 Continue
// first where the client waits for it.
boost::asio::awaitable<ReadOutcome> ReadBody(ConnectionIo& io, const ServerLimits& limits,
                                             const RequestHead& head, bool expects_continue,
                                             std::string* body);

HttpError BodyTooLarge(const ServerLimits& limits);

}  // namespace verbatim::gateway
