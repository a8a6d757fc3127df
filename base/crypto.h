// SHA-256, HMAC, AES-256-GCM, Ed25519 and random bytes, over OpenSSL 3 (which stays in crypto.cc).
// All functions may be called from any thread. A failure inside the library that valid arguments
// cannot cause (out of memory, no entropy) is a CHECK.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/bytes.h"
#include "base/result.h"

namespace verbatim {

Digest Sha256(std::string_view bytes);
Digest HmacSha256(std::string_view key, std::string_view bytes);

// HMAC-SHA-256 under one key, which is expanded once. Not thread-safe.
class HmacSha256Key {
 public:
  explicit HmacSha256Key(std::string_view key);
  ~HmacSha256Key();
  HmacSha256Key(HmacSha256Key&&) noexcept;
  HmacSha256Key& operator=(HmacSha256Key&&) noexcept;
  Digest Of(std::string_view bytes);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Incremental SHA-256. Not thread-safe; Finish may be called once.
class Sha256Stream {
 public:
  Sha256Stream();
  ~Sha256Stream();
  Sha256Stream(Sha256Stream&&) noexcept;
  Sha256Stream& operator=(Sha256Stream&&) noexcept;
  void Update(std::string_view bytes);
  Digest Finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// n bytes of the library's generator, which the operating system's randomness seeds.
std::string RandomBytes(size_t n);

// AES-256-GCM (NIST SP 800-38D). key: 32 bytes, nonce: 12 bytes, never used twice with one key.
// Seal returns ciphertext followed by the 16-byte tag; Open gives kCorrupt where the tag is wrong.
std::string AesGcmSeal(std::string_view key, std::string_view nonce, std::string_view aad,
                       std::string_view plaintext);
Result<std::string> AesGcmOpen(std::string_view key, std::string_view nonce, std::string_view aad,
                               std::string_view sealed);

// Ed25519 (RFC 8032). seed and public key: 32 bytes, signature: 64 bytes.
std::string Ed25519PublicKey(std::string_view seed);
std::string Ed25519Sign(std::string_view seed, std::string_view message);
bool Ed25519Verify(std::string_view public_key, std::string_view message,
                   std::string_view signature);

// Of the libcrypto that runs: "3.0.11".
std::string OpenSslVersion();

// Overwrites the bytes so that the compiler cannot leave it out.
void Wipe(std::string& secret);

// Equal, in time that depends on the lengths only.
bool ConstantTimeEqual(std::string_view a, std::string_view b);

}  // namespace verbatim
