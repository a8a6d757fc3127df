#include "gateway/jwt.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/crypto.h"

namespace verbatim::gateway {
namespace {

constexpr size_t kMaxGroups = 1000;
constexpr size_t kMaxIssuerKeys = 100;
constexpr double kMaxSeconds = 9e11;  // beyond it microseconds leave 64 bits

Error Refused(const std::string& why) {
  return {Code::kInvalid, "The bearer token is not valid: " + why + "."};
}

// base64url without padding (RFC 7515, appendix C).
Result<std::string> Base64UrlDecode(std::string_view text) {
  std::string standard(text);
  for (char& c : standard) {
    if (c == '+' || c == '/' || c == '=') return Error{Code::kInvalid, "not base64url"};
    if (c == '-') c = '+';
    if (c == '_') c = '/';
  }
  standard.append((4 - standard.size() % 4) % 4, '=');
  return Base64Decode(standard);
}

std::optional<json::Value> DecodeObject(std::string_view part) {
  auto text = Base64UrlDecode(part);
  if (!text) return std::nullopt;
  auto value = json::Parse(*text, {.max_bytes = kMaxJwtBytes, .max_depth = 16, .max_values = 4096});
  if (!value || !value->is_object()) return std::nullopt;
  return std::move(*value);
}

std::optional<KeyType> TypeFor(std::string_view algorithm) {
  if (algorithm == "RS256") return KeyType::kRsa;
  if (algorithm == "ES256") return KeyType::kP256;
  if (algorithm == "EdDSA") return KeyType::kEd25519;
  return std::nullopt;
}

std::string TextOf(const json::Value& object, std::string_view name) {
  const json::Value* v = object.Find(name);
  return v && v->is_string() ? v->as_string() : "";
}

// A claim by its name; where there is none of that whole name, dots lead into objects.
const json::Value* Claim(const json::Value& at, std::string_view path) {
  if (const json::Value* v = at.Find(path)) return v;
  for (size_t dot = path.find('.'); dot != path.npos; dot = path.find('.', dot + 1)) {
    const json::Value* inner = at.Find(path.substr(0, dot));
    if (inner == nullptr || !inner->is_object()) continue;
    if (const json::Value* v = Claim(*inner, path.substr(dot + 1))) return v;
  }
  return nullptr;
}

// A list of strings, or one string; `spaced`: several in one, as in `scope`. Nothing where the
// claim has another form.
std::optional<std::vector<std::string>> Names(const json::Value* claim, bool spaced) {
  std::vector<std::string> out;
  if (claim == nullptr || claim->is_null()) return out;
  if (claim->is_array()) {
    for (const json::Value& item : claim->items()) {
      if (!item.is_string()) return std::nullopt;
      out.push_back(item.as_string());
    }
    return out;
  }
  if (!claim->is_string()) return std::nullopt;
  const std::string& text = claim->as_string();
  if (!spaced) return std::vector<std::string>{text};
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(' ', begin), text.size());
    if (end > begin) out.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return out;
}

bool IsAudience(const json::Value* aud, const std::string& wanted) {
  const auto names = Names(aud, false);
  return names && std::find(names->begin(), names->end(), wanted) != names->end();
}

// A NumericDate in microseconds; nothing where it is no number, or no time.
std::optional<int64_t> Time(const json::Value* claim) {
  const auto seconds = claim ? claim->AsDouble() : std::nullopt;
  if (!seconds || *seconds < -kMaxSeconds || *seconds > kMaxSeconds) return std::nullopt;
  return static_cast<int64_t>(*seconds * 1e6);
}

Status CheckTimes(const json::Value& claims, int64_t now) {
  const auto expires = Time(claims.Find("exp"));
  if (!expires) return Refused("it has no expiry time (exp)");
  if (now >= *expires + kJwtLeewayMicros) return Refused("it has expired");
  for (const char* name : {"nbf", "iat"}) {
    const json::Value* claim = claims.Find(name);
    if (claim == nullptr) continue;
    const auto begins = Time(claim);
    if (!begins) return Refused(std::string("its ") + name + " is no time");
    if (now < *begins - kJwtLeewayMicros)
      return Refused(std::string("its ") + name + " is to come");
  }
  return {};
}

bool IsSigned(const std::vector<IssuerKey>& keys, const json::Value& header, KeyType type,
              std::string_view message, std::string_view signature) {
  const std::string kid = TextOf(header, "kid");
  for (const IssuerKey& key : keys) {
    if (key.key.type() != type) continue;
    if (!kid.empty() && !key.kid.empty() && kid != key.kid) continue;
    if (key.key.Verify(message, signature)) return true;
  }
  return false;
}

Result<Principal> MakePrincipal(const policies::JwtIssuerConfig& config,
                                const json::Value& claims) {
  Principal principal;
  principal.tenant = config.tenant;
  if (config.tenant.empty()) {
    const json::Value* tenant = Claim(claims, config.tenant_claim);
    principal.tenant = tenant && tenant->is_string() ? tenant->as_string() : "";
  }
  if (!policies::IsPrincipalName(principal.tenant)) {
    return Refused("its claim " + config.tenant_claim + " names no tenant");
  }
  const json::Value* subject = Claim(claims, config.subject_claim);
  principal.subject = subject && subject->is_string() ? subject->as_string() : "";
  if (!policies::IsPrincipalName(principal.subject)) {
    return Refused("its claim " + config.subject_claim + " names no subject");
  }
  auto groups = Names(Claim(claims, config.groups_claim), false);
  if (!groups || groups->size() > kMaxGroups ||
      !std::all_of(groups->begin(), groups->end(), policies::IsPrincipalName)) {
    return Refused("its claim " + config.groups_claim + " is no list of names");
  }
  std::sort(groups->begin(), groups->end());
  groups->erase(std::unique(groups->begin(), groups->end()), groups->end());
  principal.groups = *std::move(groups);
  const auto roles = Names(Claim(claims, config.roles_claim), true);
  if (config.roles.empty()) {
    principal.roles = static_cast<uint8_t>(Role::kClient);
  } else if (roles) {
    for (const auto& [value, role] : config.roles) {
      if (std::find(roles->begin(), roles->end(), value) == roles->end()) continue;
      principal.roles = static_cast<uint8_t>(principal.roles | RoleBit(role));
    }
  }
  principal.key_id = "jwt:" + HexEncode(Sha256(config.issuer)).substr(0, 16);
  return principal;
}

// One key of a JWKS; nothing where it is not for signatures, or of a type that nobody here knows.
Result<std::optional<IssuerKey>> ParseJwk(const json::Value& jwk) {
  const std::string use = TextOf(jwk, "use"), type = TextOf(jwk, "kty"), curve = TextOf(jwk, "crv");
  const std::string algorithm = TextOf(jwk, "alg");
  if (!use.empty() && use != "sig") return std::optional<IssuerKey>();
  const auto part = [&jwk](std::string_view name) {
    const auto bytes = Base64UrlDecode(TextOf(jwk, name));
    return bytes ? *bytes : std::string();
  };
  Result<PublicKey> key = Error{};
  if (type == "RSA" && (algorithm.empty() || algorithm == "RS256")) {
    key = PublicKey::Rsa(part("n"), part("e"));
  } else if (type == "EC" && curve == "P-256") {
    key = PublicKey::P256(part("x"), part("y"));
  } else if (type == "OKP" && curve == "Ed25519") {
    key = PublicKey::Ed25519(part("x"));
  } else {
    return std::optional<IssuerKey>();
  }
  if (!key) return key.error();
  return std::optional<IssuerKey>(IssuerKey{TextOf(jwk, "kid"), *std::move(key)});
}

}  // namespace

