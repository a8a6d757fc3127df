#include "base/crypto.h"

#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/params.h>
#include <openssl/rand.h>
#include <pthread.h>

#include <atomic>
#include <cstring>

namespace verbatim {

namespace {

const unsigned char* U(std::string_view s) {
  return reinterpret_cast<const unsigned char*>(s.data());
}
unsigned char* U(std::string& s) { return reinterpret_cast<unsigned char*>(s.data()); }

struct CtxFree {
  void operator()(EVP_CIPHER_CTX* c) const { EVP_CIPHER_CTX_free(c); }
  void operator()(EVP_MD_CTX* c) const { EVP_MD_CTX_free(c); }
  void operator()(EVP_PKEY* k) const { EVP_PKEY_free(k); }
  void operator()(EVP_MAC_CTX* c) const { EVP_MAC_CTX_free(c); }
};
using CipherCtx = std::unique_ptr<EVP_CIPHER_CTX, CtxFree>;
using MdCtx = std::unique_ptr<EVP_MD_CTX, CtxFree>;
using Pkey = std::unique_ptr<EVP_PKEY, CtxFree>;
using MacCtx = std::unique_ptr<EVP_MAC_CTX, CtxFree>;

constexpr size_t kTag = 16;

// Algorithms, looked up once: EVP_sha256() and its like have the library look for them each time.
const EVP_MD* Sha256Algorithm() {
  static const EVP_MD* const found = EVP_MD_fetch(nullptr, "SHA256", nullptr);
  CHECK(found);
  return found;
}
const EVP_CIPHER* AesGcmAlgorithm() {
  static const EVP_CIPHER* const found = EVP_CIPHER_fetch(nullptr, "AES-256-GCM", nullptr);
  CHECK(found);
  return found;
}
EVP_MAC* HmacAlgorithm() {
  static EVP_MAC* const found = EVP_MAC_fetch(nullptr, "HMAC", nullptr);
  CHECK(found);
  return found;
}

}  // namespace

struct Sha256Stream::State {
  MdCtx ctx{EVP_MD_CTX_new()};
};

Sha256Stream::Sha256Stream() : state_(std::make_unique<State>()) {
  CHECK(state_->ctx && EVP_DigestInit_ex(state_->ctx.get(), Sha256Algorithm(), nullptr) == 1);
}
Sha256Stream::~Sha256Stream() = default;
Sha256Stream::Sha256Stream(Sha256Stream&&) noexcept = default;
Sha256Stream& Sha256Stream::operator=(Sha256Stream&&) noexcept = default;

void Sha256Stream::Update(std::string_view bytes) {
  CHECK(EVP_DigestUpdate(state_->ctx.get(), bytes.data(), bytes.size()) == 1);
}

Digest Sha256Stream::Finish() {
  Digest out;
  unsigned n = 0;
  CHECK(EVP_DigestFinal_ex(state_->ctx.get(), out.data(), &n) == 1 && n == out.size());
  return out;
}

Digest Sha256(std::string_view bytes) {
  // A context costs as much as the hash of a short text.
  thread_local const MdCtx ctx(EVP_MD_CTX_new());
  Digest out;
  unsigned n = 0;
  CHECK(ctx && EVP_DigestInit_ex(ctx.get(), Sha256Algorithm(), nullptr) == 1);
  CHECK(EVP_DigestUpdate(ctx.get(), bytes.data(), bytes.size()) == 1);
  CHECK(EVP_DigestFinal_ex(ctx.get(), out.data(), &n) == 1 && n == out.size());
  return out;
}

namespace {

// A null key would mean the one before; an empty one is a key.
const unsigned char* MacKey(std::string_view key) { return key.empty() ? U("") : U(key); }

MacCtx NewMac(std::string_view key) {
  MacCtx ctx(EVP_MAC_CTX_new(HmacAlgorithm()));
  char digest[] = "SHA256";
  const OSSL_PARAM parameters[] = {
      OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_DIGEST, digest, 0),
      OSSL_PARAM_construct_end()};
  CHECK(ctx && EVP_MAC_init(ctx.get(), MacKey(key), key.size(), parameters) == 1);
  return ctx;
}

// Of a context that has its digest. key: null for the one before.
Digest Mac(EVP_MAC_CTX* ctx, const unsigned char* key, size_t key_size, std::string_view bytes) {
  Digest out;
  size_t n = 0;
  CHECK(EVP_MAC_init(ctx, key, key_size, nullptr) == 1);
  CHECK(EVP_MAC_update(ctx, U(bytes), bytes.size()) == 1);
  CHECK(EVP_MAC_final(ctx, out.data(), &n, out.size()) == 1 && n == out.size());
  return out;
}

}  // namespace

