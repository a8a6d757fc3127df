// Certificates made for one test, and a client that speaks TLS over a plain socket.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

struct ssl_st;
struct ssl_ctx_st;

namespace verbatim::gateway {

// A certificate and its key as PEM files in a folder of the test's.
struct TestCertificate {
  std::string certificate, key;  // file names
};

// An authority of its own, and what it issues, below a fresh folder that goes with it.
class TestAuthority {
 public:
  explicit TestAuthority(const std::string& name);
  ~TestAuthority();
  TestAuthority(const TestAuthority&) = delete;
  TestAuthority& operator=(const TestAuthority&) = delete;

  // For "localhost" and 127.0.0.1, good for servers and clients. days < 0: expired.
  TestCertificate Issue(const std::string& common_name, int days = 1);
  const std::string& certificate() const { return own_.certificate; }
  const std::string& folder() const { return folder_; }

 private:
  std::string folder_;
  TestCertificate own_;
  int issued_ = 0;
};

struct TlsClientOptions {
  std::string ca;                 // trusted
  TestCertificate certificate{};  // "": none is shown
  int max_version = 13;
  std::string alpn = "http/1.1";  // "": not sent
};

class TlsClient {
 public:
  // Connects to 127.0.0.1 and shakes hands; see error() and usable().
  TlsClient(uint16_t port, const TlsClientOptions& options);
  ~TlsClient();
  TlsClient(const TlsClient&) = delete;
  TlsClient& operator=(const TlsClient&) = delete;

  bool usable() const { return usable_; }
  const std::string& error() const { return error_; }
  std::string version() const;      // "TLSv1.3"
  std::string protocol() const;     // by ALPN
  std::string server_name() const;  // common name of the server's certificate

  bool Send(std::string_view bytes);
  // What arrives until `marker` has, the server closes, or five seconds are over.
  std::string ReadUntil(std::string_view marker);
  std::string ReadResponse();  // with its content-length body

 private:
  bool ReadSome();
  int fd_;
  ssl_ctx_st* context_;
  ssl_st* ssl_;
  bool usable_ = false;
  std::string error_;
  std::string received_;
};

}  // namespace verbatim::gateway
