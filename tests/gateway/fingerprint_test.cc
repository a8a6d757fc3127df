#include "gateway/fingerprint.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "base/crypto.h"
#include "gateway/endpoint.h"
#include "tests/base/vectors.h"

namespace verbatim::gateway {
namespace {

constexpr char kChat[] = "/v1/chat/completions";
constexpr char kText[] = "/v1/completions";

json::Value Parsed(std::string_view text) {
  auto v = json::Parse(text);
  EXPECT_TRUE(v.ok()) << text << ": " << (v.ok() ? "" : v.error().message);
  return v.ok() ? std::move(*v) : json::Value();
}

EngineIdentity Identity() {
  return {Sha256("model"), "wba16", "1", Sha256("<|im_start|>user\nhi<|im_end|>\n")};
}

Envelope Make(std::string_view request, std::string endpoint = kChat) {
  return {"tenant:\"default\"", std::move(endpoint), Parsed(request), ToJson(Identity()), {}};
}

std::string Print(std::string_view request, std::string endpoint = kChat) {
  return HexEncode(Fingerprint(Make(request, std::move(endpoint))));
}

TEST(Fingerprint, EnvelopeIsWhatTheSpecificationSays) {
  const Envelope e = Make(R"({"stream":true,"model":"m","messages":[],"temperature":0.0,"x":null,
                              "stream_options":{"include_usage":true},"user":"u"})");
  const std::string model = HexEncode(Sha256("model"));
  const std::string prompt = HexEncode(Sha256("<|im_start|>user\nhi<|im_end|>\n"));
  const std::string canonical =
      R"({"endpoint":"/v1/chat/completions","identity":{"answers":"1","backend":"engine",)"
      R"("fidelity":"wba16","model":")" +
      model + R"(","numerics":"1","prompt":")" + prompt +
      R"("},"namespace":"tenant:\"default\"","request":{"messages":[],"model":"m","seed":null,)"
      R"("temperature":0,"x":null},"version":1})";
  EXPECT_EQ(json::Canonical(EnvelopeJson(e)), canonical);
  EXPECT_EQ(Fingerprint(e), Sha256(canonical));
  EXPECT_EQ(Fingerprint(e, "key"), HmacSha256("key", canonical));

  // The seed derives from the same text without the namespace.
  std::string unnamed = canonical;
  const std::string name = R"("namespace":"tenant:\"default\"",)";
  unnamed.erase(unnamed.find(name), name.size());
  EXPECT_EQ(DerivedSeed(e), ReadU64(AsBytes(Sha256("verbatim-seed-1" + unnamed))));
}

TEST(Fingerprint, EqualRequests) {
  const std::string base =
      Print(R"({"model":"m","messages":[{"role":"user","content":"hi"}],"seed":1})");
  const char* const same[] = {
      R"({"seed":1,"messages":[{"content":"hi","role":"user"}],"model":"m"})",
      R"({ "model" : "m", "messages":[ {"role":"user","content":"\u0068\u0069"} ], "seed":1.0 })",
      R"({"model":"m","messages":[{"role":"user","content":"hi"}],"seed":1e0,"stream":true})",
      R"({"model":"m","messages":[{"role":"user","content":"hi"}],"seed":1,"stream":false})",
      R"({"model":"m","messages":[{"role":"user","content":"hi"}],"seed":1,"user":"someone"})",
      R"({"model":"m","messages":[{"role":"user","content":"hi"}],"seed":1,"stream":true,)"
      R"("stream_options":{"include_usage":true}})",
  };
  for (const char* request : same) EXPECT_EQ(Print(request), base) << request;
  // Absent and null seeds are one; 0 and 0.0 too.
  EXPECT_EQ(Print(R"({"model":"m"})"), Print(R"({"model":"m","seed":null})"));
  EXPECT_EQ(Print(R"({"temperature":0})"), Print(R"({"temperature":0.0})"));
  EXPECT_EQ(Print(R"({"temperature":0})"), Print(R"({"temperature":-0e7})"));
}

