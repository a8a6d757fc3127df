#include "store/timestamp.h"

#include <openssl/err.h>
#include <openssl/ts.h>
#include <openssl/x509.h>
#include <unistd.h>

#include <ctime>
#include <limits>
#include <memory>

#include "base/bytes.h"
#include "base/crypto.h"

namespace verbatim::store {
namespace {

template <auto Free>
struct Deleter {
  template <typename T>
  void operator()(T* value) const {
    Free(value);
  }
};
template <typename T, auto Free>
using Owned = std::unique_ptr<T, Deleter<Free>>;

constexpr size_t kMaxResponseBytes = size_t{1} << 20;

Error Wrong(const std::string& what) {
  return {Code::kCorrupt, "the timestamp does not hold: " + what};
}

// OpenSSL's newest error, which is taken off its queue with all before it.
std::string Reason() {
  const unsigned long code = ERR_peek_last_error();
  const char* reason = ERR_reason_error_string(code);
  const char* data = nullptr;
  int flags = 0;
  (void)ERR_peek_last_error_all(nullptr, nullptr, nullptr, &data, &flags);
  std::string text = reason ? reason : "unknown error";
  if (data && (flags & ERR_TXT_STRING) && *data) text += std::string(" (") + data + ")";
  ERR_clear_error();
  return text;
}

std::string SubjectOf(X509* certificate) {
  Owned<BIO, BIO_free> out(BIO_new(BIO_s_mem()));
  CHECK(out);
  X509_NAME_print_ex(out.get(), X509_get_subject_name(certificate), 0,
                     XN_FLAG_ONELINE & ~ASN1_STRFLGS_ESC_MSB);
  char* text = nullptr;
  const long size = BIO_get_mem_data(out.get(), &text);
  return std::string(text, static_cast<size_t>(size));
}

// The certificate that the token's signature names, from the token itself.
std::string AuthorityOf(PKCS7* token) {
  STACK_OF(X509)* signers = PKCS7_get0_signers(token, nullptr, 0);
  std::string subject;
  if (signers && sk_X509_num(signers) > 0) subject = SubjectOf(sk_X509_value(signers, 0));
  sk_X509_free(signers);
  ERR_clear_error();
  return IsUtf8(subject) ? subject : "";
}

}  // namespace

std::string MakeTimestampRequest(std::string_view bytes, uint64_t nonce) {
  const Digest digest = Sha256(bytes);
  Owned<TS_REQ, TS_REQ_free> request(TS_REQ_new());
  Owned<TS_MSG_IMPRINT, TS_MSG_IMPRINT_free> imprint(TS_MSG_IMPRINT_new());
  Owned<X509_ALGOR, X509_ALGOR_free> algorithm(X509_ALGOR_new());
  Owned<ASN1_INTEGER, ASN1_INTEGER_free> number(ASN1_INTEGER_new());
  CHECK(request && imprint && algorithm && number);
  CHECK(X509_ALGOR_set0(algorithm.get(), OBJ_nid2obj(NID_sha256), V_ASN1_NULL, nullptr));
  CHECK(TS_REQ_set_version(request.get(), 1));
  CHECK(TS_MSG_IMPRINT_set_algo(imprint.get(), algorithm.get()));
  CHECK(TS_MSG_IMPRINT_set_msg(imprint.get(), const_cast<uint8_t*>(digest.data()),
                               static_cast<int>(digest.size())));
  CHECK(TS_REQ_set_msg_imprint(request.get(), imprint.get()));
  CHECK(ASN1_INTEGER_set_uint64(number.get(), nonce));
  CHECK(TS_REQ_set_nonce(request.get(), number.get()));
  CHECK(TS_REQ_set_cert_req(request.get(), 1));
  unsigned char* der = nullptr;
  const int size = i2d_TS_REQ(request.get(), &der);
  CHECK(size > 0);
  std::string out(reinterpret_cast<const char*>(der), static_cast<size_t>(size));
  OPENSSL_free(der);
  return out;
}

Result<Timestamp> VerifyTimestamp(std::string_view response, std::string_view bytes,
                                  const std::string& ca_file) {
  ERR_clear_error();
  if (response.size() > kMaxResponseBytes) return Wrong("it is over a megabyte");
  const auto* at = reinterpret_cast<const unsigned char*>(response.data());
  const unsigned char* const end = at + response.size();
  Owned<TS_RESP, TS_RESP_free> parsed(
      d2i_TS_RESP(nullptr, &at, static_cast<long>(response.size())));
  ERR_clear_error();
  if (!parsed || at != end) return Wrong("it is not a TimeStampResp");
  TS_TST_INFO* info = TS_RESP_get_tst_info(parsed.get());
  PKCS7* token = TS_RESP_get_token(parsed.get());
  if (!info || !token) return Wrong("the authority refused the request");

  const TS_MSG_IMPRINT* imprint = TS_TST_INFO_get_msg_imprint(info);
  const ASN1_OBJECT* algorithm = nullptr;
  X509_ALGOR_get0(&algorithm, nullptr, nullptr,
                  TS_MSG_IMPRINT_get_algo(const_cast<TS_MSG_IMPRINT*>(imprint)));
  const ASN1_OCTET_STRING* digest = TS_MSG_IMPRINT_get_msg(const_cast<TS_MSG_IMPRINT*>(imprint));
  const std::string_view stamped(reinterpret_cast<const char*>(ASN1_STRING_get0_data(digest)),
                                 static_cast<size_t>(ASN1_STRING_length(digest)));
  if (OBJ_obj2nid(algorithm) != NID_sha256 || stamped != AsBytes(Sha256(bytes))) {
    return Wrong("it is of other bytes");
  }
  std::tm utc = {};
  if (!ASN1_TIME_to_tm(TS_TST_INFO_get_time(info), &utc)) return Wrong("its time is malformed");
  const time_t time = ::timegm(&utc);

  if (::access(ca_file.c_str(), R_OK) != 0) {
    return Error{Code::kNotFound, ca_file +
                                      " cannot be read; name the certificate (PEM) of who "
                                      "issued the time-stamping authority's"};
  }
  X509_STORE* store = X509_STORE_new();  // the context's
  CHECK(store);
  Owned<TS_VERIFY_CTX, TS_VERIFY_CTX_free> context(TS_VERIFY_CTX_new());
  CHECK(context);
  TS_VERIFY_CTX_set_store(context.get(), store);
  if (!X509_STORE_load_file(store, ca_file.c_str())) {
    ERR_clear_error();
    return Error{Code::kInvalid, ca_file + " holds no certificates in PEM"};
  }
  X509_VERIFY_PARAM_set_time(X509_STORE_get0_param(store), time);
  TS_VERIFY_CTX_set_flags(context.get(), TS_VFY_VERSION | TS_VFY_SIGNATURE);
  if (TS_RESP_verify_response(context.get(), parsed.get()) != 1) return Wrong(Reason());

  Timestamp timestamp;
  timestamp.time = static_cast<int64_t>(time) * 1'000'000;
  timestamp.authority = AuthorityOf(token);
  if (const ASN1_INTEGER* nonce = TS_TST_INFO_get_nonce(info)) {
    if (!ASN1_INTEGER_get_uint64(&timestamp.nonce, nonce)) timestamp.nonce = 0;
  }
  ERR_clear_error();
  return timestamp;
}

}  // namespace verbatim::store