struct HmacSha256Key::State {
  MacCtx ctx;
};

HmacSha256Key::HmacSha256Key(std::string_view key)
    : state_(std::make_unique<State>(State{NewMac(key)})) {}
HmacSha256Key::~HmacSha256Key() = default;
HmacSha256Key::HmacSha256Key(HmacSha256Key&&) noexcept = default;
HmacSha256Key& HmacSha256Key::operator=(HmacSha256Key&&) noexcept = default;

Digest HmacSha256Key::Of(std::string_view bytes) {
  return Mac(state_->ctx.get(), nullptr, 0, bytes);
}

Digest HmacSha256(std::string_view key, std::string_view bytes) {
  // Finding the digest for a new context takes longer than the hashes.
  thread_local const MacCtx ready = NewMac("");
  return Mac(ready.get(), MacKey(key), key.size(), bytes);
}

namespace {

// Random bytes drawn ahead: asking the generator for 12 takes as long as for hundreds. Each byte is
// given once and wiped then; a child process draws its own.
class RandomReserve {
 public:
  static constexpr size_t kSize = 1024;

  ~RandomReserve() { OPENSSL_cleanse(bytes_, kSize); }

  void Take(unsigned char* out, size_t n) {
    if (n > left_ || forks_ != Forks()) {
      forks_ = Forks();
      CHECK(RAND_bytes(bytes_, kSize) == 1);
      left_ = kSize;
    }
    left_ -= n;
    std::memcpy(out, bytes_ + left_, n);
    OPENSSL_cleanse(bytes_ + left_, n);
  }

 private:
  // How many fork()s lead to this process.
  static unsigned Forks() {
    static std::atomic<unsigned> count = 0;
    static const int registered = pthread_atfork(nullptr, nullptr, [] { ++count; });
    CHECK(registered == 0);
    return count;
  }

  unsigned char bytes_[kSize];
  size_t left_ = 0;
  unsigned forks_ = 0;
};

}  // namespace

std::string RandomBytes(size_t n) {
  thread_local RandomReserve reserve;
  std::string out(n, '\0');
  if (n <= RandomReserve::kSize / 4) {
    reserve.Take(U(out), n);
  } else {
    CHECK(RAND_bytes(U(out), static_cast<int>(n)) == 1);
  }
  return out;
}

std::string AesGcmSeal(std::string_view key, std::string_view nonce, std::string_view aad,
                       std::string_view plaintext) {
  CHECK(key.size() == 32 && nonce.size() == 12 && plaintext.size() < (1u << 30));
  CipherCtx ctx(EVP_CIPHER_CTX_new());
  CHECK(ctx && EVP_EncryptInit_ex(ctx.get(), AesGcmAlgorithm(), nullptr, U(key), U(nonce)) == 1);
  int n = 0;
  if (!aad.empty()) {
    CHECK(EVP_EncryptUpdate(ctx.get(), nullptr, &n, U(aad), static_cast<int>(aad.size())) == 1);
  }
  std::string out(plaintext.size() + kTag, '\0');
  CHECK(EVP_EncryptUpdate(ctx.get(), U(out), &n, U(plaintext),
                          static_cast<int>(plaintext.size())) == 1);
  int tail = 0;
  CHECK(EVP_EncryptFinal_ex(ctx.get(), U(out) + n, &tail) == 1);
  CHECK(EVP_CIPHER_CTX_ctrl(ctx.get(), EVP_CTRL_GCM_GET_TAG, kTag, U(out) + plaintext.size()) == 1);
  return out;
}

