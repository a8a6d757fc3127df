// Who signs for the log: its key in a file, or on a PKCS#11 token (pkcs11.h). Keys have the forms
// of C2SP signed notes (c2sp.org/signed-note). Threads: every method may be called from any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/result.h"

namespace verbatim::store {

// A key's name: not empty, UTF-8 without white space, plus signs and control characters.
bool IsKeyName(std::string_view name);

// "<name>+<8 hex>+<base64(0x01 || public key)>", key id = SHA-256(name \n 0x01 public key)[:4].
struct VerifierKey {
  std::string name;
  uint32_t id = 0;
  std::string public_key;  // 32 bytes
};
// kInvalid for any other text, kUnsupported for an algorithm other than Ed25519.
Result<VerifierKey> ParseVerifierKey(std::string_view vkey);
std::string FormatVerifierKey(const VerifierKey& key);
VerifierKey MakeVerifierKey(std::string_view name, std::string_view public_key);

class Signer {
 public:
  virtual ~Signer() = default;
  virtual const VerifierKey& key() const = 0;
  // An Ed25519 signature, 64 bytes. kUnavailable where the key cannot be reached now.
  virtual Result<std::string> Sign(std::string_view message) const = 0;
  // Whether the key is there.
  virtual Status Check() const { return {}; }
};
// From "PRIVATE+KEY+<name>+<8 hex>+<base64(0x01 || seed)>".
Result<std::unique_ptr<Signer>> SignerFromText(std::string_view skey);
std::string FormatSignerKey(std::string_view name, std::string_view seed);

}  // namespace verbatim::store
