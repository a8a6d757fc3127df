// The client around a reply: what it sends, its pool, its time limits, and ways to end early.
#include "gateway/upstream/http_client.h"

#include <gtest/gtest.h>
#include <malloc.h>

#include <boost/asio/awaitable.hpp>
#include <chrono>
#include <thread>

#include "upstream_server.h"

namespace verbatim::gateway {
namespace {

namespace asio = boost::asio;
using namespace test;  // NOLINT: the fixtures of this folder

const std::string kStream = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";

asio::awaitable<void> AnswerAll(Peer& peer) {
  for (;;) {
    const std::string request = co_await peer.ReadRequest();
    if (request.empty()) co_return;
    co_await peer.Write(Plain("hello"));
  }
}

// Takes a request and says nothing.
asio::awaitable<void> Swallow(Peer& peer) { co_await peer.WaitForEnd(); }

int64_t Millis(std::chrono::steady_clock::time_point since) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() -
                                                               since)
      .count();
}

TEST(HttpOrigin, IsChecked) {
  const std::pair<const char*, std::function<void(HttpClientOptions&)>> cases[] = {
      {"no absolute URL", [](auto& o) { o.url = "api.example"; }},
      {"credentials", [](auto& o) { o.url = "https://u:secret@api.example"; }},
      {"https://api.example", [](auto& o) { o.url = "https://api.example/v1"; }},
      {"connect time limit", [](auto& o) { o.connect_ms = 0; }},
      {"first byte time limit", [](auto& o) { o.first_byte_ms = -1; }},
      {"idle time limit", [](auto& o) { o.idle_ms = 100'000'000; }},
      {"total time limit", [](auto& o) { o.total_ms = 0; }},
      {"keep-alive time limit", [](auto& o) { o.keep_alive_ms = 0; }},
      {"connection", [](auto& o) { o.max_connections = 0; }},
      {"header limit", [](auto& o) { o.header_bytes = 10; }},
      {"body limit", [](auto& o) { o.body_bytes = 0; }},
      {"only http:// proxies", [](auto& o) { o.proxy = "https://p:1"; }},
      {"proxy", [](auto& o) { o.proxy = "http://u:secret@:1"; }},
      {"without TLS", [](auto& o) { o.ca_file = "/ca.pem"; }},
  };
  for (const auto& [want, spoil] : cases) {
    HttpClientOptions options = To("http://api.example");
    ASSERT_TRUE(HttpOrigin::Make(options).ok());
    spoil(options);
    const auto origin = HttpOrigin::Make(options);
    ASSERT_FALSE(origin.ok()) << want;
    EXPECT_NE(origin.error().message.find(want), std::string::npos) << origin.error().message;
    EXPECT_EQ(origin.error().message.find("secret"), std::string::npos);
  }
}

TEST(HttpClient, SendsWhatItIsGiven) {
  std::string sent;
  Loop loop;
  UpstreamServer server(loop, [&](Peer& peer) -> asio::awaitable<void> {
    for (;;) {
      const std::string request = co_await peer.ReadRequest();
      if (request.empty()) co_return;
      sent = request;
      co_await peer.Write(Plain(""));
    }
  });
  TestClient client(loop, To(server.Url("localhost")));
  const std::string host = "host: localhost:" + std::to_string(server.port()) + "\r\n";
  const std::string body = "{\"a\":\"\xc3\xa4\"}";
  FetchRequest post = Post(body, "/v1/x?y=%20");
  post.headers.emplace_back("Authorization", "Bearer k");
  post.headers.emplace_back("x-twice", "1");
  post.headers.emplace_back("x-twice", "\xe4\t2");
  for (const char* name : {"Host", "content-length", "Transfer-Encoding", "connection", "Expect",
                           "te", "trailer", "upgrade", "keep-alive", "Proxy-Authorization"}) {
    post.headers.emplace_back(name, "chunked");
  }
  FetchRequest empty = Post("");
  FetchRequest get = Get("/v1/models");
  get.headers = {{"accept-encoding", "gzip"}};
  const std::pair<FetchRequest, std::string> cases[] = {
      {post, "POST /v1/x?y=%20 HTTP/1.1\r\n" + host +
                 "content-type: application/json\r\nAuthorization: Bearer k\r\nx-twice: 1\r\n"
                 "x-twice: \xe4\t2\r\ncontent-length: 10\r\n\r\n" +
                 body},
      {empty, "POST /v1/chat/completions HTTP/1.1\r\n" + host +
                  "content-type: application/json\r\ncontent-length: 0\r\n\r\n"},
      {get, "GET /v1/models HTTP/1.1\r\n" + host + "accept-encoding: gzip\r\n\r\n"},
  };
  for (const auto& [request, want] : cases) {
    const auto got = client.Fetch(request);
    EXPECT_EQ(got->end.outcome, FetchOutcome::kWhole) << got->end.message;
    EXPECT_EQ(sent, want);
  }
  const std::string long_body(3 << 20, 'x');
  client.Fetch(Post(long_body));
  EXPECT_TRUE(sent.substr(sent.find("\r\n\r\n") + 4) == long_body);
}

