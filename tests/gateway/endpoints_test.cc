// Requests of /v1/responses, /v1/messages and /v1/messages/count_tokens, as the engine takes them.
#include <gtest/gtest.h>

#include "gateway/fingerprint.h"
#include "gateway/wire/fields.h"
#include "gateway/wire/openai.h"

namespace verbatim::gateway {
namespace {

constexpr Endpoint kRespond = Endpoint::kResponses, kMessage = Endpoint::kMessages,
                   kCount = Endpoint::kCountTokens;

Decoded<GenerationRequest> DecodeText(Endpoint endpoint, const std::string& text) {
  auto body = ParseBody(text);
  if (auto* error = std::get_if<HttpError>(&body)) return std::move(*error);
  return Decode(endpoint, std::get<json::Value>(std::move(body)));
}

GenerationRequest Must(Endpoint endpoint, const std::string& text) {
  auto decoded = DecodeText(endpoint, text);
  if (auto* error = std::get_if<HttpError>(&decoded)) {
    ADD_FAILURE() << text << ": " << error->param << ": " << error->message;
    return {};
  }
  return std::get<GenerationRequest>(std::move(decoded));
}

// The least that the endpoint takes, and further members.
std::string Body(Endpoint endpoint, const std::string& more) {
  const char* least = R"("messages":[{"role":"user","content":"hi"}])";
  if (endpoint == kRespond) least = R"("input":"hi")";
  if (endpoint == Endpoint::kCompletions) least = R"("prompt":"hi")";
  const char* length = endpoint == kMessage ? R"("max_tokens":9,)" : "";
  return std::string(R"({"model":"m",)") + length + least + more + "}";
}

TEST(Responses, Request) {
  const GenerationRequest r =
      Must(kRespond,
           Body(kRespond,
                R"(,"instructions":"Be brief.","temperature":0.5,"top_p":0.9,"max_output_tokens":7,
           "stream":true,"seed":-1,"stop":"x","top_k":3,"user":"u","metadata":{"a":"b"},
           "text":{"format":{"type":"text"},"verbosity":"medium","odd":1},"store":true,"tools":[],
           "tool_choice":"auto","reasoning":{"effort":null},"include":[],"truncation":"disabled",
           "previous_response_id":null,"background":false,"parallel_tool_calls":false,
           "stream_options":{"include_obfuscation":false},"service_tier":"auto","frob":1)"));
  EXPECT_EQ(r.model, "m");
  EXPECT_EQ(json::Serialize(r.messages),
            R"([{"role":"system","content":"Be brief."},{"role":"user","content":"hi"}])");
  EXPECT_EQ(r.sampling.temperature, 0.5f);
  EXPECT_EQ(r.sampling.top_p, 0.9);
  EXPECT_EQ(r.sampling.top_k, 3);
  EXPECT_EQ(r.seed, UINT64_MAX);
  EXPECT_EQ(r.max_tokens, 7u);
  EXPECT_EQ(r.stop, std::vector<std::string>{"x"});
  EXPECT_TRUE(r.stream);
  EXPECT_FALSE(r.include_usage);
  EXPECT_EQ(IgnoredHeader(r),
            "frob, metadata, parallel_tool_calls, service_tier, store, stream_options, text.odd, "
            "user");
  EXPECT_FALSE(CheckEngine(r).has_value());
  EXPECT_EQ(Must(kRespond, Body(kRespond, "")).max_tokens, 0u);
  EXPECT_EQ(Must(kRespond, Body(kRespond, "")).sampling.temperature, 1);
}

TEST(Responses, InputItems) {
  const GenerationRequest r = Must(kRespond,
                                   R"({"model":"m","input":[{"role":"developer","content":"a"},
      {"type":"message","role":"user","content":[{"type":"input_text","text":"b"},
        {"type":"input_text","text":"c"}]},
      {"type":"message","id":"msg_1","status":"completed","role":"assistant","content":[
        {"type":"output_text","text":"d","annotations":[]}]},{"role":"user","content":"e"}]})");
  EXPECT_EQ(json::Serialize(r.messages),
            R"([{"role":"developer","content":"a"},{"role":"user","content":"bc"},)"
            R"({"role":"assistant","content":"d"},{"role":"user","content":"e"}])");
  EXPECT_FALSE(CheckEngine(r).has_value());
}

TEST(Messages, Request) {
  const GenerationRequest r =
      Must(kMessage,
           Body(kMessage,
                R"(,"system":[{"type":"text","text":"Be ","cache_control":{"type":"ephemeral"}},
           {"type":"text","text":"brief."}],"temperature":1,"top_p":0.9,"top_k":5,"stream":true,
           "stop_sequences":["a","b","c","d","e"],"metadata":{"user_id":"u"},"tools":[],
           "tool_choice":{"type":"auto"},"thinking":{"type":"disabled"},"service_tier":"auto",
           "output_config":{"effort":"high"},"frob":1)"));
  EXPECT_EQ(json::Serialize(r.messages),
            R"([{"role":"system","content":"Be brief."},{"role":"user","content":"hi"}])");
  EXPECT_EQ(r.sampling.temperature, 1);
  EXPECT_EQ(r.sampling.top_k, 5);
  EXPECT_EQ(r.max_tokens, 9u);
  EXPECT_EQ(r.stop.size(), 5u);
  EXPECT_TRUE(r.stream);
  EXPECT_EQ(IgnoredHeader(r), "frob, metadata, service_tier");
  EXPECT_FALSE(CheckEngine(r).has_value());
}

TEST(Messages, Blocks) {
  const GenerationRequest r = Must(kMessage,
                                   R"({"model":"m","max_tokens":1,"system":"s","messages":[
           {"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},
           {"role":"assistant","content":[{"type":"text","text":"c","citations":null}]},
           {"role":"user","content":"d"}]})");
  EXPECT_EQ(json::Serialize(r.messages),
            R"([{"role":"system","content":"s"},{"role":"user","content":"ab"},)"
            R"({"role":"assistant","content":"c"},{"role":"user","content":"d"}])");
  EXPECT_FALSE(CheckEngine(r).has_value());
}

