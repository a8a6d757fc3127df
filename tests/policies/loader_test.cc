#include "policies/loader.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace verbatim::policies {
namespace {

std::string PolicyError(const std::string& yaml) {
  const auto policy = ParsePolicy(yaml, "p.yaml");
  if (policy.ok()) return "accepted";
  EXPECT_EQ(policy.error().code, Code::kInvalid);
  return policy.error().message;
}

std::string ConfigError(const std::string& yaml) {
  const auto config = ParseConfig(yaml, "c.yaml", "");
  return config.ok() ? "accepted" : config.error().message;
}

TEST(Loader, EveryFieldOfAPolicy) {
  const auto p = ParsePolicy(R"(
mode: verify
enforce:
  temperature: {value: 0, how: refuse}
  seed: {value: 18446744073709551615}
key:
  namespace: subject
  secret: env:KEY
  policy: true
  manifest: true
  software: [libraries.rocksdb, build.version]
software_lock:
  manifest: 00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff
  components:
    libraries.rocksdb: "7.8.3"
    build.version: "0.1"
verify: {rate: 0.25}
hits: {strict: true, sampled: true, max_age_seconds: 9, finish_reasons: [stop]}
retention: {seconds: 60}
on_ledger_failure: {break_glass: {seconds: 30}}
pass_through: other
limits:
  body_bytes: 1
  prompt_bytes: 2
  messages: 3
  max_tokens: 4
redact:
  - {pointer: /messages/*/content, pattern: email}
  - {name: case, regex: 'C-\d+', replace: "[CASE]"}
)",
                             "p.yaml");
  ASSERT_TRUE(p.ok()) << p.error().message;
  EXPECT_EQ(
      json::Canonical(ToJson(*p)),
      R"({"enforce":{"seed":{"how":"override","value":18446744073709551615},)"
      R"("temperature":{"how":"refuse","value":0}},"hits":{"finish_reasons":["stop"],)"
      R"("max_age_seconds":9,"sampled":true,"stateful":false,"strict":true},)"
      R"("key":{"manifest":true,"namespace":"subject","policy":true,"secret":"env:KEY",)"
      R"("software":["build.version","libraries.rocksdb"]},)"
      R"("limits":{"body_bytes":1,"max_tokens":4,"messages":3,"prompt_bytes":2},"mode":"verify",)"
      R"("on_ledger_failure":{"break_glass":{"seconds":30}},"pass_through":"other",)"
      R"("redact":[{"name":"","pattern":"email","pointer":"/messages/*/content","regex":"",)"
      R"("replace":"[REDACTED]"},{"name":"case","pattern":"","pointer":"","regex":"C-\\d+",)"
      R"("replace":"[CASE]"}],)"
      R"("retention":{"seconds":60},"software_lock":{"components":{"build.version":"0.1",)"
      R"("libraries.rocksdb":"7.8.3"},"manifest":)"
      R"("00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"},)"
      R"("verify":{"rate":0.25}})");
}

TEST(Loader, BuiltinPolicies) {
  for (const char* name : {"default", "strict"}) {
    const auto builtin = BuiltinPolicy(name);
    ASSERT_TRUE(builtin.ok()) << builtin.error().message;
    const auto file = LoadPolicy(std::string(VERBATIM_SOURCE_DIR) + "/policies/" + name + ".yaml");
    ASSERT_TRUE(file.ok()) << file.error().message;
    EXPECT_EQ(PolicyDigest(*builtin), PolicyDigest(*file)) << name;
  }
  EXPECT_FALSE(BuiltinPolicy("lax").ok());
  const Policy strict = *BuiltinPolicy("strict");
  EXPECT_EQ(strict.enforce.size(), 8u);
  EXPECT_TRUE(strict.strict_hits);
  EXPECT_EQ(DefaultConfig().policy.mode, Mode::kRecord);
}

// What each mistake says: file, line, key, and what is allowed.
TEST(Loader, PolicyErrors) {
  struct Case {
    const char* yaml;
    const char* want;
  };
  const Case cases[] = {
      {"mode: record\nmoode: x\n",
       "p.yaml:2: moode: unknown key; allowed: mode, enforce, key, software_lock, verify, "
       "pass_through, hits, "
       "retention, on_ledger_failure, limits, redact"},
      {"mode: recording\n",
       "p.yaml:1: mode: recording is not allowed here; allowed: record, observe, replay, verify, "
       "bypass"},
      {"verify:\n  rate: 1.5\n",
       "p.yaml:2: verify.rate: 1.5 is not allowed here; allowed: a number from 0 to 1"},
      {"verify:\n  rate: \"0.5\"\n",
       "p.yaml:2: verify.rate: \"0.5\" is not allowed here; allowed: a number from 0 to 1"},
      {"verify:\n  rate: .nan\n",
       "p.yaml:2: verify.rate: .nan is not allowed here; allowed: a number from 0 to 1"},
      {"verify:\n  rat: 1\n", "p.yaml:2: verify.rat: unknown key; allowed: rate"},
      {"verify: 1\n", "p.yaml:1: verify: 1 is not allowed here; allowed: rate"},
      {"verify:\n", "p.yaml:1: verify: nothing is not allowed here; allowed: rate"},
      {"verify.rate: 1\n",
       "p.yaml:1: verify.rate: unknown key; allowed: mode, enforce, key, software_lock, verify, "
       "pass_through, hits, "
       "retention, on_ledger_failure, limits, redact"},
      {"on_ledger_failure: carry_on\n",
       "p.yaml:1: on_ledger_failure: carry_on is not allowed here; allowed: refuse, or "
       "break_glass: {seconds: 1 to 86400}"},
      {"hits: {strict: yes}\n",
       "p.yaml:1: hits.strict: yes is not allowed here; allowed: true, false"},
      {"limits: {max_tokens: -1}\n",
       "p.yaml:1: limits.max_tokens: -1 is not allowed here; allowed: an integer from 0 to "
       "1048576"},
      {"limits: {max_tokens: 1.0}\n",
       "p.yaml:1: limits.max_tokens: 1.0 is not allowed here; allowed: an integer from 0 to "
       "1048576"},
      {"limits: {max_tokens: 0x10}\n",
       "p.yaml:1: limits.max_tokens: 0x10 is not allowed here; allowed: an integer from 0 to "
       "1048576"},
      {"limits: {max_tokens: [1]}\n",
       "p.yaml:1: limits.max_tokens: a list is not allowed here; allowed: an integer from 0 to "
       "1048576"},
      {"enforce:\n  temprature: {value: 0}\n",
       "p.yaml:2: enforce.temprature: unknown field; fields that can be enforced: temperature, "
       "top_p, "
       "top_k, min_p, presence_penalty, frequency_penalty, repetition_penalty, seed; allowed: "
       "FIELD: "
       "{value: NUMBER, how: override|refuse}"},
      {"enforce:\n  temperature:\n    value: 3\n",
       "p.yaml:3: enforce.temperature.value: 3 is not a number from 0 to 2; allowed: FIELD: "
       "{value: "
       "NUMBER, how: override|refuse}"},
      {"enforce:\n  temperature: {how: refuse}\n",
       "p.yaml:2: enforce.temperature: has no value; allowed: FIELD: {value: NUMBER, how: "
       "override|refuse}"},
      {"enforce:\n  temperature: {value: 0, how: maybe}\n",
       "p.yaml:2: enforce.temperature.how: maybe is neither override nor refuse; allowed: FIELD: "
       "{value: NUMBER, how: override|refuse}"},
      {"enforce: {seed: {value: 1.5}}\n",
       "p.yaml:1: enforce.seed.value: 1.5 is not an integer from -9223372036854775808 to "
       "18446744073709551615; allowed: FIELD: {value: NUMBER, how: override|refuse}"},
      {"key: {secret: hunter2}\n",
       "p.yaml:1: key.secret: a secret does not stand in the configuration, only where it is "
       "found; "
       "allowed: env:NAME, file:PATH"},
      {"software_lock: {manifest: abc}\n",
       "p.yaml:1: software_lock.manifest: abc is not allowed here; allowed: 64 lower-case "
       "hexadecimal "
       "digits"},
      {"software_lock:\n  components:\n    build.version: 0.1\n",
       "p.yaml:3: software_lock.components.build.version: 0.1 is no text; write it in quotes if it "
       "is "
       "meant; allowed: names of manifest components, such as libraries.rocksdb: \"VERSION\""},
      {"mode: record\nmode: observe\n", "p.yaml:2: mode: the key stands there twice"},
      {"hits: {strict: true, \"strict\": false}\n", "p.yaml:1: strict: the key stands there twice"},
      {"a: &a [1]\nb: *a\n", "p.yaml:1: anchors are not allowed; write the value out"},
      {"mode: !!str record\n", "p.yaml:1: tags are not allowed"},
      {"mode: record\n---\nmode: observe\n", "p.yaml:2: a second document in the file"},
      {"? [a]\n: 1\n", "p.yaml:1: a key must be a plain name"},
      {"", "p.yaml:1: says nothing"},
      {"# only words\n", "p.yaml:1: says nothing"},
      {"mode: \xff\n", "p.yaml:1: not valid UTF-8"},
      {"- mode\n",
       "p.yaml:1: a list is not allowed here; allowed: mode, enforce, key, software_lock, verify, "
       "pass_through, hits, retention, on_ledger_failure, limits, redact"},
  };
  for (const Case& c : cases) EXPECT_EQ(PolicyError(c.yaml), c.want) << c.yaml;
  EXPECT_TRUE(PolicyError("mode: [record\n").starts_with("p.yaml:"));
}

TEST(Loader, HostileYaml) {
  // A hundred million of something, in five lines of YAML: refused at the first anchor.
  EXPECT_NE(PolicyError("a: &a [x,x,x]\nb: &b [*a,*a,*a]\nc: [*b,*b,*b]\n").find("anchors"),
            std::string::npos);
  EXPECT_TRUE(PolicyError(std::string(100'000, '[')).starts_with("p.yaml:1: "));
  std::string dashes;
  for (int i = 0; i < 100'000; ++i) dashes += "- ";
  EXPECT_EQ(PolicyError(dashes), "p.yaml:1: nested deeper than 16 levels");
  std::string deep;
  for (int i = 0; i < 2000; ++i) deep += "{a: ";
  EXPECT_TRUE(PolicyError(deep).starts_with("p.yaml:1: "));
  EXPECT_NE(PolicyError(std::string(size_t{2} << 20, '#')).find("longer than"), std::string::npos);
  EXPECT_NE(PolicyError(std::string("mode: a\0b", 9)).find("NUL"), std::string::npos);
}

TEST(Loader, Configuration) {
  const auto c = ParseConfig(R"(
server:
  listen: 0.0.0.0:9000
  threads: 2
  limits: {body_bytes: 2048, connections: 5}
  tls: {certificate: tls/cert.pem, key: /etc/key.pem, client_ca: ca.pem, client_certificates: optional,
        min_version: 1.3, operator_certificates: true}
  timeouts: {keep_alive_ms: 7}
data: store
models:
  small: small.gguf
  big: {file: /models/big.gguf, fidelity: w8a16}
log: {origin: example.com/log}
engine: {threads: 2, max_batch: 4, kv_tokens: 4096, isa: avx2}
policy: strict
)",
                             "c.yaml", "/etc/verbatim");
  ASSERT_TRUE(c.ok()) << c.error().message;
  EXPECT_EQ(c->server.listen, "0.0.0.0:9000");
  EXPECT_EQ(c->server.threads, 2u);
  EXPECT_EQ(c->server.body_bytes, 2048u);
  EXPECT_EQ(c->server.connections, 5u);
  EXPECT_EQ(c->server.tls.certificate, "/etc/verbatim/tls/cert.pem");
  EXPECT_EQ(c->server.tls.key, "/etc/key.pem");
  EXPECT_EQ(c->server.tls.client_certificates, "optional");
  EXPECT_EQ(c->server.tls.min_version, "1.3");
  EXPECT_TRUE(c->server.tls.operator_certificates);
  EXPECT_FALSE(c->server.half_close);
  EXPECT_EQ(c->server.keep_alive_ms, 7u);
  EXPECT_EQ(c->server.header_ms, 10'000u);
  EXPECT_EQ(c->data, "/etc/verbatim/store");
  EXPECT_EQ(c->models.at("small").file, "/etc/verbatim/small.gguf");
  EXPECT_EQ(c->models.at("big").file, "/models/big.gguf");
  EXPECT_EQ(c->models.at("big").fidelity, "w8a16");
  EXPECT_EQ(c->origin, "example.com/log");
  EXPECT_EQ(c->engine.max_batch, 4u);
  EXPECT_EQ(c->engine.isa, "avx2");
  EXPECT_EQ(c->policy_source, "strict");
  EXPECT_TRUE(c->policy.strict_hits);

  const auto inline_policy = ParseConfig("policy:\n  verify: {rate: 1}\n", "c.yaml", "");
  ASSERT_TRUE(inline_policy.ok());
  EXPECT_EQ(inline_policy->policy.verify_rate, 1);
  EXPECT_EQ(inline_policy->policy_source, "inline");
}

TEST(Loader, AccessAndTenants) {
  const auto c = ParseConfig(R"(
access:
  keys_file: keys.json
  keys:
    - id: ci
      secret: file:ci.key
      tenant: acme
      groups: [b, a]
      roles: [client, auditor]
      models: [small]
      limits: {requests_per_minute: 60, tokens_per_minute: 1000, concurrent: 2}
      budget: {tokens: 9, per: day}
  jwt:
    issuers:
      - issuer: https://id.example.com
        audience: verbatim
        keys: jwks.json
        tenant_claim: org
        roles: {admins: operator, everyone: client}
  trusted_header: {name: x-user, from: [10.0.0.0/8, "::1"], tenant: acme}
tenants:
  acme:
    models: [small, "gpt-*"]
    limits: {concurrent: 5}
    budget: {tokens: 1000000, per: day}
  "*":
)",
                             "c.yaml", "/etc/verbatim");
  ASSERT_TRUE(c.ok()) << c.error().message;
  const AccessConfig& a = c->access;
  EXPECT_TRUE(a.configured);
  EXPECT_EQ(a.keys_file, "/etc/verbatim/keys.json");
  ASSERT_EQ(a.keys.size(), 1u);
  EXPECT_EQ(a.keys[0].secret, "file:/etc/verbatim/ci.key");
  EXPECT_EQ(a.keys[0].groups, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(a.keys[0].limits.tokens_per_minute, 1000u);
  EXPECT_EQ(a.keys[0].budget.tokens, 9u);
  EXPECT_EQ(a.keys[0].budget.per, Period::kDay);
  ASSERT_EQ(a.issuers.size(), 1u);
  EXPECT_EQ(a.issuers[0].keys, "/etc/verbatim/jwks.json");
  EXPECT_EQ(a.issuers[0].roles.size(), 2u);
  EXPECT_EQ(a.trusted_header.from, (std::vector<std::string>{"10.0.0.0/8", "::1"}));
  EXPECT_EQ(c->tenants.at("acme").budget.per, Period::kDay);
  EXPECT_EQ(c->tenants.at("acme").models.size(), 2u);
  EXPECT_TRUE(c->tenants.contains("*"));
  EXPECT_TRUE(ParseConfig("access: {}\n", "c.yaml", "")->access.configured);
  EXPECT_FALSE(ParseConfig("data: x\n", "c.yaml", "")->access.configured);
}

TEST(Loader, ConfigurationErrors) {
  struct Case {
    const char* yaml;
    const char* want;
  };
  const Case cases[] = {
      {"upstreams:\n  a: 1\n",
       "c.yaml:2: upstreams.a: 1 is not allowed here; allowed: kind, url, models, api_version, "
       "model_version, credentials, headers, query, ca_file, client_certificate, client_key, "
       "proxy, "
       "timeouts, retries, breaker, pool, fallbacks, limits, ask_usage"},
      {"tenants: {a: 1}\n",
       "c.yaml:1: tenants.a: 1 is not allowed here; allowed: models, budget, limits"},
      {"tenants: {a: {limits: {requests: 1}}}\n",
       "c.yaml:1: tenants.a.limits.requests: unknown key; allowed: requests_per_minute, "
       "tokens_per_minute, concurrent"},
      {"tenants: {a: {budget: {tokens: 5, per: week}}}\n",
       "c.yaml:1: tenants.a.budget.per: week is not allowed here; allowed: day, month"},
      {"access: {keys: [{id: a, secret: vbk_0123}]}\n",
       "c.yaml:1: access.keys.secret: a secret does not stand in the configuration, only where "
       "it is found; allowed: env:NAME, file:PATH"},
      {"access: {keys: [{id: a}]}\n",
       "c.yaml:1: access.keys: the key a must have one of secret and sha256; allowed: a list of "
       "{id: NAME, secret: env:NAME|file:PATH, tenant: NAME, ...}"},
      {"access: {keys: [{id: a, secret: env:A}, {id: a, secret: env:B}]}\n",
       "c.yaml:1: access.keys: two keys have the id a; allowed: keys_file, keys, jwt, "
       "trusted_header"},
      {"access: {keys: [{id: a, secret: env:A, roles: [admin]}]}\n",
       "c.yaml:1: access.keys.roles: admin is not allowed here; allowed: a list of client, "
       "operator, auditor"},
      {"access:\n  jwt:\n    issuers:\n      - {issuer: i, audience: a}\n",
       "c.yaml:4: access.jwt.issuers: an issuer must have issuer, audience and keys; allowed: a "
       "list of {issuer: TEXT, audience: TEXT, keys: FILE, ...}"},
      {"access: {trusted_header: {name: x-user}}\n",
       "c.yaml:1: access.trusted_header: name and from are given together, or not at all; allowed: "
       "keys_file, keys, jwt, trusted_header"},
      {"access: {trusted_header: {name: authorization, from: [10.0.0.0/8]}}\n",
       "c.yaml:1: access.trusted_header.name: authorization is not allowed here; allowed: a "
       "header's name in lower case, none that has another meaning"},
      {"policy: {redact: [{pointer: /a, pattern: email, regex: a}]}\n",
       "c.yaml:1: policy.redact: a rule has pattern or regex, not both; allowed: a list of "
       "{pointer: P, pattern: NAME or regex: R, replace: TEXT}"},
      {"policy: {redact: [{pointer: a}]}\n",
       "c.yaml:1: policy.redact.pointer: a is not allowed here; allowed: a JSON pointer, where a "
       "segment * is anything"},
      {"sever: {}\n",
       "c.yaml:1: sever: unknown key; allowed: server, data, models, log, engine, upstreams, "
       "access, tenants, policy"},
      {"server: {listen: 8080}\n",
       "c.yaml:1: server.listen: 8080 is no text; write it in quotes if it is meant; allowed: "
       "HOST:PORT"},
      {"server: {listen: localhost}\n",
       "c.yaml:1: server.listen: localhost is not allowed here; allowed: HOST:PORT"},
      {"server: {listen: \"localhost:70000\"}\n",
       "c.yaml:1: server.listen: \"localhost:70000\" is not allowed here; allowed: HOST:PORT"},
      {"server:\n  limits:\n    body_bytes: 1\n",
       "c.yaml:3: server.limits.body_bytes: 1 is not allowed here; allowed: an integer from 1024 "
       "to "
       "1073741824"},
      {"models:\n  m: {fidelity: w8a16}\n",
       "c.yaml:2: models.m: names no file; allowed: NAME: FILE, or NAME: {file: FILE, fidelity: "
       "wba16|w8a16|w16a16}"},
      {"models:\n  m: {file: f, fidelity: fp8}\n",
       "c.yaml:2: models.m.fidelity: fp8 is none of wba16, w8a16, w16a16; allowed: NAME: FILE, or "
       "NAME: {file: FILE, fidelity: wba16|w8a16|w16a16}"},
      {"log: {quorum: 1}\n",
       "c.yaml: log.quorum: 1 of 0 witnesses cannot be; allowed: 0 (more than half) to the number "
       "of "
       "log.witnesses"},
      {"log:\n  witnesses:\n    - {url: https://w.example}\n",
       "c.yaml:3: log.witnesses: a witness must have url and vkey; allowed: a list of {url: URL, "
       "vkey: KEY}"},
      {"log: {key: {pkcs11: {module: m.so}}}\n",
       "c.yaml: log.key.pkcs11: module, token, label and pin are given together; allowed: all "
       "four, "
       "or none"},
      {"log: {timestamps: {url: \"https://tsa.example/t\"}}\n",
       "c.yaml: log.timestamps: url and ca_file are given together; allowed: both, or none"},
      {"log: {origin: \"a b\"}\n",
       "c.yaml:1: log.origin: \"a b\" is not allowed here; allowed: 1 to 200 printable ASCII bytes "
       "without spaces and '+'"},
      {"policy:\n  verify:\n    rate: 7\n",
       "c.yaml:3: policy.verify.rate: 7 is not allowed here; allowed: a number from 0 to 1"},
      {"policy: nowhere.yaml\n",
       "c.yaml:1: policy: nowhere.yaml: no such file; allowed: default, strict, a file's name, or "
       "a "
       "policy's own keys"},
  };
  for (const Case& c : cases) EXPECT_EQ(ConfigError(c.yaml), c.want) << c.yaml;
  EXPECT_EQ(LoadConfig("/nowhere/c.yaml").error().code, Code::kNotFound);
}

TEST(Loader, PolicyFileBesideTheConfiguration) {
  const auto folder = std::filesystem::path(testing::TempDir()) / "verbatim_loader_test";
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "c.yaml") << "policy: p.yaml\n";
  std::ofstream(folder / "p.yaml") << "mode: replay\nkey: {secret: \"file:secret\"}\n";
  std::ofstream(folder / "secret") << "hunter2\n";
  const auto c = LoadConfig((folder / "c.yaml").string());
  ASSERT_TRUE(c.ok()) << c.error().message;
  EXPECT_EQ(c->policy.mode, Mode::kReplay);
  EXPECT_EQ(*ResolveSecret(c->policy.key_secret), "hunter2");
  std::ofstream(folder / "p.yaml") << "mode: replay\nx: 1\n";
  EXPECT_TRUE(LoadConfig((folder / "c.yaml").string())
                  .error()
                  .message.starts_with((folder / "p.yaml").string() + ":2: x: unknown key"));
  std::filesystem::remove_all(folder);
}

TEST(Loader, Secrets) {
  ::setenv("VERBATIM_TEST_SECRET", "abc", 1);
  EXPECT_EQ(*ResolveSecret("env:VERBATIM_TEST_SECRET"), "abc");
  EXPECT_EQ(ResolveSecret("env:VERBATIM_TEST_ABSENT").error().code, Code::kNotFound);
  EXPECT_EQ(ResolveSecret("file:/nowhere/secret").error().code, Code::kNotFound);
  EXPECT_EQ(ResolveSecret("abc").error().code, Code::kInvalid);
  EXPECT_EQ(ResolveSecret("abc").error().message.find("abc"), std::string::npos);
}

}  // namespace
}  // namespace verbatim::policies
