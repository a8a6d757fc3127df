#include "gateway/upstream/tls.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <unistd.h>

#include <array>

namespace verbatim::gateway {
namespace {

// OpenSSL's reason of the oldest error of this thread; empties its queue.
std::string LastReason() {
  const unsigned long code = ERR_get_error();
  ERR_clear_error();
  const char* reason = code == 0 ? nullptr : ERR_reason_error_string(code);
  return reason == nullptr ? "not readable as PEM" : reason;
}

Status Readable(const std::string& file, const char* what) {
  if (access(file.c_str(), R_OK) == 0) return {};
  return Error{Code::kNotFound, std::string(what) + " " + file + " is not there or not readable"};
}

Error BadFile(const std::string& file, const char* what) {
  return {Code::kInvalid, std::string(what) + " " + file + ": " + LastReason()};
}

Status LoadOwn(SSL_CTX* context, const TlsClientOptions& options) {
  if (options.certificate_file.empty() != options.key_file.empty()) {
    return Error{Code::kInvalid, "a client certificate and its key are named both or neither"};
  }
  if (options.certificate_file.empty()) return {};
  if (Status s = Readable(options.certificate_file, "client certificate"); !s.ok()) return s;
  if (Status s = Readable(options.key_file, "client key"); !s.ok()) return s;
  if (SSL_CTX_use_certificate_chain_file(context, options.certificate_file.c_str()) != 1) {
    return BadFile(options.certificate_file, "client certificate");
  }
  // An encrypted key has nobody here to ask for its password.
  SSL_CTX_set_default_passwd_cb(context, [](char*, int, int, void*) { return 0; });
  if (SSL_CTX_use_PrivateKey_file(context, options.key_file.c_str(), SSL_FILETYPE_PEM) != 1 ||
      SSL_CTX_check_private_key(context) != 1) {
    return BadFile(options.key_file, "client key");
  }
  return {};
}

}  // namespace

void FreeTlsContext::operator()(SSL_CTX* context) const { SSL_CTX_free(context); }

Result<TlsContext> MakeTlsClientContext(const TlsClientOptions& options) {
  ERR_clear_error();
  TlsContext context(SSL_CTX_new(TLS_client_method()));
  CHECK(context != nullptr);
  SSL_CTX* ctx = context.get();
  CHECK(SSL_CTX_set_min_proto_version(ctx, TLS1_2_VERSION) == 1);
  SSL_CTX_set_options(ctx, SSL_OP_NO_RENEGOTIATION);
  SSL_CTX_set_mode(ctx, SSL_MODE_RELEASE_BUFFERS | SSL_MODE_ENABLE_PARTIAL_WRITE |
                            SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  SSL_CTX_set_verify(ctx, SSL_VERIFY_PEER, nullptr);
  static constexpr std::array<unsigned char, 9> kAlpn = {8, 'h', 't', 't', 'p', '/', '1', '.', '1'};
  CHECK(SSL_CTX_set_alpn_protos(ctx, kAlpn.data(), kAlpn.size()) == 0);

  if (options.ca_file.empty()) {
    if (SSL_CTX_set_default_verify_paths(ctx) != 1) {
      return Error{Code::kNotFound, "the system's bundle of certificate authorities: " +
                                        LastReason() + "; install ca-certificates or name a file"};
    }
  } else {
    if (Status s = Readable(options.ca_file, "CA bundle"); !s.ok()) return s.error();
    if (SSL_CTX_load_verify_file(ctx, options.ca_file.c_str()) != 1) {
      return BadFile(options.ca_file, "CA bundle");
    }
  }
  if (Status s = LoadOwn(ctx, options); !s.ok()) return s.error();
  return context;
}

SSL* NewTlsClient(SSL_CTX* context, const std::string& host, bool is_ip) {
  SSL* ssl = SSL_new(context);
  CHECK(ssl != nullptr);
  X509_VERIFY_PARAM* param = SSL_get0_param(ssl);
  if (is_ip) {
    CHECK(X509_VERIFY_PARAM_set1_ip_asc(param, host.c_str()) == 1);
  } else {
    X509_VERIFY_PARAM_set_hostflags(param, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
    CHECK(X509_VERIFY_PARAM_set1_host(param, host.c_str(), host.size()) == 1);
    CHECK(SSL_set_tlsext_host_name(ssl, host.c_str()) == 1);
  }
  return ssl;
}

std::string TlsFailure(const SSL* ssl, const std::string& error) {
  const long verdict = SSL_get_verify_result(ssl);
  if (verdict == X509_V_OK) return "the TLS handshake failed: " + error;
  return std::string("its certificate is not accepted: ") + X509_verify_cert_error_string(verdict);
}

}  // namespace verbatim::gateway
