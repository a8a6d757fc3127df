#include "gateway/server_tls.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>

#include "base/bytes.h"
#include "base/check.h"
#include "base/crypto.h"
#include "base/log.h"

namespace verbatim::gateway {
namespace {

// ---- the socket, as OpenSSL's transport ----
// Its own one writes without MSG_NOSIGNAL: a client that hung up would end the process.

int DescriptorOf(BIO* bio) {
  return static_cast<int>(reinterpret_cast<intptr_t>(BIO_get_data(bio)));
}

bool MayRetry() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

int SocketRead(BIO* bio, char* out, int size) {
  BIO_clear_retry_flags(bio);
  const ssize_t n = ::recv(DescriptorOf(bio), out, static_cast<size_t>(size), 0);
  if (n < 0 && MayRetry()) BIO_set_retry_read(bio);
  if (n == 0) BIO_set_flags(bio, BIO_FLAGS_IN_EOF);
  return static_cast<int>(n);
}

int SocketWrite(BIO* bio, const char* bytes, int size) {
  BIO_clear_retry_flags(bio);
  const ssize_t n = ::send(DescriptorOf(bio), bytes, static_cast<size_t>(size), MSG_NOSIGNAL);
  if (n < 0 && MayRetry()) BIO_set_retry_write(bio);
  return static_cast<int>(n);
}

long SocketControl(BIO* bio, int command, long, void*) {
  if (command == BIO_CTRL_FLUSH) return 1;
  if (command == BIO_CTRL_EOF) return BIO_test_flags(bio, BIO_FLAGS_IN_EOF) != 0;
  return 0;
}

int SocketCreate(BIO* bio) {
  BIO_set_init(bio, 1);
  return 1;
}

BIO_METHOD* MakeSocketMethod() {
  BIO_METHOD* method = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "socket");
  CHECK(method != nullptr);
  BIO_meth_set_read(method, SocketRead);
  BIO_meth_set_write(method, SocketWrite);
  BIO_meth_set_ctrl(method, SocketControl);
  BIO_meth_set_create(method, SocketCreate);
  return method;
}

// ---- loading ----

// The cause: the system's own error where there is one, else what OpenSSL said last.
std::string TakeError() {
  const unsigned long first = ERR_peek_error(), last = ERR_peek_last_error();
  const char* reason = ERR_reason_error_string(last);
  std::string text = reason != nullptr ? reason : "unknown error";
  if (ERR_SYSTEM_ERROR(first)) text = std::strerror(ERR_GET_REASON(first));
  ERR_clear_error();
  return text;
}

Error Bad(const char* row, const std::string& file, const std::string& what) {
  return Error{Code::kInvalid, std::string("server.tls.") + row + ": " + file + ": " + what};
}

// An encrypted key must not stop the server at a question on the terminal.
int NoPassword(char*, int, int, void*) { return 0; }

int ChooseProtocol(SSL*, const unsigned char** out, unsigned char* out_size,
                   const unsigned char* offered, unsigned int offered_size, void*) {
  static constexpr unsigned char kOurs[] = "\x08http/1.1";
  unsigned char* chosen = nullptr;
  const int found =
      SSL_select_next_proto(&chosen, out_size, kOurs, sizeof(kOurs) - 1, offered, offered_size);
  if (found != OPENSSL_NPN_NEGOTIATED) return SSL_TLSEXT_ERR_ALERT_FATAL;
  *out = chosen;
  return SSL_TLSEXT_ERR_OK;
}

void WarnOfDates(SSL_CTX* context, const std::string& file) {
  const X509* certificate = SSL_CTX_get0_certificate(context);
  if (certificate == nullptr) return;
  if (X509_cmp_current_time(X509_get0_notAfter(certificate)) < 0) {
    LogError("server.tls.certificate: " + file + ": expired; clients will refuse it");
  } else if (X509_cmp_current_time(X509_get0_notBefore(certificate)) > 0) {
    LogError("server.tls.certificate: " + file + ": not valid yet; clients will refuse it");
  }
}

Status LoadFiles(SSL_CTX* context, const TlsOptions& options) {
  if (SSL_CTX_use_certificate_chain_file(context, options.certificate.c_str()) != 1) {
    return Bad("certificate", options.certificate, TakeError() + "; name a PEM file");
  }
  if (SSL_CTX_use_PrivateKey_file(context, options.key.c_str(), SSL_FILETYPE_PEM) != 1) {
    const int reason = ERR_GET_REASON(ERR_peek_last_error());
    if (reason == X509_R_KEY_VALUES_MISMATCH || reason == X509_R_KEY_TYPE_MISMATCH) {
      return Bad("key", options.key, "is not the key of " + options.certificate);
    }
    return Bad("key", options.key, TakeError() + "; name a PEM file that is not encrypted");
  }
  WarnOfDates(context, options.certificate);
  if (options.clients == TlsOptions::Clients::kNone) return Status();
  if (SSL_CTX_load_verify_file(context, options.client_ca.c_str()) != 1) {
    return Bad("client_ca", options.client_ca, TakeError() + "; name a PEM file");
  }
  STACK_OF(X509_NAME)* names = SSL_load_client_CA_file(options.client_ca.c_str());
  if (names == nullptr) return Bad("client_ca", options.client_ca, TakeError());
  SSL_CTX_set_client_CA_list(context, names);  // takes them
  return Status();
}

}  // namespace

TlsContext::~TlsContext() { SSL_CTX_free(context_); }