TEST(HttpClient, RefusesWhatCannotBeSent) {
  Loop loop;
  UpstreamServer server(loop, AnswerAll);
  TestClient client(loop, To(server.Url()));
  const std::function<void(FetchRequest&)> cases[] = {
      [](auto& r) { r.method = ""; },
      [](auto& r) { r.method = "GET /x"; },
      [](auto& r) { r.target = ""; },
      [](auto& r) { r.target = "x"; },
      [](auto& r) { r.target = "/a b"; },
      [](auto& r) { r.target = "/a\r\nx: y"; },
      [](auto& r) { r.target = "/\xc3\xa4"; },
      [](auto& r) {
        r.headers = {{"", "x"}};
      },
      [](auto& r) {
        r.headers = {{"a b", "x"}};
      },
      [](auto& r) {
        r.headers = {{"a:", "x"}};
      },
      [](auto& r) {
        r.headers = {{"a", "x\r\nb: c"}};
      },
      [](auto& r) {
        r.headers = {{"a", "x\n"}};
      },
      [](auto& r) {
        r.headers = {{"a", std::string(1, '\0')}};
      },
  };
  for (const auto& spoil : cases) {
    FetchRequest request = Post("{}");
    spoil(request);
    const auto got = client.Fetch(std::move(request));
    EXPECT_STREQ(FetchFaultName(got->end.fault), "invalid_request");
    EXPECT_FALSE(got->end.request_sent);
  }
  EXPECT_EQ(server.connections(), 0);
}

TEST(HttpClient, ConnectionsAreKeptAndShared) {
  Loop loop;
  UpstreamServer server(loop, AnswerAll);
  TestClient client(loop, To(server.Url()));
  for (int i = 0; i < 5; ++i) {
    const auto got = client.Fetch(Post("{}"));
    EXPECT_EQ(got->end.outcome, FetchOutcome::kWhole);
    EXPECT_EQ(got->end.reused, i > 0);
    EXPECT_GE(got->end.first_byte_micros, got->end.connect_micros);
  }
  EXPECT_EQ(server.connections(), 1);
  std::vector<std::shared_ptr<Fetched>> many;
  for (int i = 0; i < 20; ++i) many.push_back(client.Start(Post("{}")));
  for (const auto& one : many) {
    loop.RunUntil([&] { return one->done; });
    EXPECT_EQ(one->body, "hello");
  }
  EXPECT_EQ(client.client().used(), 0u);
  EXPECT_EQ(client.client().unused(), static_cast<size_t>(server.connections()));
  client.client().CloseUnused();
  EXPECT_EQ(client.client().unused(), 0u);
  EXPECT_FALSE(client.Fetch(Post("{}"))->end.reused);
}

TEST(HttpClient, UnusedConnectionsAreClosedInTime) {
  Loop loop;
  int hung_up = 0;
  UpstreamServer server(loop, [&](Peer& peer) -> asio::awaitable<void> {
    co_await AnswerAll(peer);
    ++hung_up;
  });
  HttpClientOptions options = To(server.Url());
  options.keep_alive_ms = 30;
  TestClient client(loop, options);
  client.Fetch(Get());
  EXPECT_EQ(client.client().unused(), 1u);
  loop.RunUntil([&] { return hung_up == 1; });
  EXPECT_EQ(client.client().unused(), 0u);
  client.Fetch(Get());
  loop.RunUntil([&] { return hung_up == 2; });  // and again
}

