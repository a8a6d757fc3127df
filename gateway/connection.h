// One client connection: reads requests, answers them one after the other. Internal to the server.
#pragma once

#include <atomic>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <cstddef>
#include <memory>
#include <mutex>

#include "gateway/server.h"
#include "gateway/server_shard.h"

namespace verbatim::gateway {

// What all connections of a server share. The counters are for Drain and for the limit.
struct ServerState {
  std::shared_ptr<const Router> router() const;
  void set_router(Router router);
  std::shared_ptr<const TlsContext> tls() const;  // null: none
  void set_tls(std::shared_ptr<const TlsContext> context);

  ServerOptions options;
  Authenticator auth;
  std::atomic<bool> draining = false;
  std::atomic<size_t> running = 0;
  std::atomic<size_t> connections = 0;

 private:
  mutable std::mutex mutex_;  // guards what follows
  std::shared_ptr<const Router> router_;
  std::shared_ptr<const TlsContext> tls_;
};

// Serves the socket until either side closes it. Runs on `shard`'s context.
boost::asio::awaitable<void> ServeConnection(boost::asio::ip::tcp::socket socket,
                                             ServerState& state, Shard& shard);

// Turns a client away with a 503 (in the clear, so that it costs no handshake).
boost::asio::awaitable<void> RefuseConnection(boost::asio::ip::tcp::socket socket,
                                              ServerState& state, Shard& shard);

}  // namespace verbatim::gateway
