#include "gateway/wire/openai.h"

#include <gtest/gtest.h>

#include <cmath>

#include "gateway/wire/fields.h"
#include "tests/base/vectors.h"

namespace verbatim::gateway {
namespace {

constexpr char kMessages[] = R"("model":"m","messages":[{"role":"user","content":"hi"}])";

Decoded<GenerationRequest> DecodeText(std::string_view text,
                                      Endpoint endpoint = Endpoint::kChatCompletions) {
  auto body = ParseBody(text);
  if (auto* error = std::get_if<HttpError>(&body)) return std::move(*error);
  return Decode(endpoint, std::get<json::Value>(std::move(body)));
}

GenerationRequest Must(std::string_view text, Endpoint endpoint = Endpoint::kChatCompletions) {
  auto decoded = DecodeText(text, endpoint);
  if (auto* error = std::get_if<HttpError>(&decoded)) {
    ADD_FAILURE() << text << ": " << error->param << ": " << error->message;
    return {};
  }
  return std::get<GenerationRequest>(std::move(decoded));
}

// A chat request with further members.
std::string Chat(const std::string& more) { return std::string("{") + kMessages + more + "}"; }

TEST(OpenAiWire, ChatRequest) {
  const GenerationRequest r = Must(Chat(
      R"(,"temperature":0.5,"top_p":0.9,"top_k":40,"min_p":0.05,"seed":-1,"max_completion_tokens":7,
      "stop":["a","b"],"presence_penalty":1,"frequency_penalty":-1,"repetition_penalty":1.1,
      "logit_bias":{"7":-100,"3":1.5},"stream":true,"stream_options":{"include_usage":true},
      "ignore_eos":true,"deterministic":true,"user":"u","frob":[1],"n":1,"tools":[],"logprobs":false,
      "chat_template_kwargs":{"enable_thinking":false})"));
  EXPECT_EQ(r.model, "m");
  EXPECT_EQ(json::Serialize(r.messages), R"([{"role":"user","content":"hi"}])");
  EXPECT_EQ(r.sampling.temperature, 0.5f);
  EXPECT_EQ(r.sampling.top_p, 0.9);
  EXPECT_EQ(r.sampling.top_k, 40);
  EXPECT_EQ(r.sampling.min_p, 0.05);
  EXPECT_EQ(r.seed, UINT64_MAX);
  EXPECT_EQ(r.sampling.seed, UINT64_MAX);
  EXPECT_EQ(r.max_tokens, 7u);
  EXPECT_EQ(r.stop, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(r.sampling.presence_penalty, 1);
  EXPECT_EQ(r.sampling.frequency_penalty, -1);
  EXPECT_EQ(r.sampling.repetition_penalty, 1.1f);
  EXPECT_EQ(r.sampling.logit_bias,
            (std::vector<std::pair<int32_t, float>>{{3, 1.5f}, {7, -100.f}}));
  EXPECT_TRUE(r.stream && r.include_usage && r.ignore_eos && r.deterministic);
  EXPECT_EQ(json::Serialize(r.template_variables), R"({"enable_thinking":false})");
  EXPECT_EQ(r.ignored, (std::vector<std::string>{"frob", "user"}));
  EXPECT_EQ(IgnoredHeader(r), "frob, user");
  EXPECT_FALSE(CheckEngine(r).has_value());
}

TEST(OpenAiWire, DefaultsAreOpenAis) {
  for (const char* more :
       {"", R"(,"temperature":null,"seed":null,"stop":null,"max_tokens":null)"}) {
    const GenerationRequest r = Must(Chat(more));
    EXPECT_EQ(r.sampling.temperature, 1);
    EXPECT_EQ(r.sampling.top_p, 1);
    EXPECT_EQ(r.sampling.top_k, 0);
    EXPECT_EQ(r.seed, std::nullopt);
    EXPECT_EQ(r.max_tokens, 0u);
    EXPECT_FALSE(r.stream || r.deterministic || r.ignore_eos);
    EXPECT_TRUE(r.ignored.empty());
  }
  EXPECT_EQ(Must(R"({"model":"m","prompt":"x"})", Endpoint::kCompletions).max_tokens, 16u);
  EXPECT_EQ(Must(Chat(R"(,"top_k":-1)")).sampling.top_k, 0);
}

TEST(OpenAiWire, SeedsCountModulo2To64) {
  struct Case {
    const char* seed;
    uint64_t want;
  };
  const Case cases[] = {{"0", 0},
                        {"1.0", 1},
                        {"-1", UINT64_MAX},
                        {"-9223372036854775808", uint64_t{1} << 63},
                        {"9223372036854775808", uint64_t{1} << 63},
                        {"18446744073709551615", UINT64_MAX}};
  for (const Case& c : cases) {
    EXPECT_EQ(Must(Chat(std::string(",\"seed\":") + c.seed)).seed, c.want) << c.seed;
  }
}

TEST(OpenAiWire, ContentParts) {
  const GenerationRequest r = Must(
      R"({"model":"m","messages":[{"role":"system","content":[{"type":"text","text":"a"},
      {"type":"text","text":"b"}]},{"role":"assistant","tool_calls":[]},{"role":"user","content":"c"}]})");
  EXPECT_EQ(r.messages.items()[0].Find("content")->as_string(), "ab");
  EXPECT_TRUE(r.messages.items()[1].Find("content")->is_null());
  EXPECT_FALSE(CheckEngine(r).has_value());
  // The body stays as it was sent.
  EXPECT_TRUE(r.body.Find("messages")->items()[0].Find("content")->is_array());
}