Result<std::shared_ptr<const TlsContext>> TlsContext::Load(const TlsOptions& options) {
  if (options.key.empty()) {
    return Error{Code::kInvalid, "server.tls.certificate needs server.tls.key, a PEM file"};
  }
  if (options.clients != TlsOptions::Clients::kNone && options.client_ca.empty()) {
    return Error{Code::kInvalid,
                 "server.tls.client_certificates needs server.tls.client_ca, a PEM file of who "
                 "signs them"};
  }
  ERR_clear_error();
  SSL_CTX* context = SSL_CTX_new(TLS_server_method());
  CHECK(context != nullptr);
  std::shared_ptr<const TlsContext> loaded(new TlsContext(context));
  SSL_CTX_set_min_proto_version(context,
                                options.min_version == 13 ? TLS1_3_VERSION : TLS1_2_VERSION);
  SSL_CTX_set_options(context, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION |
                                   SSL_OP_CIPHER_SERVER_PREFERENCE | SSL_OP_PRIORITIZE_CHACHA);
  SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                                SSL_MODE_RELEASE_BUFFERS);
  SSL_CTX_set_default_passwd_cb(context, NoPassword);
  SSL_CTX_set_alpn_select_cb(context, ChooseProtocol, nullptr);
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);  // tickets resume without memory
  constexpr unsigned char kName[] = "verbatim";
  SSL_CTX_set_session_id_context(context, kName, sizeof(kName) - 1);
  if (Status status = LoadFiles(context, options); !status.ok()) return status.error();
  int verify = SSL_VERIFY_NONE;
  if (options.clients == TlsOptions::Clients::kOptional) verify = SSL_VERIFY_PEER;
  if (options.clients == TlsOptions::Clients::kRequired) {
    verify = SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT;
  }
  SSL_CTX_set_verify(context, verify, nullptr);
  return loaded;
}

TlsSession::TlsSession(std::shared_ptr<const TlsContext> context, int descriptor)
    : context_(std::move(context)), ssl_(SSL_new(context_->context_)) {
  static BIO_METHOD* const method = MakeSocketMethod();  // lives as long as the process
  BIO* bio = BIO_new(method);
  CHECK(ssl_ != nullptr && bio != nullptr);
  BIO_set_data(bio, reinterpret_cast<void*>(static_cast<intptr_t>(descriptor)));
  SSL_set_bio(ssl_, bio, bio);  // takes it
  SSL_set_accept_state(ssl_);
}

TlsSession::~TlsSession() { SSL_free(ssl_); }

TlsSession::Step TlsSession::StepOf(int result) {
  switch (SSL_get_error(ssl_, result)) {
    case SSL_ERROR_NONE:
      return Step::kDone;
    case SSL_ERROR_WANT_READ:
      return Step::kWantRead;
    case SSL_ERROR_WANT_WRITE:
      return Step::kWantWrite;
    case SSL_ERROR_ZERO_RETURN:
      return Step::kEnd;
    default:
      break;
  }
  // Many clients close without saying so first; framing tells whether a request was cut.
  const bool ended = ERR_GET_REASON(ERR_peek_last_error()) == SSL_R_UNEXPECTED_EOF_WHILE_READING;
  if (ERR_peek_last_error() != 0) error_ = TakeError();
  return ended ? Step::kEnd : Step::kFailed;
}

TlsSession::Step TlsSession::Handshake() {
  ERR_clear_error();
  return StepOf(SSL_do_handshake(ssl_));
}

TlsSession::Step TlsSession::Read(char* out, size_t size, size_t* n) {
  ERR_clear_error();
  return StepOf(SSL_read_ex(ssl_, out, size, n));
}

TlsSession::Step TlsSession::Write(std::string_view bytes, size_t* n) {
  ERR_clear_error();
  return StepOf(SSL_write_ex(ssl_, bytes.data(), bytes.size(), n));
}

void TlsSession::Shutdown() {
  ERR_clear_error();
  if (SSL_is_init_finished(ssl_)) (void)SSL_shutdown(ssl_);
  ERR_clear_error();
}

std::optional<PeerCertificate> TlsSession::Peer() const {
  const X509* certificate = SSL_get0_peer_certificate(ssl_);
  if (certificate == nullptr || SSL_get_verify_result(ssl_) != X509_V_OK) return std::nullopt;
  unsigned char* der = nullptr;
  const int size = i2d_X509(certificate, &der);
  if (size <= 0) return std::nullopt;
  PeerCertificate peer;
  peer.fingerprint =
      HexEncode(Sha256({reinterpret_cast<const char*>(der), static_cast<size_t>(size)}));
  OPENSSL_free(der);
  const X509_NAME* subject = X509_get_subject_name(certificate);
  const int at = X509_NAME_get_index_by_NID(subject, NID_commonName, -1);
  if (at >= 0) {
    unsigned char* text = nullptr;
    const int length =
        ASN1_STRING_to_UTF8(&text, X509_NAME_ENTRY_get_data(X509_NAME_get_entry(subject, at)));
    if (length > 0) {
      peer.common_name.assign(reinterpret_cast<const char*>(text), static_cast<size_t>(length));
    }
    OPENSSL_free(text);
  }
  // It becomes a subject's name, in records and headers.
  if (!IsUtf8(peer.common_name) || peer.common_name.size() > 256) peer.common_name.clear();
  for (char& c : peer.common_name) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '_';
  }
  return peer;
}

}  // namespace verbatim::gateway
