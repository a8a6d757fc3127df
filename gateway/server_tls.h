// TLS of the server's side, over OpenSSL (which stays in server_tls.cc).
//
// A context is what was read from files, immutable and shared by the connections that it began. A
// session is one connection's, on that connection's thread; it reads and writes the non-blocking
// socket itself and never waits: it says what it waits for.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"

struct ssl_st;
struct ssl_ctx_st;

namespace verbatim::gateway {

struct TlsOptions {
  std::string certificate;  // PEM file: the server's own, then the chain; "": no TLS
  std::string key;          // PEM file, not encrypted
  std::string client_ca;    // PEM file: who signs client certificates
  enum class Clients { kNone, kOptional, kRequired };
  Clients clients =
      Clients::kNone;    // whether clients are asked for a certificate, and must have one
  int min_version = 12;  // 12: TLS 1.2, 13: TLS 1.3
};

// A client's certificate that client_ca vouches for.
struct PeerCertificate {
  std::string common_name;  // of its subject; UTF-8, "" where it has none
  std::string fingerprint;  // SHA-256 of its DER form, in hex
};

class TlsContext {
 public:
  // Errors name the file and say what is wrong with it. A certificate that is not valid now is
  // logged, since clocks and files are put right while the server runs.
  static Result<std::shared_ptr<const TlsContext>> Load(const TlsOptions& options);
  ~TlsContext();
  TlsContext(const TlsContext&) = delete;
  TlsContext& operator=(const TlsContext&) = delete;

 private:
  friend class TlsSession;
  explicit TlsContext(ssl_ctx_st* context) : context_(context) {}
  ssl_ctx_st* const context_;
};

class TlsSession {
 public:
  // descriptor: a connected, non-blocking socket that outlives the session.
  TlsSession(std::shared_ptr<const TlsContext> context, int descriptor);
  ~TlsSession();
  TlsSession(const TlsSession&) = delete;
  TlsSession& operator=(const TlsSession&) = delete;

  enum class Step { kDone, kWantRead, kWantWrite, kEnd, kFailed };

  Step Handshake();
  // kEnd: the peer sends nothing more.
  Step Read(char* out, size_t size, size_t* n);
  // After kWantRead or kWantWrite the call is repeated with the same bytes, wherever they lie then.
  Step Write(std::string_view bytes, size_t* n);
  void Shutdown();  // says that nothing more follows, as far as that goes without waiting

  // After the handshake; nothing where the client showed none.
  std::optional<PeerCertificate> Peer() const;
  // Why the handshake failed: "no shared cipher".
  const std::string& error() const { return error_; }

 private:
  Step StepOf(int result);
  std::shared_ptr<const TlsContext> context_;
  ssl_st* const ssl_;
  std::string error_;
};

}  // namespace verbatim::gateway
