// Who asks. The server turns every request's credentials into a Principal before a handler sees it.
//
// Without any configured credentials there is one principal with every role, and the server binds
// to loopback only (server.h). Else a request carries one of
//   Authorization: Bearer KEY, x-api-key: KEY, api-key: KEY   (as OpenAI's, Anthropic's and Azure's
//                                                              clients send them)
//   Authorization: Bearer JWT                                 (jwt.h)
//   the trusted header, on a connection from a trusted proxy
// and any one that is valid is enough, whatever else stands beside it: clients keep stale keys in
// their environment. Keys are held as SHA-256 digests and compared in constant time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/result.h"
#include "gateway/headers.h"
#include "policies/tenants.h"

namespace verbatim::gateway {

class JwtVerifier;

enum class Role : uint8_t {
  kClient = 1,    // asks for generations and reads its own receipts
  kOperator = 2,  // metrics, manifest
  kAuditor = 4,   // entries, proofs, the log
};

// What one key may do within what its tenant may.
struct Grant {
  std::vector<std::string> models;  // names, or patterns with *; empty: all
  policies::RateLimits limits;
  policies::Budget budget;
};

struct Principal {
  std::string tenant = "default";
  std::string subject = "anonymous";     // the person or system within the tenant
  std::string key_id = "none";           // which credential; never the secret
  uint8_t roles = 0;                     // bits of Role
  std::vector<std::string> groups{};     // sorted, each once
  std::shared_ptr<const Grant> grant{};  // null: whatever the tenant may
  bool Has(Role role) const { return (roles & static_cast<uint8_t>(role)) != 0; }
};

inline constexpr uint8_t kEveryRole = 7;

// "client", "operator", "auditor"; 0 where it is none of them.
uint8_t RoleBit(std::string_view name);

struct ApiKey {
  Digest secret_digest;  // SHA-256 of the key's text
  Principal principal;
  int64_t expires_micros = 0;  // base/clock.h NowMicros(); 0: never
};

// An IPv4 or IPv6 network, "10.0.0.0/8".
struct Network {
  std::string address;  // 4 or 16 bytes
  unsigned bits = 0;
};
Result<Network> ParseNetwork(std::string_view text);
// `ip` as text, with or without a port ("127.0.0.1", "127.0.0.1:40312", "[::1]:40312", "::1"). An
// IPv4 address in IPv6 form (::ffff:10.0.0.1) is the IPv4 address.
bool InNetwork(const Network& network, std::string_view ip);

// Everything that an Authenticator goes by (access.h reads it from the configuration).
struct AccessRules {
  bool required = false;  // there is no anonymous principal
  std::vector<ApiKey> keys;
  std::shared_ptr<const JwtVerifier> jwt;  // null: none
  std::string trusted_header;              // lower-case; "": none
  std::string trusted_tenant;
  std::vector<Network> trusted_from;
  policies::Tenants tenants;  // where not empty, others than these are nobody
};

// A handle: copies share what is in force, and Replace changes it for all of them. Thread-safe.
class Authenticator {
 public:
  Authenticator();  // no credentials: everyone is the one local principal
  explicit Authenticator(std::vector<ApiKey> keys);
  explicit Authenticator(AccessRules rules);

  // Whether requests need credentials: keys, issuers or a trusted header are configured. Once true
  // it stays true, whatever Replace brings: a server never opens by losing its keys.
  bool has_keys() const;

  // `headers` of the request, names in lower-case; `remote_ip` of the connection, with or without
  // its port. kInvalid where no credential is valid (401); the message never repeats one.
  Result<Principal> Authenticate(const Headers& headers, std::string_view remote_ip) const;

  // Takes out of a request's headers the credentials that are this server's own: keys, valid or not
  // by now, and tokens of its issuers. What is left may go to someone else.
  void EraseOwn(Headers& headers) const;

  // For requests from now on.
  void Replace(AccessRules rules);

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace verbatim::gateway
