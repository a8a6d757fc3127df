// TLS and mutual TLS of the server, with certificates made on the spot.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "base/crypto.h"
#include "tests/gateway/server_fixture.h"
#include "tests/gateway/tls_client.h"

namespace verbatim::gateway {
namespace {

using Clients = TlsOptions::Clients;

class ServerTlsTest : public ServerTest {
 protected:
  TlsOptions Options() {
    TlsOptions tls;
    tls.certificate = served_.certificate;
    tls.key = served_.key;
    return tls;
  }

  void Serve(TlsOptions tls, Authenticator auth = {}, bool operator_certificates = false) {
    options_.tls = std::move(tls);
    options_.operator_certificates = operator_certificates;
    Start({}, std::move(auth));
  }

  TlsClientOptions Trusting() {
    TlsClientOptions options;
    options.ca = authority_.certificate();
    return options;
  }

  // Status of one request over a connection of its own, 0 where there is no answer.
  int AskTls(const TlsClientOptions& options, const std::string& bytes,
             std::string* got = nullptr) {
    TlsClient client(server_->port(), options);
    client.Send(bytes);
    const std::string answer = client.ReadResponse();
    if (got != nullptr) *got = answer;
    return StatusOf(answer);
  }

  TestAuthority authority_{"test authority"};
  TestCertificate served_ = authority_.Issue("the server");
};

TEST_F(ServerTlsTest, AnswersAsWithoutTls) {
  Serve(Options());
  EXPECT_TRUE(server_->url().starts_with("https://127.0.0.1:")) << server_->url();
  TlsClient client(server_->port(), Trusting());
  ASSERT_TRUE(client.usable()) << client.error();
  EXPECT_EQ(client.version(), "TLSv1.3");
  EXPECT_EQ(client.protocol(), "http/1.1");
  // Kept alive, pipelined, cut anywhere, longer than a record, streamed.
  client.Send(Get("/ping") + Get("/ping"));
  EXPECT_TRUE(client.ReadResponse().ends_with("{\"ok\":true}"));
  EXPECT_TRUE(client.ReadResponse().ends_with("{\"ok\":true}"));
  const std::string body(100'000, 'b');
  const std::string request = Post("/echo", body);
  for (size_t i = 0; i < request.size(); i += 7'919) {
    client.Send(std::string_view(request).substr(i, 7'919));
  }
  EXPECT_TRUE(client.ReadResponse().ends_with(body));
  client.Send(Post("/stream", "{}"));
  EXPECT_TRUE(client.ReadUntil("0\r\n\r\n").ends_with("data: bb\n\n\r\n0\r\n\r\n"));
}

TEST_F(ServerTlsTest, AStreamOfMegabytesArrivesWhole) {
  Serve(Options());
  TlsClient client(server_->port(), Trusting());
  client.Send(Get("/megabytes"));
  const std::string got = client.ReadUntil("\r\n0\r\n\r\n");
  EXPECT_GT(got.size(), size_t{64} << 20);
  EXPECT_TRUE(got.ends_with("x\n\n\r\n0\r\n\r\n"));
  EXPECT_EQ(observed_.written, 64);
}

TEST_F(ServerTlsTest, AHangUpIsNoticed) {
  Serve(Options());
  {
    TlsClient client(server_->port(), Trusting());
    client.Send(Post("/wait", "{}"));
    ASSERT_TRUE(Within(milliseconds(3000), [&] { return observed_.waiting == 1; }));
  }
  EXPECT_TRUE(Within(milliseconds(500), [&] { return observed_.gone == 1; }));
}

TEST_F(ServerTlsTest, TheWrongSchemeIsSaid) {
  Serve(Options());
  const std::string got = Ask(Get("/ping"));
  EXPECT_EQ(StatusOf(got), 400) << got;
  EXPECT_NE(got.find("https://"), std::string::npos) << got;
  EXPECT_NE(got.find("connection: close"), std::string::npos) << got;
}

TEST_F(ServerTlsTest, OldVersionsAndOtherProtocolsAreRefused) {
  TlsOptions tls = Options();
  tls.min_version = 13;
  Serve(tls);
  TlsClientOptions old = Trusting();
  old.max_version = 12;
  EXPECT_FALSE(TlsClient(server_->port(), old).usable());
  TlsClientOptions http2 = Trusting();
  http2.alpn = "h2";
  const TlsClient refused(server_->port(), http2);
  EXPECT_FALSE(refused.usable());
  EXPECT_NE(refused.error().find("no application protocol"), std::string::npos) << refused.error();
  TlsClientOptions silent = Trusting();
  silent.alpn = "";
  EXPECT_EQ(AskTls(silent, Get("/ping")), 200);
}

TEST_F(ServerTlsTest, VersionTwelveByDefault) {
  Serve(Options());
  TlsClientOptions old = Trusting();
  old.max_version = 12;
  EXPECT_EQ(AskTls(old, Get("/ping")), 200);
}

TEST_F(ServerTlsTest, CertificatesCanBeRequired) {
  TlsOptions tls = Options();
  tls.client_ca = authority_.certificate();
  tls.clients = Clients::kRequired;
  Serve(tls);
  TlsClientOptions client = Trusting();
  EXPECT_EQ(AskTls(client, Get("/ping")), 0);
  client.certificate = authority_.Issue("expired", -1);
  EXPECT_EQ(AskTls(client, Get("/ping")), 0);
  TestAuthority other("another authority");
  client.certificate = other.Issue("stranger");
  EXPECT_EQ(AskTls(client, Get("/ping")), 0);
  client.certificate = authority_.Issue("known");
  EXPECT_EQ(AskTls(client, Get("/ping")), 200);
}

// The key says who asks; the certificate is what operators need beside it.
TEST_F(ServerTlsTest, OperatorsNeedACertificateBesideTheKey) {
  Principal olga;
  olga.tenant = "acme";
  olga.key_id = "key_1";
  olga.roles = kEveryRole;
  TlsOptions tls = Options();
  tls.client_ca = authority_.certificate();
  tls.clients = Clients::kOptional;
  Serve(tls, Authenticator({{Sha256("sk-olga"), olga}}), true);
  const std::string key = "Authorization: Bearer sk-olga\r\n";
  const TlsClientOptions bare = Trusting();
  TlsClientOptions shown = Trusting();
  shown.certificate = authority_.Issue("Olga \xc3\x9c.");

  std::string got;
  EXPECT_EQ(AskTls(bare, Get("/audit", key), &got), 403);
  EXPECT_NE(got.find("client certificate"), std::string::npos) << got;
  EXPECT_EQ(AskTls(bare, Post("/echo", "{}", key)), 200) << "clients need none";
  EXPECT_EQ(AskTls(bare, Get("/ping")), 200);
  EXPECT_EQ(AskTls(shown, Get("/audit")), 401) << "the certificate is no key";
  EXPECT_EQ(AskTls(shown, Get("/who", key), &got), 200);
  EXPECT_NE(got.find("\r\n\r\nOlga \xc3\x9c. key_1+cert:"), std::string::npos) << got;
  EXPECT_EQ(got.size() - got.find("cert:"), 5u + 16);
}

TEST_F(ServerTlsTest, FilesAreReadAgain) {
  Serve(Options());
  EXPECT_EQ(TlsClient(server_->port(), Trusting()).server_name(), "the server");
  TlsClient before(server_->port(), Trusting());
  const TestCertificate renewed = authority_.Issue("renewed");
  std::filesystem::copy_file(renewed.key, served_.key,
                             std::filesystem::copy_options::overwrite_existing);
  // Half of a renewal is refused whole, and what was served goes on.
  const Status half = server_->ReloadTls();
  ASSERT_FALSE(half.ok());
  EXPECT_NE(half.error().message.find(served_.key), std::string::npos) << half.error().message;
  EXPECT_EQ(TlsClient(server_->port(), Trusting()).server_name(), "the server");
  std::filesystem::copy_file(renewed.certificate, served_.certificate,
                             std::filesystem::copy_options::overwrite_existing);
  EXPECT_TRUE(server_->ReloadTls().ok());
  EXPECT_EQ(TlsClient(server_->port(), Trusting()).server_name(), "renewed");
  before.Send(Get("/ping"));
  EXPECT_EQ(StatusOf(before.ReadResponse()), 200) << "open connections stay";
}

TEST_F(ServerTlsTest, BadFilesAreNamed) {
  const TestCertificate other = authority_.Issue("other");
  struct Case {
    const char* name;
    TlsOptions tls;
    bool operators;
    std::string holds;
  };
  TlsOptions no_key = Options(), missing = Options(), wrong_key = Options(), no_pem = Options(),
             no_ca = Options(), key_only;
  no_key.key = "";
  missing.certificate = authority_.folder() + "/none.pem";
  wrong_key.key = other.key;
  no_pem.certificate = served_.key;
  no_ca.clients = Clients::kOptional;
  key_only.key = served_.key;
  const std::vector<Case> cases = {
      {"no key", no_key, false, "server.tls.key"},
      {"missing file", missing, false, "none.pem: No such file"},
      {"another's key", wrong_key, false, "is not the key of " + served_.certificate},
      {"not a certificate", no_pem, false, served_.key},
      {"no authority", no_ca, false, "server.tls.client_ca"},
      {"key without certificate", key_only, false, "server.tls.certificate"},
      {"operators without client certificates", Options(), true, "client_certificates"},
      {"operators without TLS", TlsOptions{}, true, "server.tls.certificate"}};
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    ServerOptions options;
    options.listen = "127.0.0.1:0";
    options.tls = c.tls;
    options.operator_certificates = c.operators;
    const auto server = Server::Start(options, Router(), Authenticator());
    ASSERT_FALSE(server.ok());
    EXPECT_EQ(server.error().code, Code::kInvalid);
    EXPECT_NE(server.error().message.find(c.holds), std::string::npos) << server.error().message;
  }
}

}  // namespace
}  // namespace verbatim::gateway
