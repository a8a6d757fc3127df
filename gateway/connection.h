// One client connection: reads requests, answers them one after the other. Internal to the server.
#pragma once

#include <atomic>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <cstddef>
#include <memory>
#include <mutex>
#include <unordered_set>

#include "gateway/server.h"

namespace verbatim::gateway {

class Connection;

// What all connections of a server share. The counters are for Drain and for the limit.
struct ServerState {
  std::shared_ptr<const Router> router() const;
  void set_router(Router router);

  ServerLimits limits;
  Authenticator auth;
  std::atomic<bool> draining = false;
  std::atomic<size_t> running = 0;
  std::atomic<size_t> connections = 0;

 private:
  mutable std::mutex mutex_;  // guards router_
  std::shared_ptr<const Router> router_;
};

// One I/O thread's context and its connections, which only that thread touches.
struct Shard {
  std::unordered_set<Connection*> connections;
  boost::asio::io_context context{1};
};

// Serves the socket until either side closes it. Runs on `shard`'s context.
boost::asio::awaitable<void> ServeConnection(boost::asio::ip::tcp::socket socket,
                                             ServerState& state, Shard& shard);

// Turns a client away with a 503.
boost::asio::awaitable<void> RefuseConnection(boost::asio::ip::tcp::socket socket,
                                              ServerState& state);

// On the shard's thread: closes its idle connections (a drain begins), or ends all (it is over).
void CloseIdle(Shard& shard);
void CloseAll(Shard& shard);

}  // namespace verbatim::gateway
