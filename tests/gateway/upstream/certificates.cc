#include "certificates.h"

#include <gtest/gtest.h>
#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <unistd.h>

#include <fstream>

namespace verbatim::gateway::test {
namespace {

constexpr long kDay = 24 * 3600;

struct FreeKey {
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
};
struct FreeCertificate {
  void operator()(X509* certificate) const { X509_free(certificate); }
};
using Key = std::unique_ptr<EVP_PKEY, FreeKey>;
using Certificate = std::unique_ptr<X509, FreeCertificate>;

template <typename Write>
std::string Pem(Write write) {
  BIO* bio = BIO_new(BIO_s_mem());
  EXPECT_EQ(write(bio), 1);
  char* data = nullptr;
  const long n = BIO_get_mem_data(bio, &data);
  std::string text(data, static_cast<size_t>(n));
  BIO_free(bio);
  return text;
}

void Extend(X509* certificate, X509* issuer, int kind, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx_nodb(&context);
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, &context, kind, value.c_str());
  ASSERT_NE(extension, nullptr) << value;
  X509_add_ext(certificate, extension, -1);
  X509_EXTENSION_free(extension);
}

Certificate MakeCertificate(EVP_PKEY* key, const std::string& name, X509* issuer, int days) {
  Certificate certificate(X509_new());
  X509* x = certificate.get();
  X509_set_version(x, 2);
  uint64_t serial = 0;
  RAND_bytes(reinterpret_cast<unsigned char*>(&serial), sizeof serial);
  ASN1_INTEGER_set_uint64(X509_get_serialNumber(x), serial >> 1);
  X509_gmtime_adj(X509_getm_notBefore(x), -10 * kDay);
  X509_gmtime_adj(X509_getm_notAfter(x), days * kDay);
  X509_set_pubkey(x, key);
  X509_NAME_add_entry_by_txt(X509_get_subject_name(x), "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1, 0);
  X509_set_issuer_name(x, X509_get_subject_name(issuer == nullptr ? x : issuer));
  return certificate;
}

void UsePem(SSL_CTX* context, const Issued& own) {
  BIO* bio = BIO_new_mem_buf(own.certificate.data(), static_cast<int>(own.certificate.size()));
  X509* certificate = PEM_read_bio_X509(bio, nullptr, nullptr, nullptr);
  EXPECT_EQ(SSL_CTX_use_certificate(context, certificate), 1);
  X509_free(certificate);
  BIO_free(bio);
  bio = BIO_new_mem_buf(own.key.data(), static_cast<int>(own.key.size()));
  EVP_PKEY* key = PEM_read_bio_PrivateKey(bio, nullptr, nullptr, nullptr);
  EXPECT_EQ(SSL_CTX_use_PrivateKey(context, key), 1);
  EVP_PKEY_free(key);
  BIO_free(bio);
}

}  // namespace

struct Authority::State {
  Key key{EVP_EC_gen("P-256")};
  Certificate certificate;
};

Authority::Authority(const std::string& name) : state_(std::make_unique<State>()) {
  state_->certificate = MakeCertificate(state_->key.get(), name, nullptr, 10);
  X509* x = state_->certificate.get();
  Extend(x, x, NID_basic_constraints, "critical,CA:TRUE");
  Extend(x, x, NID_key_usage, "critical,keyCertSign");
  EXPECT_GT(X509_sign(x, state_->key.get(), EVP_sha256()), 0);
}
Authority::~Authority() = default;

std::string Authority::certificate() const {
  return Pem([&](BIO* bio) { return PEM_write_bio_X509(bio, state_->certificate.get()); });
}

Issued Authority::Issue(const std::string& names, int days) const {
  const Key key(EVP_EC_gen("P-256"));
  X509* issuer = state_->certificate.get();
  const Certificate certificate = MakeCertificate(key.get(), "leaf", issuer, days);
  X509* x = certificate.get();
  Extend(x, issuer, NID_basic_constraints, "critical,CA:FALSE");
  if (!names.empty()) Extend(x, issuer, NID_subject_alt_name, names);
  EXPECT_GT(X509_sign(x, state_->key.get(), EVP_sha256()), 0);
  Issued issued;
  issued.certificate = Pem([&](BIO* bio) { return PEM_write_bio_X509(bio, x); });
  issued.key = Pem([&](BIO* bio) {
    return PEM_write_bio_PrivateKey(bio, key.get(), nullptr, nullptr, 0, nullptr, nullptr);
  });
  return issued;
}

TlsContext ServerContext(const Issued& own, const std::string& client_authority) {
  TlsContext context(SSL_CTX_new(TLS_server_method()));
  UsePem(context.get(), own);
  if (!client_authority.empty()) {
    BIO* bio = BIO_new_mem_buf(client_authority.data(), static_cast<int>(client_authority.size()));
    X509* certificate = PEM_read_bio_X509(bio, nullptr, nullptr, nullptr);
    EXPECT_EQ(X509_STORE_add_cert(SSL_CTX_get_cert_store(context.get()), certificate), 1);
    X509_free(certificate);
    BIO_free(bio);
    SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  }
  return context;
}

TemporaryFiles::TemporaryFiles() {
  std::string name = (std::filesystem::temp_directory_path() / "upstream_http_XXXXXX").string();
  EXPECT_NE(mkdtemp(name.data()), nullptr);
  folder_ = name;
}
TemporaryFiles::~TemporaryFiles() { std::filesystem::remove_all(folder_); }

std::string TemporaryFiles::Add(const std::string& name, const std::string& content) const {
  const std::filesystem::path path = folder_ / name;
  std::ofstream(path, std::ios::binary) << content;
  return path.string();
}

}  // namespace verbatim::gateway::test