TEST(Messages, CountTokensNeedsNoLengthAndHasNoStream) {
  const GenerationRequest r =
      Must(kCount, Body(kCount, R"(,"system":"s","stream":true,"max_tokens":"x")"));
  EXPECT_EQ(r.messages.items().size(), 2u);
  EXPECT_FALSE(r.stream);
  EXPECT_EQ(IgnoredHeader(r), "max_tokens, stream");
}

TEST(Endpoints, RefusedRequests) {
  struct Case {
    Endpoint endpoint;
    std::string text;
    const char* param;
    const char* code;
  };
  const Case cases[] = {
      {kRespond, R"({"model":"m"})", "input", "missing_required_parameter"},
      {kRespond, R"({"input":"hi"})", "model", "missing_required_parameter"},
      {kRespond, R"({"model":"m","input":5})", "input", "invalid_type"},
      {kRespond, R"({"model":"m","input":[]})", "input", "empty_array"},
      {kRespond, R"({"model":"m","input":["hi"]})", "input[0]", "invalid_type"},
      {kRespond, R"({"model":"m","input":[{"type":5}]})", "input[0].type", "invalid_type"},
      {kRespond, R"({"model":"m","input":[{"content":"x"}]})", "input[0].role",
       "missing_required_parameter"},
      {kRespond, R"({"model":"m","input":[{"role":"tool","content":"x"}]})", "input[0].role",
       "invalid_value"},
      {kRespond, R"({"model":"m","input":[{"role":"system, developer","content":"x"}]})",
       "input[0].role", "invalid_value"},
      {kRespond, R"({"model":"m","input":[{"role":"","content":"x"}]})", "input[0].role",
       "invalid_value"},
      {kRespond, R"({"model":"m","input":[{"role":"user"}]})", "input[0].content",
       "missing_required_parameter"},
      {kRespond, R"({"model":"m","input":[{"role":"user","content":null}]})", "input[0].content",
       "invalid_type"},
      {kRespond, R"({"model":"m","input":[{"role":"user","content":[{"type":"input_text"}]}]})",
       "input[0].content[0].text", "missing_required_parameter"},
      {kRespond, Body(kRespond, R"(,"instructions":["x"])"), "instructions", "invalid_type"},
      {kRespond, Body(kRespond, R"(,"max_output_tokens":0)"), "max_output_tokens",
       "integer_below_min_value"},
      {kRespond, Body(kRespond, R"(,"temperature":2.5)"), "temperature", "decimal_above_max_value"},
      {kRespond, Body(kRespond, R"(,"text":"plain")"), "text", "invalid_type"},
      {kRespond, Body(kRespond, R"(,"text":{"format":"text"})"), "text.format", "invalid_type"},
      {kRespond, Body(kRespond, R"(,"stop":["a","b","c","d","e"])"), "stop",
       "array_above_max_length"},

      {kMessage, R"({"model":"m","messages":[{"role":"user","content":"x"}]})", "max_tokens",
       "missing_required_parameter"},
      {kMessage, R"({"model":"m","max_tokens":1})", "messages", "missing_required_parameter"},
      {kMessage, R"({"model":"m","max_tokens":1,"messages":[]})", "messages", "empty_array"},
      {kMessage, R"({"model":"m","max_tokens":1,"messages":[{"role":"tool","content":"x"}]})",
       "messages[0].role", "invalid_value"},
      {kMessage, R"({"model":"m","max_tokens":1,"messages":[{"role":"user"}]})",
       "messages[0].content", "missing_required_parameter"},
      {kMessage,
       R"({"model":"m","max_tokens":1,"messages":[{"role":"user","content":[{"text":"x"}]}]})",
       "messages[0].content[0].type", "missing_required_parameter"},
      {kMessage, Body(kMessage, R"(,"system":5)"), "system", "invalid_type"},
      {kMessage, Body(kMessage, R"(,"temperature":1.1)"), "temperature", "decimal_above_max_value"},
      {kMessage, Body(kMessage, R"(,"stop_sequences":"x")"), "stop_sequences", "invalid_type"},
      {kMessage, Body(kMessage, R"(,"stop_sequences":[""])"), "stop_sequences[0]", "empty_string"},
      {kMessage, Body(kMessage, R"(,"metadata":"u")"), "metadata", "invalid_type"},
      {kCount, R"({"model":"m"})", "messages", "missing_required_parameter"},
  };
  for (const Case& c : cases) {
    const auto decoded = DecodeText(c.endpoint, c.text);
    const auto* error = std::get_if<HttpError>(&decoded);
    ASSERT_NE(error, nullptr) << c.text;
    EXPECT_EQ(error->status, 400) << c.text;
    EXPECT_EQ(error->param, c.param) << c.text << error->message;
    EXPECT_EQ(error->code, c.code) << c.text << error->message;
  }
}

