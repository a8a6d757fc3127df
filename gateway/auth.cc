#include "gateway/auth.h"

#include <utility>

#include "base/crypto.h"

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

}  // namespace

Authenticator::Authenticator(std::vector<ApiKey> keys) : keys_(std::move(keys)) {}

Result<Principal> Authenticator::Authenticate(std::string_view authorization,
                                              std::string_view api_key) const {
  if (keys_.empty()) {
    Principal local;
    local.roles = kEveryRole;
    return local;
  }
  const std::string_view secret = authorization.empty() ? api_key : BearerToken(authorization);
  if (secret.empty()) {
    return Error{Code::kInvalid,
                 "You didn't provide an API key. Send it as 'Authorization: Bearer YOUR_KEY'."};
  }
  // Every key is compared, so that the time says nothing about which one matched.
  const Digest digest = Sha256(secret);
  const ApiKey* found = nullptr;
  for (const ApiKey& key : keys_) {
    if (ConstantTimeEqual(AsBytes(key.secret_digest), AsBytes(digest))) found = &key;
  }
  if (found == nullptr) {
    return Error{Code::kInvalid, "Incorrect API key provided. Ask your operator for a valid one."};
  }
  return found->principal;
}

}  // namespace verbatim::gateway
