#include "upstream_server.h"

#include <gtest/gtest.h>
#include <openssl/ssl.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <chrono>
#include <cstdio>
#include <optional>
#include <utility>

namespace verbatim::gateway::test {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;
using std::chrono::milliseconds;

namespace {

class PeerImpl final : public Peer {
 public:
  PeerImpl(tcp::socket socket, SSL_CTX* tls) : socket_(std::move(socket)) {
    socket_.set_option(tcp::no_delay(true));
    if (tls != nullptr) tls_.emplace(socket_, SSL_new(tls));
  }

  asio::awaitable<bool> Handshake() {
    if (!tls_) co_return true;
    error_code ec;
    co_await tls_->async_handshake(asio::ssl::stream_base::server,
                                   asio::redirect_error(asio::use_awaitable, ec));
    co_return !ec;
  }

  asio::awaitable<std::string> ReadRequest() override {
    size_t want = std::string::npos;
    for (;;) {
      const size_t end = read_.find("\r\n\r\n");
      if (end != std::string::npos && want == std::string::npos) {
        const size_t at = read_.find("content-length: ");
        const size_t length = at < end ? std::stoul(read_.substr(at + 16)) : 0;
        want = end + 4 + length;
      }
      if (read_.size() >= want) {
        std::string request = read_.substr(0, want);
        read_.erase(0, want);
        co_return request;
      }
      const bool more = co_await ReadMore();
      if (!more) co_return std::string();
    }
  }

  asio::awaitable<void> Write(std::string_view bytes) override {
    error_code ec;
    if (gone_) co_return;
    if (tls_) {
      co_await asio::async_write(*tls_, asio::buffer(bytes),
                                 asio::redirect_error(asio::use_awaitable, ec));
    } else {
      co_await asio::async_write(socket_, asio::buffer(bytes),
                                 asio::redirect_error(asio::use_awaitable, ec));
    }
    gone_ = ec.failed();
  }

  asio::awaitable<void> Sleep(int64_t ms) override {
    asio::steady_timer timer(socket_.get_executor(), milliseconds(ms));
    co_await timer.async_wait(asio::use_awaitable);
  }

  asio::awaitable<void> WaitForEnd() override {
    for (bool more = true; more;) more = co_await ReadMore();
  }

  void Close() override {
    error_code ec;
    socket_.close(ec);
  }
  void Reset() override {
    socket_.set_option(asio::socket_base::linger(true, 0));
    Close();
  }
  asio::awaitable<void> CloseInOrder() override {
    error_code ec;
    if (tls_) co_await tls_->async_shutdown(asio::redirect_error(asio::use_awaitable, ec));
    Close();
  }

  std::string ServerName() override {
    const char* name =
        tls_ ? SSL_get_servername(tls_->native_handle(), TLSEXT_NAMETYPE_host_name) : nullptr;
    return name == nullptr ? "" : name;
  }

  asio::awaitable<void> Tunnel(uint16_t port) override {
    auto inner = std::make_shared<tcp::socket>(socket_.get_executor());
    co_await inner->async_connect({asio::ip::address_v4::loopback(), port}, asio::use_awaitable);
    auto pump = [](tcp::socket& from, tcp::socket& to,
                   std::shared_ptr<tcp::socket>) -> asio::awaitable<void> {
      std::array<char, 4096> some;
      error_code ec;
      for (;;) {
        const size_t n = co_await from.async_read_some(
            asio::buffer(some), asio::redirect_error(asio::use_awaitable, ec));
        if (ec) break;
        co_await asio::async_write(to, asio::buffer(some.data(), n),
                                   asio::redirect_error(asio::use_awaitable, ec));
        if (ec) break;
      }
      to.close(ec);
    };
    asio::co_spawn(socket_.get_executor(), pump(*inner, socket_, inner), asio::detached);
    co_await pump(socket_, *inner, inner);
    co_await Sleep(20);  // the other direction still holds this connection
  }

 private:
  asio::awaitable<bool> ReadMore() {
    std::array<char, 16384> some;
    error_code ec;
    size_t n = 0;
    if (gone_) co_return false;
    if (tls_) {
      n = co_await tls_->async_read_some(asio::buffer(some),
                                         asio::redirect_error(asio::use_awaitable, ec));
    } else {
      n = co_await socket_.async_read_some(asio::buffer(some),
                                           asio::redirect_error(asio::use_awaitable, ec));
    }
    read_.append(some.data(), n);
    gone_ = ec.failed();
    co_return !gone_;
  }