TEST(Endpoints, WhatTheEngineCannotHonourIsNamed) {
  struct Case {
    Endpoint endpoint;
    std::string text;
    const char* param;
  };
  const auto input = [](const std::string& item) {
    return R"({"model":"m","input":[{"role":"user","content":"x"},)" + item + "]}";
  };
  const auto messages = [](const std::string& message) {
    return R"({"model":"m","max_tokens":1,"messages":[{"role":"user","content":"x"},)" + message +
           "]}";
  };
  const Case cases[] = {
      {kRespond, Body(kRespond, R"(,"tools":[{"type":"web_search"}])"), "tools"},
      {kRespond, Body(kRespond, R"(,"previous_response_id":"resp_1")"), "previous_response_id"},
      {kRespond, Body(kRespond, R"(,"conversation":"conv_1")"), "conversation"},
      {kRespond, Body(kRespond, R"(,"background":true)"), "background"},
      {kRespond, Body(kRespond, R"(,"reasoning":{"effort":"high"})"), "reasoning.effort"},
      {kRespond, Body(kRespond, R"(,"text":{"format":{"type":"json_object"}})"), "text.format"},
      {kRespond, Body(kRespond, R"(,"text":{"verbosity":"low"})"), "text.verbosity"},
      {kRespond, Body(kRespond, R"(,"include":["message.output_text.logprobs"])"), "include"},
      {kRespond, Body(kRespond, R"(,"top_logprobs":2)"), "top_logprobs"},
      {kRespond, Body(kRespond, R"(,"truncation":"auto")"), "truncation"},
      {kRespond, Body(kRespond, R"(,"prompt":{"id":"pmpt_1"})"), "prompt"},
      {kRespond, Body(kRespond, R"(,"max_tokens":5)"), "max_tokens"},
      {kRespond, Body(kRespond, R"(,"prompt_cache_options":{"prewarm":true})"),
       "prompt_cache_options.prewarm"},
      {kRespond, input(R"({"type":"function_call_output","call_id":"1","output":"x"})"),
       "input[1]"},
      {kRespond, input(R"({"type":"item_reference","id":"x"})"), "input[1]"},
      {kRespond, input(R"({"role":"user","content":[{"type":"input_image","image_url":"x"}]})"),
       "input[1].content[0]"},

      {kMessage, Body(kMessage, R"(,"tools":[{"name":"f"}])"), "tools"},
      {kMessage, Body(kMessage, R"(,"tool_choice":{"type":"any"})"), "tool_choice"},
      {kMessage, Body(kMessage, R"(,"thinking":{"type":"enabled","budget_tokens":1024})"),
       "thinking"},
      {kMessage, Body(kMessage, R"(,"output_config":{"effort":"low"})"), "output_config.effort"},
      {kMessage, Body(kMessage, R"(,"output_config":{"format":{"type":"json_schema"}})"),
       "output_config.format"},
      {kMessage, Body(kMessage, R"(,"container":"c")"), "container"},
      {kMessage, Body(kMessage, R"(,"mcp_servers":[{"name":"x"}])"), "mcp_servers"},
      {kMessage, Body(kMessage, R"(,"stop":["x"])"), "stop"},
      {kMessage, messages(R"({"role":"assistant","content":"The answer is"})"), "messages[1]"},
      {kMessage,
       messages(R"({"role":"user","content":[{"type":"tool_result","tool_use_id":"1"}]})"),
       "messages[1].content[0]"},
      {kMessage,
       messages(R"({"role":"user","content":[{"type":"text","text":"x"},{"type":"image"}]})"),
       "messages[1].content[1]"},
      {kCount, Body(kCount, R"(,"tools":[{"name":"f"}])"), "tools"},
      {kCount, Body(kCount, R"(,"thinking":{"type":"adaptive"})"), "thinking"},
  };
  for (const Case& c : cases) {
    const auto error = CheckEngine(Must(c.endpoint, c.text));
    ASSERT_TRUE(error.has_value()) << c.text;
    EXPECT_EQ(error->status, 400) << c.text;
    EXPECT_EQ(error->param, c.param) << c.text;
    EXPECT_EQ(error->code, "unsupported_parameter") << c.text;
  }
}

