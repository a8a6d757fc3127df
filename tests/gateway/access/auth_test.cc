#include "gateway/auth.h"

#include <gtest/gtest.h>

#include "base/clock.h"
#include "base/crypto.h"
#include "gateway/access.h"

namespace verbatim::gateway {
namespace {

constexpr char kAnywhere[] = "203.0.113.9:40312";

ApiKey Key(const char* secret, const char* subject, const char* tenant = "acme") {
  ApiKey key;
  key.secret_digest = Sha256(secret);
  key.principal.tenant = tenant;
  key.principal.subject = subject;
  key.principal.key_id = std::string("key_") + subject;
  key.principal.roles = static_cast<uint8_t>(Role::kClient);
  return key;
}

TEST(Auth, WithoutCredentialsThereIsOneLocalPrincipal) {
  const Authenticator auth;
  EXPECT_FALSE(auth.has_keys());
  const auto principal = auth.Authenticate({{"authorization", "Bearer anything"}}, kAnywhere);
  ASSERT_TRUE(principal.ok());
  EXPECT_EQ(principal->tenant, "default");
  EXPECT_EQ(principal->roles, kEveryRole);
}

// Any one valid credential wins, in whatever header and company.
TEST(Auth, WhoIsLetIn) {
  const Authenticator auth(std::vector<ApiKey>{Key("good", "alice"), Key("other", "bob")});
  ASSERT_TRUE(auth.has_keys());
  struct Case {
    const char* name;
    Headers headers;
    const char* subject;  // null: refused
  };
  const Case cases[] = {
      {"bearer", {{"authorization", "Bearer good"}}, "alice"},
      {"bearer in lower case", {{"authorization", "bearer good"}}, "alice"},
      {"bearer with spaces", {{"authorization", "Bearer   good"}}, "alice"},
      {"Anthropic's header", {{"x-api-key", "good"}}, "alice"},
      {"Azure's header", {{"api-key", "good"}}, "alice"},
      {"bearer and a stale key", {{"authorization", "Bearer good"}, {"x-api-key", "old"}}, "alice"},
      {"a stale key first", {{"x-api-key", "old"}, {"authorization", "Bearer good"}}, "alice"},
      {"a stale bearer and a key",
       {{"authorization", "Bearer old"}, {"x-api-key", "good"}},
       "alice"},
      {"basic and a key", {{"authorization", "Basic eDp5"}, {"api-key", "other"}}, "bob"},
      {"two good ones: the first", {{"x-api-key", "other"}, {"api-key", "good"}}, "bob"},
      {"none", {}, nullptr},
      {"empty", {{"authorization", ""}, {"x-api-key", ""}}, nullptr},
      {"wrong", {{"authorization", "Bearer wrong"}}, nullptr},
      {"beginning of a key", {{"x-api-key", "goo"}}, nullptr},
      {"key and more", {{"x-api-key", "good "}}, nullptr},
      {"scheme without token", {{"authorization", "Bearer "}}, nullptr},
      {"key without scheme", {{"authorization", "good"}}, nullptr},
      {"the digest itself", {{"x-api-key", HexEncode(Sha256("good"))}}, nullptr},
      {"another header", {{"x-auth", "good"}, {"cookie", "api-key=good"}}, nullptr},
  };
  for (const Case& c : cases) {
    const auto principal = auth.Authenticate(c.headers, kAnywhere);
    EXPECT_EQ(principal.ok(), c.subject != nullptr) << c.name;
    if (principal.ok()) {
      EXPECT_EQ(principal->subject, c.subject ? c.subject : "") << c.name;
      continue;
    }
    EXPECT_EQ(principal.error().code, Code::kInvalid) << c.name;
    for (const auto& [name, value] : c.headers) {
      if (value.empty() || value == "Bearer ") continue;
      EXPECT_EQ(principal.error().message.find(value), std::string::npos)
          << c.name << ": " << principal.error().message;
    }
  }
}

TEST(Auth, ExpiredKeys) {
  ApiKey past = Key("past", "alice"), future = Key("future", "bob");
  past.expires_micros = NowMicros() - 1;
  future.expires_micros = NowMicros() + 60'000'000;
  const Authenticator auth(std::vector<ApiKey>{past, future});
  const auto refused = auth.Authenticate({{"x-api-key", "past"}}, kAnywhere);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("expired"), std::string::npos);
  EXPECT_TRUE(auth.Authenticate({{"x-api-key", "future"}}, kAnywhere).ok());
  EXPECT_EQ(auth.Authenticate({{"x-api-key", "past"}, {"api-key", "future"}}, kAnywhere)->subject,
            "bob");
}

TEST(Auth, CopiesShareWhatIsInForce) {
  Authenticator auth;
  const Authenticator servers = auth;
  AccessRules rules;
  rules.required = true;
  rules.keys = {Key("one", "alice")};
  auth.Replace(rules);
  EXPECT_TRUE(servers.has_keys());
  EXPECT_TRUE(servers.Authenticate({{"x-api-key", "one"}}, kAnywhere).ok());
  rules.keys = {Key("two", "alice")};
  auth.Replace(rules);
  EXPECT_FALSE(servers.Authenticate({{"x-api-key", "one"}}, kAnywhere).ok());
  EXPECT_TRUE(servers.Authenticate({{"x-api-key", "two"}}, kAnywhere).ok());
  // Losing every key opens nothing.
  auth.Replace(AccessRules{});
  EXPECT_TRUE(servers.has_keys());
  EXPECT_FALSE(servers.Authenticate({}, "127.0.0.1").ok());
}

TEST(Auth, OnlyConfiguredTenants) {
  AccessRules rules;
  rules.required = true;
  rules.keys = {Key("a", "alice", "acme"), Key("g", "bob", "globex")};
  rules.tenants = {{"acme", {}}};
  const Authenticator some(rules);
  EXPECT_TRUE(some.Authenticate({{"x-api-key", "a"}}, kAnywhere).ok());
  EXPECT_FALSE(some.Authenticate({{"x-api-key", "g"}}, kAnywhere).ok());
  rules.tenants = {{"acme", {}}, {"*", {}}};
  const Authenticator all(rules);
  EXPECT_TRUE(all.Authenticate({{"x-api-key", "g"}}, kAnywhere).ok());
}

AccessRules Trusting(std::vector<const char*> networks) {
  AccessRules rules;
  rules.required = true;
  rules.trusted_header = "x-user";
  rules.trusted_tenant = "acme";
  for (const char* network : networks) rules.trusted_from.push_back(ParseNetwork(network).value());
  return rules;
}

TEST(Auth, TheTrustedHeaderCountsFromTrustedNetworksOnly) {
  AccessRules rules = Trusting({"10.1.0.0/16", "fd00::/8", "192.0.2.7"});
  rules.keys = {Key("good", "bob")};
  const Authenticator auth(rules);
  struct Case {
    const char* remote;
    bool trusted;
  };
  const Case cases[] = {{"10.1.2.3:555", true},
                        {"10.1.255.255", true},
                        {"10.2.0.1:555", false},
                        {"10.0.255.255", false},
                        {"192.0.2.7", true},
                        {"192.0.2.8", false},
                        {"[fd12::1]:555", true},
                        {"fd12::1", true},
                        {"fe80::1", false},
                        {"::ffff:10.1.2.3", true},
                        {"[::ffff:10.1.2.3]:5", true},
                        {"::ffff:10.2.2.3", false},
                        {"", false},
                        {"10.1.2", false},
                        {"nonsense", false},
                        {"[", false}};
  for (const Case& c : cases) {
    const auto principal = auth.Authenticate({{"x-user", "alice"}}, c.remote);
    EXPECT_EQ(principal.ok(), c.trusted) << c.remote;
    if (!principal.ok()) continue;
    EXPECT_EQ(principal->tenant, "acme");
    EXPECT_EQ(principal->subject, "alice");
    EXPECT_EQ(principal->roles, static_cast<uint8_t>(Role::kClient));
  }
  const char* inside = "10.1.2.3:555";
  EXPECT_FALSE(auth.Authenticate({{"x-user", "alice"}, {"x-user", "root"}}, inside).ok());
  EXPECT_FALSE(auth.Authenticate({{"x-user", ""}}, inside).ok());
  EXPECT_FALSE(auth.Authenticate({{"x-user", "a\tb"}}, inside).ok());
  EXPECT_FALSE(auth.Authenticate({{"x-user", std::string(201, 'a')}}, inside).ok());
  EXPECT_FALSE(auth.Authenticate({}, inside).ok());
  // A key says more than the proxy.
  EXPECT_EQ(auth.Authenticate({{"x-user", "alice"}, {"x-api-key", "good"}}, inside)->subject,
            "bob");
}

TEST(Auth, Networks) {
  for (const char* text : {"10.0.0.0/8", "0.0.0.0/0", "10.0.0.1", "::/0", "::1/128", "fd00::/8"}) {
    EXPECT_TRUE(ParseNetwork(text).ok()) << text;
  }
  for (const char* text :
       {"", "/8", "10.0.0.0/", "10.0.0.0/33", "10.0.0.0/-1", "10.0.0/8", "::/129", "10.0.0.0/8 ",
        "::ffff:10.0.0.0/104", "localhost", "10.0.0.0/8/8"}) {
    EXPECT_FALSE(ParseNetwork(text).ok()) << text;
  }
  EXPECT_TRUE(InNetwork(ParseNetwork("0.0.0.0/0").value(), "203.0.113.9"));
  EXPECT_FALSE(InNetwork(ParseNetwork("0.0.0.0/0").value(), "::1"));
  EXPECT_TRUE(InNetwork(ParseNetwork("10.128.0.0/9").value(), "10.128.0.1"));
  EXPECT_FALSE(InNetwork(ParseNetwork("10.128.0.0/9").value(), "10.127.0.1"));
}

TEST(Auth, WhoMayUseWhichModel) {
  policies::Tenants tenants;
  tenants["acme"].models = {"small", "gpt-*", "*-mini"};
  tenants["globex"] = {};
  const auto grant = std::make_shared<const Grant>(Grant{{"gpt-4*"}, {}, {}});
  struct Case {
    const char* tenant;
    bool granted;
    const char* model;
    bool may;
  };
  const Case cases[] = {
      {"acme", false, "small", true},      {"acme", false, "smaller", false},
      {"acme", false, "gpt-", true},       {"acme", false, "gpt-4o", true},
      {"acme", false, "xgpt-4o", false},   {"acme", false, "o4-mini", true},
      {"acme", false, "o4-mini-2", false}, {"acme", false, "", false},
      {"acme", true, "gpt-4o", true},      {"acme", true, "small", false},
      {"acme", true, "gpt-3", false},      {"globex", false, "anything", true},
      {"globex", true, "gpt-4", true},     {"globex", true, "small", false},
      {"nobody", false, "small", false},
  };
  for (const Case& c : cases) {
    Principal principal;
    principal.tenant = c.tenant;
    if (c.granted) principal.grant = grant;
    EXPECT_EQ(MayUseModel(tenants, principal, c.model), c.may)
        << c.tenant << " " << c.granted << " " << c.model;
  }
  Principal anyone;
  EXPECT_TRUE(MayUseModel({}, anyone, "small"));
  const HttpError error = NoSuchModel("secret-model");
  EXPECT_EQ(error.status, 404);
  EXPECT_EQ(error.code, "model_not_found");
}

TEST(Auth, PatternsEndQuickly) {
  const std::string name(200, 'a'), pattern = "*a*a*a*a*a*a*a*a*a*a*a*a*b";
  EXPECT_FALSE(policies::InList({pattern}, name));
  EXPECT_TRUE(policies::InList({pattern}, name + "b"));
}

}  // namespace
}  // namespace verbatim::gateway
