// JSON web tokens (RFC 7519) as credentials: signed with RS256, ES256 or EdDSA by an issuer whose
// public keys are in a file. The algorithm must be the key's own; "none" and the HS family are
// refused whatever a key says. Checked: signature, iss, aud, exp (must be there), nbf and iat where
// they are. Immutable; any thread may use it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "base/signature.h"
#include "gateway/auth.h"
#include "policies/tenants.h"

namespace verbatim::gateway {

inline constexpr int64_t kJwtLeewayMicros = 60'000'000;  // clocks differ
inline constexpr size_t kMaxJwtBytes = 16 << 10;

// A public key with its name, "" where the file gives none.
struct IssuerKey {
  std::string kid;
  PublicKey key;
};

// A JWKS (RFC 7517; keys for encryption and of unknown types are passed over) or PEM text. kInvalid
// where no key is left.
Result<std::vector<IssuerKey>> ParseIssuerKeys(std::string_view text);

// Three parts of base64url: what may be a token of this kind, and is no API key.
bool LooksLikeJwt(std::string_view text);

class JwtVerifier {
 public:
  struct Issuer {
    policies::JwtIssuerConfig config;
    std::vector<IssuerKey> keys;
  };
  explicit JwtVerifier(std::vector<Issuer> issuers);

  // Whom the token names; key_id is "jwt:" and the first 16 hex digits of the issuer's SHA-256.
  // kInvalid with a reason that repeats nothing of the token.
  Result<Principal> Verify(std::string_view token, int64_t now_micros) const;

 private:
  std::vector<Issuer> issuers_;
};

}  // namespace verbatim::gateway