Result<std::string> AesGcmOpen(std::string_view key, std::string_view nonce, std::string_view aad,
                               std::string_view sealed) {
  CHECK(key.size() == 32 && nonce.size() == 12);
  if (sealed.size() < kTag || sealed.size() >= (1u << 30)) {
    return Error{Code::kCorrupt, "encrypted value has an impossible length"};
  }
  const size_t size = sealed.size() - kTag;
  CipherCtx ctx(EVP_CIPHER_CTX_new());
  CHECK(ctx && EVP_DecryptInit_ex(ctx.get(), AesGcmAlgorithm(), nullptr, U(key), U(nonce)) == 1);
  int n = 0;
  if (!aad.empty()) {
    CHECK(EVP_DecryptUpdate(ctx.get(), nullptr, &n, U(aad), static_cast<int>(aad.size())) == 1);
  }
  std::string out(size + kTag, '\0');
  CHECK(EVP_DecryptUpdate(ctx.get(), U(out), &n, U(sealed), static_cast<int>(size)) == 1);
  std::string tag(sealed.substr(size));
  CHECK(EVP_CIPHER_CTX_ctrl(ctx.get(), EVP_CTRL_GCM_SET_TAG, kTag, tag.data()) == 1);
  int tail = 0;
  if (EVP_DecryptFinal_ex(ctx.get(), U(out) + n, &tail) != 1) {
    return Error{Code::kCorrupt, "encrypted value does not match its key (AES-GCM tag)"};
  }
  out.resize(size);
  return out;
}

std::string Ed25519PublicKey(std::string_view seed) {
  CHECK(seed.size() == 32);
  Pkey key(EVP_PKEY_new_raw_private_key(EVP_PKEY_ED25519, nullptr, U(seed), seed.size()));
  std::string out(32, '\0');
  size_t n = out.size();
  CHECK(key && EVP_PKEY_get_raw_public_key(key.get(), U(out), &n) == 1 && n == 32);
  return out;
}

std::string Ed25519Sign(std::string_view seed, std::string_view message) {
  CHECK(seed.size() == 32);
  Pkey key(EVP_PKEY_new_raw_private_key(EVP_PKEY_ED25519, nullptr, U(seed), seed.size()));
  MdCtx ctx(EVP_MD_CTX_new());
  std::string out(64, '\0');
  size_t n = out.size();
  CHECK(key && ctx && EVP_DigestSignInit(ctx.get(), nullptr, nullptr, nullptr, key.get()) == 1);
  CHECK(EVP_DigestSign(ctx.get(), U(out), &n, U(message), message.size()) == 1 && n == 64);
  return out;
}

bool Ed25519Verify(std::string_view public_key, std::string_view message,
                   std::string_view signature) {
  if (public_key.size() != 32 || signature.size() != 64) return false;
  Pkey key(EVP_PKEY_new_raw_public_key(EVP_PKEY_ED25519, nullptr, U(public_key), 32));
  MdCtx ctx(EVP_MD_CTX_new());
  if (!key || !ctx) return false;
  if (EVP_DigestVerifyInit(ctx.get(), nullptr, nullptr, nullptr, key.get()) != 1) return false;
  return EVP_DigestVerify(ctx.get(), U(signature), 64, U(message), message.size()) == 1;
}

std::string OpenSslVersion() { return OpenSSL_version(OPENSSL_VERSION_STRING); }

void Wipe(std::string& secret) {
  OPENSSL_cleanse(secret.data(), secret.size());
  secret.clear();
}

bool ConstantTimeEqual(std::string_view a, std::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace verbatim
