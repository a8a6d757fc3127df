// The rows of access, tenants and redact.
#include <set>

#include "base/bytes.h"
#include "policies/rows.h"
#include "policies/schema.h"
#include "policies/tenants.h"

namespace verbatim::policies {

namespace {

constexpr uint64_t kMaxRequests = 1'000'000'000;
constexpr uint64_t kMaxTokens = 10'000'000'000;  // a minute; limits.cc counts in 60,000,000ths

bool IsName(const std::string& text) { return IsPrincipalName(text); }

bool IsModelPattern(const std::string& text) {
  return !text.empty() && text.size() <= 200 &&
         std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c != 0x7f; });
}

bool IsRole(const std::string& text) {
  return text == "client" || text == "operator" || text == "auditor";
}

bool IsHexDigest(const std::string& text) {
  return text.size() == 64 && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

bool IsNetworkText(const std::string& text) {
  return !text.empty() && text.size() <= 60 &&
         text.find_first_not_of("0123456789abcdefABCDEF.:/") == std::string::npos;
}

// A field's name in lower case that carries no other meaning for this server.
bool IsIdentityHeader(const std::string& text) {
  static const std::set<std::string> kTaken = {
      "authorization", "x-api-key", "api-key",      "cookie",         "host",
      "connection",    "expect",    "content-type", "content-length", "transfer-encoding"};
  return !text.empty() && text.size() <= 100 && !kTaken.contains(text) &&
         text.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-_") == std::string::npos;
}

// RFC 6901: empty, or segments that each begin with a slash; ~ only as ~0 and ~1.
bool IsPointer(const std::string& text) {
  if (text.empty()) return true;
  if (text[0] != '/' || text.size() > 1000) return false;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '~' && (i + 1 == text.size() || (text[i + 1] != '0' && text[i + 1] != '1'))) {
      return false;
    }
  }
  return true;
}

bool IsReplacement(const std::string& text) { return text.size() <= 1000; }

void AddLimits(std::vector<Row>& rows, RateLimits& limits, Budget& budget) {
  rows.push_back(Integer("budget.tokens", budget.tokens, 0, kMaxBudget));
  rows.push_back(Choice("budget.per", budget.per, {kPeriodNames.begin(), kPeriodNames.end()}));
  rows.push_back(
      Integer("limits.requests_per_minute", limits.requests_per_minute, 0, kMaxRequests));
  rows.push_back(Integer("limits.tokens_per_minute", limits.tokens_per_minute, 0, kMaxTokens));
  rows.push_back(Integer("limits.concurrent", limits.concurrent, 0, kMaxRequests));
}

Row Names(std::string path, std::vector<std::string>& slot) {
  return TextList(std::move(path), slot, "a list of names", IsName);
}

Row Models(std::vector<std::string>& slot) {
  return TextList("models", slot, "a list of models' names; * stands for any text", IsModelPattern);
}

std::vector<Row> TenantRows(TenantConfig& t) {
  std::vector<Row> rows = {Models(t.models)};
  AddLimits(rows, t.limits, t.budget);
  return rows;
}

std::vector<Row> KeyRows(InlineKey& k) {
  std::vector<Row> rows = {
      Text("id", k.id, "a name", IsName),
      Secret("secret", k.secret),
      Text("sha256", k.sha256, "64 lower-case hexadecimal digits", IsHexDigest),
      Text("tenant", k.tenant, "a name", IsName),
      Text("subject", k.subject, "a name", IsName),
      Names("groups", k.groups),
      TextList("roles", k.roles, "a list of client, operator, auditor", IsRole),
      Models(k.models)};
  AddLimits(rows, k.limits, k.budget);
  return rows;
}

std::vector<Row> IssuerRows(JwtIssuerConfig& i) {
  return {Text("issuer", i.issuer, "the text of the claim iss", Anything),
          Text("audience", i.audience, "a text that the claim aud has", Anything),
          Text("keys", i.keys, "the file of a JWKS or of PEM public keys", Anything),
          Text("tenant", i.tenant, "a name", IsName),
          Text("tenant_claim", i.tenant_claim, "a claim's name", Anything),
          Text("subject_claim", i.subject_claim, "a claim's name", Anything),
          Text("groups_claim", i.groups_claim, "a claim's name", Anything),
          Text("roles_claim", i.roles_claim, "a claim's name", Anything),
          TextMap("roles", i.roles, "VALUE: client|operator|auditor", Anything)};
}

