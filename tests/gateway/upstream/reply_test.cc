// Replies of every shape, in packets cut anywhere: what the client makes of each.
#include <gtest/gtest.h>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/steady_timer.hpp>

#include "encoders.h"
#include "upstream_server.h"

namespace verbatim::gateway {
namespace {

namespace asio = boost::asio;
using namespace test;  // NOLINT: the fixtures of this folder
using Outcome = FetchOutcome;
using Fault = FetchFault;

struct Case {
  const char* name;
  std::string reply;
  bool closes;  // the server closes behind it
  Outcome outcome;
  Fault fault;
  int status;  // 0: no head
  std::string body;
  bool kept = false;  // the connection serves the next request
};

const std::string kChunked = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";

std::vector<Case> Cases() {
  const std::string big(3000, 'h');
  std::vector<Case> cases = {
      {"content-length", Plain("hello"), false, Outcome::kWhole, Fault::kNone, 200, "hello", true},
      {"no body", Plain(""), false, Outcome::kWhole, Fault::kNone, 200, "", true},
      {"204", "HTTP/1.1 204 No Content\r\n\r\n", false, Outcome::kWhole, Fault::kNone, 204, "",
       true},
      {"304 with a length", "HTTP/1.1 304 Not Modified\r\ncontent-length: 5\r\n\r\n", false,
       Outcome::kWhole, Fault::kNone, 304, "", true},
      {"an error with a body", "HTTP/1.1 429 \r\nretry-after: 1\r\ncontent-length: 2\r\n\r\n{}",
       false, Outcome::kWhole, Fault::kNone, 429, "{}", true},
      {"connection: close", Plain("hello", "Connection: close\r\n"), false, Outcome::kWhole,
       Fault::kNone, 200, "hello"},
      {"equal lengths twice", Plain("hello", "content-length: 5\r\n"), false, Outcome::kWhole,
       Fault::kNone, 200, "hello", true},
      {"chunks", kChunked + Chunk("hel") + Chunk("lo") + "0\r\n\r\n", false, Outcome::kWhole,
       Fault::kNone, 200, "hello", true},
      {"chunk extensions", kChunked + "3;a=b;c=\"d\"\r\nhel\r\n2 ;x\r\nlo\r\n0;end\r\n\r\n", false,
       Outcome::kWhole, Fault::kNone, 200, "hello", true},
      {"upper-case and padded sizes", kChunked + "00A\r\n0123456789\r\n0000\r\n\r\n", false,
       Outcome::kWhole, Fault::kNone, 200, "0123456789", true},
      {"trailers", kChunked + Chunk("hello") + "0\r\nx-checksum: 1\r\nx: y\r\n\r\n", false,
       Outcome::kWhole, Fault::kNone, 200, "hello", true},
      {"no chunk but the last", kChunked + "0\r\n\r\n", false, Outcome::kWhole, Fault::kNone, 200,
       "", true},
      {"1xx first",
       "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + Plain("hello"),
       false, Outcome::kWhole, Fault::kNone, 200, "hello", true},
      {"until the end", "HTTP/1.1 200 OK\r\n\r\nhello", true, Outcome::kEndedByClose, Fault::kNone,
       200, "hello"},
      {"HTTP/1.0", "HTTP/1.0 200 OK\r\n\r\nhello", true, Outcome::kEndedByClose, Fault::kNone, 200,
       "hello"},
      {"HTTP/1.0 with a length", "HTTP/1.0 200 OK\r\ncontent-length: 5\r\n\r\nhello", true,
       Outcome::kWhole, Fault::kNone, 200, "hello"},
      {"HTTP/1.0 kept alive",
       "HTTP/1.0 200 OK\r\nconnection: keep-alive\r\ncontent-length: 5\r\n\r\nhello", false,
       Outcome::kWhole, Fault::kNone, 200, "hello", true},
      {"long headers",
       Plain("hello", "x: " + big + "\r\ny: " + big + "\r\nz: " + big + big + "\r\n"), false,
       Outcome::kWhole, Fault::kNone, 200, "hello", true},
      {"more than announced", Plain("hello") + "!", false, Outcome::kWhole, Fault::kNone, 200,
       "hello"},

      {"short body", "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhello", true, Outcome::kBroken,
       Fault::kTruncated, 200, "hello"},
      {"no last chunk", kChunked + Chunk("hello"), true, Outcome::kBroken, Fault::kTruncated, 200,
       "hello"},
      {"short chunk", kChunked + "9\r\nhello", true, Outcome::kBroken, Fault::kTruncated, 200,
       "hello"},
      {"short trailer", kChunked + Chunk("hello") + "0\r\nx: y\r\n", true, Outcome::kBroken,
       Fault::kTruncated, 200, "hello"},
      {"nothing", "", true, Outcome::kBroken, Fault::kReset, 0, ""},
      {"short header", "HTTP/1.1 200 OK\r\ncontent-le", true, Outcome::kBroken, Fault::kReset, 0,
       ""},
      {"only 100", "HTTP/1.1 100 Continue\r\n\r\n", true, Outcome::kBroken, Fault::kReset, 0, ""},

      {"length and chunks",
       "HTTP/1.1 200 OK\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n", false,
       Outcome::kBroken, Fault::kMalformed, 0, ""},
      {"chunks and length",
       "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-length: 5\r\n\r\n", false,
       Outcome::kBroken, Fault::kMalformed, 0, ""},
      {"two lengths", "HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n", false,
       Outcome::kBroken, Fault::kMalformed, 0, ""},
      {"negative length", "HTTP/1.1 200 OK\r\ncontent-length: -5\r\n\r\n", false, Outcome::kBroken,
       Fault::kMalformed, 0, ""},
      {"another transfer coding", "HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n",
       false, Outcome::kBroken, Fault::kMalformed, 0, ""},
      {"chunked twice", "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked, chunked\r\n\r\n", false,
       Outcome::kBroken, Fault::kMalformed, 0, ""},
      {"an endless size", kChunked + "fffffffffffffffff\r\n", false, Outcome::kBroken,
       Fault::kMalformed, 200, ""},
      {"no size", kChunked + "\r\nhello", false, Outcome::kBroken, Fault::kMalformed, 200, ""},
      {"no line end behind a chunk", kChunked + "5\r\nhello0\r\n\r\n", false, Outcome::kBroken,
       Fault::kMalformed, 200, "hello"},
      {"no HTTP", "SSH-2.0-OpenSSH_9.2\r\n\r\n", false, Outcome::kBroken, Fault::kMalformed, 0, ""},
      {"HTTP/2", "HTTP/2.0 200 OK\r\n\r\n", false, Outcome::kBroken, Fault::kMalformed, 0, ""},
      {"status 99", "HTTP/1.1 099 OK\r\n\r\n", false, Outcome::kBroken, Fault::kMalformed, 0, ""},
      {"status 600", "HTTP/1.1 600 OK\r\n\r\n", false, Outcome::kBroken, Fault::kMalformed, 0, ""},
      {"an upgrade", "HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\n\r\n", false,
       Outcome::kBroken, Fault::kMalformed, 0, ""},
      {"a space in a name", "HTTP/1.1 200 OK\r\nx y: z\r\n\r\n", false, Outcome::kBroken,
       Fault::kMalformed, 0, ""},
      {"a control character", std::string("HTTP/1.1 200 OK\r\nx: a\0b\r\n\r\n", 28), false,
       Outcome::kBroken, Fault::kMalformed, 0, ""},
      {"a header over its limit", Plain("hello", "x: " + std::string(20'000, 'x') + "\r\n"), false,
       Outcome::kBroken, Fault::kTooLarge, 0, ""},
      {"many 1xx",
       [] {
         std::string all;
         for (int i = 0; i < 40; ++i) all += "HTTP/1.1 100 Continue\r\n\r\n";
         return all;
       }(),
       false, Outcome::kBroken, Fault::kMalformed, 0, ""},
      {"a body over its limit", Plain(std::string(100'001, 'x')), false, Outcome::kBroken,
       Fault::kTooLarge, 200, ""},

      {"gzip", Plain(Encode("gzip", "hello"), "content-encoding: gzip\r\n"), false, Outcome::kWhole,
       Fault::kNone, 200, "hello", true},
      {"two codings in two headers",
       Plain(Encode("br", Encode("gzip", "hello")),
             "content-encoding: gzip\r\ncontent-encoding: br\r\n"),
       false, Outcome::kWhole, Fault::kNone, 200, "hello", true},
      {"a coding of nothing", Plain("", "content-encoding: zstd\r\n"), false, Outcome::kWhole,
       Fault::kNone, 200, "", true},
      {"204 with a coding", "HTTP/1.1 204 No Content\r\ncontent-encoding: zzz\r\n\r\n", false,
       Outcome::kWhole, Fault::kNone, 204, "", true},
      {"gzip until the end",
       "HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\n\r\n" + Encode("gzip", "hello"), true,
       Outcome::kEndedByClose, Fault::kNone, 200, "hello"},
      {"short gzip", Plain(Encode("gzip", "hello").substr(0, 10), "content-encoding: gzip\r\n"),
       false, Outcome::kBroken, Fault::kTruncated, 200, ""},
      {"no gzip", Plain("hello", "content-encoding: gzip\r\n"), false, Outcome::kBroken,
       Fault::kBadEncoding, 200, ""},
      {"an unknown coding", Plain("hello", "content-encoding: zzz\r\n"), false, Outcome::kBroken,
       Fault::kBadEncoding, 200, ""},
  };
  return cases;
}

// Some bytes of the last part may be cut off with the connection; the head's and body's must not.
void Check(const Case& c, const std::string& how, const Fetched& got) {
  const std::string input = std::string(c.name) + ", " + how;
  EXPECT_EQ(got.end.outcome, c.outcome) << input;
  EXPECT_STREQ(FetchFaultName(got.end.fault), FetchFaultName(c.fault))
      << input << ": " << got.end.message;
  EXPECT_EQ(got.end.message.empty(), c.fault == Fault::kNone) << input;
  EXPECT_EQ(got.heads, c.status == 0 ? 0 : 1) << input;
  EXPECT_EQ(got.head.status, c.status) << input;
  EXPECT_TRUE(got.body == c.body) << input << ": got " << got.body.substr(0, 100) << ", want "
                                  << c.body.substr(0, 100);
  EXPECT_EQ(got.end.reply_began, !c.reply.empty()) << input;
  EXPECT_EQ(got.end.first_byte_micros >= 0, !c.reply.empty()) << input;
  EXPECT_TRUE(got.end.request_sent) << input;
}

TEST(HttpReply, OfEveryShapeCutAnywhere) {
  for (const Case& c : Cases()) {
    for (const size_t size : {size_t{1}, size_t{7}, size_t{1 << 20}}) {
      if (size < 7 && c.reply.size() > 20'000) continue;  // takes long and shows nothing more
      Loop loop;
      UpstreamServer server(loop, [&](Peer& peer) -> asio::awaitable<void> {
        for (;;) {
          const std::string request = co_await peer.ReadRequest();
          if (request.empty()) co_return;
          co_await peer.WriteInParts(c.reply, size);
          if (c.closes) co_return;
        }
      });
      HttpClientOptions options = To(server.Url());
      options.header_bytes = 16 << 10;
      options.body_bytes = 100'000;
      TestClient client(loop, options);
      const std::string how = "parts of " + std::to_string(size);
      const auto first = client.Fetch(Post("{}"));
      Check(c, how, *first);
      EXPECT_EQ(client.client().used(), 0u) << c.name;
      loop.RunFor(1);  // what else comes, comes
      EXPECT_EQ(client.client().unused(), c.kept ? 1u : 0u) << c.name << ", " << how;
      if (!c.kept && size < 1 << 20) continue;
      const auto second = client.Fetch(Post("{}"));
      Check(c, how + ", again", *second);
      EXPECT_EQ(second->end.reused, c.kept) << c.name << ", " << how;
      EXPECT_EQ(server.connections(), c.kept ? 1 : 2) << c.name << ", " << how;
    }
  }
}

TEST(HttpReply, HeadersComeInOrderWithLowerCaseNames) {
  Loop loop;
  UpstreamServer server(loop, [&](Peer& peer) -> asio::awaitable<void> {
    (void)co_await peer.ReadRequest();
    co_await peer.Write(
        "HTTP/1.1 200 OK\r\nX-B:  two words \r\nSet-Cookie: a\r\nx-a:\r\nset-cookie: b\r\n"
        "content-length: 0\r\n\r\n");
  });
  TestClient client(loop, To(server.Url()));
  const auto got = client.Fetch(Get());
  const Headers want = {{"x-b", "two words"},
                        {"set-cookie", "a"},
                        {"x-a", ""},
                        {"set-cookie", "b"},
                        {"content-length", "0"}};
  EXPECT_EQ(got->head.headers, want);
}

TEST(HttpReply, ToHeadHasNoBody) {
  Loop loop;
  UpstreamServer server(loop, [&](Peer& peer) -> asio::awaitable<void> {
    (void)co_await peer.ReadRequest();
    co_await peer.Write("HTTP/1.1 200 OK\r\ncontent-length: 500\r\ncontent-encoding: gzip\r\n\r\n");
    co_await peer.WaitForEnd();
  });
  TestClient client(loop, To(server.Url()));
  FetchRequest request = Get();
  request.method = "HEAD";
  const auto got = client.Fetch(std::move(request));
  EXPECT_EQ(got->end.outcome, Outcome::kWhole) << got->end.message;
  EXPECT_EQ(got->body, "");
}

TEST(HttpReply, BodiesOfSeveralMegabytes) {
  std::string body;
  while (body.size() < 2'000'000) body += std::to_string(body.size()) + " ";
  std::string chunked = kChunked;
  for (size_t at = 0; at < body.size(); at += 50'000) {
    chunked += Chunk(std::string_view(body).substr(at, 50'000));
  }
  chunked += "0\r\n\r\n";
  for (const std::string& reply :
       {Plain(body), chunked, Plain(Encode("gzip", body), "content-encoding: gzip\r\n"),
        Plain(Encode("zstd", body), "content-encoding: zstd\r\n")}) {
    Loop loop;
    UpstreamServer server(loop, [&](Peer& peer) -> asio::awaitable<void> {
      (void)co_await peer.ReadRequest();
      co_await peer.Write(reply);
      co_await peer.WaitForEnd();
    });
    TestClient client(loop, To(server.Url()));
    const auto got = client.Fetch(Post(body));  // and as long a request
    EXPECT_EQ(got->end.outcome, Outcome::kWhole) << got->end.message;
    EXPECT_TRUE(got->body == body) << got->body.size() << ", want " << body.size();
    EXPECT_EQ(client.client().unused(), 1u);
  }
}

// Each event of a coded stream is there before the server sends the next one.
TEST(HttpReply, CodedEventsArriveOneByOne) {
  for (const char* coding : {"gzip", "deflate", "br", "zstd"}) {
    Loop loop;
    std::string body;
    int waited = 0;
    UpstreamServer server(loop, [&](Peer& peer) -> asio::awaitable<void> {
      (void)co_await peer.ReadRequest();
      co_await peer.Write("HTTP/1.1 200 OK\r\ncontent-encoding: " + std::string(coding) +
                          "\r\ntransfer-encoding: chunked\r\n\r\n");
      EventEncoder encoder(coding);
      std::string sent;
      for (int i = 0; i < 10; ++i) {
        const std::string event = "data: " + std::to_string(i) + "\n\n";
        const std::string coded = Chunk(encoder.Flush(event));
        co_await peer.WriteInParts(coded, 5);
        sent += event;
        for (int n = 0; n < 1000 && body != sent; ++n) co_await peer.Sleep(1);
        EXPECT_EQ(body, sent) << coding;
        ++waited;
      }
      const std::string last = Chunk(encoder.End()) + "0\r\n\r\n";
      co_await peer.Write(last);
      co_await peer.WaitForEnd();
    });
    TestClient client(loop, To(server.Url()));
    auto got = client.Start(Get());
    got->on_body = [&](std::string_view bytes) { body += bytes; };
    loop.RunUntil([&] { return got->done; });
    EXPECT_EQ(got->end.outcome, Outcome::kWhole) << coding << ": " << got->end.message;
    EXPECT_EQ(waited, 10) << coding;
  }
}

// What is decoded counts, not what came; and a chunked body has no announced length to refuse.
TEST(HttpReply, DecodedBytesAreBounded) {
  const std::string zeros(2'000'000, '\0');
  for (const char* coding : {"gzip", "br", "zstd"}) {
    Loop loop;
    UpstreamServer server(loop, [&](Peer& peer) -> asio::awaitable<void> {
      (void)co_await peer.ReadRequest();
      const std::string reply = "HTTP/1.1 200 OK\r\ncontent-encoding: " + std::string(coding) +
                                "\r\ntransfer-encoding: chunked\r\n\r\n" +
                                Chunk(Encode(coding, zeros)) + "0\r\n\r\n";
      co_await peer.Write(reply);
      co_await peer.WaitForEnd();
    });
    HttpClientOptions options = To(server.Url());
    options.body_bytes = 1'000'000;
    TestClient client(loop, options);
    const auto got = client.Fetch(Get());
    EXPECT_STREQ(FetchFaultName(got->end.fault), "too_large") << coding;
    EXPECT_LE(got->body.size(), options.body_bytes) << coding;
  }
}

TEST(HttpReply, LinesBetweenChunksAreBounded) {
  Loop loop;
  UpstreamServer server(loop, [&](Peer& peer) -> asio::awaitable<void> {
    (void)co_await peer.ReadRequest();
    const std::string reply =
        kChunked + "5;x=" + std::string(200'000, 'x') + "\r\nhello\r\n0\r\n\r\n";
    co_await peer.Write(reply);
    co_await peer.WaitForEnd();
  });
  HttpClientOptions options = To(server.Url());
  options.header_bytes = 16 << 10;
  TestClient client(loop, options);
  EXPECT_STREQ(FetchFaultName(client.Fetch(Get())->end.fault), "too_large");
}

// An upstream that has read enough of a long request answers before it has all of it.
TEST(HttpReply, MayComeBeforeTheRequestIsSent) {
  Loop loop;
  UpstreamServer server(loop, [&](Peer& peer) -> asio::awaitable<void> {
    co_await peer.Write("HTTP/1.1 413 Too Large\r\ncontent-length: 2\r\n\r\n{}");
    co_await peer.Sleep(200);
  });
  TestClient client(loop, To(server.Url()));
  const auto got = client.Fetch(Post(std::string(30 << 20, 'x')));
  EXPECT_EQ(got->head.status, 413) << got->end.message;
  EXPECT_EQ(got->body, "{}");
  EXPECT_EQ(client.client().unused(), 0u);
}

}  // namespace
}  // namespace verbatim::gateway
