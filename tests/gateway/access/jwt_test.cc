#include "gateway/jwt.h"

#include <gtest/gtest.h>

#include <functional>

#include "base/clock.h"
#include "base/crypto.h"

namespace verbatim::gateway {
namespace {

constexpr int64_t kNow = 1'796'000'000'000'000;  // 2026-11-30
constexpr int64_t kSeconds = kNow / 1'000'000;

std::string Base64Url(std::string_view bytes) {
  std::string out;
  for (const char c : Base64Encode(bytes)) {
    if (c != '=') out += c == '+' ? '-' : c == '/' ? '_' : c;
  }
  return out;
}

std::string Token(const std::string& header, const std::string& claims, const PrivateKey& key) {
  const std::string signed_part = Base64Url(header) + "." + Base64Url(claims);
  return signed_part + "." + Base64Url(key.Sign(signed_part));
}

json::Value Claims() {
  return json::Object{{"iss", "https://id.example.com"},
                      {"aud", "verbatim"},
                      {"exp", kSeconds + 600},
                      {"tenant", "acme"},
                      {"sub", "alice"}};
}

policies::JwtIssuerConfig Config() {
  policies::JwtIssuerConfig config;
  config.issuer = "https://id.example.com";
  config.audience = "verbatim";
  return config;
}

// Keys are made once: an RSA key takes a while.
struct Keys {
  PrivateKey rsa = PrivateKey::Generate(KeyType::kRsa);
  PrivateKey p256 = PrivateKey::Generate(KeyType::kP256);
  PrivateKey ed25519 = PrivateKey::Generate(KeyType::kEd25519);
};
const Keys& TheKeys() {
  static const Keys keys;
  return keys;
}

std::string Jwks() {
  const auto rsa = TheKeys().rsa.PublicParts(), p256 = TheKeys().p256.PublicParts();
  const auto ed = TheKeys().ed25519.PublicParts();
  json::Value keys = json::Value::MakeArray();
  keys.Append(json::Object{{"kty", "oct"}, {"k", "c2VjcmV0"}, {"kid", "shared"}});
  keys.Append(json::Object{{"kty", "RSA"}, {"use", "enc"}, {"n", "AQ"}, {"e", "AQAB"}});
  keys.Append(json::Object{{"kty", "RSA"},
                           {"use", "sig"},
                           {"kid", "r"},
                           {"n", Base64Url(rsa[0])},
                           {"e", Base64Url(rsa[1])}});
  keys.Append(json::Object{{"kty", "EC"},
                           {"crv", "P-256"},
                           {"kid", "e"},
                           {"x", Base64Url(p256[0])},
                           {"y", Base64Url(p256[1])}});
  keys.Append(
      json::Object{{"kty", "OKP"}, {"crv", "Ed25519"}, {"kid", "d"}, {"x", Base64Url(ed[0])}});
  return json::Serialize(json::Object{{"keys", std::move(keys)}});
}

JwtVerifier Verifier(policies::JwtIssuerConfig config = Config()) {
  std::vector<JwtVerifier::Issuer> issuers;
  issuers.push_back({std::move(config), ParseIssuerKeys(Jwks()).value()});
  return JwtVerifier(std::move(issuers));
}

std::string Signed(const json::Value& claims) {
  return Token(R"({"alg":"EdDSA","kid":"d"})", json::Serialize(claims), TheKeys().ed25519);
}

TEST(Jwt, EveryAlgorithmWithItsKey) {
  const JwtVerifier verifier = Verifier();
  const std::string claims = json::Serialize(Claims());
  struct Case {
    const char* header;
    const PrivateKey& key;
    const char* why;  // null: good
  };
  const Keys& k = TheKeys();
  const Case cases[] = {
      {R"({"alg":"RS256","kid":"r"})", k.rsa, nullptr},
      {R"({"alg":"ES256","kid":"e","typ":"JWT"})", k.p256, nullptr},
      {R"({"alg":"EdDSA","kid":"d"})", k.ed25519, nullptr},
      {R"({"alg":"RS256"})", k.rsa, nullptr},
      {R"({"alg":"RS256","kid":"e"})", k.rsa, "signature"},  // the name of another key
      {R"({"alg":"RS256","kid":"unknown"})", k.rsa, "signature"},
      {R"({"alg":"ES256"})", k.rsa, "signature"},  // the algorithm of another key
      {R"({"alg":"EdDSA"})", k.p256, "signature"},
      {R"({"alg":"none"})", k.rsa, "algorithm"},
      {R"({"alg":"None"})", k.rsa, "algorithm"},
      {R"({"alg":"HS256"})", k.rsa, "algorithm"},
      {R"({"alg":"HS256","kid":"shared"})", k.rsa, "algorithm"},
      {R"({"alg":"RS512"})", k.rsa, "algorithm"},
      {R"({"alg":"PS256"})", k.rsa, "algorithm"},
      {R"({"alg":7})", k.rsa, "algorithm"},
      {R"({})", k.rsa, "algorithm"},
      {R"({"alg":"RS256","crit":["b64"],"b64":false})", k.rsa, "critical"},
      {R"({"alg":"RS256","alg":"none"})", k.rsa, "well-formed"},
      {R"([])", k.rsa, "well-formed"},
  };
  for (const Case& c : cases) {
    const auto principal = verifier.Verify(Token(c.header, claims, c.key), kNow);
    EXPECT_EQ(principal.ok(), c.why == nullptr) << c.header;
    if (principal.ok()) {
      EXPECT_EQ(principal->tenant, "acme");
      EXPECT_EQ(principal->subject, "alice");
      EXPECT_EQ(principal->roles, static_cast<uint8_t>(Role::kClient));
      EXPECT_EQ(principal->key_id,
                "jwt:" + HexEncode(Sha256("https://id.example.com")).substr(0, 16));
    } else if (c.why) {
      EXPECT_NE(principal.error().message.find(c.why), std::string::npos)
          << c.header << ": " << principal.error().message;
    }
  }
}

// The RSA public key, which everyone has, as the secret of an HMAC: the classic confusion.
TEST(Jwt, APublicKeyIsNoSharedSecret) {
  const std::string part =
      Base64Url(R"({"alg":"HS256"})") + "." + Base64Url(json::Serialize(Claims()));
  const Digest mac = HmacSha256(TheKeys().rsa.PublicPem(), part);
  EXPECT_FALSE(Verifier().Verify(part + "." + Base64Url(AsBytes(mac)), kNow).ok());
}

TEST(Jwt, Claims) {
  struct Case {
    const char* name;
    std::function<void(json::Value&)> change;
    const char* why;  // null: good
  };
  const auto set = [](const char* claim, json::Value value) {
    return [claim, value](json::Value& v) { v.Set(claim, value); };
  };
  const auto erase = [](const char* claim) { return [claim](json::Value& v) { v.Erase(claim); }; };
  const Case cases[] = {
      {"as it is", [](json::Value&) {}, nullptr},
      {"another issuer", set("iss", "https://evil.example"), "issuer"},
      {"no issuer", erase("iss"), "issuer"},
      {"another audience", set("aud", "else"), "audience"},
      {"no audience", erase("aud"), "audience"},
      {"several audiences", set("aud", json::Array{"else", "verbatim"}), nullptr},
      {"audience of no text", set("aud", json::Array{1, "verbatim"}), "audience"},
      {"no expiry", erase("exp"), "expiry"},
      {"expiry as text", set("exp", "soon"), "expiry"},
      {"huge expiry", set("exp", json::Value::NumberFromText("1e300")), "expiry"},
      {"expired", set("exp", kSeconds - 61), "expired"},
      {"expired within the leeway", set("exp", kSeconds - 59), nullptr},
      {"expired just at the leeway", set("exp", kSeconds - 60), "expired"},
      {"expiry with a fraction", set("exp", 1796000000.5), nullptr},
      {"not yet", set("nbf", kSeconds + 61), "nbf"},
      {"not yet, within the leeway", set("nbf", kSeconds + 60), nullptr},
      {"issued later", set("iat", kSeconds + 3600), "iat"},
      {"nbf as text", set("nbf", "now"), "nbf"},
      {"no tenant", erase("tenant"), "tenant"},
      {"tenant of no text", set("tenant", 7), "tenant"},
      {"tenant *", set("tenant", "*"), "tenant"},
      {"tenant with a control character", set("tenant", "a\nb"), "tenant"},
      {"no subject", erase("sub"), "sub"},
      {"empty subject", set("sub", ""), "sub"},
      {"groups", set("groups", json::Array{"b", "a", "b"}), nullptr},
      {"one group", set("groups", "a"), nullptr},
      {"groups of no text", set("groups", json::Array{1}), "groups"},
      {"groups as object", set("groups", json::Object{{"a", 1}}), "groups"},
  };
  const JwtVerifier verifier = Verifier();
  for (const Case& c : cases) {
    json::Value claims = Claims();
    c.change(claims);
    const auto principal = verifier.Verify(Signed(claims), kNow);
    EXPECT_EQ(principal.ok(), c.why == nullptr)
        << c.name << ": " << (principal.ok() ? "" : principal.error().message);
    if (principal.ok() || !c.why) continue;
    EXPECT_NE(principal.error().message.find(c.why), std::string::npos)
        << c.name << ": " << principal.error().message;
    EXPECT_EQ(principal.error().message.find("evil"), std::string::npos) << c.name;
  }
}

TEST(Jwt, NamesOfClaimsAndRoles) {
  policies::JwtIssuerConfig config = Config();
  config.tenant_claim = "https://example.com/org.name";
  config.subject_claim = "user.email";
  config.groups_claim = "realm.access.groups";
  config.roles_claim = "scope";
  config.roles = {{"vb.audit", "auditor"}, {"vb.ops", "operator"}, {"vb.use", "client"}};
  json::Value claims = Claims();
  claims.Set("https://example.com/org.name", "globex");
  claims.Set("user", json::Object{{"email", "alice@example.com"}});
  claims.Set("realm", json::Object{{"access", json::Object{{"groups", json::Array{"z", "a"}}}}});
  claims.Set("scope", "openid  vb.use vb.audit");
  auto principal = Verifier(config).Verify(Signed(claims), kNow);
  ASSERT_TRUE(principal.ok()) << principal.error().message;
  EXPECT_EQ(principal->tenant, "globex");
  EXPECT_EQ(principal->subject, "alice@example.com");
  EXPECT_EQ(principal->groups, (std::vector<std::string>{"a", "z"}));
  EXPECT_TRUE(principal->Has(Role::kClient));
  EXPECT_TRUE(principal->Has(Role::kAuditor));
  EXPECT_FALSE(principal->Has(Role::kOperator));

  claims.Set("scope", "vb.used");  // no role's whole name
  EXPECT_EQ(Verifier(config).Verify(Signed(claims), kNow)->roles, 0);
  config.tenant = "fixed";  // of the issuer, whatever the token says
  EXPECT_EQ(Verifier(config).Verify(Signed(claims), kNow)->tenant, "fixed");
}

TEST(Jwt, NothingThatWasChangedPasses) {
  const JwtVerifier verifier = Verifier();
  const std::string token = Signed(Claims());
  ASSERT_TRUE(verifier.Verify(token, kNow).ok());
  for (size_t i = 0; i < token.size(); ++i) {
    std::string changed = token;
    changed[i] = changed[i] == 'A' ? 'B' : 'A';
    EXPECT_FALSE(verifier.Verify(changed, kNow).ok()) << i;
    EXPECT_FALSE(verifier.Verify(token.substr(0, i), kNow).ok()) << i;
  }
  for (const std::string& bad :
       {std::string(), std::string("."), std::string(".."), std::string("..."), token + "=",
        token + "A", token + ".", " " + token, std::string(20'000, 'e')}) {
    EXPECT_FALSE(verifier.Verify(bad, kNow).ok()) << bad.substr(0, 100);
  }
}

TEST(Jwt, IssuersKeys) {
  const Keys& k = TheKeys();
  EXPECT_EQ(ParseIssuerKeys(Jwks())->size(), 3u);
  const std::string pems = k.rsa.PublicPem() + "\n" + k.p256.PublicPem() + k.ed25519.PublicPem();
  const auto pem = ParseIssuerKeys(pems);
  ASSERT_TRUE(pem.ok()) << pem.error().message;
  ASSERT_EQ(pem->size(), 3u);
  const PrivateKey* keys[] = {&k.rsa, &k.p256, &k.ed25519};
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_TRUE((*pem)[i].key.Verify("message", keys[i]->Sign("message"))) << i;
    EXPECT_FALSE((*pem)[i].key.Verify("massage", keys[i]->Sign("message"))) << i;
    EXPECT_FALSE((*pem)[i].key.Verify("message", "")) << i;
    EXPECT_FALSE((*pem)[i].key.Verify("message", std::string(64, '\0'))) << i;
  }
  const std::string cases[] = {
      "",
      "{}",
      R"({"keys":[]})",
      R"({"keys":[{"kty":"oct","k":"AAAA"}]})",
      R"({"keys":[{"kty":"RSA","n":"AQAB","e":"AQAB"}]})",
      R"({"keys":[{"kty":"EC","crv":"P-256","x":"AA","y":"AA"}]})",
      R"({"keys":[{"kty":"EC","crv":"P-256","x":")" + std::string(43, 'A') + R"(","y":")" +
          std::string(43, 'A') + R"("}]})",
      R"({"keys":[{"kty":"OKP","crv":"Ed25519","x":"AA"}]})",
      "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n",
      k.p256.PublicPem() + "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n",
      "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"};
  for (const std::string& text : cases) EXPECT_FALSE(ParseIssuerKeys(text).ok()) << text;
}

TEST(Jwt, AsACredential) {
  json::Value claims = Claims();
  claims.Set("exp", NowMicros() / 1'000'000 + 600);
  const std::string token = Signed(claims);
  EXPECT_TRUE(LooksLikeJwt(token));
  EXPECT_FALSE(LooksLikeJwt("vbk_0123"));
  AccessRules rules;
  rules.required = true;
  rules.jwt = std::make_shared<const JwtVerifier>(Verifier());
  const Authenticator auth(rules);
  const auto good = auth.Authenticate({{"x-api-key", "old"}, {"authorization", "Bearer " + token}},
                                      "203.0.113.9");
  ASSERT_TRUE(good.ok()) << good.error().message;
  EXPECT_EQ(good->subject, "alice");
  const auto bad = auth.Authenticate({{"authorization", "Bearer " + token + "A"}}, "203.0.113.9");
  ASSERT_FALSE(bad.ok());
  EXPECT_EQ(bad.error().message.find(token.substr(0, 20)), std::string::npos);
  EXPECT_FALSE(auth.Authenticate({{"x-api-key", token}}, "203.0.113.9").ok()) << "bearer only";
}

}  // namespace
}  // namespace verbatim::gateway
