#include "gateway/upstream/header_rules.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "gateway/upstream/credentials.h"

namespace verbatim::gateway {
namespace {

using policies::UpstreamConfig;
using From = policies::UpstreamCredentials::From;

std::string Text(const Headers& headers) {
  std::string out;
  for (const auto& [name, value] : headers) out += name + ": " + value + "\n";
  return out;
}

// What clients send, and proxies and browsers before them.
const Headers kEverything = {
    {"host", "localhost"},
    {"connection", "keep-alive"},
    {"content-length", "12"},
    {"content-type", "application/json"},
    {"accept", "*/*"},
    {"accept-encoding", "gzip"},
    {"authorization", "Bearer CLIENT-SECRET"},
    {"x-api-key", "CLIENT-SECRET"},
    {"api-key", "CLIENT-SECRET"},
    {"cookie", "session=CLIENT-SECRET"},
    {"user-agent", "OpenAI/Python 1.0"},
    {"x-stainless-lang", "python"},
    {"traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"},
    {"openai-organization", "org-1"},
    {"openai-beta", "assistants=v2"},
    {"anthropic-beta", "tools-1"},
    {"anthropic-beta", "tools-2"},
    {"x-team", "red"},
};

TEST(HeaderRules, OnlyWhatChangesAnswersGoesUpstream) {
  const ForwardedHeaders f = ForwardHeaders(UpstreamConfig(), kEverything);
  EXPECT_EQ(Text(f.sent), "anthropic-beta: tools-1, tools-2\nopenai-beta: assistants=v2\n");
  EXPECT_EQ(json::Canonical(f.identity),
            R"({"anthropic-beta":"tools-1, tools-2","openai-beta":"assistants=v2"})");
}

TEST(HeaderRules, TheConfigurationForwardsAndAdds) {
  UpstreamConfig u;
  u.headers.forward = {"traceparent", "x-stainless-lang", "x-team"};
  u.headers.add = {{"openai-beta", "ours"}, {"x-note", "env:NOTE"}, {"x-region", "eu"}};
  u.headers.not_semantic = {"x-region"};
  const ForwardedHeaders f = ForwardHeaders(u, kEverything);
  EXPECT_EQ(Text(f.sent),
            "anthropic-beta: tools-1, tools-2\nopenai-beta: ours\n"
            "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\n"
            "x-region: eu\nx-stainless-lang: python\nx-team: red\n");
  EXPECT_EQ(json::Canonical(f.identity),
            R"({"anthropic-beta":"tools-1, tools-2","openai-beta":"ours","x-team":"red"})");
  EXPECT_EQ(Text(SecretHeaders(u)), "x-note: env:NOTE\n");
}

TEST(HeaderRules, BytesThatAreNoUtf8CountToo) {
  const ForwardedHeaders a = ForwardHeaders(UpstreamConfig(), {{"openai-beta", "\xff"}});
  const ForwardedHeaders b = ForwardHeaders(UpstreamConfig(), {{"openai-beta", "\xfe"}});
  EXPECT_EQ(json::Canonical(a.identity), R"({"openai-beta":{"hex":"ff"}})");
  EXPECT_EQ(json::Canonical(b.identity), R"({"openai-beta":{"hex":"fe"}})");
}

TEST(HeaderRules, AClientsAccountGoesOnlyWithItsCredentials) {
  UpstreamConfig u;
  u.credentials.from = From::kClient;
  EXPECT_NE(Text(ForwardHeaders(u, kEverything).sent).find("openai-organization: org-1"),
            std::string::npos);
  EXPECT_EQ(Text(ClientCredentials(u, kEverything)),
            "authorization: Bearer CLIENT-SECRET\nx-api-key: CLIENT-SECRET\n"
            "api-key: CLIENT-SECRET\n");
  const Headers both = {{"authorization", "Bearer vbk_OURS"}, {"x-api-key", "THEIRS"}};
  EXPECT_EQ(Text(ClientCredentials(u, both)), "x-api-key: THEIRS\n")
      << "a key of this server's stays here";
  u.credentials.header = "api-key";
  EXPECT_EQ(Text(ClientCredentials(u, kEverything)), "api-key: CLIENT-SECRET\n");
  for (const From from : {From::kClient, From::kConfig, From::kNone}) {
    u.credentials.from = from;
    const ForwardedHeaders f = ForwardHeaders(u, kEverything);
    EXPECT_EQ((Text(f.sent) + json::Canonical(f.identity)).find("SECRET"), std::string::npos);
  }
}

TEST(HeaderRules, AnthropicsVersionIsAlwaysSaid) {
  struct Case {
    const char* client;
    const char* config;
    const char* want;
  };
  const Case cases[] = {{"", "", "2023-06-01"},
                        {"", "2024-01-01", "2024-01-01"},
                        {"2023-01-01", "2024-01-01", "2023-01-01"},
                        {"2023-06-01", "", "2023-06-01"}};
  for (const Case& c : cases) {
    UpstreamConfig u;
    u.kind = policies::UpstreamKind::kAnthropic;
    u.api_version = c.config;
    Headers client;
    if (*c.client != '\0') client.emplace_back("anthropic-version", c.client);
    const ForwardedHeaders f = ForwardHeaders(u, client);
    EXPECT_EQ(Text(f.sent), std::string("anthropic-version: ") + c.want + "\n");
    EXPECT_EQ(json::Canonical(f.identity),
              std::string("{\"anthropic-version\":\"") + c.want + "\"}");
  }
}

TEST(HeaderRules, WhatNeverCounts) {
  for (const char* name : {"date", "x-request-id", "traceparent", "user-agent", "x-stainless-lang",
                           "x-stainless-retry-count"}) {
    EXPECT_TRUE(HeaderNeverCounts(name)) << name;
    UpstreamConfig u;
    u.headers.forward = {name};
    const ForwardedHeaders f = ForwardHeaders(u, {{name, "v"}});
    EXPECT_EQ(Text(f.sent), std::string(name) + ": v\n");
    EXPECT_EQ(json::Canonical(f.identity), "{}") << name;
  }
  for (const char* name : {"", "x-team", "anthropic-beta", "openai-beta", "x-request", "dates"}) {
    EXPECT_FALSE(HeaderNeverCounts(name)) << name;
  }
}

TEST(HeaderRules, SecretsOfQueries) {
  struct Case {
    const char* query;
    From from;
    std::vector<std::string> want;
  };
  const Case cases[] = {
      {"key=sk-1&a=b", From::kNone, {}},
      {"key=sk-1&a=b", From::kClient, {"sk-1"}},
      {"a=1&%6bey=s%2Dk&token=t", From::kClient, {"s-k", "s%2Dk", "t"}},
  };
  for (const Case& c : cases) {
    UpstreamConfig u;
    u.credentials.from = c.from;
    EXPECT_EQ(ForwardQuery(u, c.query).secrets, c.want) << c.query;
  }
}

TEST(HeaderRules, Queries) {
  struct Case {
    const char* query;
    From from;
    const char* sent;
    const char* identity;
    const char* api_version;
  };
  const Case cases[] = {
      {"", From::kNone, "", "{}", ""},
      {"beta=true", From::kNone, "beta=true", R"({"beta":"true"})", ""},
      {"api-version=2024-10-21&a=1", From::kNone, "a=1", R"({"a":"1"})", "2024-10-21"},
      {"a=1&a=2&a=3&b", From::kNone, "a=1&a=2&a=3&b", R"({"a":["1","2","3"],"b":null})", ""},
      {"b=", From::kNone, "b=", R"({"b":""})", ""},
      {"b&b=", From::kNone, "b&b=", R"({"b":[null,""]})", ""},
      {"trace=7&a=1", From::kNone, "trace=7&a=1", R"({"a":"1"})", ""},
      {"%74race=7", From::kNone, "%74race=7", "{}", ""},
      {"key=S&%6bey=S&api_key=S&a=1", From::kNone, "a=1", R"({"a":"1"})", ""},
      {"key=S&a=1", From::kClient, "key=S&a=1", R"({"a":"1"})", ""},
      {"&&a=%41&&", From::kNone, "a=%41", R"({"a":"%41"})", ""},
      {"a=b c#\r\nx: y", From::kNone, "a=b%20c%23%0D%0Ax:%20y", R"({"a":"b%20c%23%0D%0Ax:%20y"})",
       ""},
      {"%ff=1", From::kNone, "%ff=1", R"({"%ff":"1"})", ""},
      {"%25ff=1", From::kNone, "%25ff=1", R"({"%25ff":"1"})", ""},
      {"%61=1&a=1", From::kNone, "%61=1&a=1", R"({"%61":"1","a":"1"})", ""},
  };
  for (const Case& c : cases) {
    UpstreamConfig u;
    u.credentials.from = c.from;
    u.query_not_semantic = {"trace"};
    const ForwardedQuery q = ForwardQuery(u, c.query);
    EXPECT_EQ(q.sent, c.sent) << c.query;
    EXPECT_EQ(json::Canonical(q.identity), c.identity) << c.query;
    EXPECT_EQ(q.api_version, c.api_version) << c.query;
  }
}

TEST(HeaderRules, OfRepliesTheUsualOnesAreKept) {
  UpstreamConfig u;
  u.headers.keep = {"x-region"};
  const Headers reply = {{"content-type", "application/json"},
                         {"content-length", "5"},
                         {"content-encoding", "gzip"},
                         {"transfer-encoding", "chunked"},
                         {"connection", "close"},
                         {"set-cookie", "a=b"},
                         {"openai-model", "m"},
                         {"openai-version", "v"},
                         {"openai-organization", "org-of-the-operator"},
                         {"openai-processing-ms", "12"},
                         {"anthropic-organization-id", "org-of-the-operator"},
                         {"anthropic-ratelimit-requests-limit", "50"},
                         {"x-ratelimit-limit-requests", "60"},
                         {"x-request-id", "req-up"},
                         {"request-id", "req-up-2"},
                         {"retry-after", "3"},
                         {"retry-after-ms", "3000"},
                         {"x-should-retry", "true"},
                         {"x-region", "eu"},
                         {"x-other", "1"},
                         {"openai-model", "a\nb"},
                         {"openai-model", "\xff"}};
  const Headers kept = KeptHeaders(u, reply);
  EXPECT_EQ(Text(kept),
            "openai-model: m\nopenai-version: v\nanthropic-ratelimit-requests-limit: 50\n"
            "x-ratelimit-limit-requests: 60\nverbatim-upstream-request-id: req-up\n"
            "request-id: req-up-2\nretry-after: 3\nretry-after-ms: 3000\nx-should-retry: true\n"
            "x-region: eu\n");
  std::string lasting;
  for (const auto& [name, value] : kept) {
    if (!IsOfTheMoment(name)) lasting += name + " ";
  }
  EXPECT_EQ(lasting, "openai-model openai-version x-region ");
}

class CredentialTest : public testing::Test {
 protected:
  void SetUp() override { std::filesystem::remove(path_); }
  void TearDown() override { std::filesystem::remove(path_); }
  void Write(const std::string& text) {
    // As tokens rotate: a new file takes the old one's place.
    std::ofstream(path_ + ".new") << text;
    std::filesystem::rename(path_ + ".new", path_);
  }
  const std::string path_ = testing::TempDir() + "credential." + std::to_string(getpid());
};

TEST_F(CredentialTest, FilesRotate) {
  Write("first\n");
  auto made = Credential::Make("file:" + path_);
  ASSERT_TRUE(made.ok()) << made.error().message;
  Credential& credential = **made;
  EXPECT_EQ(*credential.Value(), "first");
  Write("other\r\n");
  EXPECT_EQ(*credential.Value(), "other");
  std::filesystem::remove(path_);
  EXPECT_EQ(*credential.Value(), "other") << "it is just being replaced";
  Write("a third one");
  EXPECT_EQ(*credential.Value(), "a third one");
  std::ofstream(path_) << "in place";
  EXPECT_EQ(*credential.Value(), "in place");
}

TEST_F(CredentialTest, WhatCannotBeASecretInAHeader) {
  EXPECT_EQ(Credential::Make("file:" + path_).error().code, Code::kNotFound);
  for (const char* bad : {"", "\n", "SECRET\nx: y", "SECRET\x01",
                          "S\xc3\x89"
                          "CRET"}) {
    Write(bad);
    const auto made = Credential::Make("file:" + path_);
    ASSERT_FALSE(made.ok());
    EXPECT_EQ(made.error().code, Code::kInvalid);
    EXPECT_EQ(made.error().message.find("CRET"), std::string::npos) << made.error().message;
  }
  setenv("VERBATIM_TEST_CREDENTIAL", "of the environment", 1);
  EXPECT_EQ(*(*Credential::Make("env:VERBATIM_TEST_CREDENTIAL"))->Value(), "of the environment");
}

}  // namespace
}  // namespace verbatim::gateway