TEST(OpenAiWire, Prompts) {
  const auto prompt = [](const std::string& p) {
    return Must(R"({"model":"m","prompt":)" + p + "}", Endpoint::kCompletions);
  };
  EXPECT_EQ(prompt(R"("x")").prompt, "x");
  EXPECT_EQ(prompt(R"(["x"])").prompt, "x");
  EXPECT_EQ(prompt(R"([1,2])").prompt_tokens, (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(prompt(R"([[1,2]])").prompt_tokens, (std::vector<int32_t>{1, 2}));
  EXPECT_TRUE(prompt(R"([5])").has_prompt_tokens);
}

struct Bad {
  std::string more;
  const char* param;
  const char* code;
};

TEST(OpenAiWire, RefusedChatRequests) {
  const Bad cases[] = {
      {R"(,"temperature":2.1)", "temperature", "decimal_above_max_value"},
      {R"(,"temperature":-0.1)", "temperature", "decimal_below_min_value"},
      {R"(,"temperature":1e400)", "temperature", "decimal_above_max_value"},
      {R"(,"temperature":-1e400)", "temperature", "decimal_below_min_value"},
      {R"(,"temperature":"0")", "temperature", "invalid_type"},
      {R"(,"temperature":true)", "temperature", "invalid_type"},
      {R"(,"top_p":1.01)", "top_p", "decimal_above_max_value"},
      {R"(,"top_k":1.5)", "top_k", "invalid_value"},
      {R"(,"top_k":-2)", "top_k", "integer_below_min_value"},
      {R"(,"min_p":2)", "min_p", "decimal_above_max_value"},
      {R"(,"presence_penalty":3)", "presence_penalty", "decimal_above_max_value"},
      {R"(,"frequency_penalty":-3)", "frequency_penalty", "decimal_below_min_value"},
      {R"(,"repetition_penalty":0)", "repetition_penalty", "decimal_below_min_value"},
      {R"(,"max_tokens":0)", "max_tokens", "integer_below_min_value"},
      {R"(,"max_tokens":-5)", "max_tokens", "integer_below_min_value"},
      {R"(,"max_tokens":1.5)", "max_tokens", "invalid_value"},
      {R"(,"max_tokens":99999999999)", "max_tokens", "integer_above_max_value"},
      {R"(,"max_tokens":1e999999999999)", "max_tokens", "invalid_value"},
      {R"(,"max_tokens":"5")", "max_tokens", "invalid_type"},
      {R"(,"max_tokens":5,"max_completion_tokens":6)", "max_completion_tokens", "invalid_value"},
      {R"(,"seed":1.5)", "seed", "invalid_value"},
      {R"(,"seed":"1")", "seed", "invalid_type"},
      {R"(,"seed":18446744073709551616)", "seed", "invalid_value"},
      {R"(,"seed":-9223372036854775809)", "seed", "invalid_value"},
      {R"(,"stop":["a","b","c","d","e"])", "stop", "array_above_max_length"},
      {R"(,"stop":"")", "stop", "empty_string"},
      {R"(,"stop":["a",1])", "stop[1]", "invalid_type"},
      {R"(,"stop":7)", "stop", "invalid_type"},
      {R"(,"stop":"\ud800")", "stop", "invalid_value"},
      {R"(,"stream":1)", "stream", "invalid_type"},
      {R"(,"stream":"true")", "stream", "invalid_type"},
      {R"(,"stream_options":true)", "stream_options", "invalid_type"},
      {R"(,"stream_options":{"include_usage":1})", "stream_options.include_usage", "invalid_type"},
      {R"(,"deterministic":"yes")", "deterministic", "invalid_type"},
      {R"(,"n":0)", "n", "integer_below_min_value"},
      {R"(,"n":"2")", "n", "invalid_type"},
      {R"(,"logit_bias":[])", "logit_bias", "invalid_type"},
      {R"(,"logit_bias":{"x":1})", "logit_bias", "invalid_value"},
      {R"(,"logit_bias":{"01":1})", "logit_bias", "invalid_value"},
      {R"(,"logit_bias":{"-1":1})", "logit_bias", "invalid_value"},
      {R"(,"logit_bias":{"1":101})", "logit_bias.1", "invalid_value"},
      {R"(,"logit_bias":{"1":"1"})", "logit_bias.1", "invalid_type"},
      {R"(,"tools":{})", "tools", "invalid_type"},
      {R"(,"response_format":"text")", "response_format", "invalid_type"},
      {R"(,"metadata":"x")", "metadata", "invalid_type"},
      {R"(,"user":5)", "user", "invalid_type"},
      {R"(,"chat_template_kwargs":[])", "chat_template_kwargs", "invalid_type"},
  };
  for (const Bad& c : cases) {
    const auto decoded = DecodeText(Chat(c.more));
    const auto* error = std::get_if<HttpError>(&decoded);
    ASSERT_NE(error, nullptr) << c.more;
    EXPECT_EQ(error->status, 400) << c.more;
    EXPECT_EQ(error->param, c.param) << c.more;
    EXPECT_EQ(error->code, c.code) << c.more << error->message;
    EXPECT_EQ(error->type, "invalid_request_error");
  }
}

TEST(OpenAiWire, RefusedBodies) {
  struct Case {
    const char* text;
    Endpoint endpoint;
    const char* param;
  };
  constexpr Endpoint kChatEnd = Endpoint::kChatCompletions, kTextEnd = Endpoint::kCompletions;
  const Case cases[] = {
      {"", kChatEnd, ""},
      {"{", kChatEnd, ""},
      {"[]", kChatEnd, ""},
      {"null", kChatEnd, ""},
      {R"({"model":"m","model":"m"})", kChatEnd, ""},
      {R"({"messages":[{"role":"user","content":"x"}]})", kChatEnd, "model"},
      {R"({"model":5})", kChatEnd, "model"},
      {R"({"model":""})", kChatEnd, "model"},
      {R"({"model":"m"})", kChatEnd, "messages"},
      {R"({"model":"m","messages":null})", kChatEnd, "messages"},
      {R"({"model":"m","messages":"hi"})", kChatEnd, "messages"},
      {R"({"model":"m","messages":[]})", kChatEnd, "messages"},
      {R"({"model":"m","messages":["hi"]})", kChatEnd, "messages[0]"},
      {R"({"model":"m","messages":[{"content":"x"}]})", kChatEnd, "messages[0].role"},
      {R"({"model":"m","messages":[{"role":1,"content":"x"}]})", kChatEnd, "messages[0].role"},
      {R"({"model":"m","messages":[{"role":"bot","content":"x"}]})", kChatEnd, "messages[0].role"},
      {R"({"model":"m","messages":[{"role":"user"}]})", kChatEnd, "messages[0].content"},
      {R"({"model":"m","messages":[{"role":"user","content":null}]})", kChatEnd,
       "messages[0].content"},
      {R"({"model":"m","messages":[{"role":"user","content":5}]})", kChatEnd,
       "messages[0].content"},
      {R"({"model":"m","messages":[{"role":"user","content":[]}]})", kChatEnd,
       "messages[0].content"},
      {R"({"model":"m","messages":[{"role":"user","content":["x"]}]})", kChatEnd,
       "messages[0].content[0]"},
      {R"({"model":"m","messages":[{"role":"user","content":[{"type":"text"}]}]})", kChatEnd,
       "messages[0].content[0].text"},
      {R"({"model":"m","messages":[{"role":"user","content":"a","name":5}]})", kChatEnd,
       "messages[0].name"},
      {R"({"model":"m"})", kTextEnd, "prompt"},
      {R"({"model":"m","prompt":5})", kTextEnd, "prompt"},
      {R"({"model":"m","prompt":[]})", kTextEnd, "prompt"},
      {R"({"model":"m","prompt":["a","b"]})", kTextEnd, "prompt"},
      {R"({"model":"m","prompt":[[1],[2]]})", kTextEnd, "prompt"},
      {R"({"model":"m","prompt":[1,-2]})", kTextEnd, "prompt[1]"},
      {R"({"model":"m","prompt":[1,2147483648]})", kTextEnd, "prompt[1]"},
      {R"({"model":"m","prompt":[1,true]})", kTextEnd, "prompt[1]"},
  };
  for (const Case& c : cases) {
    const auto decoded = DecodeText(c.text, c.endpoint);
    const auto* error = std::get_if<HttpError>(&decoded);
    ASSERT_NE(error, nullptr) << c.text;
    EXPECT_EQ(error->status, 400) << c.text;
    EXPECT_EQ(error->param, c.param) << c.text << ": " << error->message;
  }
}

TEST(OpenAiWire, WhatTheEngineCannotHonourIsNamed) {
  struct Case {
    const char* more;
    const char* param;
  };
  const Case chat[] = {
      {R"(,"n":2)", "n"},
      {R"(,"tools":[{"type":"function","function":{"name":"f"}}])", "tools"},
      {R"(,"tool_choice":"required")", "tool_choice"},
      {R"(,"functions":[{"name":"f"}])", "functions"},
      {R"(,"response_format":{"type":"json_object"})", "response_format"},
      {R"(,"logprobs":true)", "logprobs"},
      {R"(,"top_logprobs":3)", "top_logprobs"},
      {R"(,"modalities":["text","audio"])", "modalities"},
      {R"(,"audio":{"voice":"x"})", "audio"},
      {R"(,"prediction":{"type":"content","content":"x"})", "prediction"},
      {R"(,"guided_json":{})", "guided_json"},
      {R"(,"min_tokens":3)", "min_tokens"},
      {R"(,"reasoning_effort":"high")", "reasoning_effort"},
  };
  for (const Case& c : chat) {
    const auto error = CheckEngine(Must(Chat(c.more)));
    ASSERT_TRUE(error.has_value()) << c.more;
    EXPECT_EQ(error->status, 400);
    EXPECT_EQ(error->param, c.param);
    EXPECT_EQ(error->code, "unsupported_parameter");
  }
  const Case text[] = {{R"(,"echo":true)", "echo"},
                       {R"(,"suffix":"x")", "suffix"},
                       {R"(,"best_of":2)", "best_of"},
                       {R"(,"logprobs":0)", "logprobs"},
                       {R"(,"n":3)", "n"}};
  for (const Case& c : text) {
    const auto error = CheckEngine(
        Must(std::string(R"({"model":"m","prompt":"x")") + c.more + "}", Endpoint::kCompletions));
    ASSERT_TRUE(error.has_value()) << c.more;
    EXPECT_EQ(error->param, c.param);
  }
  const auto image = CheckEngine(Must(
      R"({"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"a"},
      {"type":"image_url","image_url":{"url":"x"}}]}]})"));
  ASSERT_TRUE(image.has_value());
  EXPECT_EQ(image->param, "messages[0].content[1]");
  const auto calls = CheckEngine(
      Must(R"({"model":"m","messages":[{"role":"assistant","tool_calls":[{"id":"1"}]}]})"));
  ASSERT_TRUE(calls.has_value());
  EXPECT_EQ(calls->param, "messages[0].tool_calls");
}

