#include "gateway/upstream/request_body.h"

#include <gtest/gtest.h>

#include <random>

namespace verbatim::gateway {
namespace {

json::Value Parse(std::string_view text) {
  auto value = json::Parse(text);
  EXPECT_TRUE(value.ok()) << text << ": " << (value.ok() ? "" : value.error().message);
  return value.ok() ? *value : json::Value();
}

TEST(RequestBody, WhatTheGatewayReads) {
  const auto decoded = DecodeForUpstream(
      Endpoint::kChatCompletions,
      Parse(R"({"model":"m","stream":true,"stream_options":{"include_usage":true},"seed":-1})"));
  ASSERT_TRUE(std::holds_alternative<GenerationRequest>(decoded));
  const auto& request = std::get<GenerationRequest>(decoded);
  EXPECT_EQ(request.model, "m");
  EXPECT_TRUE(request.stream);
  EXPECT_TRUE(request.include_usage);
  EXPECT_EQ(request.seed, UINT64_MAX);
}

TEST(RequestBody, WhatItRefuses) {
  struct Case {
    const char* body;
    const char* param;  // "accepted" where it is
  };
  const Case cases[] = {
      {R"([])", ""},
      {R"({})", "model"},
      {R"({"model":null})", "model"},
      {R"({"model":""})", "model"},
      {R"({"model":3})", "model"},
      {R"({"model":"m","stream":"yes"})", "stream"},
      {R"({"model":"m","deterministic":true})", "deterministic"},
      {R"({"model":"m","deterministic":1})", "deterministic"},
      {R"({"model":"m","deterministic":false})", "accepted"},
      {R"({"model":"m","stream":null,"seed":null,"stream_options":null})", "accepted"},
      {R"({"model":"m","seed":"x","stream_options":3,"temperature":"hot","messages":7})",
       "accepted"},
  };
  for (const Case& c : cases) {
    const auto decoded = DecodeForUpstream(Endpoint::kChatCompletions, Parse(c.body));
    const auto* error = std::get_if<HttpError>(&decoded);
    EXPECT_EQ(error ? error->param : "accepted", c.param) << c.body;
    EXPECT_EQ(error ? error->status : 400, 400);
  }
}

TEST(RequestBody, Splicing) {
  struct Case {
    const char* text;
    const char* model;
    bool ask_usage;
    const char* want;
  };
  const Case cases[] = {
      {R"({"model":"m","x":1})", "m", false, R"({"model":"m","x":1})"},
      {R"({"model":"m","x":1})", "other", false, R"({"model":"other","x":1})"},
      {R"({ "model" : "\u006d" , "id" : 2512292042121000001 , "f" : 1.0e+2 })", "m", false,
       R"({"model":"\u006d","id":2512292042121000001,"f":1.0e+2})"},
      {R"({"messages":[ {"content" : "\ud800 \/ \u00e9"} ],"model":"a"})", "b", false,
       R"({"messages":[ {"content" : "\ud800 \/ \u00e9"} ],"model":"b"})"},
      {R"({"model":"m","deterministic":false,"x":[]})", "m", false, R"({"model":"m","x":[]})"},
      {R"({"model":"m","stream":true})", "m", true,
       R"({"model":"m","stream":true,"stream_options":{"include_usage":true}})"},
      {R"({"model":"m","stream_options":null})", "m", true,
       R"({"model":"m","stream_options":{"include_usage":true}})"},
      {R"({"model":"m","stream_options":{"include_usage":false,"z":"\u0041"},"x":1})", "m", true,
       R"({"model":"m","stream_options":{"include_usage":true,"z":"\u0041"},"x":1})"},
      {R"({"stream_options":{"z":[ 1 ]},"model":"m"})", "m", true,
       R"({"stream_options":{"z":[ 1 ],"include_usage":true},"model":"m"})"},
  };
  for (const Case& c : cases) {
    EXPECT_EQ(UpstreamBody(Parse(c.text), c.text, {.model = c.model, .ask_usage = c.ask_usage}),
              c.want)
        << c.text;
  }
}

TEST(RequestBody, PolicysValuesTakeTheirPlace) {
  const std::string text = R"({"model":"m","temperature":0.70,"top_p":1.0,"messages":[ 1 ]})";
  json::Value body = Parse(text);
  body.Set("temperature", 0);
  body.Set("seed", uint64_t{18446744073709551615u});
  body.Erase("top_p");
  EXPECT_EQ(UpstreamBody(body, text, {.model = "m"}),
            R"({"model":"m","temperature":0,"messages":[ 1 ],"seed":18446744073709551615})");
  EXPECT_EQ(UpstreamBody(body, "", {.model = "m"}),
            R"({"model":"m","temperature":0,"messages":[1],"seed":18446744073709551615})")
      << "without the text, every value is written anew";
  EXPECT_EQ(UpstreamBody(body, std::string(text.size(), ' '), {.model = "m"}),
            R"({"model":"m","temperature":0,"messages":[1],"seed":18446744073709551615})")
      << "another text is not taken for it";
}

// A random JSON value as text, with spaces, odd numbers and escapes.
std::string RandomJson(std::mt19937& random, int depth) {
  static const char* kNumbers[] = {"0",
                                   "-0",
                                   "1.0",
                                   "1e0",
                                   "1E+2",
                                   "9007199254740993",
                                   "1e400",
                                   "0.10",
                                   "-5.5",
                                   "1e-7",
                                   "2512292042121000001"};
  static const char* kTexts[] = {R"("")",       R"("a b")", R"("\u0041")", R"("\ud83d\ude00")",
                                 R"("\udc00")", R"("é\/")", R"("\n\"\\")"};
  static const char* kSpaces[] = {"", "", " ", "\n\t"};
  const auto space = [&] { return std::string(kSpaces[random() % 4]); };
  switch (random() % (depth > 3 ? 3 : 5)) {
    case 0:
      return kNumbers[random() % std::size(kNumbers)];
    case 1:
      return kTexts[random() % std::size(kTexts)];
    case 2:
      return random() % 2 ? "null" : "true";
    default:
      break;
  }
  const bool object = random() % 2;
  std::string out = object ? "{" : "[";
  const size_t members = random() % 4;
  for (size_t i = 0; i < members; ++i) {
    if (i > 0) out += ",";
    out += space();
    if (object) out += "\"k" + std::to_string(i) + "\"" + space() + ":" + space();
    out += RandomJson(random, depth + 1) + space();
  }
  return out + (object ? "}" : "]");
}

TEST(RequestBody, UnchangedValuesKeepTheirBytes) {
  std::mt19937 random(7);
  for (int round = 0; round < 2000; ++round) {
    std::string text = "{\"model\": \"m\"";
    for (size_t i = 0; i < 1 + random() % 5; ++i) {
      text += ", \"f" + std::to_string(i) + "\": " + RandomJson(random, 0);
    }
    text += "}";
    const json::Value original = Parse(text);
    json::Value body = original;
    const bool ask = random() % 2;
    if (random() % 2) body.Set("f0", json::Value(json::Array{json::Value(round)}));
    if (random() % 2) body.Set("added", "by policy");

    const std::string out = UpstreamBody(body, text, {.model = "theirs", .ask_usage = ask});
    json::Value want = body;
    want.Set("model", "theirs");
    if (ask) want.Set("stream_options", Parse(R"({"include_usage":true})"));
    const json::Value got = Parse(out);
    ASSERT_TRUE(got == want) << text << "\n" << out;
    for (const auto& [name, value] : original.members()) {
      if (name == "model" || name == "f0") continue;
      const json::Value* sent = got.Find(name);
      ASSERT_TRUE(sent);
      EXPECT_EQ(out.substr(sent->text_begin(), sent->text_end() - sent->text_begin()),
                text.substr(value.text_begin(), value.text_end() - value.text_begin()));
    }
    EXPECT_EQ(out, UpstreamBody(body, text, {.model = "theirs", .ask_usage = ask}));
  }
}

std::string Name(Reuse reuse) {
  return reuse == Reuse::kAlways ? "always" : reuse == Reuse::kSampled ? "sampled" : "stateful";
}

TEST(Reuse, SampledUnlessTheRequestSaysOtherwise) {
  struct Case {
    Endpoint endpoint;
    const char* body;
    const char* want;
  };
  const Case cases[] = {
      {Endpoint::kChatCompletions, R"({})", "sampled"},
      {Endpoint::kChatCompletions, R"({"temperature":1})", "sampled"},
      {Endpoint::kChatCompletions, R"({"temperature":0.001})", "sampled"},
      {Endpoint::kChatCompletions, R"({"temperature":"0"})", "sampled"},
      {Endpoint::kChatCompletions, R"({"temperature":null,"seed":null})", "sampled"},
      {Endpoint::kChatCompletions, R"({"temperature":0})", "always"},
      {Endpoint::kChatCompletions, R"({"temperature":0.0})", "always"},
      {Endpoint::kChatCompletions, R"({"temperature":-0e5})", "always"},
      {Endpoint::kChatCompletions, R"({"temperature":1,"seed":0})", "always"},
      {Endpoint::kMessages, R"({"temperature":0})", "always"},
      {Endpoint::kMessages, R"({})", "sampled"},
      {Endpoint::kResponses, R"({"temperature":0,"store":true})", "always"},
      {Endpoint::kEmbeddings, R"({"input":"https://example.com/a.png"})", "always"},
      {Endpoint::kCountTokens, R"({"messages":[]})", "always"},
  };
  for (const Case& c : cases) {
    EXPECT_EQ(Name(ReuseOf(c.endpoint, Parse(c.body))), c.want) << c.body;
  }
}

TEST(Reuse, WhatDependsOnSomethingElsewhere) {
  struct Case {
    const char* member;
    bool stateful;
  };
  const Case cases[] = {
      {R"("previous_response_id":"resp_1")", true},
      {R"("previous_response_id":null)", false},
      {R"("conversation":{"id":"conv_1"})", true},
      {R"("conversation":"conv_1")", true},
      {R"("background":true)", true},
      {R"("background":false)", false},
      {R"("prompt":{"id":"pmpt_1"})", true},
      {R"("prompt":"Once")", false},
      {R"("prompt":["a","b"])", false},
      {R"("container":"cntr_1")", true},
      {R"("container":null)", false},
      {R"("mcp_servers":[])", false},
      {R"("mcp_servers":[{"url":"https://x"}])", true},
      {R"("web_search_options":{})", true},
      {R"("data_sources":[{}])", true},
      {R"("model":"gpt-4o-search-preview")", true},
      {R"("model":"openai/gpt-4o:online")", true},
      {R"("model":"gpt-4o")", false},
      // Tools: at the client, or elsewhere.
      {R"("tools":[{"type":"function","function":{"name":"file_search"}}])", false},
      {R"("tools":[{"type":"custom","name":"web_search"}])", false},
      {R"("tools":[{"name":"get_weather","input_schema":{"file_id":"x"}}])", false},
      {R"("tools":[{"type":"bash_20250124","name":"bash"}])", false},
      {R"("tools":[{"type":"text_editor_20250728","name":"e"}])", false},
      {R"("tools":[])", false},
      {R"("tools":null)", false},
      {R"("tools":[{"type":"function"},{"type":"web_search"}])", true},
      {R"("tools":[{"type":"web_search_preview_2025_03_11"}])", true},
      {R"("tools":[{"type":"web_search_20250305","name":"web_search"}])", true},
      {R"("tools":[{"type":"web_fetch_20250910","name":"web_fetch"}])", true},
      {R"("tools":[{"type":"code_execution_20250522","name":"x"}])", true},
      {R"("tools":[{"type":"file_search","vector_store_ids":["vs_1"]}])", true},
      {R"("tools":[{"type":"code_interpreter","container":{"type":"auto"}}])", true},
      {R"("tools":[{"type":"computer_use_preview"}])", true},
      {R"("tools":[{"type":"computer_20250124","name":"computer"}])", true},
      {R"("tools":[{"type":"image_generation"}])", true},
      {R"("tools":[{"type":"mcp","server_url":"https://x"}])", true},
      {R"("tools":[{"type":"something_new"}])", true},
      {R"("tools":"all")", true},
      {R"("tools":[{"google_search":{}}])", true},
      {R"("tools":[{"name":"web_search"}])", true},
      {R"("tools":[{"function":{"name":"f"}}])", false},
      {R"("tools":[{"name":"f","parameters":{}}])", false},
      // Switches and models.
      {R"("enable_search":true)", true},
      {R"("enable_search":false)", false},
      {R"("search_mode":"web")", true},
      {R"("kv_transfer_params":{"remote":"x"})", true},
      {R"("models":["a","b"])", true},
      {R"("models":[])", false},
      {R"("route":"fallback")", true},
      {R"("model":"sonar-pro")", true},
      {R"("model":"perplexity/sonar")", true},
      {R"("model":"groq/compound-mini")", true},
      {R"("model":"compound-beta")", true},
      {R"("model":"my-sonar")", false},
      {R"("documents":[{"url":"https://x"}])", true},
      {R"("documents":[{"text":"https://x"}])", false},
      {R"("documents":["https://x"])", false},
      // Parts of conversations.
      {R"("messages":[{"role":"user","content":"https://example.com file_id"}])", false},
      {R"("messages":[{"content":[{"type":"image_url","image_url":{"url":"https://x/a.png"}}]}])",
       true},
      {R"("messages":[{"content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,"}}]}])",
       false},
      {R"("messages":[{"content":[{"type":"file","file":{"file_id":"file-1"}}]}])", true},
      {R"("messages":[{"content":[{"type":"file","file":{"file_data":"data:"}}]}])", false},
      {R"("messages":[{"content":[{"type":"input_audio","input_audio":{"data":"UklG"}}]}])", false},
      {R"("messages":[{"role":"assistant","audio":{"id":"audio_1"}}])", true},
      {R"("messages":[{"content":[{"type":"image","source":{"type":"url","url":"https://x"}}]}])",
       true},
      {R"("messages":[{"content":[{"type":"document","source":{"type":"file","file_id":"f"}}]}])",
       true},
      {R"("messages":[{"content":[{"type":"image","source":{"type":"base64","data":""}}]}])",
       false},
      {R"("messages":[{"content":[{"type":"document","source":{"type":"content","content":[)"
       R"({"type":"image","source":{"type":"url","url":"https://x"}}]}}]}])",
       true},
      {R"("messages":[{"content":[{"type":"tool_result","content":[{"type":"image",)"
       R"("source":{"type":"url","url":"https://x"}}]}]}])",
       true},
      {R"("messages":[{"content":[{"type":"tool_use","input":{"file_id":"x","a_url":"https://x"}}]}])",
       false},
      {R"("messages":[{"content":[{"type":"container_upload","file_id":"f"}]}])", true},
      {R"("messages":[{"tool_calls":[{"function":{"arguments":"{\"file_id\":\"x\"}"}}]}])", false},
      {R"("system":[{"type":"text","text":"file_id"}])", false},
      {R"("messages":[{"content":[{"type":"text","text":"https://x is down"}]}])", false},
      {R"("messages":[{"content":["https://x"]}])", false},
      {R"("messages":[{"content":[{"type":"image","url":"https://x/a"}]}])", true},
      {R"("messages":[{"content":[{"type":"image","url":"data:,"}]}])", false},
      {R"("messages":[{"content":[{"type":"video","video":" HTTPS://x/a"}]}])", true},
      {R"("messages":[{"content":[{"type":"video","video":["data:,","gs://b/o"]}]}])", true},
      {R"("messages":[{"content":[{"type":"a","input_audio":{"data":"s3://b/o"}}]}])", true},
      {R"("messages":[{"content":[{"type":"file","path":"file:///etc/x"}]}])", true},
      {R"("messages":[{"content":[{"type":"file","path":"no scheme ://x"}]}])", false},
      {R"("messages":[{"content":[{"type":"image_url","image_url":null,"uuid":"a"}]}])", true},
      {R"("messages":[{"content":[{"type":"image_url","image_url":"data:,","uuid":"a"}]}])", false},
      {R"("messages":[{"content":[{"type":"search_result","source":"https://x","content":[]}]}])",
       false},
      {R"("messages":[{"tool_calls":[{"function":{"arguments":"https://x"}}]}])", false},
      {R"("input":[{"type":"message","content":[{"type":"output_text","text":"a",)"
       R"("annotations":[{"type":"url_citation","url":"https://x"}]}]}])",
       false},
      {R"("input":[{"type":"function_call_output","output":"https://x"}])", false},
      {R"("input":"Hello")", false},
      {R"("input":[{"role":"user","content":[{"type":"input_image","image_url":"https://x"}]}])",
       true},
      {R"("input":[{"role":"user","content":[{"type":"input_image","image_url":"data:,"}]}])",
       false},
      {R"("input":[{"role":"user","content":[{"type":"input_file","file_id":"file-1"}]}])", true},
      {R"("input":[{"role":"user","content":[{"type":"input_file","file_url":"https://x"}]}])",
       true},
      {R"("input":[{"role":"user","content":[{"type":"input_file","file_data":"data:,"}]}])",
       false},
      {R"("input":[{"type":"item_reference","id":"msg_1"}])", true},
      {R"("input":[{"type":"reasoning","id":"rs_1","summary":[]}])", true},
      {R"("input":[{"type":"reasoning","id":"rs_1","encrypted_content":"g"}])", false},
  };
  for (const Case& c : cases) {
    const std::string body = std::string("{") + c.member + ",\"temperature\":0}";
    EXPECT_EQ(Name(ReuseOf(Endpoint::kResponses, Parse(body))), c.stateful ? "stateful" : "always")
        << body;
  }
}

TEST(RequestBody, ParametersForTheRecord) {
  EXPECT_EQ(json::Serialize(ParametersOf(Parse(
                R"({"model":"m","temperature":0.70,"seed":18446744073709551616,"max_tokens":null,
                    "top_p":"x","messages":[],"n":2})"))),
            R"({"n":2,"seed":18446744073709551616,"temperature":0.70})");
}

}  // namespace
}  // namespace verbatim::gateway
