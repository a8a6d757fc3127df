// An upstream that does what a test says, and the client under test, on one io_context and thread:
// what happens in which order is up to the test.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "gateway/upstream/http_client.h"

struct ssl_ctx_st;

namespace verbatim::gateway::test {

// The server's end of one connection.
class Peer {
 public:
  virtual ~Peer() = default;
  // A request with its body by content-length, as it came; "" where the connection ended.
  virtual boost::asio::awaitable<std::string> ReadRequest() = 0;
  virtual boost::asio::awaitable<void> Write(std::string_view bytes) = 0;
  // Each part in a packet of its own, `size` bytes each.
  boost::asio::awaitable<void> WriteInParts(std::string bytes, size_t size);
  virtual boost::asio::awaitable<void> Sleep(int64_t ms) = 0;
  // Until the client hangs up.
  virtual boost::asio::awaitable<void> WaitForEnd() = 0;
  virtual void Close() = 0;
  virtual void Reset() = 0;
  // TLS: says goodbye first. Plain: as Close.
  virtual boost::asio::awaitable<void> CloseInOrder() = 0;
  // The server name that a TLS client asked for.
  virtual std::string ServerName() = 0;
  // Passes bytes both ways between this connection and a local port, as a proxy's tunnel does.
  virtual boost::asio::awaitable<void> Tunnel(uint16_t port) = 0;
};

using Script = std::function<boost::asio::awaitable<void>(Peer&)>;

class Loop {
 public:
  boost::asio::io_context io;

  // Until it holds; a test that waits for longer than ten seconds has failed.
  void RunUntil(const std::function<bool()>& holds);
  void RunFor(int64_t ms);
};

class UpstreamServer {
 public:
  // `tls`: null for plain; borrowed. The script runs for each connection, which is closed behind
  // it.
  UpstreamServer(Loop& loop, Script script, ssl_ctx_st* tls = nullptr);
  ~UpstreamServer();

  uint16_t port() const { return acceptor_->local_endpoint().port(); }
  std::string Url(const std::string& host = "127.0.0.1") const;
  int connections() const { return *connections_; }

 private:
  std::shared_ptr<boost::asio::ip::tcp::acceptor> acceptor_;
  std::shared_ptr<int> connections_;
  const bool tls_;
};

// What one fetch gave.
struct Fetched : FetchSink {
  int heads = 0;
  FetchHead head;
  std::string body;
  FetchEnd end;
  bool done = false;
  std::function<void(std::string_view)> on_body{};
  bool wants_more = true;

  void OnHead(FetchHead got) override;
  void OnBody(std::string_view bytes) override;
  bool WantsMore() override { return wants_more; }
};

class TestClient {
 public:
  TestClient(Loop& loop, const HttpClientOptions& options);

  HttpClient& client() { return *client_; }
  std::shared_ptr<Fetched> Start(FetchRequest request, FetchCanceller canceller = {});
  // Start, and runs the loop until it is done.
  std::shared_ptr<Fetched> Fetch(FetchRequest request, FetchCanceller canceller = {});

 private:
  Loop& loop_;
  std::unique_ptr<HttpClient> client_;
};

FetchRequest Get(std::string target = "/");
FetchRequest Post(std::string body, std::string target = "/v1/chat/completions");

// No proxy of the environment, and limits that no passing test comes near.
HttpClientOptions To(std::string url);

// "HTTP/1.1 200 OK", a content-length, the body.
std::string Plain(std::string_view body, std::string_view headers = "");
std::string Chunk(std::string_view bytes);

}  // namespace verbatim::gateway::test
