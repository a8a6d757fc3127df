// HTTPS: whose certificates are accepted and whose are not, and both kinds of proxy.
#include <gtest/gtest.h>
#include <openssl/ssl.h>

#include <boost/asio/awaitable.hpp>

#include "certificates.h"
#include "encoders.h"
#include "upstream_server.h"

namespace verbatim::gateway {
namespace {

namespace asio = boost::asio;
using namespace test;  // NOLINT: the fixtures of this folder

bool Has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// Answers every request with the server name that the client asked for.
asio::awaitable<void> AnswerServerName(Peer& peer) {
  for (;;) {
    const std::string request = co_await peer.ReadRequest();
    if (request.empty()) co_return;
    const std::string reply = Plain("name=" + peer.ServerName());
    co_await peer.WriteInParts(reply, 10);
  }
}

TEST(UpstreamTls, CertificatesAreChecked) {
  const Authority ours("ours"), other("other");
  const TemporaryFiles files;
  const std::string ca = files.Add("ca.pem", other.certificate() + ours.certificate());
  const std::string other_ca = files.Add("other.pem", other.certificate());
  const struct {
    const char* host;
    Issued certificate;
    std::string ca_file;
    const char* want;  // the body, or part of the message
    bool accepted;
  } cases[] = {
      {"localhost", ours.Issue("DNS:localhost"), ca, "name=localhost", true},
      {"localhost", ours.Issue("DNS:a.example,DNS:LOCALHOST"), ca, "name=localhost", true},
      {"127.0.0.1", ours.Issue("IP:127.0.0.1"), ca, "name=", true},
      {"localhost", ours.Issue("DNS:a.example"), ca, "hostname mismatch", false},
      {"localhost", ours.Issue("DNS:local*"), ca, "hostname mismatch", false},
      {"localhost", ours.Issue("DNS:localhost.evil.example"), ca, "hostname mismatch", false},
      {"localhost", ours.Issue("IP:127.0.0.1"), ca, "hostname mismatch", false},
      {"127.0.0.1", ours.Issue("DNS:localhost"), ca, "IP address mismatch", false},
      {"127.0.0.1", ours.Issue("IP:127.0.0.2"), ca, "IP address mismatch", false},
      {"127.0.0.1", ours.Issue("DNS:127.0.0.1"), ca, "IP address mismatch", false},
      {"localhost", ours.Issue("DNS:localhost", -1), ca, "certificate has expired", false},
      {"localhost", ours.Issue("DNS:localhost"), other_ca, "unable to get local issuer", false},
      {"localhost", ours.Issue("DNS:localhost"), "", "unable to get local issuer", false},
  };
  for (const auto& c : cases) {
    Loop loop;
    const TlsContext tls = ServerContext(c.certificate);
    UpstreamServer server(loop, AnswerServerName, tls.get());
    HttpClientOptions options = To(server.Url(c.host));
    options.ca_file = c.ca_file;
    TestClient client(loop, options);
    const auto got = client.Fetch(Post("{}"));
    if (c.accepted) {
      EXPECT_EQ(got->end.outcome, FetchOutcome::kWhole) << c.want << ": " << got->end.message;
      EXPECT_EQ(got->body, c.want);
      EXPECT_TRUE(client.Fetch(Post("{}"))->end.reused) << c.want;
      EXPECT_EQ(server.connections(), 1);
    } else {
      EXPECT_STREQ(FetchFaultName(got->end.fault), "tls_failed") << c.want;
      EXPECT_TRUE(Has(got->end.message, c.want)) << got->end.message << ", want " << c.want;
      EXPECT_TRUE(Has(got->end.message, c.host)) << got->end.message;
      EXPECT_FALSE(got->end.request_sent) << c.want;
      EXPECT_EQ(client.client().used() + client.client().unused(), 0u);
    }
  }
}

TEST(UpstreamTls, OldVersionsAndStrangersFail) {
  const Authority ours("ours");
  const TemporaryFiles files;
  const std::string ca = files.Add("ca.pem", ours.certificate());
  const TlsContext old = ServerContext(ours.Issue("IP:127.0.0.1"));
  SSL_CTX_set_max_proto_version(old.get(), TLS1_1_VERSION);
  Loop loop;
  UpstreamServer old_server(loop, AnswerServerName, old.get());
  UpstreamServer plain_server(loop, [](Peer& peer) -> asio::awaitable<void> {
    co_await peer.Write("HTTP/1.1 400 Bad Request\r\n\r\n");
  });
  for (const uint16_t port : {old_server.port(), plain_server.port()}) {
    HttpClientOptions options = To("https://127.0.0.1:" + std::to_string(port));
    options.ca_file = ca;
    TestClient client(loop, options);
    const auto got = client.Fetch(Post("{}"));
    EXPECT_STREQ(FetchFaultName(got->end.fault), "tls_failed") << got->end.message;
    EXPECT_FALSE(got->end.request_sent);
  }
}

TEST(UpstreamTls, ClientsShowTheirCertificate) {
  const Authority ours("ours"), clients("clients");
  const Issued own = clients.Issue("DNS:client");
  const TemporaryFiles files;
  const TlsContext tls = ServerContext(ours.Issue("IP:127.0.0.1"), clients.certificate());
  Loop loop;
  UpstreamServer server(loop, AnswerServerName, tls.get());
  HttpClientOptions options = To(server.Url());
  options.ca_file = files.Add("ca.pem", ours.certificate());
  {
    TestClient client(loop, options);
    const auto got = client.Fetch(Post("{}"));
    EXPECT_EQ(got->end.outcome,
              FetchOutcome::kBroken);  // TLS 1.3: it is refused after the handshake
  }
  options.client_certificate_file = files.Add("own.pem", own.certificate);
  options.client_key_file = files.Add("own.key", own.key);
  TestClient client(loop, options);
  EXPECT_EQ(client.Fetch(Post("{}"))->end.outcome, FetchOutcome::kWhole);
}

TEST(UpstreamTls, BadFilesAreNamed) {
  const Authority ours("ours");
  const Issued one = ours.Issue("DNS:a"), two = ours.Issue("DNS:b");
  const TemporaryFiles files;
  const std::string certificate = files.Add("one.pem", one.certificate);
  const std::string key = files.Add("one.key", one.key), other_key = files.Add("two.key", two.key);
  const std::string text = files.Add("text.pem", "no certificate");
  const std::string authority = files.Add("ca.pem", ours.certificate());
  const struct {
    std::string ca_file, certificate_file, key_file;
    const char* want;
  } cases[] = {
      {"/no/such/ca.pem", "", "", "/no/such/ca.pem is not there"},
      {text, "", "", "text.pem"},
      {"", certificate, "", "both or neither"},
      {"", "", key, "both or neither"},
      {"", text, key, "text.pem"},
      {"", certificate, text, "text.pem"},
      {"", certificate, other_key, "key values mismatch"},
      {"", certificate, "/no/such/key", "/no/such/key is not there"},
  };
  for (const auto& c : cases) {
    HttpClientOptions options = To("https://a.example");
    options.ca_file = c.ca_file.empty() ? authority : c.ca_file;
    options.client_certificate_file = c.certificate_file;
    options.client_key_file = c.key_file;
    const auto origin = HttpOrigin::Make(options);
    ASSERT_FALSE(origin.ok()) << c.want;
    EXPECT_TRUE(Has(origin.error().message, c.want)) << origin.error().message;
  }
}

// A body that only the connection's end ends may have been cut by anybody in between, unless TLS
// says goodbye.
TEST(UpstreamTls, EndWithoutGoodbyeIsNoEnd) {
  const Authority ours("ours");
  const TemporaryFiles files;
  const TlsContext tls = ServerContext(ours.Issue("IP:127.0.0.1"));
  for (const bool in_order : {true, false}) {
    Loop loop;
    UpstreamServer server(
        loop,
        [&](Peer& peer) -> asio::awaitable<void> {
          (void)co_await peer.ReadRequest();
          co_await peer.Write("HTTP/1.1 200 OK\r\n\r\nhello");
          if (in_order) co_await peer.CloseInOrder();
        },
        tls.get());
    HttpClientOptions options = To(server.Url());
    options.ca_file = files.Add("ca.pem", ours.certificate());
    TestClient client(loop, options);
    const auto got = client.Fetch(Post("{}"));
    EXPECT_EQ(got->body, "hello");
    EXPECT_STREQ(FetchFaultName(got->end.fault), in_order ? "none" : "truncated");
    EXPECT_EQ(got->end.outcome, in_order ? FetchOutcome::kEndedByClose : FetchOutcome::kBroken);
  }
}

TEST(UpstreamTls, LongBodiesBothWays) {
  const Authority ours("ours");
  const TemporaryFiles files;
  const TlsContext tls = ServerContext(ours.Issue("IP:127.0.0.1"));
  Loop loop;
  UpstreamServer server(
      loop,
      [&](Peer& peer) -> asio::awaitable<void> {
        const std::string request = co_await peer.ReadRequest();
        const std::string body = request.substr(request.find("\r\n\r\n") + 4);
        const std::string reply = Plain(Encode("gzip", body), "content-encoding: gzip\r\n");
        co_await peer.Write(reply);
        co_await peer.WaitForEnd();
      },
      tls.get());
  HttpClientOptions options = To(server.Url());
  options.ca_file = files.Add("ca.pem", ours.certificate());
  TestClient client(loop, options);
  std::string body;
  while (body.size() < 1'000'000) body += std::to_string(body.size()) + " ";
  const auto got = client.Fetch(Post(body));
  EXPECT_EQ(got->end.outcome, FetchOutcome::kWhole) << got->end.message;
  EXPECT_TRUE(got->body == body);
  EXPECT_EQ(client.client().unused(), 1u);
}

TEST(UpstreamProxy, HttpsGoesThroughATunnel) {
  const Authority ours("ours");
  const TemporaryFiles files;
  const TlsContext tls = ServerContext(ours.Issue("DNS:api.example"));
  Loop loop;
  UpstreamServer server(loop, AnswerServerName, tls.get());
  std::string connect;
  UpstreamServer proxy(loop, [&](Peer& peer) -> asio::awaitable<void> {
    connect = co_await peer.ReadRequest();
    co_await peer.WriteInParts("HTTP/1.1 200 Connection established\r\nvia: x\r\n\r\n", 7);
    co_await peer.Tunnel(server.port());
  });
  HttpClientOptions options = To("https://api.example");  // a name that only the proxy knows
  options.ca_file = files.Add("ca.pem", ours.certificate());
  options.proxy = "http://Aladdin:open%20sesame@127.0.0.1:" + std::to_string(proxy.port());
  TestClient client(loop, options);
  const auto got = client.Fetch(Post("{}"));
  EXPECT_EQ(got->end.outcome, FetchOutcome::kWhole) << got->end.message;
  EXPECT_EQ(got->body, "name=api.example");
  EXPECT_EQ(connect,
            "CONNECT api.example:443 HTTP/1.1\r\nhost: api.example:443\r\n"
            "proxy-authorization: Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==\r\n\r\n");
  EXPECT_TRUE(client.Fetch(Post("{}"))->end.reused);
  EXPECT_EQ(proxy.connections(), 1);
}

TEST(UpstreamProxy, RefusalsSaySo) {
  const TemporaryFiles files;
  const std::string ca = files.Add("ca.pem", Authority("ours").certificate());
  const struct {
    const char* reply;
    const char* want;
  } cases[] = {
      {"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n", "407: check user and password"},
      {"HTTP/1.1 403 Forbidden\r\ncontent-length: 1\r\n\r\nx", "CONNECT with 403"},
      {"HTTP/1.1 200 OK\r\n\r\nunasked", "more than its answer"},
      {"SSH-2.0\r\n\r\n", "something else than HTTP"},
      {"", "no answer to CONNECT"},
  };
  for (const auto& c : cases) {
    Loop loop;
    UpstreamServer proxy(loop, [&](Peer& peer) -> asio::awaitable<void> {
      (void)co_await peer.ReadRequest();
      co_await peer.Write(c.reply);
    });
    HttpClientOptions options = To("https://api.example");
    options.ca_file = ca;
    options.proxy = "http://user:secret@127.0.0.1:" + std::to_string(proxy.port());
    TestClient client(loop, options);
    const auto got = client.Fetch(Post("{}"));
    EXPECT_STREQ(FetchFaultName(got->end.fault), "connect_failed") << c.want;
    EXPECT_TRUE(Has(got->end.message, c.want)) << got->end.message;
    EXPECT_FALSE(Has(got->end.message, "secret"));
    EXPECT_FALSE(got->end.request_sent);
  }
}

TEST(UpstreamProxy, HttpIsAskedForByItsWholeUrl) {
  Loop loop;
  std::string request;
  UpstreamServer proxy(loop, [&](Peer& peer) -> asio::awaitable<void> {
    request = co_await peer.ReadRequest();
    co_await peer.Write(Plain("hello"));
    co_await peer.WaitForEnd();
  });
  HttpClientOptions options = To("http://api.example:8080");
  options.proxy = "http://u:p@127.0.0.1:" + std::to_string(proxy.port());
  TestClient client(loop, options);
  EXPECT_EQ(client.Fetch(Get("/v1/models?a=b"))->body, "hello");
  EXPECT_EQ(request,
            "GET http://api.example:8080/v1/models?a=b HTTP/1.1\r\nhost: api.example:8080\r\n"
            "proxy-authorization: Basic dTpw\r\n\r\n");
}

}  // namespace
}  // namespace verbatim::gateway
