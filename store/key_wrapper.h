// Who wraps the keys of the keyring's segments: a key in keys/wrapping.key, or on a PKCS#11 token
// (pkcs11.h).
// Threads: every method may be called from any thread.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/result.h"

namespace verbatim::store {

class KeyWrapper {
 public:
  virtual ~KeyWrapper() = default;
  // AES-256-GCM: nonce (12) || ciphertext || tag (16), with `context` as associated data.
  virtual Result<std::string> Wrap(std::string_view key, std::string_view context) const = 0;
  // kCorrupt where `wrapped` is not what Wrap gave for that context; kUnavailable where the key
  // cannot be reached now.
  virtual Result<std::string> Unwrap(std::string_view wrapped, std::string_view context) const = 0;
};
// key: 32 bytes.
std::unique_ptr<KeyWrapper> MakeKeyWrapper(std::string key);

}  // namespace verbatim::store
