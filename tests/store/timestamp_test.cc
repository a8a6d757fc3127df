// Timestamps of authorities whose certificates have run out: a token made here by OpenSSL, at a
// time of our choice (the openssl program stamps with today's only).
#include "store/timestamp.h"

#include <gtest/gtest.h>
#include <openssl/ec.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/ts.h>
#include <openssl/x509v3.h>

#include <cstdio>
#include <ctime>
#include <memory>
#include <string>

#include "base/clock.h"
#include "tests/store/ledger_fixture.h"

namespace verbatim::store {
namespace {

using Key = std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)>;
using Certificate = std::unique_ptr<X509, decltype(&X509_free)>;

int64_t Seconds(const char* time) { return ParseTime(time).value() / 1'000'000; }

Key NewKey() { return Key(EVP_EC_gen("P-256"), EVP_PKEY_free); }

void Extend(X509* certificate, X509* issuer, int nid, const char* value) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, &context, nid, value);
  CHECK(extension && X509_add_ext(certificate, extension, -1));
  X509_EXTENSION_free(extension);
}

// Signed by `issuer` with its key; by itself where there is none.
Certificate Certify(const char* name, EVP_PKEY* key, X509* issuer, EVP_PKEY* issuer_key,
                    const char* from, const char* until) {
  Certificate certificate(X509_new(), X509_free);
  X509* const c = certificate.get();
  X509* const by = issuer ? issuer : c;
  CHECK(X509_set_version(c, 2) && ASN1_INTEGER_set(X509_get_serialNumber(c), issuer ? 2 : 1));
  CHECK(ASN1_TIME_set(X509_getm_notBefore(c), Seconds(from)));
  CHECK(ASN1_TIME_set(X509_getm_notAfter(c), Seconds(until)));
  CHECK(X509_NAME_add_entry_by_txt(X509_get_subject_name(c), "CN", MBSTRING_UTF8,
                                   reinterpret_cast<const unsigned char*>(name), -1, -1, 0));
  CHECK(X509_set_issuer_name(c, X509_get_subject_name(by)) && X509_set_pubkey(c, key));
  Extend(c, by, NID_basic_constraints, issuer ? "critical,CA:FALSE" : "critical,CA:TRUE");
  Extend(c, by, NID_key_usage, issuer ? "critical,digitalSignature" : "critical,keyCertSign");
  if (issuer) Extend(c, by, NID_ext_key_usage, "critical,timeStamping");
  CHECK(X509_sign(c, issuer_key, EVP_sha256()));
  return certificate;
}

ASN1_INTEGER* Serial(TS_resp_ctx*, void*) {
  ASN1_INTEGER* serial = ASN1_INTEGER_new();
  CHECK(serial && ASN1_INTEGER_set(serial, 7));
  return serial;
}
int TimeOf(TS_resp_ctx*, void* time, long* seconds, long* micros) {
  *seconds = *static_cast<const long*>(time);
  *micros = 0;
  return 1;
}

// The response of the authority with this certificate, at that time.
std::string Stamp(const std::string& bytes, X509* certificate, EVP_PKEY* key, const char* when) {
  long time = Seconds(when);
  TS_RESP_CTX* context = TS_RESP_CTX_new();
  ASN1_OBJECT* policy = OBJ_txt2obj("1.2.3.4", 1);
  CHECK(context && policy && TS_RESP_CTX_set_signer_cert(context, certificate));
  CHECK(TS_RESP_CTX_set_signer_key(context, key) && TS_RESP_CTX_set_def_policy(context, policy));
  CHECK(TS_RESP_CTX_add_md(context, EVP_sha256()));
  CHECK(TS_RESP_CTX_set_signer_digest(context, EVP_sha256()));
  CHECK(TS_RESP_CTX_set_ess_cert_id_digest(context, EVP_sha256()));
  TS_RESP_CTX_set_serial_cb(context, Serial, nullptr);
  TS_RESP_CTX_set_time_cb(context, TimeOf, &time);
  const std::string query = MakeTimestampRequest(bytes, 5);
  BIO* in = BIO_new_mem_buf(query.data(), static_cast<int>(query.size()));
  TS_RESP* response = TS_RESP_create_response(context, in);
  unsigned char* der = nullptr;
  const int size = i2d_TS_RESP(response, &der);
  CHECK(size > 0);
  std::string out(reinterpret_cast<const char*>(der), static_cast<size_t>(size));
  OPENSSL_free(der);
  TS_RESP_free(response);
  BIO_free(in);
  ASN1_OBJECT_free(policy);
  TS_RESP_CTX_free(context);
  return out;
}

TEST(TimestampTime, HoldsLongAfterTheCertificatesExpired) {
  const TemporaryFolder folder;
  const Key root_key = NewKey(), key = NewKey();
  const Certificate root = Certify("root", root_key.get(), nullptr, root_key.get(),
                                   "2001-01-01T00:00:00Z", "2009-01-01T00:00:00Z");
  const Certificate authority = Certify("authority", key.get(), root.get(), root_key.get(),
                                        "2003-01-01T00:00:00Z", "2005-01-01T00:00:00Z");
  const std::string ca = folder.path("ca.pem");
  FILE* file = std::fopen(ca.c_str(), "w");
  ASSERT_TRUE(file && PEM_write_X509(file, root.get()));
  ASSERT_EQ(std::fclose(file), 0);

  const struct {
    const char* when;
    bool holds;
  } cases[] = {
      {"2000-06-01T00:00:00Z", false},  // before the root was made
      {"2002-12-31T23:59:59Z", false},  // before the authority's certificate was
      {"2003-01-01T00:00:01Z", true},  {"2004-12-31T23:59:59Z", true},  // both have run out since
      {"2005-01-01T00:00:01Z", false},  // the authority's had run out then
      {"2010-01-01T00:00:00Z", false},
  };
  for (const auto& c : cases) {
    const std::string response = Stamp("checkpoint", authority.get(), key.get(), c.when);
    const Result<Timestamp> read = VerifyTimestamp(response, "checkpoint", ca);
    ASSERT_EQ(read.ok(), c.holds) << c.when << ": " << (read.ok() ? "" : read.error().message);
    if (!read.ok()) {
      EXPECT_EQ(read.error().code, Code::kCorrupt);
      continue;
    }
    EXPECT_EQ(read->time, Seconds(c.when) * 1'000'000);
    EXPECT_NE(read->authority.find("authority"), std::string::npos) << read->authority;
    EXPECT_FALSE(VerifyTimestamp(response, "checkpoint2", ca).ok()) << c.when;
  }
}

}  // namespace
}  // namespace verbatim::store
