// The part of an exchange that comes to a connection: a place in the pool, addresses, TCP, the
// proxy's tunnel, TLS.
#include <boost/asio/ip/address.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <utility>

#include "gateway/upstream/exchange.h"

namespace verbatim::gateway {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;
using std::chrono::milliseconds;

namespace {

// A proxy's answer to CONNECT is one header.
constexpr size_t kTunnelReplyBytes = 16 << 10;

std::string HostPort(const std::string& host, uint16_t port) {
  return (host.find(':') == std::string::npos ? host : "[" + host + "]") + ":" +
         std::to_string(port);
}

// "HTTP/1.1 200 ..." gives 200; 0 where it is no status line.
int StatusOf(std::string_view reply) {
  if (reply.size() < 12 || reply.substr(0, 7) != "HTTP/1." || reply[8] != ' ') return 0;
  int status = 0;
  for (const char c : reply.substr(9, 3)) {
    if (c < '0' || c > '9') return 0;
    status = status * 10 + (c - '0');
  }
  return status;
}

}  // namespace

std::string Exchange::PeerName() const {
  return HostPort(origin().peer_host(), origin().peer_port());
}

void Exchange::OnPlace(std::shared_ptr<UpstreamConnection> connection) {
  waits_ = false;
  has_place_ = true;
  connection_ = std::move(connection);
  event_.cancel();
}

void Exchange::OnAddresses() { event_.cancel(); }

asio::awaitable<void> Exchange::WaitForEvent() {
  error_code ec;
  event_.expires_at(SteadyClock::time_point::max());
  co_await event_.async_wait(asio::redirect_error(asio::use_awaitable, ec));
}

asio::awaitable<void> Exchange::TakePlace() {
  connect_limit_ = began_ + milliseconds(pool_->origin().options().connect_ms);
  Limit(connect_limit_, FetchFault::kConnectTimeout);
  has_place_ = pool_->Take(*this, connection_);
  waits_ = !has_place_;
  while (!has_place_ && !broken()) co_await WaitForEvent();
}

asio::awaitable<void> Exchange::Open() {
  if (end_.reconnected) {
    connect_limit_ = SteadyClock::now() + milliseconds(pool_->origin().options().connect_ms);
  }
  Limit(connect_limit_, FetchFault::kConnectTimeout);
  std::vector<tcp::endpoint> endpoints;
  if (origin().peer_is_ip()) {
    error_code ec;
    const auto address = asio::ip::make_address(origin().peer_host(), ec);
    if (!ec) endpoints.emplace_back(address, origin().peer_port());
  } else {
    const std::shared_ptr<const NameLookup> found = co_await Resolve();
    if (broken()) co_return;
    endpoints = found->endpoints;
  }
  co_await Connect(std::move(endpoints));
  if (broken()) {
    pool_->ForgetAddresses();
    co_return;
  }
  if (origin().url.https && origin().proxy) co_await OpenTunnel();
  if (!broken() && origin().url.https) co_await Secure();
}

asio::awaitable<std::shared_ptr<const NameLookup>> Exchange::Resolve() {
  const std::shared_ptr<const NameLookup> lookup = pool_->Resolve(shared_from_this());
  while (!lookup->done && !broken()) co_await WaitForEvent();
  if (!broken() && lookup->error) {
    Break(FetchFault::kDnsFailed,
          "the name " + origin().peer_host() + " is not known: " + lookup->error.message());
  }
  co_return lookup;
}

// One address after the other. An address that does not answer takes its share of the time only, so
// that a broken route for IPv6 leaves some for IPv4.
asio::awaitable<void> Exchange::Connect(std::vector<tcp::endpoint> endpoints) {
  error_code ec = asio::error::host_not_found;
  for (size_t i = 0; i < endpoints.size(); ++i) {
    const auto now = SteadyClock::now();
    const bool last = i + 1 == endpoints.size();
    attempt_over_ = false;
    if (last) {
      Limit(connect_limit_, FetchFault::kConnectTimeout);
    } else {
      Limit(now + (connect_limit_ - now) / static_cast<int>(endpoints.size() - i),
            FetchFault::kNone);
    }
    connection_ = std::make_shared<UpstreamConnection>(pool_->executor());
    co_await connection_->Connect(endpoints[i], ec);
    if (broken()) co_return;
    if (!ec && !attempt_over_) {
      Limit(connect_limit_, FetchFault::kConnectTimeout);
      co_return;
    }
  }
  Break(FetchFault::kConnectFailed, "no connection to " + PeerName() + ": " + ec.message());
}

asio::awaitable<void> Exchange::OpenTunnel() {
  const std::string to = HostPort(origin().url.host, origin().url.port);
  std::string head = "CONNECT " + to + " HTTP/1.1\r\nhost: " + to + "\r\n";
  if (!origin().proxy->authorization.empty()) {
    head += "proxy-authorization: " + origin().proxy->authorization + "\r\n";
  }
  head += "\r\n";
  const auto nothing = [](error_code = {}) {};
  connection_->Write(std::move(head), nullptr, nothing, nothing);

  std::string reply;
  while (reply.find("\r\n\r\n") == std::string::npos) {
    error_code ec;
    const std::string_view some = co_await connection_->Receive(pool_->scratch(), ec);
    if (broken()) co_return;
    if (ec || reply.size() + some.size() > kTunnelReplyBytes) {
      Break(FetchFault::kConnectFailed, "the proxy " + PeerName() + " gives no answer to CONNECT");
      co_return;
    }
    reply += some;
  }
  const int status = StatusOf(reply);
  if (status / 100 != 2) {
    std::string message = "the proxy " + PeerName() + " answers CONNECT with " +
                          (status == 0 ? "something else than HTTP" : std::to_string(status));
    if (status == 407) message += ": check user and password in the proxy's URL";
    Break(FetchFault::kConnectFailed, std::move(message));
  } else if (reply.find("\r\n\r\n") + 4 != reply.size()) {
    Break(FetchFault::kConnectFailed, "the proxy " + PeerName() + " sends more than its answer");
  }
}

asio::awaitable<void> Exchange::Secure() {
  error_code ec;
  std::string why;
  co_await connection_->Handshake(origin().tls.get(), origin().url.host, origin().url.is_ip, ec,
                                  why);
  if (!broken() && ec) {
    Break(FetchFault::kTlsFailed,
          HostPort(origin().url.host, origin().url.port) + ": " + std::move(why));
  }
}

}  // namespace verbatim::gateway
