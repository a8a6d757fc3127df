#include "policies/upstreams.h"

#include <gtest/gtest.h>

#include "policies/loader.h"

namespace verbatim::policies {
namespace {

UpstreamConfigs Load(const std::string& yaml, const std::string& folder = "") {
  const auto config = ParseConfig(yaml, "c.yaml", folder);
  EXPECT_TRUE(config.ok()) << config.error().message;
  return config.ok() ? config->upstreams : UpstreamConfigs();
}

TEST(Upstreams, EveryField) {
  const UpstreamConfigs all = Load(R"(
upstreams:
  a-1:
    kind: azure
    url: https://name.openai.azure.com:8443/
    models: {"gpt-*": "east-*", gpt-4o: my/deployment}
    api_version: 2024-10-21
    model_version: "2024-08-06"
    credentials: {header: authorization, value: "file:token"}
    headers:
      forward: [x-b, x-a]
      add: {x-c: "file:secret", x-d: "1 2"}
      not_semantic: [x-e]
      keep: [x-f]
    query: {not_semantic: [trace]}
    ca_file: ca.pem
    client_certificate: c.pem
    client_key: /k.pem
    proxy: http://proxy:3128
    timeouts: {connect_ms: 1, first_byte_ms: 2, idle_ms: 3, total_ms: 4}
    retries: {attempts: 5, base_ms: 6, max_ms: 7}
    breaker: {failures: 8, window_ms: 9, open_ms: 10}
    pool: {connections: 11, idle_ms: 12}
    fallbacks: [z, b]
    limits: {reply_bytes: 2000}
    ask_usage: false
  b: {url: "http://127.0.0.1:8000/v1", models: [m], fallbacks: [a-1]}
  z: {kind: anthropic, url: "https://[::1]", models: ["*"], credentials: {from: client}}
)",
                                   "/etc/v");
  ASSERT_EQ(all.size(), 3u);
  const UpstreamConfig& a = all.at("a-1");
  EXPECT_EQ(a.kind, UpstreamKind::kAzure);
  EXPECT_EQ(a.url, "https://name.openai.azure.com:8443/");
  ASSERT_EQ(a.models.size(), 2u);
  EXPECT_EQ(a.models[0].client + "=" + a.models[0].upstream, "gpt-4o=my/deployment");
  EXPECT_EQ(a.api_version + " " + a.model_version, "2024-10-21 2024-08-06");
  EXPECT_EQ(a.credentials.from, UpstreamCredentials::From::kConfig);
  EXPECT_EQ(a.credentials.header + " " + a.credentials.value, "authorization file:/etc/v/token");
  EXPECT_EQ(a.headers.forward, (std::vector<std::string>{"x-a", "x-b"}));
  EXPECT_EQ(a.headers.add, (std::vector<std::pair<std::string, std::string>>{
                               {"x-c", "file:/etc/v/secret"}, {"x-d", "1 2"}}));
  EXPECT_EQ(a.headers.not_semantic.at(0) + a.headers.keep.at(0) + a.query_not_semantic.at(0),
            "x-ex-ftrace");
  EXPECT_EQ(a.ca_file + " " + a.client_certificate + " " + a.client_key,
            "/etc/v/ca.pem /etc/v/c.pem /k.pem");
  EXPECT_EQ(a.proxy, "http://proxy:3128");
  EXPECT_EQ(a.timeouts.connect_ms + a.timeouts.first_byte_ms * 10 + a.timeouts.idle_ms * 100 +
                a.timeouts.total_ms * 1000,
            4321u);
  EXPECT_EQ(a.retries.attempts + a.retries.base_ms * 10 + a.retries.max_ms * 100, 765u);
  EXPECT_EQ(a.breaker.failures + a.breaker.window_ms * 100 + a.breaker.open_ms * 10000, 100908u);
  EXPECT_EQ(a.pool.connections * 100 + a.pool.idle_ms, 1112u);
  EXPECT_EQ(a.fallbacks, (std::vector<std::string>{"z", "b"})) << "in the order given";
  EXPECT_EQ(a.reply_bytes, 2000u);
  EXPECT_FALSE(a.ask_usage);
  EXPECT_EQ(all.at("b").credentials.from, UpstreamCredentials::From::kNone);
  EXPECT_EQ(all.at("z").credentials.from, UpstreamCredentials::From::kClient);
}

TEST(Upstreams, Errors) {
  struct Case {
    const char* fields;  // of the upstream "u", beside a model where none is named
    const char* want;    // what the message says of it, from "upstreams." on
  };
  const Case cases[] = {
      {"models: [m]", "u.url: is missing; allowed: https://HOST[:PORT][/PATH]"},
      {"url: ftp://x", "u.url: ftp://x is not allowed here; allowed: https://HOST"},
      {"url: 'https://user:pw@x'", "u.url: "},
      {"url: 'https://x/?a=1'", "u.url: "},
      {"url: 'https://x:0'", "u.url: "},
      {"url: 'https://x:70000'", "u.url: "},
      {"url: 'https://'", "u.url: "},
      {"url: 'https://[x]'", "u.url: "},
      {"url: https://x, models: []", "u.models: names no model"},
      {"url: https://x, models: [a, a]", "u.models: a name stands there twice"},
      {"url: https://x, models: ['a*b']", "u.models: a name is 1 to 200 bytes"},
      {"url: https://x, models: {a: 'b*'}", "u.models.a: has a * that nothing stands for"},
      {"url: https://x, kind: gemini",
       "u.kind: gemini is not allowed here; allowed: openai, azure"},
      {"url: https://x, api_version: v1", "u.api_version: has no meaning for the kind openai"},
      {"url: https://x, kind: azure", "u.api_version: is missing"},
      {"url: https://x, credentials: {value: sk-SECRET}",
       "u.credentials.value: a secret does not stand in the configuration"},
      {"url: https://x, credentials: {from: config}", "u.credentials.value: is missing"},
      {"url: https://x, credentials: {from: client, value: env:X}",
       "u.credentials.from: does not use the value that is given"},
      {"url: https://x, headers: {add: {authorization: SECRET}}",
       "u.headers.add.authorization: cannot be added"},
      {"url: https://x, headers: {add: {X-A: 'SECRET'}}", "u.headers.add.X-A: cannot be added"},
      {"url: https://x, headers: {add: {x-a: \"SECRET\\r\\n\"}}",
       "u.headers.add.x-a: is no text of printable ASCII"},
      {"url: https://x, headers: {forward: [cookie]}", "u.headers.forward: cookie is not allowed"},
      {"url: https://x, headers: {forward: [Host]}", "u.headers.forward: Host is not allowed"},
      {"url: https://x, headers: {keep: [set-cookie]}", "u.headers.keep: set-cookie is not"},
      {"url: https://x, client_key: k.pem", "u.client_certificate: is missing beside"},
      {"url: https://x, proxy: 'http://u:p@x'", "u.proxy: "},
      {"url: https://x, retries: {attempts: 0}", "u.retries.attempts: 0 is not allowed here"},
      {"url: https://x, fallbacks: [u]", "u.fallbacks: u is the upstream itself"},
      {"url: https://x, fallbacks: [v]", "u.fallbacks: v is the id of no upstream"},
      {"url: https://x, fallback: [v]", "u.fallback: unknown key; allowed: kind, url,"},
      {"url: https://x, timeouts: {ms: 1}",
       "u.timeouts.ms: unknown key; allowed: connect_ms, first_byte_ms, idle_ms, total_ms"},
  };
  for (const Case& c : cases) {
    std::string fields = c.fields;
    if (fields.find("models") == fields.npos) fields += ", models: [m]";
    const auto config = ParseConfig("upstreams: {u: {" + fields + "}}", "c.yaml", "");
    ASSERT_FALSE(config.ok()) << fields;
    const std::string& message = config.error().message;
    EXPECT_TRUE(message.starts_with("c.yaml:1: upstreams." + std::string(c.want))) << message;
    EXPECT_EQ(message.find("SECRET"), std::string::npos) << message;
  }
  const auto bad_id = ParseConfig("upstreams: {a.b: {url: https://x}}", "c.yaml", "");
  ASSERT_FALSE(bad_id.ok());
  EXPECT_TRUE(bad_id.error().message.starts_with("c.yaml:1: upstreams.a.b: is no id;"))
      << bad_id.error().message;
}

TEST(Upstreams, NamesOfModels) {
  const UpstreamConfigs all = Load(
      "upstreams: {u: {url: https://x, models: {gpt-4o: big, 'gpt-*': 'g-*', 'az/*': '*', "
      "'gpt-4-*': one}}}");
  struct Case {
    const char* client;
    const char* want;  // "": not served
  };
  const Case cases[] = {{"gpt-4o", "big"},
                        {"gpt-4o-mini", "g-4o-mini"},
                        {"gpt-4-turbo", "one"},
                        {"gpt-", "g-"},
                        {"az/gpt", "gpt"},
                        {"az/", ""},
                        {"gp", ""},
                        {"GPT-4o", ""},
                        {"", ""}};
  for (const Case& c : cases) {
    EXPECT_EQ(UpstreamModelName(all.at("u"), c.client).value_or(""), c.want) << c.client;
  }
}

TEST(Upstreams, WhoIsAskedFirst) {
  const UpstreamConfigs all = Load(R"(
upstreams:
  any: {url: "https://x", models: ["*"]}
  backup: {url: "https://x", models: [m, "n-*"]}
  main: {url: "https://x", models: [m, n-1], fallbacks: [backup]}
  other: {url: "https://x", models: ["n-*"], fallbacks: [backup]}
  ring-1: {url: "https://x", models: [r], fallbacks: [ring-2]}
  ring-2: {url: "https://x", models: [r], fallbacks: [ring-1]}
)");
  struct Case {
    const char* model;
    const char* want;
  };
  const Case cases[] = {{"m", "main"}, {"n-1", "main"}, {"n-2", "other"},
                        {"x", "any"},  {"r", "ring-1"}, {"", "any"}};
  for (const Case& c : cases) EXPECT_EQ(UpstreamFor(all, c.model), c.want) << c.model;
  EXPECT_EQ(UpstreamFor({}, "m"), "");
}

}  // namespace
}  // namespace verbatim::policies