std::string CheckKey(const InlineKey& k) {
  if (k.id.empty()) return "a key without id";
  if (k.secret.empty() == k.sha256.empty()) {
    return "the key " + k.id + " must have one of secret and sha256";
  }
  return "";
}

std::string CheckIssuer(const JwtIssuerConfig& i) {
  if (i.issuer.empty() || i.audience.empty() || i.keys.empty()) {
    return "an issuer must have issuer, audience and keys";
  }
  for (const auto& [value, role] : i.roles) {
    if (!IsRole(role)) return "the role of " + value.substr(0, 80) + " is unknown";
  }
  return "";
}

std::vector<Row> AccessRows(AccessConfig& a) {
  return {Text("keys_file", a.keys_file, "a file's name", Anything),
          ListOf("keys", "a list of {id: NAME, secret: env:NAME|file:PATH, tenant: NAME, ...}",
                 a.keys, KeyRows, CheckKey),
          ListOf("jwt.issuers", "a list of {issuer: TEXT, audience: TEXT, keys: FILE, ...}",
                 a.issuers, IssuerRows, CheckIssuer),
          Text("trusted_header.name", a.trusted_header.name,
               "a header's name in lower case, none that has another meaning", IsIdentityHeader),
          Text("trusted_header.tenant", a.trusted_header.tenant, "a name", IsName),
          TextList("trusted_header.from", a.trusted_header.from,
                   "a list of networks, such as 10.0.0.0/8 and fd00::/8", IsNetworkText)};
}

MaybeProblem ReadAccess(const Node& node, AccessConfig& out) {
  out.configured = true;
  if (auto problem = ReadMap(AccessRows(out), node)) return problem;
  std::set<std::string> ids;
  for (const InlineKey& key : out.keys) {
    if (!ids.insert(key.id).second) return Wrong(node, "two keys have the id " + key.id, "keys");
  }
  if (out.trusted_header.name.empty() != out.trusted_header.from.empty()) {
    return Wrong(node, "name and from are given together, or not at all", "trusted_header");
  }
  return std::nullopt;
}

std::vector<Row> RedactRows(RedactRule& r) {
  return {Text("name", r.name, "a name", IsName),
          Text("pointer", r.pointer, "a JSON pointer, where a segment * is anything", IsPointer),
          Choice("pattern", r.pattern, {"email", "credit_card", "iban", "phone", "us_ssn"}),
          Text("regex", r.regex, "a regular expression (PCRE2) of 1 to 4096 bytes", Anything),
          Text("replace", r.replace, "at most 1000 bytes", IsReplacement)};
}

std::string CheckRedact(const RedactRule& r) {
  if (!r.pattern.empty() && !r.regex.empty()) return "a rule has pattern or regex, not both";
  if (r.pointer.empty() && r.pattern.empty() && r.regex.empty()) {
    return "a rule must have a pointer, a pattern or a regex";
  }
  return "";
}

}  // namespace

Row AccessRow(AccessConfig& slot) {
  return {"access", "keys_file, keys, jwt, trusted_header",
          [&slot](const Node& n) { return ReadAccess(n, slot); },
          [&slot] { return WriteRows(AccessRows(slot)); }};
}

Row TenantsRow(Tenants& slot) {
  return {"tenants", "NAME: {models: [NAME], limits: {...}, budget: {tokens: N, per: day|month}}",
          [&slot](const Node& n) -> MaybeProblem {
            if (n.kind != Node::Kind::kMap) return NotAllowed(n);
            slot.clear();
            for (const Node::Entry& entry : n.entries) {
              if (entry.key != "*" && !IsPrincipalName(entry.key)) {
                return Problem{entry.line, "", "a tenant's name is 1 to 200 bytes of text"};
              }
              TenantConfig& tenant = slot[entry.key];
              if (entry.value.kind == Node::Kind::kNull) continue;
              if (auto problem = ReadMap(TenantRows(tenant), entry.value)) {
                problem->key = problem->key.empty() ? entry.key : entry.key + "." + problem->key;
                return problem;
              }
            }
            return std::nullopt;
          },
          [&slot] {
            json::Value v = json::Value::MakeObject();
            for (auto& [name, tenant] : slot) v.Set(name, WriteRows(TenantRows(tenant)));
            return v;
          }};
}

Row RedactRow(std::vector<RedactRule>& slot) {
  return ListOf("redact", "a list of {pointer: P, pattern: NAME or regex: R, replace: TEXT}", slot,
                RedactRows, CheckRedact);
}

}  // namespace verbatim::policies
