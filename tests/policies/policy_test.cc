#include "policies/policy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/crypto.h"
#include "policies/loader.h"

namespace verbatim::policies {
namespace {

constexpr char kChat[] = "/v1/chat/completions";
constexpr char kText[] = "/v1/completions";
const Caller kCaller{"acme", "alice", "key1"};

Policy Make(const std::string& yaml) {
  auto p = ParsePolicy(yaml, "p.yaml");
  EXPECT_TRUE(p.ok()) << (p.ok() ? "" : p.error().message);
  return p.ok() ? std::move(*p) : Policy();
}

Decision On(const Policy& policy, const std::string& request, const char* endpoint = kChat) {
  return Decide(policy, kCaller, endpoint, *json::Parse(request), request.size());
}

TEST(Policy, DefaultChangesNothing) {
  const Policy policy = *BuiltinPolicy("default");
  const std::string request = R"({"temperature":1.5,"messages":[],"x":[1]})";
  const Decision d = On(policy, request);
  EXPECT_FALSE(d.refusal.has_value());
  EXPECT_EQ(d.mode, Mode::kRecord);
  EXPECT_EQ(json::Serialize(d.request), request);
  EXPECT_TRUE(d.changed.empty());
  EXPECT_EQ(d.name_space, "tenant:\"acme\"");
  EXPECT_EQ(d.verify_rate, 0.01);
}

TEST(Policy, OverrideReplacesAndAdds) {
  const Decision d =
      On(*BuiltinPolicy("strict"), R"({"temperature":1.5,"top_p":1.0,"seed":null,"min_p":0.1})");
  ASSERT_FALSE(d.refusal.has_value());
  // top_k and the penalties mean nothing where they are absent: not written.
  EXPECT_EQ(json::Canonical(d.request),
            R"({"max_completion_tokens":4096,"min_p":0,"seed":0,"temperature":0,"top_p":1})");
  // top_p was 1 already, in another spelling: not changed.
  EXPECT_EQ(std::set<std::string>(d.changed.begin(), d.changed.end()),
            (std::set<std::string>{"max_completion_tokens", "min_p", "seed", "temperature"}));
  EXPECT_TRUE(d.strict_hits);
}

TEST(Policy, EnforcesFieldsThatTheEndpointHas) {
  const Policy policy = *BuiltinPolicy("strict");
  const struct {
    const char* endpoint;
    const char* want;
  } cases[] = {
      {"/v1/completions", R"({"seed":0,"temperature":0,"top_k":0,"top_p":1})"},
      {"/v1/responses", R"({"max_output_tokens":4096,"temperature":0,"top_k":5,"top_p":1})"},
      {"/v1/messages", R"({"max_tokens":4096,"temperature":0,"top_k":0,"top_p":1})"},
      {"/v1/embeddings", R"({"top_k":5})"},
  };
  for (const auto& c : cases) {
    const Decision d = Decide(policy, {}, c.endpoint, *json::Parse(R"({"top_k":5})"), 10);
    ASSERT_FALSE(d.refusal.has_value()) << c.endpoint;
    EXPECT_EQ(json::Canonical(d.request), c.want) << c.endpoint;
  }
}

TEST(Policy, RefuseNamesTheField) {
  const Policy policy = Make("enforce: {temperature: {value: 0, how: refuse}}");
  const Decision d = On(policy, R"({"temperature":0.5})");
  ASSERT_TRUE(d.refusal.has_value());
  EXPECT_EQ(d.refusal->param, "temperature");
  EXPECT_EQ(d.refusal->code, "policy_violation");
  EXPECT_FALSE(On(policy, R"({"temperature":0.0})").refusal.has_value());
  // Who leaves it open gets the policy's value, not the API's default.
  EXPECT_EQ(json::Serialize(On(policy, "{}").request), R"({"temperature":0})");
}

TEST(Policy, Limits) {
  const Policy policy =
      Make("limits: {body_bytes: 100, prompt_bytes: 10, messages: 2, max_tokens: 20}");
  struct Case {
    std::string request;
    const char* endpoint;
    const char* param;  // null: allowed
  };
  const Case cases[] = {
      {R"({"messages":[{"content":"12345"}],"max_tokens":20})", kChat, nullptr},
      {R"({"messages":[{"content":"12345678901"}]})", kChat, "messages"},
      {R"({"messages":[{"content":[{"type":"text","text":"123456"}]}]})", kChat, nullptr},
      {R"({"messages":[{"content":[{"type":"text","text":"1234567"}]}]})", kChat, "messages"},
      {R"({"messages":[{},{},{}]})", kChat, "messages"},
      {R"({"prompt":"12345678901"})", kText, "prompt"},
      {R"({"max_tokens":21})", kText, "max_tokens"},
      {R"({"max_completion_tokens":21})", kChat, "max_completion_tokens"},
      {R"({"x":")" + std::string(100, 'x') + "\"}", kChat, ""},
  };
  for (const Case& c : cases) {
    const Decision d = On(policy, c.request, c.endpoint);
    ASSERT_EQ(d.refusal.has_value(), c.param != nullptr) << c.request;
    if (c.param == nullptr) continue;
    EXPECT_EQ(d.refusal->param, c.param) << c.request;
    EXPECT_EQ(d.refusal->code, "limit_exceeded");
  }
  // A length left open becomes the limit, where the fingerprint sees it.
  EXPECT_EQ(json::Serialize(On(policy, "{}", kChat).request), R"({"max_completion_tokens":20})");
  EXPECT_EQ(json::Serialize(On(policy, "{}", kText).request), "{}") << "16, as OpenAI has it";
  EXPECT_EQ(json::Serialize(On(Make("limits: {max_tokens: 5}"), "{}", kText).request),
            R"({"max_tokens":5})");
}

TEST(Policy, NamespacesNeverMeet) {
  std::set<std::string> seen;
  const Caller callers[] = {
      {"a", "b", ""}, {"a\"\"b", "", ""}, {"ab", "", ""}, {"", "ab", ""}, {"a\"", "\"b", ""}};
  for (const Caller& caller : callers) {
    const Policy policy = Make("key: {namespace: subject}");
    EXPECT_TRUE(seen.insert(Decide(policy, caller, kChat, json::Object{}, 2).name_space).second);
  }
  EXPECT_TRUE(seen.insert(On(Make("key: {namespace: tenant}"), "{}").name_space).second);
  EXPECT_TRUE(seen.insert(On(Make("key: {namespace: shared}"), "{}").name_space).second);
}

std::string NamespaceOf(const char* name_space, const Caller& caller) {
  const Policy policy = Make(std::string("key: {namespace: ") + name_space + "}");
  return Decide(policy, caller, kChat, json::Object{}, 2).name_space;
}

TEST(Policy, GroupNamespaces) {
  const Caller caller{"t", "alice", "", {"b", "a"}};
  const std::string name = NamespaceOf("group", caller);
  EXPECT_EQ(name, R"(group:"t""a""b")");
  EXPECT_EQ(NamespaceOf("group", {"t", "bob", "", {"a", "b", "a"}}), name) << "the same groups";
  EXPECT_NE(NamespaceOf("group", {"t", "bob", "", {"a"}}), name) << "one group fewer";
  EXPECT_NE(NamespaceOf("group", {"u", "bob", "", {"a", "b"}}), name) << "another tenant";
  EXPECT_EQ(NamespaceOf("group", {"t", "alice", ""}), NamespaceOf("subject", {"t", "alice", ""}))
      << "in no group: alone";
}

// Every way to cut a hostile text into tenant, subject and groups, in every kind of namespace.
TEST(Policy, NoTwoCallersShareANameByTheirSpelling) {
  const std::string text = "a\"\"b\\,:\"";
  std::map<std::string, std::string> seen;
  const auto see = [&](const std::string& name, const std::string& who) {
    const auto [it, fresh] = seen.emplace(name, who);
    EXPECT_TRUE(fresh || it->second == who) << who << " and " << it->second << ": " << name;
  };
  for (size_t i = 0; i <= text.size(); ++i) {
    const std::string tenant = text.substr(0, i), rest = text.substr(i);
    see(NamespaceOf("tenant", {tenant, rest, ""}), "tenant|" + tenant);
    see(NamespaceOf("subject", {tenant, rest, ""}), "subject|" + tenant + "|" + rest);
    see(NamespaceOf("group", {tenant, "s", "", {rest}}), "group|" + tenant + "|" + rest);
    for (size_t j = 0; j < rest.size(); ++j) {
      std::vector<std::string> groups = {rest.substr(0, j), rest.substr(j)};
      std::sort(groups.begin(), groups.end());
      see(NamespaceOf("group", {tenant, "s", "", groups}),
          "group|" + tenant + "|" + groups[0] + "|" + groups[1]);
    }
  }
  see(NamespaceOf("shared", {}), "shared");
}

TEST(Policy, SoftwareLock) {
  const json::Value manifest = *json::Parse(
      R"({"build":{"version":"0.1"},"libraries":{"rocksdb":"7.8.3","a.b":"1"},"machine":{"cores":2}})");
  const std::string digest = HexEncode(Sha256(json::Canonical(manifest)));
  EXPECT_TRUE(CheckSoftware(Policy(), manifest).ok());
  EXPECT_TRUE(CheckSoftware(Make("software_lock: {manifest: " + digest + "}"), manifest).ok());
  EXPECT_TRUE(CheckSoftware(Make("software_lock: {components: {libraries.rocksdb: \"7.8.3\", "
                                 "libraries.a.b: \"1\", machine.cores: \"2\"}}"),
                            manifest)
                  .ok());
  const Status s = CheckSoftware(
      Make("software_lock: {components: {libraries.rocksdb: \"7.9.0\", build.version: \"1\"}}"),
      manifest);
  ASSERT_FALSE(s.ok());
  EXPECT_EQ(s.error().code, Code::kFailedPrecondition);
  for (const char* part :
       {"libraries.rocksdb 7.9.0 is pinned, 7.8.3 runs", "build.version 1 is pinned, 0.1 runs"}) {
    EXPECT_NE(s.error().message.find(part), std::string::npos) << s.error().message;
  }
  EXPECT_FALSE(
      CheckSoftware(Make("software_lock: {manifest: " + std::string(64, '0') + "}"), manifest)
          .ok());
}

// A name that is never in the manifest is a mistake, and not a lock that does not hold.
TEST(Policy, ComponentsAreThoseOfTheManifest) {
  const json::Value manifest = *json::Parse(
      R"({"build":{"version":"0.1"},"libraries":{"rocksdb":"7.8.3"},"machine":{"cores":2}})");
  const std::string all = "; it has build.version libraries.rocksdb machine.cores";
  const std::string pinned = "the policy's software_lock.components names ";
  const struct {
    const char* policy;
    std::string error;
  } cases[] = {
      {"{}", ""},
      {"software_lock: {components: {libraries.rocksdb: \"1\"}}", ""},
      {"key: {software: [machine.cores]}", ""},
      {"software_lock: {components: {rocksdb: \"7.8.3\"}}",
       pinned + "rocksdb, which is no component of the manifest" + all},
      {"software_lock: {components: {libraries.rocksdb.x: \"1\"}}",
       pinned + "libraries.rocksdb.x, which is no component of the manifest" + all},
      {"key: {software: [build.compiler]}",
       "the policy's key.software names build.compiler, which is no component of the manifest" +
           all},
  };
  for (const auto& [policy, error] : cases) {
    const Status s = CheckComponents(Make(policy), manifest);
    EXPECT_EQ(s.ok() ? "" : s.error().message, error) << policy;
  }
}

TEST(Policy, ExtraKey) {
  const json::Value manifest = *json::Parse(R"({"build":{"version":"0.1"}})");
  EXPECT_TRUE(ExtraKey(Policy(), manifest).is_null());
  const Policy policy = Make("key: {policy: true, manifest: true, software: [build.version]}");
  EXPECT_EQ(json::Canonical(ExtraKey(policy, manifest)),
            R"({"manifest":")" + HexEncode(Sha256(json::Canonical(manifest))) + R"(","policy":")" +
                HexEncode(PolicyDigest(policy)) + R"(","software":{"build.version":"0.1"}})");
}

TEST(Policy, DigestIsOfWhatIsInForce) {
  // The same policy, written differently.
  EXPECT_EQ(PolicyDigest(Make("verify: {rate: 0.50}\nmode: record")),
            PolicyDigest(Make("# half\nmode: \"record\"\nverify:\n  rate: 5e-1\n")));
  EXPECT_NE(PolicyDigest(Make("verify: {rate: 0.5}")), PolicyDigest(Make("verify: {rate: 0.51}")));
}

}  // namespace
}  // namespace verbatim::policies