// Each of these differs from every other one (public reports: shared keys, undelimited
// concatenation, numbers through doubles, fields that nobody put into the key).
TEST(Fingerprint, DifferentRequestsNeverShareOne) {
  const char* const requests[] = {
      R"({})",
      R"({"model":"m"})",
      R"({"model":"M"})",
      R"({"model":"m","prompt":""})",
      R"({"model":"m","prompt":null})",
      R"({"model":"m","prompt":"a"})",
      R"({"model":"m","prompt":["a"]})",
      R"({"model":"m","prompt":"[\"a\"]"})",
      R"({"model":"m","stop":["a"]})",
      R"({"model":"m","stop":"['a']"})",
      R"({"model":"m","stop":"[\"a\"]"})",
      R"({"model":"m","stop":"a"})",
      R"({"model":"m","stop":["a","b"]})",
      R"({"model":"m","stop":["ab"]})",
      R"({"model":"m","stop":["b","a"]})",
      R"({"model":"m","seed":1})",
      R"({"model":"m","seed":"1"})",
      R"({"model":"m","seed":0})",
      R"({"model":"m","seed":9007199254740992})",
      R"({"model":"m","seed":9007199254740993})",
      R"({"model":"mseed: 1"})",
      R"({"model":"m","name":"b","seed":1})",
      R"({"model":"m","name":"bseed: 1"})",
      R"({"model":"m","name":"b\",\"seed\":1,\"x\":\""})",
      R"({"model":"m","temperature":0})",
      R"({"model":"m","temperature":1})",
      R"({"model":"m","temperature":0.1})",
      R"({"model":"m","temperature":0.1000000000000000055})",
      R"({"model":"m","temperature":null})",
      R"({"model":"m","temperature":false})",
      R"({"model":"m","top_p":0.1})",
      R"({"model":"m","top_k":5})",
      R"({"model":"m","min_p":0.1})",
      R"({"model":"m","repetition_penalty":1.1})",
      R"({"model":"m","presence_penalty":1.1})",
      R"({"model":"m","frequency_penalty":1.1})",
      R"({"model":"m","max_tokens":5})",
      R"({"model":"m","max_completion_tokens":5})",
      R"({"model":"m","n":2})",
      R"({"model":"m","logprobs":true})",
      R"({"model":"m","top_logprobs":5})",
      R"({"model":"m","logit_bias":{"5":1}})",
      R"({"model":"m","logit_bias":{"1":5}})",
      R"({"model":"m","ignore_eos":true})",
      R"({"model":"m","deterministic":true})",
      R"({"model":"m","response_format":{"type":"json_object"}})",
      R"({"model":"m","tool_choice":"auto"})",
      R"({"model":"m","tool_choice":"none"})",
      R"({"model":"m","tools":[]})",
      R"({"model":"m","tools":[{"type":"function","function":{"name":"f"}}]})",
      R"({"model":"m","tools":[{"type":"function","function":{"name":"f","parameters":{"x":{}}}}]})",
      R"({"model":"m","guided_json":{"type":"object"}})",
      R"({"model":"m","chat_template_kwargs":{"enable_thinking":false}})",
      R"({"model":"m","options":{"num_ctx":2048}})",
      R"({"model":"m","options":{"num_ctx":8192}})",
      R"({"model":"m","num_ctx":8192})",
      R"({"model":"m","metadata":{"id":2512292042121000001}})",
      R"({"model":"m","metadata":{"id":2512292042121000000}})",
      R"({"model":"m","metadata":{"id":1e400}})",
      R"({"model":"m","metadata":{"id":1e401}})",
      R"({"model":"m","metadata":{"id":"\ud800"}})",
      R"({"model":"m","metadata":{"id":"\ud801"}})",
      R"({"model":"m","metadata":{"id":"\\ud800"}})",
      R"({"model":"m","metadata":{"id":"\ufffd"}})",
      "{\"model\":\"m\",\"metadata\":{\"\u00e9\":1}}",
      "{\"model\":\"m\",\"metadata\":{\"e\u0301\":1}}",
      R"({"model":"m","messages":[{"role":"user","content":"a"}]})",
      R"({"model":"m","messages":[{"role":"system","content":"a"}]})",
      R"({"model":"m","messages":[{"role":"user","content":"a "}]})",
      R"({"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"a"}]}]})",
      R"({"model":"m","messages":[{"role":"user","content":"a","name":"b"}]})",
      R"({"model":"m","messages":[{"role":"user","content":"a"},{"role":"user","content":"a"}]})",
      R"({"model":"m","messages":[{"role":"user","content":"aa"}]})",
      R"({"model":"m","messages":[{"role":"tool","content":"a","tool_call_id":"1"}]})",
      R"({"model":"m","messages":[{"role":"tool","content":"a","tool_call_id":"2"}]})",
      R"({"model":"m","Model":"m"})",
      R"({"model":"m","x":{"stream":true}})",
      R"({"model":"m","x":{"stream":false}})",
      R"({"model":"m","x":{"user":"u"}})",
  };
  std::map<std::string, std::string> seen;
  for (const char* request : requests) {
    const auto [at, fresh] = seen.emplace(Print(request), request);
    EXPECT_TRUE(fresh) << request << " shares a fingerprint with " << at->second;
  }
}

