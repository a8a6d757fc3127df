#include "base/signature.h"

#include <openssl/bn.h>
#include <openssl/core_names.h>
#include <openssl/ec.h>
#include <openssl/ecdsa.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/param_build.h>
#include <openssl/pem.h>
#include <openssl/rsa.h>

#include <utility>

#include "base/check.h"

namespace verbatim {

namespace {

struct Free {
  void operator()(EVP_PKEY* p) const { EVP_PKEY_free(p); }
  void operator()(EVP_PKEY_CTX* p) const { EVP_PKEY_CTX_free(p); }
  void operator()(EVP_MD_CTX* p) const { EVP_MD_CTX_free(p); }
  void operator()(BIGNUM* p) const { BN_free(p); }
  void operator()(OSSL_PARAM_BLD* p) const { OSSL_PARAM_BLD_free(p); }
  void operator()(OSSL_PARAM* p) const { OSSL_PARAM_free(p); }
  void operator()(ECDSA_SIG* p) const { ECDSA_SIG_free(p); }
  void operator()(BIO* p) const { BIO_free(p); }
};
template <typename T>
using Owned = std::unique_ptr<T, Free>;

constexpr size_t kCoordinate = 32;
constexpr int kMinRsaBits = 2048;
constexpr int kMaxRsaBits = 8192;
constexpr size_t kMaxExponentBytes = 8;

const unsigned char* U(std::string_view s) {
  return reinterpret_cast<const unsigned char*>(s.data());
}
unsigned char* U(std::string& s) { return reinterpret_cast<unsigned char*>(s.data()); }

Error Bad(std::string what) {
  ERR_clear_error();
  return {Code::kInvalid, std::move(what)};
}

Owned<EVP_PKEY> FromParams(const char* name, OSSL_PARAM_BLD* builder) {
  Owned<OSSL_PARAM> params(OSSL_PARAM_BLD_to_param(builder));
  Owned<EVP_PKEY_CTX> ctx(EVP_PKEY_CTX_new_from_name(nullptr, name, nullptr));
  EVP_PKEY* key = nullptr;
  if (!params || !ctx || EVP_PKEY_fromdata_init(ctx.get()) != 1 ||
      EVP_PKEY_fromdata(ctx.get(), &key, EVP_PKEY_PUBLIC_KEY, params.get()) != 1) {
    return nullptr;
  }
  return Owned<EVP_PKEY>(key);
}

// r || s as the DER sequence that OpenSSL reads, or "".
std::string EcdsaToDer(std::string_view raw) {
  if (raw.size() != 2 * kCoordinate) return {};
  Owned<ECDSA_SIG> sig(ECDSA_SIG_new());
  Owned<BIGNUM> r(BN_bin2bn(U(raw), kCoordinate, nullptr));
  Owned<BIGNUM> s(BN_bin2bn(U(raw) + kCoordinate, kCoordinate, nullptr));
  if (!sig || !r || !s || ECDSA_SIG_set0(sig.get(), r.get(), s.get()) != 1) return {};
  (void)r.release();
  (void)s.release();
  unsigned char* der = nullptr;
  const int size = i2d_ECDSA_SIG(sig.get(), &der);
  if (size <= 0) return {};
  std::string out(reinterpret_cast<char*>(der), static_cast<size_t>(size));
  OPENSSL_free(der);
  return out;
}

std::string DerToEcdsa(std::string_view der) {
  const unsigned char* at = U(der);
  Owned<ECDSA_SIG> sig(d2i_ECDSA_SIG(nullptr, &at, static_cast<long>(der.size())));
  CHECK(sig);
  std::string out(2 * kCoordinate, '\0');
  CHECK(BN_bn2binpad(ECDSA_SIG_get0_r(sig.get()), U(out), kCoordinate) == kCoordinate);
  CHECK(BN_bn2binpad(ECDSA_SIG_get0_s(sig.get()), U(out) + kCoordinate, kCoordinate) ==
        kCoordinate);
  return out;
}

std::string Number(const EVP_PKEY* key, const char* name, int size) {
  BIGNUM* n = nullptr;
  CHECK(EVP_PKEY_get_bn_param(key, name, &n) == 1);
  const Owned<BIGNUM> owned(n);
  std::string out(static_cast<size_t>(size > 0 ? size : BN_num_bytes(n)), '\0');
  CHECK(BN_bn2binpad(n, U(out), static_cast<int>(out.size())) == static_cast<int>(out.size()));
  return out;
}

const EVP_MD* HashOf(KeyType type) { return type == KeyType::kEd25519 ? nullptr : EVP_sha256(); }

// The type of a key that this file takes, or what is wrong with it.
Result<KeyType> TypeOf(const EVP_PKEY* key) {
  switch (EVP_PKEY_get_base_id(key)) {
    case EVP_PKEY_RSA: {
      const int bits = EVP_PKEY_get_bits(key);
      if (bits < kMinRsaBits || bits > kMaxRsaBits) {
        return Bad("an RSA key of " + std::to_string(bits) + " bits; 2048 to 8192 are allowed");
      }
      return KeyType::kRsa;
    }
    case EVP_PKEY_EC: {
      char group[64] = {};
      size_t size = 0;
      if (EVP_PKEY_get_group_name(key, group, sizeof(group), &size) != 1 ||
          std::string_view(group) != "prime256v1") {
        return Bad("an elliptic-curve key that is not on P-256");
      }
      return KeyType::kP256;
    }
    case EVP_PKEY_ED25519:
      return KeyType::kEd25519;
    default:
      return Bad("a key that is neither RSA, P-256 nor Ed25519");
  }
}

}  // namespace

struct PublicKey::Key {
  Owned<EVP_PKEY> pkey;
};

Result<PublicKey> PublicKey::Rsa(std::string_view n, std::string_view e) {
  if (n.size() > kMaxRsaBits / 8 + 1 || e.empty() || e.size() > kMaxExponentBytes) {
    return Bad("an RSA key of an impossible size");
  }
  Owned<BIGNUM> modulus(BN_bin2bn(U(n), static_cast<int>(n.size()), nullptr));
  Owned<BIGNUM> exponent(BN_bin2bn(U(e), static_cast<int>(e.size()), nullptr));
  Owned<OSSL_PARAM_BLD> builder(OSSL_PARAM_BLD_new());
  if (!modulus || !exponent || !builder || !BN_is_odd(exponent.get()) ||
      BN_is_one(exponent.get()) ||
      OSSL_PARAM_BLD_push_BN(builder.get(), OSSL_PKEY_PARAM_RSA_N, modulus.get()) != 1 ||
      OSSL_PARAM_BLD_push_BN(builder.get(), OSSL_PKEY_PARAM_RSA_E, exponent.get()) != 1) {
    return Bad("n and e are no RSA key");
  }
  auto key = std::make_shared<Key>();
  key->pkey = FromParams("RSA", builder.get());
  if (!key->pkey) return Bad("n and e are no RSA key");
  if (auto type = TypeOf(key->pkey.get()); !type) return type.error();
  return PublicKey(KeyType::kRsa, std::move(key));
}

Result<PublicKey> PublicKey::P256(std::string_view x, std::string_view y) {
  if (x.size() != kCoordinate || y.size() != kCoordinate) {
    return Bad("x and y of a P-256 key have 32 bytes each");
  }
  const std::string point = "\x04" + std::string(x) + std::string(y);  // SEC 1, uncompressed
  Owned<OSSL_PARAM_BLD> builder(OSSL_PARAM_BLD_new());
  auto key = std::make_shared<Key>();
  if (builder &&
      OSSL_PARAM_BLD_push_utf8_string(builder.get(), OSSL_PKEY_PARAM_GROUP_NAME, "prime256v1", 0) ==
          1 &&
      OSSL_PARAM_BLD_push_octet_string(builder.get(), OSSL_PKEY_PARAM_PUB_KEY, point.data(),
                                       point.size()) == 1) {
    key->pkey = FromParams("EC", builder.get());
  }
  if (!key->pkey) return Bad("x and y are no point on P-256");
  return PublicKey(KeyType::kP256, std::move(key));
}

Result<PublicKey> PublicKey::Ed25519(std::string_view raw) {
  if (raw.size() != 32) return Bad("an Ed25519 key has 32 bytes");
  auto key = std::make_shared<Key>();
  key->pkey.reset(EVP_PKEY_new_raw_public_key(EVP_PKEY_ED25519, nullptr, U(raw), raw.size()));
  if (!key->pkey) return Bad("no Ed25519 key");
  return PublicKey(KeyType::kEd25519, std::move(key));
}

Result<std::vector<PublicKey>> PublicKey::FromPem(std::string_view text) {
  constexpr std::string_view kBegin = "-----BEGIN ", kEnd = "-----END PUBLIC KEY-----";
  std::vector<PublicKey> keys;
  for (size_t at = text.find(kBegin); at != text.npos; at = text.find(kBegin, at + 1)) {
    const size_t end = text.find(kEnd, at);
    if (end == text.npos) return Bad("a PEM block that is no whole PUBLIC KEY");
    const std::string_view block = text.substr(at, end + kEnd.size() - at);
    const Owned<BIO> bio(BIO_new_mem_buf(block.data(), static_cast<int>(block.size())));
    CHECK(bio);
    auto key = std::make_shared<Key>();
    if (block.find(kBegin, 1) == block.npos) {
      key->pkey.reset(PEM_read_bio_PUBKEY(bio.get(), nullptr, nullptr, nullptr));
    }
    if (!key->pkey) return Bad("a PEM block that is no PUBLIC KEY");
    const auto type = TypeOf(key->pkey.get());
    if (!type) return type.error();
    keys.push_back(PublicKey(*type, std::move(key)));
  }
  ERR_clear_error();
  if (keys.empty()) return Bad("not a PEM text of public keys");
  return keys;
}

bool PublicKey::Verify(std::string_view message, std::string_view signature) const {
  std::string der;
  if (type_ == KeyType::kP256) {
    der = EcdsaToDer(signature);
    if (der.empty()) return false;
    signature = der;
  }
  Owned<EVP_MD_CTX> ctx(EVP_MD_CTX_new());
  const bool good =
      ctx &&
      EVP_DigestVerifyInit(ctx.get(), nullptr, HashOf(type_), nullptr, key_->pkey.get()) == 1 &&
      EVP_DigestVerify(ctx.get(), U(signature), signature.size(), U(message), message.size()) == 1;
  if (!good) ERR_clear_error();
  return good;
}

PrivateKey PrivateKey::Generate(KeyType type) {
  auto key = std::make_shared<PublicKey::Key>();
  switch (type) {
    case KeyType::kRsa:
      key->pkey.reset(EVP_RSA_gen(kMinRsaBits));
      break;
    case KeyType::kP256:
      key->pkey.reset(EVP_EC_gen("P-256"));
      break;
    case KeyType::kEd25519:
      key->pkey.reset(EVP_PKEY_Q_keygen(nullptr, nullptr, "ED25519"));
      break;
  }
  CHECK(key->pkey);
  return PrivateKey(type, std::move(key));
}

std::string PrivateKey::Sign(std::string_view message) const {
  Owned<EVP_MD_CTX> ctx(EVP_MD_CTX_new());
  size_t size = 0;
  CHECK(ctx &&
        EVP_DigestSignInit(ctx.get(), nullptr, HashOf(type_), nullptr, key_->pkey.get()) == 1);
  CHECK(EVP_DigestSign(ctx.get(), nullptr, &size, U(message), message.size()) == 1);
  std::string out(size, '\0');
  CHECK(EVP_DigestSign(ctx.get(), U(out), &size, U(message), message.size()) == 1);
  out.resize(size);
  return type_ == KeyType::kP256 ? DerToEcdsa(out) : out;
}

std::string PrivateKey::PublicPem() const {
  Owned<BIO> bio(BIO_new(BIO_s_mem()));
  CHECK(bio && PEM_write_bio_PUBKEY(bio.get(), key_->pkey.get()) == 1);
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio.get(), &data);
  return std::string(data, static_cast<size_t>(size));
}

std::vector<std::string> PrivateKey::PublicParts() const {
  const EVP_PKEY* key = key_->pkey.get();
  switch (type_) {
    case KeyType::kRsa:
      return {Number(key, OSSL_PKEY_PARAM_RSA_N, 0), Number(key, OSSL_PKEY_PARAM_RSA_E, 0)};
    case KeyType::kP256:
      return {Number(key, OSSL_PKEY_PARAM_EC_PUB_X, kCoordinate),
              Number(key, OSSL_PKEY_PARAM_EC_PUB_Y, kCoordinate)};
    case KeyType::kEd25519:
      break;
  }
  std::string raw(32, '\0');
  size_t size = raw.size();
  CHECK(EVP_PKEY_get_raw_public_key(key, U(raw), &size) == 1 && size == raw.size());
  return {raw};
}

}  // namespace verbatim
