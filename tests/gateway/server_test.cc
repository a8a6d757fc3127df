// The HTTP server as a hostile network sees it: exact bytes in, exact status out.
#include "gateway/server.h"

#include <gtest/gtest.h>

#include <atomic>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <memory>
#include <thread>

#include "base/crypto.h"
#include "base/json.h"
#include "tests/gateway/raw_client.h"

namespace verbatim::gateway {
namespace {

namespace asio = boost::asio;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

// What the handlers below report to the tests.
struct Observed {
  std::atomic<int> waiting = 0;
  std::atomic<int> gone = 0;      // OnClientGone callbacks
  std::atomic<int> finished = 0;  // handlers that returned
  std::atomic<int> written = 0;   // stream writes that succeeded
};

asio::awaitable<void> Sleep(milliseconds time) {
  asio::steady_timer timer(co_await asio::this_coro::executor, time);
  boost::system::error_code ec;
  co_await timer.async_wait(asio::redirect_error(asio::use_awaitable, ec));
}

asio::awaitable<void> Reply(ResponseSink& sink, std::string text) {
  Headers headers;
  (void)co_await sink.SendWhole(200, std::move(headers), std::move(text));
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
  add(
      "GET", "/items/{*}",
      [](const Request& r, ResponseSink& s) -> asio::awaitable<void> {
        co_await Reply(s, "tail " + r.params[0]);
      },
      0);
  add(
      "GET", "/audit",
      [](const Request&, ResponseSink& s) -> asio::awaitable<void> { co_await Reply(s, "secret"); },
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

class ServerTest : public ::testing::Test {
 protected:
  void Start(ServerLimits limits = {}, Authenticator auth = {}) {
    ServerOptions options;
    options.listen = "127.0.0.1:0";
    options.threads = 2;
    options.limits = limits;
    auto server = Server::Start(options, MakeRouter(observed_), std::move(auth));
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

  Observed observed_;
  std::unique_ptr<Server> server_;
};

std::string Numbered(const char* prefix, int number) {
  return std::string(prefix).append(std::to_string(number));
}

std::string Post(const std::string& path, const std::string& body, const std::string& fields = "") {
  return "POST " + path + " HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n" +
         fields + "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
}

int StatusOf(const std::string& response) {
  return response.starts_with("HTTP/1.") ? std::atoi(response.c_str() + 9) : 0;
}

TEST_F(ServerTest, AnswersWithIdDateAndLength) {
  Start();
  const std::string got = Ask("GET /ping HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n");
  EXPECT_TRUE(got.starts_with("HTTP/1.1 200 OK\r\n")) << got;
  EXPECT_NE(got.find("\r\nx-request-id: req_"), std::string::npos) << got;
  EXPECT_NE(got.find(" GMT\r\n"), std::string::npos) << got;
  EXPECT_NE(got.find("\r\ncontent-type: application/json\r\n"), std::string::npos) << got;
  EXPECT_TRUE(got.ends_with("\r\ncontent-length: 11\r\n\r\n{\"ok\":true}")) << got;
}

// Each is one connection: what it sends, the status it must get, whether the connection must end,
// and a text that the answer must hold.
struct Case {
  const char* name;
  std::string bytes;
  int status;
  bool closes;
  const char* holds;
};

std::string Get(const std::string& target, const std::string& fields = "") {
  return "GET " + target + " HTTP/1.1\r\nHost: localhost\r\n" + fields + "\r\n";
}

std::string Chunked(const std::string& body) {
  return "POST /echo HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n" + body;
}

std::string PostWith(const std::string& fields, const std::string& body = "") {
  return "POST /echo HTTP/1.1\r\nHost: localhost\r\n" + fields + "\r\n" + body;
}

std::vector<Case> HostileCases() {
  std::string many;
  for (int i = 0; i < 120; ++i) many += Numbered("x-", i) + ": 1\r\n";
  return {
      // Framing that two implementations could read differently.
      {"length and coding", PostWith("Content-Length: 4\r\nTransfer-Encoding: chunked\r\n", "abcd"),
       400, true, "both"},
      {"coding and length",
       PostWith("Transfer-Encoding: chunked\r\nContent-Length: 0\r\n", "0\r\n\r\n"), 400, true,
       "both"},
      {"two lengths", PostWith("Content-Length: 4\r\nContent-Length: 5\r\n", "abcde"), 400, true,
       "more than one"},
      {"two equal lengths", PostWith("Content-Length: 4\r\nContent-Length: 4\r\n", "abcd"), 400,
       true, "more than one"},
      {"list of lengths", PostWith("Content-Length: 4, 4\r\n", "abcd"), 400, true, "decimal"},
      {"signed length", PostWith("Content-Length: +4\r\n", "abcd"), 400, true, "decimal"},
      {"negative length", PostWith("Content-Length: -1\r\n"), 400, true, "decimal"},
      {"hexadecimal length", PostWith("Content-Length: 0x4\r\n", "abcd"), 400, true, "decimal"},
      {"empty length", PostWith("Content-Length: \r\n"), 400, true, "decimal"},
      {"length beyond 64 bits", PostWith("Content-Length: 99999999999999999999\r\n"), 413, true,
       "large"},
      {"huge length", PostWith("Content-Length: 99999999999999999\r\n"), 413, true, "larger"},
      {"two codings",
       PostWith("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n"), 400,
       true, "more than one"},
      {"coding list", PostWith("Transfer-Encoding: gzip, chunked\r\n", "0\r\n\r\n"), 501, true,
       "chunked"},
      {"unknown coding", PostWith("Transfer-Encoding: xchunked\r\n", "0\r\n\r\n"), 501, true,
       "chunked"},
      {"hidden coding", PostWith("Transfer-Encoding : chunked\r\n", "0\r\n\r\n"), 400, true,
       "name"},
      {"coding in 1.0", "POST /echo HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400,
       true, "1.1"},
      {"vertical tab coding",
       PostWith("Transfer-Encoding: \x0b"
                "chunked\r\n",
                "0\r\n\r\n"),
       400, true, "control"},
      {"bare LF after line", "GET /ping HTTP/1.1\nHost: localhost\r\n\r\n", 400, true, "CRLF"},
      {"bare LF ends head", "GET /ping HTTP/1.1\r\nHost: localhost\r\n\n", 400, true, "CRLF"},
      {"bare CR in value", Get("/ping", "X-A: one\rX-B: two\r\n"), 400, true, "CR"},
      {"NUL in value", Get("/ping", std::string("X-A: a\0b\r\n", 10)), 400, true, "control"},
      {"folded field", Get("/ping", "X-A: one\r\n two\r\n"), 400, true, "folded"},
      {"space in name", Get("/ping", "X A: one\r\n"), 400, true, "name"},
      {"no colon", Get("/ping", "nonsense\r\n"), 400, true, "colon"},
      {"empty name", Get("/ping", ": value\r\n"), 400, true, "name"},
      {"chunk size no hex", Chunked("zz\r\nabc\r\n0\r\n\r\n"), 400, true, "chunk"},
      {"chunk size signed", Chunked("+3\r\nabc\r\n0\r\n\r\n"), 400, true, "chunk"},
      {"chunk size with 0x", Chunked("0x3\r\nabc\r\n0\r\n\r\n"), 400, true, "chunk"},
      {"chunk size overflow", Chunked("fffffffffffffffff\r\nabc\r\n"), 400, true, "chunk"},
      {"chunk longer than said", Chunked("3\r\nabcd\r\n0\r\n\r\n"), 400, true, "chunk"},
      {"chunk line with bare LF", Chunked("3\nabc\n0\n\n\r\n"), 400, true, "chunk"},
      {"bare LF in chunk extension", Chunked("3;a\nb\r\nabc\r\n0\r\n\r\n"), 400, true, "chunk"},
      {"huge chunk", Chunked("fffffff\r\nabc"), 413, true, "larger"},
      // The request line.
      {"no version", "GET /ping\r\nHost: localhost\r\n\r\n", 400, true, "request line"},
      {"version 2", "GET /ping HTTP/2.0\r\nHost: localhost\r\n\r\n", 505, true, "HTTP/1.1"},
      {"h2 preface", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505, true, "HTTP/1.1"},
      {"two spaces", "GET  /ping HTTP/1.1\r\nHost: localhost\r\n\r\n", 400, true, "target"},
      {"TLS hello", std::string("\x16\x03\x01\x02\x00\x01\x00\x01", 8), 400, true, "plain HTTP"},
      {"bad escape", Get("/pi%zzng"), 400, true, "hex"},
      {"cut escape", Get("/ping%2"), 400, true, "hex"},
      {"NUL escape", Get("/ping%00"), 400, true, "control"},
      {"escaped newline", Get("/ping%0d%0aX-A:%201"), 400, true, "control"},
      {"not UTF-8", Get("/ping%ff"), 400, true, "UTF-8"},
      {"raw high byte", Get("/ping\xc3\xa9"), 400, true, "percent"},
      {"relative target", Get("ping"), 400, true, "start with /"},
      // Host.
      {"no host", "GET /ping HTTP/1.1\r\n\r\n", 400, true, "Host"},
      {"two hosts", Get("/ping", "Host: localhost\r\n"), 400, true, "more than one Host"},
      {"host with path", "GET /ping HTTP/1.1\r\nHost: localhost/x\r\n\r\n", 400, true, "Host"},
      {"host with user", "GET /ping HTTP/1.1\r\nHost: a@localhost\r\n\r\n", 400, true, "Host"},
      {"rebound host", "GET /ping HTTP/1.1\r\nHost: evil.example\r\n\r\n", 403, false, "loopback"},
      {"disguised host", "GET /ping HTTP/1.1\r\nHost: 127.0.0.1.evil.example\r\n\r\n", 403, false,
       "loopback"},
      {"foreign absolute target",
       "GET http://evil.example/ping HTTP/1.1\r\nHost: localhost\r\n\r\n", 403, false, "loopback"},
      {"foreign origin", Get("/ping", "Origin: https://evil.example\r\n"), 403, false, "origin"},
      {"null origin", Get("/ping", "Origin: null\r\n"), 403, false, "origin"},
      {"other local port", Get("/ping", "Origin: http://localhost:3000\r\n"), 403, false, "origin"},
      {"cross-site image", Get("/ping", "Sec-Fetch-Site: cross-site\r\n"), 403, false, "origin"},
      {"own origin", Get("/ping", "Origin: http://localhost\r\n"), 200, false, "true"},
      {"IPv6 host", "GET /ping HTTP/1.1\r\nHost: [::1]:8080\r\n\r\n", 200, false, "true"},
      // Limits.
      {"too many fields", Get("/ping", many), 431, true, "fields"},
      {"too long a field", Get("/ping", "X-A: " + std::string(70'000, 'a') + "\r\n"), 431, true,
       "larger"},
      {"no end of head", "GET /" + std::string(80'000, 'a'), 431, true, "larger"},
      {"16 KiB of headers", Get("/ping", "X-A: " + std::string(20'000, 'a') + "\r\n"), 200, false,
       "true"},
      // Paths and methods.
      {"unknown path", Get("/nowhere"), 404, false, "unknown_url"},
      {"empty segment", Get("//ping"), 404, false, "unknown_url"},
      {"wrong method", Get("/echo"), 405, false, "allow: POST, OPTIONS\r\n"},
      {"wrong method, body",
       "PUT /ping HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\nabc", 405, true,
       "allow: GET, HEAD, OPTIONS\r\n"},
      {"unknown method", "BREW /ping HTTP/1.1\r\nHost: localhost\r\n\r\n", 405, false,
       "allow: GET, HEAD, OPTIONS\r\n"},
      {"CONNECT", "CONNECT /ping HTTP/1.1\r\nHost: localhost\r\n\r\n", 405, false, "allow"},
      {"OPTIONS", "OPTIONS /echo HTTP/1.1\r\nHost: localhost\r\n\r\n", 204, false,
       "allow: POST, OPTIONS\r\n"},
      {"OPTIONS *", "OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n", 204, false, "allow"},
      {"encoded path", Get("/%70ing?a=%20"), 200, false, "true"},
      {"absolute target", Get("http://localhost/ping"), 200, false, "true"},
      {"parameter", Get("/items/a%2Fb%20c/part"), 200, false, "part of a/b c"},
      {"tail", Get("/items/a/b"), 200, false, "tail a/b"},
      // Content.
      {"form",
       PostWith("Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 2\r\n", "{}"),
       415, true, "application/json"},
      {"text", PostWith("Content-Type: text/plain\r\nContent-Length: 2\r\n", "{}"), 415, true,
       "application/json"},
      {"gzip", PostWith("Content-Encoding: gzip\r\nContent-Length: 2\r\n", "{}"), 415, true,
       "uncompressed"},
      {"latin",
       PostWith("Content-Type: application/json; charset=iso-8859-1\r\nContent-Length: 2\r\n",
                "{}"),
       415, true, "utf-8"},
      {"charset",
       PostWith("Content-Type: Application/JSON; charset=UTF-8\r\nContent-Length: 2\r\n", "{}"),
       200, false, "2 {}"},
      {"no type", PostWith("Content-Length: 2\r\n", "{}"), 200, false, "2 {}"},
      {"no body", PostWith(""), 200, false, "0 "},
      {"other expectation", PostWith("Expect: tea\r\nContent-Length: 2\r\n", "{}"), 417, true,
       "100-continue"},
      {"chunks", Chunked("3\r\nabc\r\n2;x=y\r\nde\r\n0\r\nTrailer: 1\r\n\r\n"), 200, false,
       "5 abcde"},
      // Handlers that fail.
      {"throwing handler", Get("/throws"), 500, false, "server_error"},
      {"silent handler", Get("/nothing"), 500, false, "server_error"},
  };
}

TEST_F(ServerTest, HostileRequests) {
  Start();
  for (const Case& c : HostileCases()) {
    SCOPED_TRACE(c.name);
    RawClient client(server_->port());
    client.Send(c.bytes);
    const std::string got = client.ReadResponse();
    EXPECT_EQ(StatusOf(got), c.status) << got;
    EXPECT_NE(got.find(c.holds), std::string::npos) << got;
    EXPECT_NE(got.find("\r\nx-request-id: req_"), std::string::npos) << got;
    if (c.status >= 400) {
      const auto body = json::Parse(got.substr(got.find("\r\n\r\n") + 4));
      ASSERT_TRUE(body.ok()) << got;
      const json::Value* error = body->Find("error");
      ASSERT_NE(error, nullptr) << got;
      for (const char* key : {"message", "type", "param", "code"}) {
        EXPECT_NE(error->Find(key), nullptr) << key << " in " << got;
      }
    }
    EXPECT_EQ(got.find("\r\nconnection: close\r\n") != std::string::npos, c.closes) << got;
    if (c.closes) {
      bool closed = false;
      client.ShutdownSend();
      EXPECT_EQ(client.ReadAll(milliseconds(3000), &closed), "");
      EXPECT_TRUE(closed);
    } else {
      client.Send(Get("/ping"));
      EXPECT_EQ(StatusOf(client.ReadResponse()), 200) << "the connection must go on";
    }
  }
}

TEST_F(ServerTest, HeadHasTheHeadersOnly) {
  Start();
  RawClient client(server_->port());
  client.Send("HEAD /ping HTTP/1.1\r\nHost: localhost\r\n\r\n" + Get("/nowhere"));
  const std::string head = client.ReadUntil("\r\n\r\n", milliseconds(3000));
  EXPECT_EQ(StatusOf(head), 200);
  EXPECT_NE(head.find("content-length: 11"), std::string::npos);
  EXPECT_EQ(StatusOf(client.ReadResponse()), 404);
}

TEST_F(ServerTest, StreamsInChunksAndKeepsHeadersApart) {
  Start();
  const std::string got = Ask(Post("/stream", "{}"));
  EXPECT_NE(got.find("\r\ncontent-type: text/event-stream; charset=utf-8\r\n"), std::string::npos);
  EXPECT_NE(got.find("\r\ncache-control: no-cache\r\n"), std::string::npos);
  EXPECT_NE(got.find("\r\nx-text: one  x-injected: two\r\n"), std::string::npos) << got;
  EXPECT_TRUE(got.ends_with("\r\n\r\n9\r\ndata: a\n\n\r\na\r\ndata: bb\n\n\r\n0\r\n\r\n")) << got;
}

TEST_F(ServerTest, OldClientsGetNoChunks) {
  Start();
  RawClient client(server_->port());
  client.Send("POST /stream HTTP/1.0\r\nContent-Length: 0\r\nConnection: keep-alive\r\n\r\n");
  bool closed = false;
  const std::string got = client.ReadAll(milliseconds(3000), &closed);
  EXPECT_TRUE(closed);
  EXPECT_TRUE(got.starts_with("HTTP/1.0 200 OK\r\n")) << got;
  EXPECT_EQ(got.find("transfer-encoding"), std::string::npos) << got;
  EXPECT_TRUE(got.ends_with("connection: close\r\n\r\ndata: a\n\ndata: bb\n\n")) << got;
}

TEST_F(ServerTest, AnAbortedStreamHasNoLastChunk) {
  Start();
  RawClient client(server_->port());
  client.Send(Post("/abort", "{}"));
  bool closed = false;
  const std::string got = client.ReadAll(milliseconds(4000), &closed);
  EXPECT_TRUE(closed);
  EXPECT_TRUE(got.ends_with("data: half\n\n\r\n")) << got;
}

TEST_F(ServerTest, ContinueComesOnlyWhenTheBodyIsWanted) {
  Start();
  const std::string head =
      " HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n";
  RawClient client(server_->port());
  client.Send("POST /echo" + head);
  EXPECT_EQ(client.ReadUntil("\r\n\r\n", milliseconds(3000)), "HTTP/1.1 100 Continue\r\n\r\n");
  client.Send("{}");
  EXPECT_TRUE(client.ReadResponse().ends_with("2 {}"));
  EXPECT_EQ(StatusOf(Ask("POST /nowhere" + head)), 404);
}

TEST_F(ServerTest, PipelinedRequestsAreAnsweredInOrder) {
  Start();
  std::string bytes;
  for (int i = 0; i < 50; ++i) bytes += Post("/echo", Numbered("n", i));
  RawClient client(server_->port());
  // Cut anywhere: the server must not care how bytes arrive.
  for (size_t i = 0; i < bytes.size(); i += 37) client.Send(std::string_view(bytes).substr(i, 37));
  for (int i = 0; i < 50; ++i) {
    const std::string got = client.ReadResponse();
    EXPECT_TRUE(got.ends_with(Numbered(" n", i))) << got;
  }
}

TEST_F(ServerTest, BodiesUpToTheLimit) {
  ServerLimits limits;
  limits.body_bytes = 100'000;
  Start(limits);
  EXPECT_EQ(StatusOf(Ask(Post("/echo", std::string(100'000, 'a')))), 200);
  EXPECT_EQ(StatusOf(Ask(Post("/echo", std::string(100'001, 'a')))), 413);
  // In chunks, where no length announces it.
  std::string chunks;
  for (int i = 0; i < 11; ++i) chunks += "2710\r\n" + std::string(10'000, 'b') + "\r\n";
  EXPECT_EQ(StatusOf(Ask(Chunked(chunks + "0\r\n\r\n"))), 413);
}

TEST_F(ServerTest, AHangUpIsNoticedWhileTheHandlerWaits) {
  Start();
  struct How {
    const char* name;
    bool reset;
    bool pipelined;
  };
  int expected = 0;
  for (const How& how : {How{"close", false, false}, How{"reset", true, false},
                         How{"close behind a pipelined request", false, true}}) {
    SCOPED_TRACE(how.name);
    auto client = std::make_unique<RawClient>(server_->port());
    client->Send(Post("/wait", "{}"));
    ++expected;
    ASSERT_TRUE(Within(milliseconds(3000), [&] { return observed_.waiting == expected; }));
    if (how.pipelined) client->Send(Get("/ping"));
    if (how.reset) client->Reset();
    client.reset();
    EXPECT_TRUE(Within(milliseconds(1000), [&] { return observed_.gone == expected; }));
    EXPECT_TRUE(Within(milliseconds(1000), [&] { return observed_.finished == expected; }));
  }
}

TEST_F(ServerTest, APipelinedRequestIsNoHangUp) {
  Start();
  RawClient client(server_->port());
  client.Send(Get("/slow"));
  ASSERT_TRUE(Within(milliseconds(3000), [&] { return observed_.waiting == 1; }));
  client.Send(Get("/ping"));
  EXPECT_TRUE(client.ReadResponse().ends_with("slow"));
  EXPECT_TRUE(client.ReadResponse().ends_with("true}"));
}

TEST_F(ServerTest, AReaderThatStallsIsDropped) {
  ServerLimits limits;
  limits.write_stall = milliseconds(300);
  Start(limits);
  RawClient client(server_->port());
  client.SetReceiveBuffer(16384);
  client.Send(Get("/megabytes"));
  EXPECT_TRUE(Within(milliseconds(5000), [&] { return observed_.finished == 1; }));
  EXPECT_LT(observed_.written, 64);  // the handler waited for the reader
}

TEST_F(ServerTest, SlowSendersAreDropped) {
  ServerLimits limits;
  limits.header_time = limits.body_time = milliseconds(300);
  limits.keep_alive_idle = milliseconds(300);
  Start(limits);
  struct Slow {
    const char* name;
    std::string bytes;
    int status;  // 0: closed without a word
  };
  for (const Slow& slow : {Slow{"header", "GET /ping HTTP/1.1\r\nHost: loc", 408},
                           Slow{"body", PostWith("Content-Length: 3\r\n", "{}"), 408},
                           Slow{"nothing at all", "", 0}}) {
    SCOPED_TRACE(slow.name);
    RawClient client(server_->port());
    client.Send(slow.bytes);
    // A byte now and then must not help.
    for (int i = 0; i < 8 && slow.status != 0; ++i) {
      std::this_thread::sleep_for(milliseconds(60));
      if (slow.name == std::string_view("header")) client.Send("a");
    }
    bool closed = false;
    const std::string got = client.ReadAll(milliseconds(4000), &closed);
    EXPECT_TRUE(closed);
    EXPECT_EQ(StatusOf(got), slow.status) << got;
  }
  RawClient idle(server_->port());
  idle.Send(Get("/ping"));
  EXPECT_EQ(StatusOf(idle.ReadResponse()), 200);
  bool closed = false;
  EXPECT_EQ(idle.ReadAll(milliseconds(2000), &closed), "");
  EXPECT_TRUE(closed) << "an idle kept-alive connection ends";
}

TEST_F(ServerTest, ConnectionsBeyondTheLimitAreToldSo) {
  ServerLimits limits;
  limits.connections = 3;
  Start(limits);
  std::vector<std::unique_ptr<RawClient>> clients;
  for (int i = 0; i < 3; ++i) {
    clients.push_back(std::make_unique<RawClient>(server_->port()));
    clients.back()->Send(Get("/ping"));
    EXPECT_EQ(StatusOf(clients.back()->ReadResponse()), 200);
  }
  EXPECT_EQ(StatusOf(Ask(Get("/ping"))), 503);
  clients.clear();
  EXPECT_TRUE(Within(milliseconds(3000), [&] { return server_->open_connections() == 0; }));
  EXPECT_EQ(StatusOf(Ask(Get("/ping"))), 200);
}

TEST_F(ServerTest, RoutesCanBeReplacedWhileRequestsRun) {
  Start();
  RawClient busy(server_->port());
  busy.Send(Get("/slow"));
  ASSERT_TRUE(Within(milliseconds(3000), [&] { return observed_.waiting == 1; }));
  Router router;
  router.Add({"GET", "/new", 0, [](const Request&, ResponseSink& s) -> asio::awaitable<void> {
                co_await Reply(s, "new");
              }});
  server_->SetRouter(std::move(router));
  EXPECT_EQ(StatusOf(Ask(Get("/new"))), 200);
  EXPECT_EQ(StatusOf(Ask(Get("/ping"))), 404);
  EXPECT_TRUE(busy.ReadResponse().ends_with("slow"));
}

TEST_F(ServerTest, ADrainLetsRunningRequestsFinish) {
  Start();
  RawClient idle(server_->port());
  idle.Send(Get("/ping"));
  EXPECT_EQ(StatusOf(idle.ReadResponse()), 200);
  RawClient busy(server_->port());
  busy.Send(Get("/slow"));
  ASSERT_TRUE(Within(milliseconds(3000), [&] { return observed_.waiting == 1; }));
  const auto start = Clock::now();
  EXPECT_TRUE(server_->Drain(milliseconds(5000), nullptr));
  EXPECT_LT(Clock::now() - start, milliseconds(2000));
  const std::string got = busy.ReadResponse();
  EXPECT_TRUE(got.ends_with("slow")) << got;
  EXPECT_NE(got.find("connection: close"), std::string::npos) << got;
  bool closed = false;
  EXPECT_EQ(idle.ReadAll(milliseconds(1000), &closed), "");
  EXPECT_TRUE(closed);
}

TEST_F(ServerTest, ADrainEndsWhatDoesNotFinish) {
  Start();
  RawClient stuck(server_->port());
  stuck.Send(Post("/wait", "{}"));
  ASSERT_TRUE(Within(milliseconds(3000), [&] { return observed_.waiting == 1; }));
  size_t reported = 0;
  EXPECT_FALSE(server_->Drain(milliseconds(1200), [&](size_t n) { reported = n; }));
  EXPECT_EQ(reported, 1u);
  EXPECT_EQ(observed_.gone, 1);
  EXPECT_EQ(observed_.finished, 1);
}

TEST_F(ServerTest, KeysDecideWhoComesIn) {
  Principal alice;
  alice.tenant = "acme";
  alice.subject = "alice";
  alice.key_id = "key_1";
  alice.roles = static_cast<uint8_t>(Role::kClient);
  Start({}, Authenticator({{Sha256("sk-alice"), alice}}));
  const auto status = [&](const std::string& fields) {
    return StatusOf(Ask(Post("/echo", "{}", fields)));
  };
  EXPECT_EQ(status(""), 401);
  EXPECT_EQ(status("Authorization: Bearer sk-bob\r\n"), 401);
  EXPECT_EQ(status("Authorization: Basic sk-alice\r\n"), 401);
  EXPECT_EQ(status("Authorization: bearer sk-alice\r\n"), 200);
  EXPECT_EQ(status("Api-Key: sk-alice\r\n"), 200);
  EXPECT_EQ(StatusOf(Ask(Get("/audit", "Authorization: Bearer sk-alice\r\n"))), 403);
  EXPECT_EQ(StatusOf(Ask(Get("/ping"))), 200);
  const std::string got = Ask(Post("/echo", "{}", "Authorization: Bearer sk-alice\r\n"));
  EXPECT_NE(got.find(" acme "), std::string::npos) << got;
  const std::string refused = Ask(Post("/echo", "{}", "Authorization: Bearer sk-bob\r\n"));
  EXPECT_EQ(refused.find("sk-bob"), std::string::npos) << refused;
  EXPECT_NE(refused.find("invalid_api_key"), std::string::npos) << refused;
}

TEST(ServerStart, ListensOnlyWhereItMay) {
  struct Listen {
    const char* address;
    Code code;
    const char* holds;
  };
  for (const Listen& c : {Listen{"0.0.0.0:0", Code::kInvalid, "API keys"},
                          Listen{"[::]:0", Code::kInvalid, "API keys"},
                          Listen{"192.0.2.1:80", Code::kInvalid, "API keys"},
                          Listen{"127.0.0.1", Code::kInvalid, "HOST:PORT"},
                          Listen{"127.0.0.1:", Code::kInvalid, "port"},
                          Listen{"127.0.0.1:65536", Code::kInvalid, "port"},
                          Listen{"::1:80", Code::kInvalid, "IP address"},
                          Listen{"example.org:80", Code::kInvalid, "IP address"}}) {
    SCOPED_TRACE(c.address);
    ServerOptions options;
    options.listen = c.address;
    const auto server = Server::Start(options, Router(), Authenticator());
    ASSERT_FALSE(server.ok());
    EXPECT_EQ(server.error().code, c.code);
    EXPECT_NE(server.error().message.find(c.holds), std::string::npos) << server.error().message;
  }
}

TEST(ServerStart, APortInUseIsSaid) {
  ServerOptions options;
  options.listen = "127.0.0.1:0";
  const auto first = Server::Start(options, Router(), Authenticator());
  ASSERT_TRUE(first.ok());
  options.listen = Numbered("127.0.0.1:", (*first)->port());
  const auto second = Server::Start(options, Router(), Authenticator());
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.error().code, Code::kFailedPrecondition);
  EXPECT_NE(second.error().message.find("--listen"), std::string::npos);
}

}  // namespace
}  // namespace verbatim::gateway
