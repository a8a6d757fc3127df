#include "gateway/auth.h"

#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "base/clock.h"
#include "base/crypto.h"
#include "gateway/jwt.h"

namespace verbatim::gateway {
namespace {

char Lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

// The token of "Bearer TOKEN", or "" where it is of another scheme.
std::string_view BearerToken(std::string_view authorization) {
  constexpr std::string_view kScheme = "bearer ";
  if (authorization.size() <= kScheme.size()) return {};
  for (size_t i = 0; i < kScheme.size(); ++i) {
    if (Lower(authorization[i]) != kScheme[i]) return {};
  }
  std::string_view token = authorization.substr(kScheme.size());
  while (!token.empty() && token.front() == ' ') token.remove_prefix(1);
  return token;
}

Error Refused(std::string message) { return {Code::kInvalid, std::move(message)}; }

// What is in force at one time. Immutable.
struct Rules {
  explicit Rules(AccessRules r) : given(std::move(r)) {
    by_prefix.reserve(given.keys.size());
    for (const ApiKey& key : given.keys) by_prefix.emplace(Prefix(key.secret_digest), &key);
  }
  Rules(const Rules&) = delete;
  Rules& operator=(const Rules&) = delete;

  static uint64_t Prefix(const Digest& digest) { return ReadU64(AsBytes(digest)); }

  const ApiKey* Find(std::string_view secret) const;
  Result<Principal> Known(Principal principal) const;
  bool Trusts(std::string_view remote_ip) const;

  const AccessRules given;
  std::unordered_multimap<uint64_t, const ApiKey*> by_prefix;
};

// The prefix of a digest finds the candidates, and its time tells no more than whether a digest
// with that prefix is there: of no use to whoever would have to find the 256 random bits of a key.
// The rest is compared in constant time.
const ApiKey* Rules::Find(std::string_view secret) const {
  const Digest digest = Sha256(secret);
  const ApiKey* found = nullptr;
  const auto [begin, end] = by_prefix.equal_range(Prefix(digest));
  for (auto it = begin; it != end; ++it) {
    if (ConstantTimeEqual(AsBytes(it->second->secret_digest), AsBytes(digest))) found = it->second;
  }
  return found;
}

Result<Principal> Rules::Known(Principal principal) const {
  if (given.tenants.empty() || policies::FindTenant(given.tenants, principal.tenant) != nullptr) {
    return principal;
  }
  return Refused(
      "This credential's tenant is not configured here. Ask your operator to add it to the "
      "section tenants.");
}

bool Rules::Trusts(std::string_view remote_ip) const {
  for (const Network& network : given.trusted_from) {
    if (InNetwork(network, remote_ip)) return true;
  }
  return false;
}

// An address's 4 or 16 bytes, or "".
std::string ParseAddress(std::string_view text) {
  const std::string address(text);
  std::array<char, 16> bytes{};
  if (inet_pton(AF_INET, address.c_str(), bytes.data()) == 1) return {bytes.data(), 4};
  if (inet_pton(AF_INET6, address.c_str(), bytes.data()) != 1) return {};
  const std::string v6(bytes.data(), 16);
  static constexpr std::string_view kMapped("\0\0\0\0\0\0\0\0\0\0\xff\xff", 12);
  return v6.starts_with(kMapped) ? v6.substr(12) : v6;
}

std::string_view WithoutPort(std::string_view ip) {
  if (ip.starts_with('[')) {
    const size_t end = ip.find(']');
    return end == std::string_view::npos ? std::string_view() : ip.substr(1, end - 1);
  }
  const size_t colon = ip.find(':');
  const bool one = colon != std::string_view::npos && ip.find(':', colon + 1) == ip.npos;
  return one ? ip.substr(0, colon) : ip;
}

}  // namespace

uint8_t RoleBit(std::string_view name) {
  if (name == "client") return static_cast<uint8_t>(Role::kClient);
  if (name == "operator") return static_cast<uint8_t>(Role::kOperator);
  if (name == "auditor") return static_cast<uint8_t>(Role::kAuditor);
  return 0;
}

Result<Network> ParseNetwork(std::string_view text) {
  const auto wrong = [&] {
    return Error{Code::kInvalid, std::string(text.substr(0, 80)) +
                                     " is no network; write one as 10.0.0.0/8 or fd00::/8"};
  };
  const size_t slash = text.find('/');
  const std::string_view address = text.substr(0, slash);
  Network network{ParseAddress(address), 0};
  const bool mapped = network.address.size() == 4 && address.find(':') != std::string_view::npos;
  if (network.address.empty() || mapped) return wrong();
  const unsigned all = static_cast<unsigned>(network.address.size()) * 8;
  network.bits = all;
  if (slash != std::string_view::npos) {
    const std::string_view bits = text.substr(slash + 1);
    const auto [end, error] = std::from_chars(bits.data(), bits.data() + bits.size(), network.bits);
    if (error != std::errc() || end != bits.data() + bits.size() || network.bits > all) {
      return wrong();
    }
  }
  return network;
}

bool InNetwork(const Network& network, std::string_view ip) {
  const std::string address = ParseAddress(WithoutPort(ip));
  if (address.size() != network.address.size()) return false;
  for (unsigned bit = 0; bit < network.bits; bit += 8) {
    const unsigned n = std::min(8u, network.bits - bit);
    const auto mask = static_cast<uint8_t>(0xff << (8 - n));
    const auto differ = static_cast<uint8_t>(address[bit / 8] ^ network.address[bit / 8]);
    if ((differ & mask) != 0) return false;
  }
  return true;
}

struct Authenticator::State {
  std::shared_ptr<const Rules> Get() const {
    const std::lock_guard lock(mutex);
    return rules;
  }

