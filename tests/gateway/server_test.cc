// The HTTP server by example: answers, streams, hang-ups, limits, drains.
#include "gateway/server.h"

#include <gtest/gtest.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/crypto.h"
#include "gateway/io_threads.h"
#include "tests/gateway/server_fixture.h"

namespace verbatim::gateway {
namespace {

TEST_F(ServerTest, AnswersWithIdDateAndLength) {
  Start();
  const std::string got = Ask("GET /ping HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n");
  EXPECT_TRUE(got.starts_with("HTTP/1.1 200 OK\r\n")) << got;
  EXPECT_NE(got.find("\r\nx-request-id: req_"), std::string::npos) << got;
  EXPECT_NE(got.find(" GMT\r\n"), std::string::npos) << got;
  EXPECT_NE(got.find("\r\ncontent-type: application/json\r\n"), std::string::npos) << got;
  EXPECT_TRUE(got.ends_with("\r\ncontent-length: 11\r\n\r\n{\"ok\":true}")) << got;
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

// A FIN is a hang-up by default (server.h), but what is ready at once arrives all the same.
TEST_F(ServerTest, AHalfClosedClientIsAHangUp) {
  Start();
  RawClient fast(server_->port());
  fast.Send(Get("/ping"));
  fast.ShutdownSend();
  bool closed = false;
  EXPECT_EQ(StatusOf(fast.ReadAll(milliseconds(3000), &closed)), 200);
  EXPECT_TRUE(closed);
  RawClient slow(server_->port());
  slow.Send(Get("/slow"));
  slow.ShutdownSend();
  EXPECT_EQ(slow.ReadAll(milliseconds(3000), &closed), "");
  EXPECT_TRUE(closed);
}

TEST_F(ServerTest, AHalfClosedClientIsServedWhereConfigured) {
  options_.half_close = true;
  Start();
  RawClient slow(server_->port());
  slow.Send(Get("/slow"));
  slow.ShutdownSend();
  bool closed = false;
  EXPECT_TRUE(slow.ReadAll(milliseconds(3000), &closed).ends_with("slow"));
  EXPECT_TRUE(closed) << "nothing more can be asked";
  RawClient gone(server_->port());
  gone.Send(Post("/wait", "{}"));
  ASSERT_TRUE(Within(milliseconds(3000), [&] { return observed_.waiting == 2; }));
  gone.Reset();
  EXPECT_TRUE(Within(milliseconds(500), [&] { return observed_.gone == 1; }));
}

TEST_F(ServerTest, BodiesMayArriveInAnyPieces) {
  Start();
  const std::string bytes =
      Chunked("3\r\nabc\r\n00A;x=\"y\"\r\n0123456789\r\n0\r\nTrailer: 1\r\n\r\n");
  RawClient client(server_->port());
  for (char c : bytes) client.Send({&c, 1});
  EXPECT_TRUE(client.ReadResponse().ends_with(" 13 abc0123456789"));
  const std::string large(3'000'000, 'c');
  client.Send(
      Chunked("10000\r\n" + std::string(65'536, 'd') + "\r\n2dc6c0\r\n" + large + "\r\n0\r\n\r\n"));
  const std::string got = client.ReadResponse();
  EXPECT_NE(got.find(" 3065536 d"), std::string::npos) << got.substr(0, 500);
  client.Send(Post("/echo", large));
  EXPECT_TRUE(client.ReadResponse().ends_with(" 3000000 " + large));
}

TEST_F(ServerTest, AHandlerCannotBreakTheFraming) {
  Start();
  const std::string got = Ask(Get("/framing"));
  EXPECT_TRUE(got.ends_with("\r\nx-kept: yes\r\ncontent-length: 4\r\n\r\nbody")) << got;
  for (const char* lost : {"999", "chunked", "upgrade", "injected", "another-id"}) {
    EXPECT_EQ(got.find(lost), std::string::npos) << got;
  }
}

TEST_F(ServerTest, AWholeStreamInOneWrite) {
  Start();
  EXPECT_TRUE(
      Ask(Post("/whole-stream", "{}"))
          .ends_with("\r\ntransfer-encoding: chunked\r\n\r\nc\r\ndata: whole\n\r\n0\r\n\r\n"));
  RawClient old(server_->port());
  old.Send("POST /whole-stream HTTP/1.0\r\n\r\n");
  bool closed = false;
  EXPECT_TRUE(old.ReadAll(milliseconds(3000), &closed).ends_with("\r\n\r\ndata: whole\n"));
  EXPECT_TRUE(closed);
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
  router.Add(
      {"GET", "/new", 0, [](const Request&, ResponseSink& s) -> boost::asio::awaitable<void> {
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

TEST(IoThreadsTest, KnowWhichOfThemTheCallerIsOn) {
  IoThreads io(2);
  for (size_t i = 0; i < io.size(); ++i) {
    std::promise<size_t> here;
    boost::asio::post(io.context(i), [&] { here.set_value(io.Here()); });
    EXPECT_EQ(here.get_future().get(), i);
  }
  const size_t one = io.Here();
  EXPECT_NE(io.Here(), one) << "others get them in turn";
}

TEST_F(ServerTest, LeavesNothingOnTheThreadsOfOthers) {
  IoThreads io(2);
  options_.io = &io;
  for (int round = 1; round <= 2; ++round) {
    Start();
    RawClient idle(server_->port()), stuck(server_->port());
    idle.Send(Get("/ping"));
    EXPECT_EQ(StatusOf(idle.ReadResponse()), 200);
    stuck.Send(Post("/wait", "{}"));
    ASSERT_TRUE(Within(milliseconds(3000), [&] { return observed_.waiting == round; }));
    server_.reset();
    EXPECT_EQ(observed_.finished, round);
  }
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

TEST(ServerStart, MoreConnectionsThanFilesAreSaid) {
  ServerOptions options;
  options.listen = "127.0.0.1:0";
  options.limits.connections = size_t{1} << 40;
  const auto server = Server::Start(options, Router(), Authenticator());
  ASSERT_FALSE(server.ok());
  EXPECT_EQ(server.error().code, Code::kFailedPrecondition);
  EXPECT_NE(server.error().message.find("server.limits.connections"), std::string::npos);
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
