#include "tests/gateway/server_fixture.h"

#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <stdexcept>

namespace verbatim::gateway {

namespace asio = boost::asio;

asio::awaitable<void> Reply(ResponseSink& sink, std::string text) {
  Headers headers;
  (void)co_await sink.SendWhole(200, std::move(headers), std::move(text));
}

namespace {

asio::awaitable<void> Sleep(milliseconds time) {
  asio::steady_timer timer(co_await asio::this_coro::executor, time);
  boost::system::error_code ec;
  co_await timer.async_wait(asio::redirect_error(asio::use_awaitable, ec));
}

// Does nothing but wait for the client to hang up, or for ten seconds.
asio::awaitable<void> WaitForHangUp(ResponseSink& sink, Observed& observed) {
  asio::steady_timer timer(co_await asio::this_coro::executor, std::chrono::seconds(10));
  sink.OnClientGone([&] {
    ++observed.gone;
    timer.cancel();
  });
  ++observed.waiting;
  boost::system::error_code ec;
  co_await timer.async_wait(asio::redirect_error(asio::use_awaitable, ec));
  EXPECT_EQ(sink.ClientGone(), static_cast<bool>(ec));
  Headers headers;
  const Status sent = co_await sink.SendWhole(200, std::move(headers), "late");
  EXPECT_FALSE(sent.ok());
  ++observed.finished;
}

asio::awaitable<void> StreamMegabytes(ResponseSink& sink, Observed& observed) {
  Headers headers;
  Status status = co_await sink.StartStream(200, std::move(headers));
  const std::string event = "data: " + std::string(1 << 20, 'x') + "\n\n";
  for (int i = 0; i < 64 && status.ok(); ++i) {
    status = co_await sink.Write(event);
    if (status.ok()) ++observed.written;
  }
  if (status.ok()) status = co_await sink.Finish();
  ++observed.finished;
}

}  // namespace

Router MakeRouter(Observed& observed) {
  Router router;
  const auto add = [&](const char* method, const char* pattern, Handler handler, uint8_t roles) {
    router.Add({method, pattern, roles, std::move(handler)});
  };
  const uint8_t client = static_cast<uint8_t>(Role::kClient);
  add(
      "GET", "/ping",
      [](const Request&, ResponseSink& s) -> asio::awaitable<void> {
        co_await Reply(s, "{\"ok\":true}");
      },
      0);
  add(
      "POST", "/echo",
      [](const Request& r, ResponseSink& s) -> asio::awaitable<void> {
        std::string text = r.method + " " + r.path + "?" + r.query + " " + r.principal.tenant +
                           " " + std::to_string(r.body.size()) + " " + r.body;
        co_await Reply(s, std::move(text));
      },
      client);
  add(
      "GET", "/items/{}/part",
      [](const Request& r, ResponseSink& s) -> asio::awaitable<void> {
        co_await Reply(s, "part of " + r.params[0]);
      },
      0);
  for (const char* method : {"GET", "POST"}) {
    add(
        method, "/items/{*}",
        [](const Request& r, ResponseSink& s) -> asio::awaitable<void> {
          co_await Reply(s, "tail " + r.params[0]);
        },
        0);
  }
  add(
      "GET", "/audit",
      [](const Request&, ResponseSink& s) -> asio::awaitable<void> { co_await Reply(s, "secret"); },
      static_cast<uint8_t>(Role::kAuditor));
  add(
      "GET", "/who",
      [](const Request& r, ResponseSink& s) -> asio::awaitable<void> {
        co_await Reply(s, r.principal.subject + " " + r.principal.key_id);
      },
      static_cast<uint8_t>(Role::kAuditor));
  add(
      "POST", "/stream",
      [](const Request&, ResponseSink& s) -> asio::awaitable<void> {
        Headers headers;
        headers.emplace_back("x-text", "one\r\nx-injected: two");
        (void)co_await s.StartStream(200, std::move(headers));
        for (const char* event : {"data: a\n\n", "", "data: bb\n\n"}) (void)co_await s.Write(event);
        (void)co_await s.Finish();
      },
      0);
  add(
      "POST", "/whole-stream",
      [](const Request&, ResponseSink& s) -> asio::awaitable<void> {
        const RenderedFields none;
        const Headers headers;
        (void)co_await s.SendRendered(200, none, headers, "data: whole\n", true);
      },
      0);
  add(
      "GET", "/framing",
      [](const Request&, ResponseSink& s) -> asio::awaitable<void> {
        Headers headers;
        headers.emplace_back("Content-Length", "999");
        headers.emplace_back("transfer-encoding", "chunked");
        headers.emplace_back("Connection", "upgrade");
        headers.emplace_back("x-injected\r\ny", "1");
        headers.emplace_back("x injected", "1");
        headers.emplace_back("X-Request-Id", "another-id");
        headers.emplace_back("x-kept", "yes");
        (void)co_await s.SendWhole(200, std::move(headers), "body");
      },
      0);
  add(
      "POST", "/abort",
      [](const Request&, ResponseSink& s) -> asio::awaitable<void> {
        Headers headers;
        (void)co_await s.StartStream(200, std::move(headers));
        (void)co_await s.Write("data: half\n\n");
        s.Abort();
      },
      0);
  add(
      "GET", "/slow",
      [&observed](const Request&, ResponseSink& s) -> asio::awaitable<void> {
        ++observed.waiting;
        co_await Sleep(milliseconds(600));
        co_await Reply(s, "slow");
      },
      0);
  add(
      "POST", "/wait",
      [&observed](const Request&, ResponseSink& s) -> asio::awaitable<void> {
        co_await WaitForHangUp(s, observed);
      },
      0);
  add(
      "GET", "/megabytes",
      [&observed](const Request&, ResponseSink& s) -> asio::awaitable<void> {
        co_await StreamMegabytes(s, observed);
      },
      0);
  add(
      "GET", "/throws",
      [](const Request&, ResponseSink&) -> asio::awaitable<void> {
        co_await Sleep(milliseconds(1));
        throw std::runtime_error("a handler's own failure");
      },
      0);
  add(
      "GET", "/nothing", [](const Request&, ResponseSink&) -> asio::awaitable<void> { co_return; },
      0);
  return router;
}

std::string Numbered(const char* prefix, int number) {
  return std::string(prefix).append(std::to_string(number));
}

std::string Post(const std::string& path, const std::string& body, const std::string& fields) {
  return "POST " + path + " HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n" +
         fields + "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
}

int StatusOf(const std::string& response) {
  return response.starts_with("HTTP/1.") ? std::atoi(response.c_str() + 9) : 0;
}

std::string Get(const std::string& target, const std::string& fields) {
  return "GET " + target + " HTTP/1.1\r\nHost: localhost\r\n" + fields + "\r\n";
}

std::string Chunked(const std::string& body) {
  return "POST /echo HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n" + body;
}

std::string PostWith(const std::string& fields, const std::string& body) {
  return "POST /echo HTTP/1.1\r\nHost: localhost\r\n" + fields + "\r\n" + body;
}

}  // namespace verbatim::gateway
