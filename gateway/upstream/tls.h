// TLS towards others: contexts that check certificates, and what a failed handshake says. There is
// no way to leave the checks out; a private authority is named as the bundle that is trusted.
#pragma once

#include <openssl/types.h>

#include <memory>
#include <string>

#include "base/result.h"

namespace verbatim::gateway {

struct FreeTlsContext {
  void operator()(SSL_CTX* context) const;
};
using TlsContext = std::unique_ptr<SSL_CTX, FreeTlsContext>;

struct TlsClientOptions {
  std::string ca_file{};                       // PEM; "": the system's authorities
  std::string certificate_file{}, key_file{};  // PEM, the client's own; both or neither
};

// TLS 1.2 or later, the peer's certificate checked, ALPN "http/1.1". For any number of connections
// of any threads. Errors: kNotFound and kInvalid, naming the file.
Result<TlsContext> MakeTlsClientContext(const TlsClientOptions& options);

// A connection whose peer must hold a certificate for `host` (a name, which is also sent as SNI, or
// an address). Owned by the caller.
SSL* NewTlsClient(SSL_CTX* context, const std::string& host, bool is_ip);

// Why a handshake failed, in one line: "its certificate is not accepted: certificate has expired".
// `error`: what the stream reported.
std::string TlsFailure(const SSL* ssl, const std::string& error);

}  // namespace verbatim::gateway