TEST(OpenAiWire, WhatAsksForNothingIsAccepted) {
  const char* const chat[] = {R"(,"n":1)",
                              R"(,"n":1.0)",
                              R"(,"tools":[])",
                              R"(,"tools":null)",
                              R"(,"tool_choice":"none")",
                              R"(,"response_format":{"type":"text"})",
                              R"(,"logprobs":false,"top_logprobs":0)",
                              R"(,"modalities":["text"])",
                              R"(,"length_penalty":1.0)"};
  for (const char* more : chat) {
    const GenerationRequest r = Must(Chat(more));
    EXPECT_FALSE(CheckEngine(r).has_value()) << more;
    EXPECT_TRUE(r.ignored.empty()) << more;
  }
}

TEST(OpenAiWire, IgnoredHeaderIsSafe) {
  GenerationRequest r = Must(Chat(R"(,"a\r\nSet-Cookie: x":1,"\u20ac":2,"":3)"));
  EXPECT_EQ(IgnoredHeader(r), "\"\", a%0D%0ASet-Cookie%3A%20x, %E2%82%AC");
  r.ignored.assign(1000, std::string(300, '\n'));
  EXPECT_LE(IgnoredHeader(r).size(), 1000u);
  EXPECT_TRUE(IgnoredHeader(r).ends_with("..."));
}

