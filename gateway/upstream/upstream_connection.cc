#include "gateway/upstream/upstream_connection.h"

#include <sys/socket.h>

#include <array>
#include <boost/asio/error.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <cerrno>
#include <utility>

namespace verbatim::gateway {

namespace asio = boost::asio;
using asio::ip::tcp;

namespace {

constexpr size_t kWriteAtOnce = 64 << 10;
constexpr size_t kTlsReadBytes = 4 << 10;

}  // namespace

struct UpstreamConnection::Tls {
  Tls(tcp::socket& socket, SSL* ssl) : stream(socket, ssl) {}
  asio::ssl::stream<tcp::socket&> stream;
  std::array<char, kTlsReadBytes> received;
};

UpstreamConnection::UpstreamConnection(const asio::any_io_executor& executor) : socket_(executor) {}
UpstreamConnection::~UpstreamConnection() = default;

asio::awaitable<void> UpstreamConnection::Connect(tcp::endpoint to, error_code& ec) {
  co_await socket_.async_connect(to, asio::redirect_error(asio::use_awaitable, ec));
  if (ec) co_return;
  error_code ignored;  // a socket without these still works
  socket_.set_option(tcp::no_delay(true), ignored);
  socket_.set_option(asio::socket_base::keep_alive(true), ignored);
}

asio::awaitable<void> UpstreamConnection::Handshake(SSL_CTX* context, std::string host, bool is_ip,
                                                    error_code& ec, std::string& why) {
  tls_ = std::make_unique<Tls>(socket_, NewTlsClient(context, host, is_ip));
  co_await tls_->stream.async_handshake(asio::ssl::stream_base::client,
                                        asio::redirect_error(asio::use_awaitable, ec));
  if (ec) why = TlsFailure(tls_->stream.native_handle(), ec.message());
}

asio::awaitable<std::string_view> UpstreamConnection::Receive(std::span<char> scratch,
                                                              error_code& ec, bool at_once) {
  if (tls_) {
    const asio::mutable_buffer into(tls_->received.data(), tls_->received.size());
    const size_t n =
        co_await tls_->stream.async_read_some(into, asio::redirect_error(asio::use_awaitable, ec));
    co_return std::string_view(tls_->received.data(), n);
  }
  for (;; at_once = false) {
    // Always at once, without a wait, it would be nobody else's turn as long as there is more.
    if (!at_once) {
      co_await socket_.async_wait(tcp::socket::wait_read,
                                  asio::redirect_error(asio::use_awaitable, ec));
    }
    if (ec) co_return std::string_view();
    const ssize_t n = recv(socket_.native_handle(), scratch.data(), scratch.size(), MSG_DONTWAIT);
    if (n > 0) co_return std::string_view(scratch.data(), static_cast<size_t>(n));
    if (n == 0) {
      ec = asio::error::eof;
      co_return std::string_view();
    }
    if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) {
      ec.assign(errno, boost::system::system_category());
      co_return std::string_view();
    }
  }
}

void UpstreamConnection::Write(std::string head, std::shared_ptr<const std::string> body,
                               std::function<void()> progress,
                               std::function<void(error_code)> done) {
  auto owned = std::make_shared<const std::string>(std::move(head));
  const std::array<asio::const_buffer, 2> buffers = {
      asio::buffer(*owned), body ? asio::buffer(*body) : asio::const_buffer()};
  auto condition = [progress = std::move(progress)](const error_code& ec, size_t) {
    progress();
    return ec ? 0 : kWriteAtOnce;
  };
  auto finished = [self = shared_from_this(), owned, body, done = std::move(done)](
                      const error_code& ec, size_t) { done(ec); };
  if (tls_) {
    asio::async_write(tls_->stream, buffers, std::move(condition), std::move(finished));
  } else {
    asio::async_write(socket_, buffers, std::move(condition), std::move(finished));
  }
}

void UpstreamConnection::Close() {
  error_code ignored;
  socket_.close(ignored);
}

void UpstreamConnection::Watch(std::function<void()> broken) {
  socket_.async_wait(tcp::socket::wait_read,
                     [self = shared_from_this(), broken = std::move(broken)](const error_code& ec) {
                       if (!ec) broken();
                     });
}

bool UpstreamConnection::EndWatch() {
  error_code ec;
  socket_.cancel(ec);
  if (ec || !socket_.is_open()) return false;
  // Nothing may be there to read: neither the end nor bytes that nobody asked for.
  char byte = 0;
  const ssize_t n = recv(socket_.native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  return n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
}

bool UpstreamConnection::IsEnd(const error_code& ec) { return ec == asio::error::eof; }

}  // namespace verbatim::gateway
