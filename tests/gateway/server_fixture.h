// A server on a free port with handlers for every situation, and the requests that tests send it.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>

#include "gateway/server.h"
#include "tests/gateway/raw_client.h"

namespace verbatim::gateway {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

// What the handlers report to the tests.
struct Observed {
  std::atomic<int> waiting = 0;
  std::atomic<int> gone = 0;      // OnClientGone callbacks
  std::atomic<int> finished = 0;  // handlers that returned
  std::atomic<int> written = 0;   // stream writes that succeeded
};

// GET /ping, /items/{}/part, /items/{*}, /audit and /who (auditors), /slow (0.6 s), /megabytes (a
// stream), /throws, /nothing; POST /echo (clients), /stream, /whole-stream, /abort, /wait (until
// the client hangs up).
Router MakeRouter(Observed& observed);

// A handler's answer: 200 with this text.
boost::asio::awaitable<void> Reply(ResponseSink& sink, std::string text);

class ServerTest : public ::testing::Test {
 protected:
  void Start(ServerLimits limits = {}, Authenticator auth = {}) {
    options_.listen = "127.0.0.1:0";
    options_.threads = 2;
    options_.limits = limits;
    auto server = Server::Start(options_, MakeRouter(observed_), std::move(auth));
    ASSERT_TRUE(server.ok()) << server.error().message;
    server_ = std::move(server).value();
  }

  // One answer to these bytes on a new connection.
  std::string Ask(const std::string& bytes) {
    RawClient client(server_->port());
    client.Send(bytes);
    return client.ReadResponse();
  }

  template <typename Condition>
  bool Within(milliseconds limit, Condition condition) {
    const auto deadline = Clock::now() + limit;
    while (!condition()) {
      if (Clock::now() > deadline) return false;
      std::this_thread::sleep_for(milliseconds(5));
    }
    return true;
  }

  ServerOptions options_;  // what Start adds to
  Observed observed_;
  std::unique_ptr<Server> server_;
};

std::string Numbered(const char* prefix, int number);
int StatusOf(const std::string& response);  // 0: no response

// Requests as bytes; `fields` are header lines with their CRLF.
std::string Get(const std::string& target, const std::string& fields = "");
std::string Post(const std::string& path, const std::string& body, const std::string& fields = "");
std::string PostWith(const std::string& fields, const std::string& body = "");  // to /echo
std::string Chunked(const std::string& body);                                   // to /echo

}  // namespace verbatim::gateway
