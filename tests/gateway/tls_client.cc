#include "tests/gateway/tls_client.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <utility>

#include "base/check.h"

namespace verbatim::gateway {
namespace {

constexpr long kDay = 86'400;

void AddExtension(X509* certificate, X509* issuer, int nid, const char* value) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, &context, nid, value);
  CHECK(extension != nullptr);
  X509_add_ext(certificate, extension, -1);
  X509_EXTENSION_free(extension);
}

FILE* Open(const std::string& name, const char* mode) {
  FILE* file = std::fopen(name.c_str(), mode);
  CHECK(file != nullptr);
  return file;
}

// Signed by `issuer` (file names), or by itself where that is empty.
void MakeCertificate(const std::string& common_name, int serial, int days,
                     const TestCertificate& issuer, const TestCertificate& out) {
  EVP_PKEY* key = EVP_EC_gen("P-256");
  X509* certificate = X509_new();
  X509_set_version(certificate, 2);
  ASN1_INTEGER_set(X509_get_serialNumber(certificate), serial);
  X509_gmtime_adj(X509_getm_notBefore(certificate), days < 0 ? days * kDay - kDay : -kDay);
  X509_gmtime_adj(X509_getm_notAfter(certificate), days * kDay);
  X509_set_pubkey(certificate, key);
  X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate), "CN", MBSTRING_UTF8,
                             reinterpret_cast<const unsigned char*>(common_name.c_str()), -1, -1,
                             0);
  X509* signer = certificate;
  EVP_PKEY* signing_key = key;
  if (!issuer.certificate.empty()) {
    FILE* file = Open(issuer.certificate, "r");
    signer = PEM_read_X509(file, nullptr, nullptr, nullptr);
    std::fclose(file);
    file = Open(issuer.key, "r");
    signing_key = PEM_read_PrivateKey(file, nullptr, nullptr, nullptr);
    std::fclose(file);
    AddExtension(certificate, signer, NID_subject_alt_name, "DNS:localhost,IP:127.0.0.1");
    AddExtension(certificate, signer, NID_ext_key_usage, "serverAuth,clientAuth");
  } else {
    AddExtension(certificate, signer, NID_basic_constraints, "critical,CA:TRUE");
  }
  X509_set_issuer_name(certificate, X509_get_subject_name(signer));
  CHECK(X509_sign(certificate, signing_key, EVP_sha256()) > 0);
  FILE* file = Open(out.certificate, "w");
  PEM_write_X509(file, certificate);
  std::fclose(file);
  file = Open(out.key, "w");
  PEM_write_PrivateKey(file, key, nullptr, nullptr, 0, nullptr, nullptr);
  std::fclose(file);
  if (signer != certificate) {
    X509_free(signer);
    EVP_PKEY_free(signing_key);
  }
  X509_free(certificate);
  EVP_PKEY_free(key);
}

}  // namespace

TestAuthority::TestAuthority(const std::string& name) {
  std::string pattern = (std::filesystem::temp_directory_path() / "verbatim-tls-XXXXXX").string();
  CHECK(::mkdtemp(pattern.data()) != nullptr);
  folder_ = pattern;
  own_ = {folder_ + "/ca.pem", folder_ + "/ca.key"};
  MakeCertificate(name, 1, 1, {}, own_);
}

TestAuthority::~TestAuthority() { std::filesystem::remove_all(folder_); }

TestCertificate TestAuthority::Issue(const std::string& common_name, int days) {
  const std::string base = folder_ + "/" + std::to_string(++issued_);
  TestCertificate out{base + ".pem", base + ".key"};
  MakeCertificate(common_name, issued_ + 1, days, own_, out);
  return out;
}

TlsClient::TlsClient(uint16_t port, const TlsClientOptions& options)
    : fd_(::socket(AF_INET, SOCK_STREAM, 0)),
      context_(SSL_CTX_new(TLS_client_method())),
      ssl_(nullptr) {
  CHECK(fd_ >= 0 && context_ != nullptr);
  std::signal(SIGPIPE, SIG_IGN);  // SSL_write knows no MSG_NOSIGNAL
  const timeval limit{5, 0};
  ::setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  CHECK(::connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0);
  SSL_CTX_set_max_proto_version(context_,
                                options.max_version == 13 ? TLS1_3_VERSION : TLS1_2_VERSION);
  SSL_CTX_set_verify(context_, SSL_VERIFY_PEER, nullptr);
  CHECK(SSL_CTX_load_verify_file(context_, options.ca.c_str()) == 1);
  if (!options.certificate.certificate.empty()) {
    CHECK(SSL_CTX_use_certificate_chain_file(context_, options.certificate.certificate.c_str()) ==
          1);
    CHECK(SSL_CTX_use_PrivateKey_file(context_, options.certificate.key.c_str(),
                                      SSL_FILETYPE_PEM) == 1);
  }
  ssl_ = SSL_new(context_);
  if (!options.alpn.empty()) {
    const std::string list = static_cast<char>(options.alpn.size()) + options.alpn;
    SSL_set_alpn_protos(ssl_, reinterpret_cast<const unsigned char*>(list.data()),
                        static_cast<unsigned>(list.size()));
  }
  SSL_set1_host(ssl_, "localhost");
  SSL_set_fd(ssl_, fd_);
  ERR_clear_error();
  usable_ = SSL_connect(ssl_) == 1;
  if (usable_) return;
  const char* reason = ERR_reason_error_string(ERR_peek_last_error());
  error_ = reason != nullptr ? reason : "closed";
}

TlsClient::~TlsClient() {
  SSL_free(ssl_);
  SSL_CTX_free(context_);
  ::close(fd_);
}

std::string TlsClient::version() const { return SSL_get_version(ssl_); }

std::string TlsClient::protocol() const {
  const unsigned char* name = nullptr;
  unsigned size = 0;
  SSL_get0_alpn_selected(ssl_, &name, &size);
  return {reinterpret_cast<const char*>(name), size};
}

std::string TlsClient::server_name() const {
  const X509* certificate = SSL_get0_peer_certificate(ssl_);
  char text[256] = {};
  if (certificate != nullptr) {
    X509_NAME_get_text_by_NID(X509_get_subject_name(certificate), NID_commonName, text,
                              sizeof(text));
  }
  return text;
}

bool TlsClient::Send(std::string_view bytes) {
  return usable_ && SSL_write(ssl_, bytes.data(), static_cast<int>(bytes.size())) ==
                        static_cast<int>(bytes.size());
}

bool TlsClient::ReadSome() {
  char bytes[16384];
  const int n = usable_ ? SSL_read(ssl_, bytes, sizeof(bytes)) : 0;
  if (n <= 0) return false;
  received_.append(bytes, static_cast<size_t>(n));
  return true;
}

std::string TlsClient::ReadUntil(std::string_view marker) {
  size_t at, looked = 0;
  while ((at = received_.find(marker, looked)) == std::string::npos) {
    looked = received_.size() - std::min(received_.size(), marker.size());
    if (!ReadSome()) return std::exchange(received_, "");
  }
  std::string out = received_.substr(0, at + marker.size());
  received_.erase(0, out.size());
  return out;
}

std::string TlsClient::ReadResponse() {
  std::string out = ReadUntil("\r\n\r\n");
  const size_t at = out.find("content-length: ");
  if (at == std::string::npos) return out;
  const size_t length = std::strtoul(out.c_str() + at + 16, nullptr, 10);
  while (received_.size() < length && ReadSome()) {
  }
  out += received_.substr(0, length);
  received_.erase(0, std::min(length, received_.size()));
  return out;
}

}  // namespace verbatim::gateway