TEST(HttpClient, ThePoolHoldsNoBrokenConnection) {
  const std::pair<const char*, Script> cases[] = {
      {"closed",
       [](Peer& peer) -> asio::awaitable<void> {
         (void)co_await peer.ReadRequest();
         co_await peer.Write(Plain("hello"));
         co_await peer.Sleep(5);
       }},
      {"reset",
       [](Peer& peer) -> asio::awaitable<void> {
         (void)co_await peer.ReadRequest();
         co_await peer.Write(Plain("hello"));
         co_await peer.Sleep(5);
         peer.Reset();
       }},
      {"unasked bytes",
       [](Peer& peer) -> asio::awaitable<void> {
         (void)co_await peer.ReadRequest();
         co_await peer.Write(Plain("hello"));
         co_await peer.Sleep(5);
         co_await peer.Write(Plain("an answer to a request of somebody else"));
         co_await peer.WaitForEnd();
       }},
  };
  for (const auto& [name, script] : cases) {
    Loop loop;
    UpstreamServer server(loop, script);
    TestClient client(loop, To(server.Url()));
    client.Fetch(Get());
    EXPECT_EQ(client.client().unused(), 1u) << name;
    loop.RunUntil([&] { return client.client().unused() == 0; });
    const auto again = client.Fetch(Get());
    EXPECT_EQ(again->body, "hello") << name;
    EXPECT_FALSE(again->end.reused || again->end.reconnected) << name;
  }
}

// The server closes the kept-alive connection just as the next request is on its way.
TEST(HttpClient, AStaleConnectionIsReplacedOnce) {
  for (const bool reset : {false, true}) {
    Loop loop;
    std::vector<std::string> requests;
    bool last_too = false;
    UpstreamServer server(loop, [&](Peer& peer) -> asio::awaitable<void> {
      requests.push_back(co_await peer.ReadRequest());
      if (last_too && requests.size() > 2) co_return;
      co_await peer.Write(Plain("hello"));
      requests.push_back(co_await peer.ReadRequest());
      if (reset) peer.Reset();
    });
    TestClient client(loop, To(server.Url()));
    client.Fetch(Post("one"));
    const auto got = client.Fetch(Post("two"));
    EXPECT_EQ(got->end.outcome, FetchOutcome::kWhole) << got->end.message;
    EXPECT_TRUE(got->end.reconnected);
    EXPECT_FALSE(got->end.reused);
    EXPECT_EQ(server.connections(), 2);
    ASSERT_EQ(requests.size(), 3u);
    EXPECT_EQ(requests[1], requests[2]);
    EXPECT_EQ(client.client().used(), 0u);

    // Over a fresh connection it is not repeated: who knows what the upstream has done.
    last_too = true;
    requests.clear();
    client.client().CloseUnused();
    requests.assign(2, "");
    const auto fresh = client.Fetch(Post("three"));
    EXPECT_STREQ(FetchFaultName(fresh->end.fault), "reset");
    EXPECT_FALSE(fresh->end.reconnected);
    EXPECT_TRUE(fresh->end.request_sent);
  }
}

// Once a byte of the reply came, nothing is repeated, whatever connection it was.
TEST(HttpClient, AReplyThatBeganIsNotRepeated) {
  Loop loop;
  int requests = 0;
  UpstreamServer server(loop, [&](Peer& peer) -> asio::awaitable<void> {
    for (;;) {
      const std::string request = co_await peer.ReadRequest();
      if (request.empty()) co_return;
      if (++requests == 2) break;
      co_await peer.Write(Plain("hello"));
    }
    co_await peer.Write("HTTP/1.1 2");
  });
  TestClient client(loop, To(server.Url()));
  client.Fetch(Post("one"));
  const auto got = client.Fetch(Post("two"));
  EXPECT_STREQ(FetchFaultName(got->end.fault), "reset") << got->end.message;
  EXPECT_TRUE(got->end.reused);
  EXPECT_EQ(requests, 2);
}