// A field of other endpoints, of whatever type, is ignored like one that nobody knows.
TEST(Endpoints, FieldsOfOtherEndpointsAreIgnored) {
  const char* values[] = {"5",  "-1.5",         "1e400", "true",       R"("x")",
                          "[]", R"([{"a":1}])", "{}",    R"({"5":9})", R"({"x":"y"})"};
  for (const Endpoint endpoint :
       {Endpoint::kChatCompletions, Endpoint::kCompletions, kRespond, kMessage, kCount}) {
    for (const Field& field : KnownFields()) {
      const std::string name(field.name);
      const bool own = FindField(name, FieldsOf(endpoint)) != nullptr;
      for (const char* value : values) {
        const std::string more = ",\"" + name + "\":" + value;
        if (own) {  // whatever it is: decoded, or an error that says so
          const auto decoded = DecodeText(endpoint, Body(endpoint, more));
          if (const auto* error = std::get_if<HttpError>(&decoded)) {
            EXPECT_EQ(error->status, 400) << EndpointPath(endpoint) << more;
          }
          continue;
        }
        const GenerationRequest request = Must(endpoint, Body(endpoint, more));
        EXPECT_EQ(request.ignored, std::vector{name}) << EndpointPath(endpoint) << more;
        EXPECT_EQ(request.sampling.presence_penalty, 0) << more;
        EXPECT_TRUE(request.sampling.logit_bias.empty()) << more;
        EXPECT_EQ(request.seed, std::nullopt) << more;
      }
    }
  }
}

TEST(Endpoints, EmbeddingsAreNoneOfTheEngines) {
  const auto decoded = DecodeText(Endpoint::kEmbeddings, R"({"model":"smol","input":"x"})");
  const auto* error = std::get_if<HttpError>(&decoded);
  ASSERT_NE(error, nullptr);
  EXPECT_EQ(error->status, 400);
  EXPECT_EQ(error->code, "unsupported_endpoint");
  EXPECT_NE(error->message.find("`smol`"), error->message.npos);
  EXPECT_NE(error->message.find("upstream"), error->message.npos);
}

// A field is left out of the fingerprint only where the answer does not repeat it.
TEST(Endpoints, ExcludedFields) {
  const auto fingerprint = [](Endpoint endpoint, const std::string& more) {
    return Fingerprint({.name_space = "shared",
                        .endpoint = std::string(EndpointPath(endpoint)),
                        .request = std::get<json::Value>(ParseBody(Body(endpoint, more))),
                        .identity = json::Value::MakeObject(),
                        .extra = {}});
  };
  struct Case {
    Endpoint endpoint;
    const char* more;
    bool counts;
  };
  const Case cases[] = {
      {kRespond, R"(,"stream":true)", false},
      {kRespond, R"(,"stream_options":{"include_obfuscation":false})", false},
      {kRespond, R"(,"user":"u")", true},
      {kRespond, R"(,"metadata":{"a":"b"})", true},
      {kRespond, R"(,"frob":1)", true},
      {kMessage, R"(,"stream":true)", false},
      {kMessage, R"(,"metadata":{"user_id":"u"})", false},
      {kMessage, R"(,"user":"u")", true},
      {kCount, R"(,"stream":true)", true},
      {Endpoint::kEmbeddings, R"(,"user":"u")", false},
      {Endpoint::kEmbeddings, R"(,"encoding_format":"base64")", true},
  };
  for (const Case& c : cases) {
    EXPECT_EQ(fingerprint(c.endpoint, c.more) != fingerprint(c.endpoint, ""), c.counts)
        << EndpointPath(c.endpoint) << c.more;
  }
  const std::pair<Endpoint, const char*> ids[] = {{Endpoint::kChatCompletions, "chatcmpl-00"},
                                                  {Endpoint::kCompletions, "cmpl-00"},
                                                  {kRespond, "resp_00"},
                                                  {kMessage, "msg_00"}};
  for (const auto& [endpoint, want] : ids) {
    EXPECT_TRUE(AnswerId(EndpointPath(endpoint), {}).starts_with(want)) << want;
  }
}

}  // namespace
}  // namespace verbatim::gateway
