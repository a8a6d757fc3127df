// One TCP connection to an upstream or its proxy, with TLS over it once Handshake was called. On
// one executor; one read and one write at a time. Held by shared_ptr, since a write that was begun
// keeps it until its callback.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "gateway/upstream/tls.h"

namespace verbatim::gateway {

class UpstreamConnection : public std::enable_shared_from_this<UpstreamConnection> {
 public:
  using error_code = boost::system::error_code;

  explicit UpstreamConnection(const boost::asio::any_io_executor& executor);
  ~UpstreamConnection();
  UpstreamConnection(const UpstreamConnection&) = delete;
  UpstreamConnection& operator=(const UpstreamConnection&) = delete;

  boost::asio::awaitable<void> Connect(boost::asio::ip::tcp::endpoint to, error_code& ec);
  // `why` says in words what ec does not.
  boost::asio::awaitable<void> Handshake(SSL_CTX* context, std::string host, bool is_ip,
                                         error_code& ec, std::string& why);

  // Waits for bytes. They lie in `scratch`, or where TLS keeps them, until the next suspension: a
  // connection that waits holds no memory for reading, except for TLS. at_once: there probably are
  // some; it waits only if there are none.
  boost::asio::awaitable<std::string_view> Receive(std::span<char> scratch, error_code& ec,
                                                   bool at_once = false);
  // Begins to write head and body (null: none). `progress` comes whenever some of it went out,
  // `done` once, later.
  void Write(std::string head, std::shared_ptr<const std::string> body,
             std::function<void()> progress, std::function<void(error_code)> done);

  // Everything outstanding ends with an error.
  void Close();

  // While unused: `broken` comes once, at the latest when the other side closes or sends anything.
  // EndWatch says whether the connection is still good for another request.
  void Watch(std::function<void()> broken);
  bool EndWatch();

  // How a peer that ended in good order looks to a reader.
  static bool IsEnd(const error_code& ec);

 private:
  struct Tls;
  boost::asio::ip::tcp::socket socket_;
  std::unique_ptr<Tls> tls_;
};

}  // namespace verbatim::gateway