TEST(HttpClient, ConnectionsAreLimitedAndCallersQueue) {
  Loop loop;
  int open = 0, most = 0;
  UpstreamServer server(loop, [&](Peer& peer) -> asio::awaitable<void> {
    for (;;) {
      const std::string request = co_await peer.ReadRequest();
      if (request.empty()) co_return;
      most = std::max(most, ++open);
      co_await peer.Sleep(2);
      --open;
      const std::string path = request.substr(5, request.find(' ', 5) - 5);
      co_await peer.Write(Plain(path, path.back() == '3' ? "connection: close\r\n" : ""));
    }
  });
  HttpClientOptions options = To(server.Url());
  options.max_connections = 3;
  TestClient client(loop, options);
  std::vector<std::shared_ptr<Fetched>> all;
  for (int i = 0; i < 20; ++i) all.push_back(client.Start(Post("{}", "/" + std::to_string(i))));
  for (int i = 0; i < 20; ++i) {
    loop.RunUntil([&] { return all[i]->done; });
    EXPECT_EQ(all[i]->body, "/" + std::to_string(i)) << all[i]->end.message;
  }
  EXPECT_EQ(most, 3);
  EXPECT_EQ(client.client().used(), 0u);
}

TEST(HttpClient, WaitingForAPlaceIsBounded) {
  Loop loop;
  UpstreamServer server(loop, Swallow);
  HttpClientOptions options = To(server.Url());
  options.max_connections = 1;
  options.connect_ms = 40;
  TestClient client(loop, options);
  const FetchCanceller cancel_first, cancel_second;
  const auto first = client.Start(Get(), cancel_first);
  const auto second = client.Start(Get(), cancel_second);
  const auto third = client.Fetch(Get());
  EXPECT_STREQ(FetchFaultName(third->end.fault), "connect_timeout");
  EXPECT_NE(third->end.message.find("free"), std::string::npos) << third->end.message;
  EXPECT_FALSE(third->end.request_sent);
  EXPECT_TRUE(second->done);

  // One that gives up does not take the place that it waits for with it.
  const auto fourth = client.Start(Get(), cancel_second);
  loop.RunUntil([&] { return fourth->done; });
  EXPECT_STREQ(FetchFaultName(fourth->end.fault), "connect_timeout");
  const FetchCanceller cancel_fifth;
  const auto fifth = client.Start(Get(), cancel_fifth);
  const auto sixth = client.Start(Get());
  loop.RunFor(1);
  cancel_fifth.Cancel();
  cancel_first.Cancel();
  loop.RunUntil([&] { return first->done && fifth->done && server.connections() == 2; });
  EXPECT_FALSE(sixth->done);
  EXPECT_EQ(client.client().used(), 1u);
}

TEST(HttpClient, TimeLimits) {
  using Change = std::function<void(HttpClientOptions&)>;
  const struct {
    const char* fault;
    Script script;
    Change change;
    bool reply_began;
    const char* body;
  } cases[] = {
      {"first_byte_timeout", Swallow, [](auto& o) { o.first_byte_ms = 40; }, false, ""},
      {"first_byte_timeout",
       [](Peer& peer) -> asio::awaitable<void> {
         // A header that never ends is no first byte of an answer, nor are interim replies.
         co_await peer.Write("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nx: ");
         for (int i = 0; i < 100; ++i) {
           co_await peer.Write("x");
           co_await peer.Sleep(5);
         }
       },
       [](auto& o) { o.first_byte_ms = 40; }, true, ""},
      {"idle_timeout",
       [](Peer& peer) -> asio::awaitable<void> {
         co_await peer.Write(kStream);
         for (int i = 0; i < 6; ++i) {
           co_await peer.Write(Chunk("x"));
           co_await peer.Sleep(60);
         }
         co_await peer.WaitForEnd();
       },
       [](auto& o) { o.idle_ms = 300; }, true, "xxxxxx"},
      {"idle_timeout",
       [](Peer& peer) -> asio::awaitable<void> {
         co_await peer.Write(kStream);
         co_await peer.WaitForEnd();
       },
       [](auto& o) { o.idle_ms = 40; }, true, ""},
      {"total_timeout",
       [](Peer& peer) -> asio::awaitable<void> {
         co_await peer.Write(kStream);
         for (int i = 0; i < 40; ++i) {
           co_await peer.Write(Chunk("x"));
           co_await peer.Sleep(5);
         }
       },
       [](auto& o) { o.total_ms = 60; }, true, nullptr},
      {"total_timeout", Swallow, [](auto& o) { o.total_ms = 40; }, false, ""},
  };
  for (const auto& c : cases) {
    Loop loop;
    bool hung_up = false;
    UpstreamServer server(loop, [&](Peer& peer) -> asio::awaitable<void> {
      co_await c.script(peer);
      hung_up = true;
    });
    HttpClientOptions options = To(server.Url());
    c.change(options);
    TestClient client(loop, options);
    const auto began = std::chrono::steady_clock::now();
    const auto got = client.Fetch(Get());
    EXPECT_STREQ(FetchFaultName(got->end.fault), c.fault) << got->end.message;
    if (c.body != nullptr) {
      EXPECT_EQ(got->body, c.body) << c.fault;
    }
    EXPECT_EQ(got->end.reply_began, c.reply_began) << c.fault;
    EXPECT_LT(Millis(began), 3000) << c.fault;
    EXPECT_EQ(client.client().used(), 0u);
    loop.RunUntil([&] { return hung_up; });  // the connection is closed at once
  }
}