TEST(OpenAiWire, TableIsConsistent) {
  for (const Field& f : KnownFields()) {
    EXPECT_TRUE(f.endpoints > 0 && f.endpoints <= kAllFields) << f.name;
    EXPECT_TRUE(f.effect == Effect::kRefused || f.neutral.empty()) << f.name;
    const size_t dot = f.name.find('.');
    for (int endpoint = 1; endpoint < kAllFields; endpoint *= 2) {
      if ((f.endpoints & endpoint) == 0) continue;
      if (dot == f.name.npos) {
        EXPECT_EQ(FindField(f.name, endpoint), &f) << f.name;
        continue;
      }
      const std::string_view object = f.name.substr(0, dot);
      EXPECT_EQ(FindMember(object, f.name.substr(dot + 1), endpoint), &f) << f.name;
      EXPECT_TRUE(HasMembers(object, endpoint)) << f.name;
      const Field* parent = FindField(object, endpoint);
      ASSERT_TRUE(parent) << f.name;
      EXPECT_EQ(parent->kind, FieldKind::kObject) << f.name;
      EXPECT_EQ(FindField(f.name, endpoint), nullptr) << f.name;
    }
  }
}

TEST(OpenAiWire, BodiesOfCountlessValues) {
  std::string many = "{\"x\":[";
  for (int i = 0; i < 300'000; ++i) many += "0,";
  many.back() = ']';
  const auto body = ParseBody(many + "}");
  ASSERT_TRUE(std::holds_alternative<HttpError>(body));
  EXPECT_EQ(std::get<HttpError>(body).status, 400);
}

// Whatever is no JSON is a 400 that says so; what is JSON is taken as the value of a field.
TEST(OpenAiWire, ParsingSuite) {
  SKIP_WITHOUT_VECTORS("json_parsing");
  const auto suite = json::Parse(test::ReadFile(test::Vectors("json_parsing/jsontestsuite.json")));
  ASSERT_TRUE(suite.ok());
  for (const json::Value& item : suite->Find("parsing")->items()) {
    const json::Value* b64 = item.Find("b64");
    const std::string text =
        b64 ? std::move(*Base64Decode(b64->as_string())) : std::string(100'000, '[');
    const std::string& name = item.Find("name")->as_string();
    const std::string& verdict = item.Find("verdict")->as_string();
    if (verdict == "reject") {
      const auto body = ParseBody(text);
      const auto* error = std::get_if<HttpError>(&body);
      ASSERT_NE(error, nullptr) << name;
      EXPECT_EQ(error->code, "invalid_json") << name;
    } else if (verdict == "accept" && name.find("duplicated_key") == std::string::npos) {
      const auto decoded = DecodeText(Chat(",\"unknown\":" + text));
      EXPECT_TRUE(std::holds_alternative<GenerationRequest>(decoded)) << name;
    }
  }
}

}  // namespace
}  // namespace verbatim::gateway
