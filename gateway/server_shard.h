// What a server's connections on one I/O thread share: a coarse clock, memory to read into, and the
// list of them. Only that thread touches it, but for posting to its context.
//
// The clock ticks every 100 ms while there are connections. A tick ends what is past its deadline
// and asks the kernel, in one call for all connections, which clients have hung up: so neither
// costs a timer or a system call per request.
#pragma once

#include <poll.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "gateway/http_response.h"

namespace verbatim::gateway {

class ConnectionIo;

class Shard : public std::enable_shared_from_this<Shard> {
 public:
  // half_close: a client that only sends no more (FIN) has not hung up.
  Shard(boost::asio::io_context& context, bool half_close);
  Shard(const Shard&) = delete;
  Shard& operator=(const Shard&) = delete;

  boost::asio::io_context& context() { return context_; }

  void Add(ConnectionIo* connection);
  void Remove(ConnectionIo* connection);
  void CloseIdle();  // a drain begins
  void CloseAll();   // it is over
  void Stop();       // no tick comes any more; the context is not used again

  // Ticks so far; a limit in ticks, at least as long as said.
  uint64_t now() const { return tick_; }
  static uint64_t Ticks(std::chrono::milliseconds limit);

  std::span<char> scratch() { return scratch_; }  // whose bytes last until the next suspension
  std::string_view Date() { return date_.Now(); }
  // "req_" + 32 hex: the time in milliseconds (12), so that the database gets receipts nearly in
  // order, and 20 random, so that nobody guesses one.
  std::string NewRequestId();

 private:
  void StartTicking();
  void Tick();

  const short hang_up_events_;
  uint64_t tick_ = 0;
  bool ticking_ = false;
  std::vector<char> scratch_;
  std::vector<ConnectionIo*> connections_;
  std::vector<pollfd> polled_;          // of a tick, kept for its memory
  std::vector<ConnectionIo*> watched_;  // likewise
  HttpDate date_;
  std::string random_;
  boost::asio::io_context& context_;
  std::optional<boost::asio::steady_timer> timer_;
};

}  // namespace verbatim::gateway