// Nothing is read for a sink that wants no more, whatever the upstream has to say; and that is no
// fault of the upstream's.
TEST(HttpClient, AnUpstreamWaitsWhereTheSinkIsFull) {
  constexpr size_t kBytes = size_t{32} << 20;
  Loop loop;
  bool written = false;
  UpstreamServer server(loop, [&](Peer& peer) -> asio::awaitable<void> {
    const std::string body = Plain(std::string(kBytes, 'x'));
    for (;;) {
      const std::string request = co_await peer.ReadRequest();
      if (request.empty()) co_return;
      co_await peer.Write(body);
      written = true;
    }
  });
  HttpClientOptions options = To(server.Url());
  options.idle_ms = 50;
  TestClient client(loop, options);
  FetchCanceller canceller;
  auto fetched = client.Start(Get(), canceller);
  fetched->wants_more = false;
  loop.RunUntil([&] { return fetched->heads == 1; });
  loop.RunFor(200);
  EXPECT_FALSE(fetched->done) << fetched->end.message;
  EXPECT_FALSE(written);
  const size_t read = fetched->body.size();
  EXPECT_LE(read, 16u << 10);
  canceller.Resume();  // of someone who was mistaken
  loop.RunFor(20);
  EXPECT_EQ(fetched->body.size(), read);

  fetched->wants_more = true;
  canceller.Resume();
  loop.RunUntil([&] { return fetched->done; });
  EXPECT_EQ(fetched->end.outcome, FetchOutcome::kWhole);
  EXPECT_EQ(fetched->body.size(), kBytes);

  auto left = client.Start(Get(), canceller = FetchCanceller());
  left->wants_more = false;
  loop.RunUntil([&] { return left->heads == 1; });
  canceller.Cancel();
  loop.RunUntil([&] { return left->done; });
  EXPECT_EQ(left->end.fault, FetchFault::kCancelled);
}

TEST(HttpClient, ConnectionFaultsAreToldApart) {
  Loop loop;
  uint16_t closed = 0;
  {
    const UpstreamServer gone(loop, AnswerAll);
    closed = gone.port();
  }
  // A TLS server that never answers the handshake.
  UpstreamServer silent(loop, Swallow);
  const std::tuple<std::string, const char*, const char*> cases[] = {
      {"http://127.0.0.1:" + std::to_string(closed), "connect_failed", "refused"},
      {"http://name.invalid", "dns_failed", "name.invalid"},
      {"https://127.0.0.1:" + std::to_string(silent.port()), "connect_timeout", "60 ms"},
  };
  for (const auto& [url, fault, message] : cases) {
    HttpClientOptions options = To(url);
    options.connect_ms = std::string(fault) == "connect_timeout" ? 60 : 5000;
    TestClient client(loop, options);
    const auto got = client.Fetch(Get());
    EXPECT_STREQ(FetchFaultName(got->end.fault), fault) << got->end.message;
    EXPECT_NE(got->end.message.find(message), std::string::npos) << got->end.message;
    EXPECT_FALSE(got->end.request_sent);
    EXPECT_EQ(client.client().used(), 0u);
  }
}

