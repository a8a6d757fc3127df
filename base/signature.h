// Public keys of others and their signatures, as JSON web tokens have them (RFC 7518): RS256,
// ES256, EdDSA with Ed25519. Over OpenSSL 3, which stays in signature.cc. All functions may be
// called from any thread, and all input may be hostile.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace verbatim {

enum class KeyType { kRsa, kP256, kEd25519 };

class PublicKey {
 public:
  // Of a JWK's members, base64url-decoded: big-endian modulus (2,048 to 8,192 bits) and exponent;
  // the point's coordinates, 32 bytes each; the raw key. kInvalid where that is no key.
  static Result<PublicKey> Rsa(std::string_view n, std::string_view e);
  static Result<PublicKey> P256(std::string_view x, std::string_view y);
  static Result<PublicKey> Ed25519(std::string_view raw);
  // Every "PUBLIC KEY" block of a PEM text. kInvalid where there is none, or one of another kind.
  static Result<std::vector<PublicKey>> FromPem(std::string_view text);

  KeyType type() const { return type_; }

  // RSASSA-PKCS1-v1_5 with SHA-256; ECDSA with SHA-256 and the signature as r || s, 64 bytes;
  // Ed25519. The key's type alone says which.
  bool Verify(std::string_view message, std::string_view signature) const;

 private:
  friend class PrivateKey;
  struct Key;
  PublicKey(KeyType type, std::shared_ptr<Key> key) : type_(type), key_(std::move(key)) {}
  KeyType type_;
  std::shared_ptr<Key> key_;  // immutable
};

// A key to sign with, for tests and tools: nothing in the gateway signs tokens.
class PrivateKey {
 public:
  static PrivateKey Generate(KeyType type);  // RSA: 2,048 bits
  std::string Sign(std::string_view message) const;
  std::string PublicPem() const;
  // The JWK's members, raw: {n, e}, {x, y}, {x}.
  std::vector<std::string> PublicParts() const;

 private:
  PrivateKey(KeyType type, std::shared_ptr<PublicKey::Key> key)
      : type_(type), key_(std::move(key)) {}
  KeyType type_;
  std::shared_ptr<PublicKey::Key> key_;
};

}  // namespace verbatim