TEST(Fingerprint, WhatIsAroundTheRequestCounts) {
  const std::string request = R"({"model":"m","prompt":"a"})";
  const Envelope base = Make(request);
  std::set<std::string> seen = {HexEncode(Fingerprint(base))};
  const auto expect_new = [&](const char* what, const Envelope& e, std::string_view key = {}) {
    EXPECT_TRUE(seen.insert(HexEncode(Fingerprint(e, key))).second) << what;
  };
  Envelope e = base;
  e.name_space = "tenant:\"other\"";
  expect_new("namespace", e);
  EXPECT_EQ(DerivedSeed(e), DerivedSeed(base))
      << "the same request draws the same for every tenant";
  expect_new("endpoint", Make(request, kText));
  e = base;
  e.extra = json::Object{{"policy", "p"}};
  expect_new("policy", e);
  EXPECT_EQ(DerivedSeed(e), DerivedSeed(base));
  EngineIdentity id = Identity();
  id.model_digest = Sha256("other model");
  e = base;
  e.identity = ToJson(id);
  expect_new("model", e);
  EXPECT_NE(DerivedSeed(e), DerivedSeed(base));
  id = Identity();
  id.fidelity = "w8a16";
  e.identity = ToJson(id);
  expect_new("fidelity", e);
  id = Identity();
  id.numerics = "2";
  e.identity = ToJson(id);
  expect_new("numerics", e);
  id = Identity();
  id.prompt_digest = Sha256("other prompt");
  e.identity = ToJson(id);
  expect_new("rendered prompt", e);
  e.identity = json::Value();
  expect_new("no identity", e);
  expect_new("key", base, "secret");
  expect_new("another key", base, "secret2");
}

TEST(Fingerprint, OtherPathsExcludeNothing) {
  EXPECT_NE(Print(R"({"stream":true})", "/v1/other"), Print(R"({})", "/v1/other"));
  for (const Endpoint endpoint : AllEndpoints()) {
    for (const ExcludedField& f : ExcludedFields(EndpointPath(endpoint))) {
      EXPECT_FALSE(f.reason.empty()) << f.field;
    }
  }
}

TEST(Fingerprint, NamesOfAnswers) {
  const json::Value a = ToJson(Identity());
  EngineIdentity other = Identity();
  other.prompt_digest = Sha256("another prompt");
  EXPECT_EQ(SystemFingerprint(a), SystemFingerprint(ToJson(other)));
  EXPECT_EQ(SystemFingerprint(a).size(), 19u);
  other.fidelity = "w8a16";
  EXPECT_NE(SystemFingerprint(a), SystemFingerprint(ToJson(other)));

  const Digest f = Sha256("fingerprint");
  EXPECT_EQ(AnswerId(kChat, f), "chatcmpl-" + HexEncode(f).substr(0, 32));
  EXPECT_EQ(AnswerId(kText, f), "cmpl-" + HexEncode(f).substr(0, 32));
}

TEST(Fingerprint, Explain) {
  const auto pointers = [](std::string_view a, std::string_view b, size_t limit = 100) {
    std::string out;
    for (const Difference& d : Explain(Parsed(a), Parsed(b), limit)) {
      out += d.pointer + " " + d.a + " " + d.b + "\n";
    }
    return out;
  };
  EXPECT_EQ(pointers(R"({"a":1})", R"({"a":1.0})"), "");
  EXPECT_EQ(pointers("1", "2"), " 1 2\n");
  EXPECT_EQ(pointers(R"({"a":[1,{"b":2}],"c":3})", R"({"c":3,"a":[1,{"b":4,"d":5},6]})"),
            "/a/1/b 2 4\n/a/1/d  5\n/a/2  6\n");
  EXPECT_EQ(pointers(R"({"a/b":1,"m~n":2,"":3})", "{}"), "/ 3 \n/a~1b 1 \n/m~0n 2 \n");
  EXPECT_EQ(pointers(R"({"a":{}})", R"({"a":[]})"), "/a {} []\n");
  EXPECT_EQ(pointers("[1,2,3]", "[4,5,6]", 2), "/0 1 4\n/1 2 5\n");
  const std::string text =
      "\"" + std::string(150, 'x') + "\u20ac\u20ac" + std::string(100, 'x') + "\"";
  const auto cut = Explain(Parsed(text), Parsed("null"));
  EXPECT_LE(cut[0].a.size(), 200u);
  EXPECT_TRUE(IsUtf8(cut[0].a));
}

// The canonicalisation vectors as request bodies: input and output are one request.
TEST(Fingerprint, CanonicalVectorsAsRequests) {
  SKIP_WITHOUT_VECTORS("jcs");
  for (const auto& file : std::filesystem::directory_iterator(test::Vectors("jcs/input"))) {
    const auto name = file.path().filename();
    if (name == "values.json") continue;  // holds a number that the stricter rule keeps apart
    const std::string in = test::ReadFile(file.path());
    const std::string out = test::ReadFile(test::Vectors("jcs/output") / name);
    EXPECT_EQ(Print("{\"metadata\":" + in + "}"), Print("{\"metadata\":" + out + "}")) << name;
  }
}

}  // namespace
}  // namespace verbatim::gateway