  std::atomic<bool> required = false;
  mutable std::mutex mutex;  // guards rules
  std::shared_ptr<const Rules> rules;
};

Authenticator::Authenticator() : Authenticator(AccessRules{}) {}

Authenticator::Authenticator(std::vector<ApiKey> keys) : state_(std::make_shared<State>()) {
  AccessRules rules;
  rules.required = !keys.empty();
  rules.keys = std::move(keys);
  Replace(std::move(rules));
}

Authenticator::Authenticator(AccessRules rules) : state_(std::make_shared<State>()) {
  Replace(std::move(rules));
}

bool Authenticator::has_keys() const { return state_->required; }

void Authenticator::Replace(AccessRules rules) {
  const bool required = rules.required;
  auto next = std::make_shared<const Rules>(std::move(rules));
  {
    const std::lock_guard lock(state_->mutex);
    state_->rules.swap(next);
  }
  if (required) state_->required = true;
}

void Authenticator::EraseOwn(Headers& headers) const {
  if (!has_keys()) return;
  const std::shared_ptr<const Rules> rules = state_->Get();
  const int64_t now = NowMicros();
  std::erase_if(headers, [&](const auto& header) {
    const auto& [name, value] = header;
    if (name == rules->given.trusted_header) return true;
    const bool authorization = name == "authorization";
    if (!authorization && name != "x-api-key" && name != "api-key") return false;
    const std::string_view secret = authorization ? BearerToken(value) : value;
    if (secret.starts_with("vbk_") || rules->Find(secret)) return true;
    return authorization && rules->given.jwt && LooksLikeJwt(secret) &&
           rules->given.jwt->Verify(secret, now).ok();
  });
}

Result<Principal> Authenticator::Authenticate(const Headers& headers,
                                              std::string_view remote_ip) const {
  if (!has_keys()) {
    Principal local;
    local.roles = kEveryRole;
    return local;
  }
  const std::shared_ptr<const Rules> rules = state_->Get();
  const int64_t now = NowMicros();
  Error why = Refused(
      "You didn't provide an API key. Send it as 'Authorization: Bearer YOUR_KEY', or as "
      "'x-api-key' or 'api-key'.");
  for (const auto& [name, value] : headers) {
    const bool authorization = name == "authorization";
    if (!authorization && name != "x-api-key" && name != "api-key") continue;
    const std::string_view secret = authorization ? BearerToken(value) : value;
    if (secret.empty()) continue;
    if (const ApiKey* key = rules->Find(secret)) {
      if (key->expires_micros == 0 || now < key->expires_micros) {
        auto principal = rules->Known(key->principal);
        if (principal) return principal;
        why = principal.error();
      } else {
        why = Refused("This API key has expired. Ask your operator for a new one.");
      }
    } else if (authorization && rules->given.jwt && LooksLikeJwt(secret)) {
      auto principal = rules->given.jwt->Verify(secret, now);
      if (principal) principal = rules->Known(*std::move(principal));
      if (principal) return principal;
      why = principal.error();
    } else {
      why = Refused("Incorrect API key provided. Ask your operator for a valid one.");
    }
  }
  if (!rules->given.trusted_header.empty() && rules->Trusts(remote_ip)) {
    // More than one value is somebody's attempt to be two people.
    size_t values = 0;
    std::string_view subject;
    for (const auto& [name, value] : headers) {
      if (name != rules->given.trusted_header) continue;
      ++values;
      subject = value;
    }
    if (values == 1 && policies::IsPrincipalName(subject)) {
      Principal principal;
      principal.tenant = rules->given.trusted_tenant;
      principal.subject = subject;
      principal.key_id = "header";
      principal.roles = static_cast<uint8_t>(Role::kClient);
      return rules->Known(std::move(principal));
    }
  }
  return why;
}

}  // namespace verbatim::gateway