  tcp::socket socket_;
  std::optional<asio::ssl::stream<tcp::socket&>> tls_;
  std::string read_;
  bool gone_ = false;  // what is asked of a socket that has ended may never complete
};

asio::awaitable<void> ServeOne(tcp::socket socket, Script script, SSL_CTX* tls) {
  PeerImpl peer(std::move(socket), tls);
  const bool ready = co_await peer.Handshake();
  if (ready) co_await script(peer);
}

asio::awaitable<void> Accept(std::shared_ptr<tcp::acceptor> acceptor, Script script, SSL_CTX* tls,
                             std::shared_ptr<int> connections) {
  for (;;) {
    error_code ec;
    tcp::socket socket =
        co_await acceptor->async_accept(asio::redirect_error(asio::use_awaitable, ec));
    if (ec) co_return;
    ++*connections;
    asio::co_spawn(acceptor->get_executor(), ServeOne(std::move(socket), script, tls),
                   asio::detached);
  }
}

}  // namespace

asio::awaitable<void> Peer::WriteInParts(std::string bytes, size_t size) {
  for (size_t at = 0; at < bytes.size(); at += size) {
    co_await Write(std::string_view(bytes).substr(at, size));
    co_await Sleep(0);  // the client reads before the next part is there
  }
}

void Loop::RunUntil(const std::function<bool()>& holds) {
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  io.restart();
  while (!holds()) {
    if (std::chrono::steady_clock::now() > limit) {
      ADD_FAILURE() << "still waiting after ten seconds";
      return;
    }
    io.run_one_for(milliseconds(100));
    if (io.stopped()) io.restart();
  }
}

void Loop::RunFor(int64_t ms) {
  io.restart();
  io.run_for(milliseconds(ms));
}

UpstreamServer::UpstreamServer(Loop& loop, Script script, SSL_CTX* tls)
    : acceptor_(std::make_shared<tcp::acceptor>(
          loop.io, tcp::endpoint(asio::ip::address_v4::loopback(), 0))),
      connections_(std::make_shared<int>(0)),
      tls_(tls != nullptr) {
  asio::co_spawn(loop.io, Accept(acceptor_, std::move(script), tls, connections_), asio::detached);
}

UpstreamServer::~UpstreamServer() { acceptor_->close(); }

std::string UpstreamServer::Url(const std::string& host) const {
  return (tls_ ? "https://" : "http://") + host + ":" + std::to_string(port());
}

void Fetched::OnHead(FetchHead got) {
  ++heads;
  head = std::move(got);
}

void Fetched::OnBody(std::string_view bytes) {
  EXPECT_EQ(heads, 1);
  EXPECT_FALSE(done);
  EXPECT_FALSE(bytes.empty());
  body += bytes;
  if (on_body) on_body(bytes);
}

TestClient::TestClient(Loop& loop, const HttpClientOptions& options) : loop_(loop) {
  auto origin = HttpOrigin::Make(options);
  EXPECT_TRUE(origin.ok()) << origin.error().message;
  client_ = std::make_unique<HttpClient>(loop.io.get_executor(), *std::move(origin));
}

std::shared_ptr<Fetched> TestClient::Start(FetchRequest request, FetchCanceller canceller) {
  auto fetched = std::make_shared<Fetched>();
  auto run = [](HttpClient& client, FetchRequest sent, FetchCanceller cancel,
                std::shared_ptr<Fetched> into) -> asio::awaitable<void> {
    into->end = co_await client.Fetch(std::move(sent), *into, std::move(cancel));
    into->done = true;
  };
  asio::co_spawn(loop_.io, run(*client_, std::move(request), std::move(canceller), fetched),
                 asio::detached);
  return fetched;
}

std::shared_ptr<Fetched> TestClient::Fetch(FetchRequest request, FetchCanceller canceller) {
  auto fetched = Start(std::move(request), std::move(canceller));
  loop_.RunUntil([&] { return fetched->done; });
  return fetched;
}

FetchRequest Get(std::string target) {
  FetchRequest request;
  request.method = "GET";
  request.target = std::move(target);
  return request;
}

FetchRequest Post(std::string body, std::string target) {
  FetchRequest request;
  request.target = std::move(target);
  request.headers = {{"content-type", "application/json"}};
  request.body = std::make_shared<const std::string>(std::move(body));
  return request;
}

HttpClientOptions To(std::string url) {
  HttpClientOptions options;
  options.url = std::move(url);
  options.proxy = "none";
  return options;
}

std::string Plain(std::string_view body, std::string_view headers) {
  return "HTTP/1.1 200 OK\r\n" + std::string(headers) +
         "content-length: " + std::to_string(body.size()) + "\r\n\r\n" + std::string(body);
}

std::string Chunk(std::string_view bytes) {
  std::array<char, 20> size{};
  std::snprintf(size.data(), size.size(), "%zx\r\n", bytes.size());
  return size.data() + std::string(bytes) + "\r\n";
}

}  // namespace verbatim::gateway::test
