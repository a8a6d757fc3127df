// Who asks. The server turns every request's credentials into a Principal before a handler sees it.
//
// Without configured keys there is one principal with every role, and the server binds to loopback
// only (server.h). With keys, a request carries `Authorization: Bearer KEY` (or `api-key: KEY`, as
// Azure's clients do); keys are held and compared as SHA-256 digests, in constant time.
// An Authenticator is immutable after construction: any thread may use it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/result.h"

namespace verbatim::gateway {

enum class Role : uint8_t {
  kClient = 1,    // asks for generations and reads its own receipts
  kOperator = 2,  // metrics, manifest
  kAuditor = 4,   // entries, proofs, the log
};

struct Principal {
  std::string tenant = "default";
  std::string subject = "anonymous";  // the person or system within the tenant
  std::string key_id = "none";        // which credential; never the secret
  uint8_t roles = 0;                  // bits of Role
  bool Has(Role role) const { return (roles & static_cast<uint8_t>(role)) != 0; }
};

inline constexpr uint8_t kEveryRole = 7;

struct ApiKey {
  Digest secret_digest;  // SHA-256 of the key's text
  Principal principal;
};

class Authenticator {
 public:
  Authenticator() = default;  // no keys: everyone is the one local principal
  explicit Authenticator(std::vector<ApiKey> keys);

  bool has_keys() const { return !keys_.empty(); }

  // `authorization` and `api_key` are the values of those request headers, empty where absent.
  // kInvalid where no credential matches; the message never repeats the credential.
  Result<Principal> Authenticate(std::string_view authorization, std::string_view api_key) const;

 private:
  std::vector<ApiKey> keys_;
};

}  // namespace verbatim::gateway
