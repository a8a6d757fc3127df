// Who may ask, for what, and how much: the sections `access` and `tenants` of the configuration
// (docs/access.md). Plain values; schema_tenants.cc reads them, gateway/access.h puts them in
// force.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace verbatim::policies {

// Upper bounds; 0 means none.
struct RateLimits {
  uint64_t requests_per_minute = 0;
  uint64_t tokens_per_minute = 0;  // prompt and generated tokens together
  uint64_t concurrent = 0;         // requests that are being answered

  bool any() const { return requests_per_minute || tokens_per_minute || concurrent; }
};

enum class Period { kDay, kMonth };  // of the calendar, in UTC
inline constexpr std::array<std::string_view, 2> kPeriodNames = {"day", "month"};  // by Period
inline std::string_view NameOf(Period period) { return kPeriodNames[static_cast<size_t>(period)]; }

inline constexpr uint64_t kMaxBudget = 1'000'000'000'000'000;

struct Budget {
  uint64_t tokens = 0;  // 0: none
  Period per = Period::kMonth;
};

struct TenantConfig {
  std::vector<std::string> models;  // names, or patterns with *; empty: all
  RateLimits limits;
  Budget budget;
};

// By name. "*" stands for every tenant that is not named, each by itself. Where the map is empty,
// all tenants may do everything; else a tenant that is not in it is nobody.
using Tenants = std::map<std::string, TenantConfig>;

// The tenant's entry, or that of "*"; null where there is neither.
const TenantConfig* FindTenant(const Tenants& tenants, std::string_view name);

// Whether a name is in a list of names and of patterns, where * is any run of bytes. An empty list
// has every name in it.
bool InList(const std::vector<std::string>& list, std::string_view name);

// What names of tenants, subjects, groups and keys are: 1 to 200 bytes of UTF-8 without control
// characters. "*" is none.
bool IsPrincipalName(std::string_view text);

// A key written into the configuration. One of `secret` and `sha256` is set.
struct InlineKey {
  std::string id;
  std::string secret;  // env:NAME or file:PATH
  std::string sha256;  // 64 hex digits, of the key's text
  std::string tenant = "default";
  std::string subject;  // "": the key's id
  std::vector<std::string> groups;
  std::vector<std::string> roles;   // "client", "operator", "auditor"; empty: client
  std::vector<std::string> models;  // as TenantConfig::models, and within them
  RateLimits limits;
  Budget budget;
};

// Whose JSON web tokens are taken.
struct JwtIssuerConfig {
  std::string issuer;                   // must equal `iss`
  std::string audience;                 // must be, or be among, `aud`
  std::string keys;                     // a file: a JWKS, or PEM public keys
  std::string tenant_claim = "tenant";  // names of claims; dots lead into objects
  std::string tenant;                   // of every token of this issuer; "": by the claim
  std::string subject_claim = "sub";
  std::string groups_claim = "groups";
  std::string roles_claim = "roles";
  // A value of the roles claim and the role that it gives. Empty: every token has the role client,
  // and no other.
  std::vector<std::pair<std::string, std::string>> roles;
};

// A proxy in front says who asks. Only connections from these networks are believed.
struct TrustedHeaderConfig {
  std::string name;                // lower-case; its value is the subject; "": none
  std::string tenant = "default";  // of everyone who comes this way
  std::vector<std::string> from;   // "10.0.0.0/8", "::1/128"
};

struct AccessConfig {
  bool configured = false;  // the section stands in the file: nobody is let in without credentials
  std::string keys_file;    // "": api-keys.json in the data folder
  std::vector<InlineKey> keys;
  std::vector<JwtIssuerConfig> issuers;
  TrustedHeaderConfig trusted_header;
};

}  // namespace verbatim::policies