TEST(HttpClient, CancelEndsItAtOnceWhereverItIs) {
  const std::pair<const char*, Script> cases[] = {
      {"waits for a reply", Swallow},
      {"within a stream",
       [](Peer& peer) -> asio::awaitable<void> {
         const std::string first = kStream + Chunk("x");
         co_await peer.Write(first);
         co_await peer.WaitForEnd();
       }},
  };
  for (const auto& [name, script] : cases) {
    for (const bool from_thread : {false, true}) {
      Loop loop;
      bool hung_up = false;
      UpstreamServer server(loop, [&](Peer& peer) -> asio::awaitable<void> {
        co_await script(peer);
        hung_up = true;
      });
      TestClient client(loop, To(server.Url()));
      const FetchCanceller canceller;
      const auto got = client.Start(Get(), canceller);
      loop.RunFor(20);
      EXPECT_FALSE(got->done) << name;
      const auto began = std::chrono::steady_clock::now();
      if (from_thread) {
        std::thread([&] { canceller.Cancel(); }).join();
      } else {
        canceller.Cancel();
      }
      loop.RunUntil([&] { return got->done && hung_up; });
      EXPECT_LT(Millis(began), 1000) << name;
      EXPECT_STREQ(FetchFaultName(got->end.fault), "cancelled") << name;
      EXPECT_EQ(client.client().used(), 0u) << name;
      canceller.Cancel();  // too late for anything
    }
  }
}

TEST(HttpClient, CancelBeforeAndWithin) {
  Loop loop;
  UpstreamServer server(loop, AnswerAll);
  TestClient client(loop, To(server.Url()));
  FetchCanceller before;
  before.Cancel();
  const auto never = client.Fetch(Get(), before);
  EXPECT_STREQ(FetchFaultName(never->end.fault), "cancelled");
  EXPECT_FALSE(never->end.request_sent);
  EXPECT_EQ(server.connections(), 0);

  const FetchCanceller within;
  const auto got = client.Start(Get(), within);
  got->on_body = [&](std::string_view) { within.Cancel(); };
  loop.RunUntil([&] { return got->done; });
  EXPECT_EQ(got->end.outcome, FetchOutcome::kWhole) << "the body was there already";
}

TEST(HttpClient, CancelRacesWithTheEnd) {
  Loop loop;
  UpstreamServer server(loop, AnswerAll);
  TestClient client(loop, To(server.Url()));
  std::vector<std::shared_ptr<Fetched>> all;
  std::vector<FetchCanceller> cancellers(300);
  for (const FetchCanceller& canceller : cancellers) all.push_back(client.Start(Get(), canceller));
  std::thread other([&] {
    for (const FetchCanceller& canceller : cancellers) canceller.Cancel();
  });
  for (const auto& one : all) {
    loop.RunUntil([&] { return one->done; });
    const bool whole = one->end.outcome == FetchOutcome::kWhole && one->body == "hello";
    EXPECT_TRUE(whole || one->end.fault == FetchFault::kCancelled);
  }
  other.join();
  EXPECT_EQ(client.client().used(), 0u);
}

// Thousands of open streams are held, so each has to be small. Coroutine frames, buffers and all.
TEST(HttpClient, AnOpenStreamIsSmall) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers have their own sizes";
#endif
  constexpr size_t kStreams = 400;
  Loop loop;
  bool go_on = false;
  size_t waiting = 0;
  UpstreamServer server(loop, [&](Peer& peer) -> asio::awaitable<void> {
    (void)co_await peer.ReadRequest();
    co_await peer.Write(kStream);
    const std::string event = Chunk("data: x\n\n");
    co_await peer.Write(event);
    ++waiting;
    while (!go_on) co_await peer.Sleep(5);
    co_await peer.Write("0\r\n\r\n");
    co_await peer.WaitForEnd();
  });
  TestClient client(loop, To(server.Url()));
  client.Start(Get());
  loop.RunFor(20);
  const size_t before = mallinfo2().uordblks;
  std::vector<std::shared_ptr<Fetched>> all;
  for (size_t i = 0; i < kStreams; ++i) all.push_back(client.Start(Get()));
  loop.RunUntil([&] { return waiting == kStreams + 1; });
  loop.RunFor(20);
  const size_t each = (mallinfo2().uordblks - before) / kStreams;
  RecordProperty("bytes_each", static_cast<int>(each));
  EXPECT_LT(each, 16u << 10);  // the test server's side included
  go_on = true;
  for (const auto& one : all) loop.RunUntil([&] { return one->done; });
  EXPECT_EQ(client.client().unused(), kStreams + 1);
}

}  // namespace
}  // namespace verbatim::gateway
