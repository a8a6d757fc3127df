// Keys on a PKCS#11 token (an HSM, a smart card, SoftHSM): the log's Ed25519 key, which signs there
// and never leaves it, and an AES-256 key that wraps the keyring's segments.
//
// Threads: every method may be called from any thread; calls of one token follow each other.
// Errors: kInvalid and kNotFound say what to correct in the configuration; kUnavailable where the
// token does not answer (a lost session is opened anew at the next call); kCorrupt where what was
// wrapped does not open. Messages never hold the PIN.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/result.h"
#include "store/key_wrapper.h"
#include "store/signer.h"

namespace verbatim::store {

struct Pkcs11Options {
  std::string module;  // the token's library
  std::string token;   // the token's label
  std::string pin;     // of its user: the PIN itself
};

class Pkcs11Token {
 public:
  // Loads the library (which stays loaded until the process ends) and logs in.
  static Result<std::shared_ptr<Pkcs11Token>> Open(const Pkcs11Options& options);
  virtual ~Pkcs11Token() = default;

  // Makes an Ed25519 key pair, or an AES-256 key, that the token does not give out; returns the
  // public key (32 bytes). kAlreadyExists where a key has that label.
  virtual Result<std::string> MakeSigningKey(const std::string& label) = 0;
  virtual Status MakeWrappingKey(const std::string& label) = 0;
  // kNotFound where no such key has that label; kInvalid where several have.
  virtual Result<std::string> PublicKey(const std::string& label) = 0;

  virtual Result<std::string> Sign(const std::string& label, std::string_view message) = 0;
  // AES-256-GCM. `sealed` ends with the 16-byte tag; nonce: 12 bytes.
  virtual Result<std::string> Seal(const std::string& label, std::string_view nonce,
                                   std::string_view aad, std::string_view plaintext) = 0;
  virtual Result<std::string> Open(const std::string& label, std::string_view nonce,
                                   std::string_view aad, std::string_view sealed) = 0;
};

// Gives the token, opening it if need be.
using TokenSource = std::function<Result<std::shared_ptr<Pkcs11Token>>()>;

// Each signature is checked before it is given out, so that a failing token cannot sign nonsense in
// the log's name. Check: the token's key must be that of `key`, else kFailedPrecondition. The token
// is asked for when it is needed first.
std::unique_ptr<Signer> MakeTokenSigner(TokenSource source, std::string label, VerifierKey key);
std::unique_ptr<KeyWrapper> MakeTokenWrapper(TokenSource source, std::string label);

}  // namespace verbatim::store
