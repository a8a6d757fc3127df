// Requests that a hostile or broken client sends: exact bytes in, exact status out.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/json.h"
#include "tests/gateway/server_fixture.h"

namespace verbatim::gateway {
namespace {

// Each is one connection: what it sends, the status it must get, whether the connection must end,
// and a text that the answer must hold.
struct Case {
  const char* name;
  std::string bytes;
  int status;
  bool closes;
  const char* holds;
};

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
      {"chunked twice", PostWith("Transfer-Encoding: chunked, chunked\r\n", "0\r\n\r\n"), 501, true,
       "chunked"},
      {"chunked then identity", PostWith("Transfer-Encoding: chunked, identity\r\n", "0\r\n\r\n"),
       501, true, "chunked"},
      {"identity coding", PostWith("Transfer-Encoding: identity\r\n", "0\r\n\r\n"), 501, true,
       "chunked"},
      {"quoted coding", PostWith("Transfer-Encoding: \"chunked\"\r\n", "0\r\n\r\n"), 501, true,
       "chunked"},
      {"empty coding", PostWith("Transfer-Encoding:\r\n", "0\r\n\r\n"), 501, true, "chunked"},
      {"coding in capitals", PostWith("TRANSFER-ENCODING: Chunked\r\n", "2\r\n{}\r\n0\r\n\r\n"),
       200, false, "2 {}"},
      {"folded coding", PostWith("X-A: b\r\n Transfer-Encoding: chunked\r\n", "0\r\n\r\n"), 400,
       true, "folded"},
      {"length behind a bare CR", PostWith("X-A: b\rContent-Length: 4\r\n", "abcd"), 400, true,
       "CR"},
      {"length hidden by a space", PostWith("Content-Length : 4\r\n", "abcd"), 400, true, "name"},
      {"length with an underscore", PostWith("Content_Length: 4\r\nContent-Length: 2\r\n", "{}"),
       200, false, "2 {}"},
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
      {"chunk size empty", Chunked("\r\nabc\r\n0\r\n\r\n"), 400, true, "chunk"},
      {"chunk size after a space", Chunked(" 3\r\nabc\r\n0\r\n\r\n"), 400, true, "chunk"},
      {"chunk size before a space", Chunked("3 4\r\nabc\r\n0\r\n\r\n"), 400, true, "chunk"},
      {"chunk size with an underscore", Chunked("1_0\r\nabc\r\n0\r\n\r\n"), 400, true, "chunk"},
      {"chunk shorter than said", Chunked("5\r\nabc\r\n0\r\n\r\n"), 400, true, "chunk"},
      {"chunk data ends with LF", Chunked("3\r\nabc\n0\r\n\r\n"), 400, true, "chunk"},
      {"control byte in a trailer", Chunked(std::string("0\r\nA: \0\r\n\r\n", 11)), 400, true,
       "chunk"},
      {"endless extension", Chunked("3;" + std::string(20'000, 'x') + "\r\nabc\r\n0\r\n\r\n"), 400,
       true, "chunk"},
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
      {"tail, as it was sent", Get("/items/a%2Fb%20c"), 200, false, "tail a%2Fb%20c"},
      {"tail, the other method", "POST /items/a/b HTTP/1.1\r\nHost: localhost\r\n\r\n", 200, false,
       "tail a/b"},
      {"own route, not the tail's", "POST /items/a/part HTTP/1.1\r\nHost: localhost\r\n\r\n", 405,
       false, "allow: GET, HEAD, OPTIONS\r\n"},
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

}  // namespace
}  // namespace verbatim::gateway