Result<std::vector<IssuerKey>> ParseIssuerKeys(std::string_view text) {
  std::vector<IssuerKey> keys;
  if (text.find("-----BEGIN") != text.npos) {
    auto pem = PublicKey::FromPem(text);
    if (!pem) return pem.error();
    for (PublicKey& key : *pem) keys.push_back({"", std::move(key)});
  } else {
    const auto jwks = json::Parse(text);
    if (!jwks) return Error{Code::kInvalid, "neither PEM nor a JWKS: " + jwks.error().message};
    const json::Value* list = jwks->Find("keys");
    if (list == nullptr || !list->is_array()) {
      return Error{Code::kInvalid, "not a JWKS: it has no list \"keys\""};
    }
    for (const json::Value& jwk : list->items()) {
      auto key = ParseJwk(jwk);
      if (!key) return key.error();
      if (*key) keys.push_back(**std::move(key));
    }
  }
  if (keys.empty()) return Error{Code::kInvalid, "no RSA, P-256 or Ed25519 key for signatures"};
  if (keys.size() > kMaxIssuerKeys) return Error{Code::kInvalid, "more than 100 keys"};
  return keys;
}

bool LooksLikeJwt(std::string_view text) {
  return std::count(text.begin(), text.end(), '.') == 2 && text.starts_with("ey");
}

JwtVerifier::JwtVerifier(std::vector<Issuer> issuers) : issuers_(std::move(issuers)) {}

Result<Principal> JwtVerifier::Verify(std::string_view token, int64_t now_micros) const {
  if (token.size() > kMaxJwtBytes) return Refused("it is longer than 16 KiB");
  const size_t first = token.find('.'), last = token.rfind('.');
  if (first == last) return Refused("it has not three parts");
  const auto header = DecodeObject(token.substr(0, first));
  const auto claims = DecodeObject(token.substr(first + 1, last - first - 1));
  const auto signature = Base64UrlDecode(token.substr(last + 1));
  if (!header || !claims || !signature) return Refused("it is not well-formed");
  const auto type = TypeFor(TextOf(*header, "alg"));
  if (!type) return Refused("its algorithm is none of RS256, ES256, EdDSA");
  // RFC 7515, 4.1.11: whoever does not know an extension that is marked as critical must refuse.
  if (header->Find("crit")) return Refused("it has critical extensions");

  const std::string issuer = TextOf(*claims, "iss");
  Error why = Refused("its issuer is not known here");
  for (const Issuer& known : issuers_) {
    if (known.config.issuer != issuer) continue;
    if (!IsSigned(known.keys, *header, *type, token.substr(0, last), *signature)) {
      why = Refused("its signature does not match a key of its issuer");
      continue;
    }
    if (!IsAudience(claims->Find("aud"), known.config.audience)) {
      why = Refused("it is meant for another audience");
      continue;
    }
    if (Status times = CheckTimes(*claims, now_micros); !times) return times.error();
    return MakePrincipal(known.config, *claims);
  }
  return why;
}

}  // namespace verbatim::gateway
