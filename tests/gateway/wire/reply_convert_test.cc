#include "gateway/wire/reply_convert.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

#include "gateway/wire/reply_reader.h"
#include "gateway/wire/sse.h"
#include "tests/gateway/wire/vectors.h"

namespace verbatim::gateway {
namespace {

using json::Value;
using test::Packets;
using test::ParseJson;
using test::Recording;
using test::WithCrLf;

constexpr auto kChat = Endpoint::kChatCompletions;
constexpr auto kCompletions = Endpoint::kCompletions;
constexpr auto kMessages = Endpoint::kMessages;
constexpr auto kResponses = Endpoint::kResponses;

std::string Events(std::initializer_list<std::string_view> all) {
  std::string out;
  for (std::string_view data : all) out.append("data: ").append(data).append("\n\n");
  return out;
}

std::string Chunks(std::initializer_list<std::string_view> all) {
  return Events(all) + "data: [DONE]\n\n";
}

// A chunk with one delta for choice 0, and the end of that choice.
std::string Delta(std::string_view delta) {
  return R"({"id":"c","choices":[{"index":0,"delta":)" + std::string(delta) + "}]}";
}
constexpr const char* kStop =
    R"({"id":"c","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]})";

bool IsComplete(Endpoint endpoint, bool streamed, std::string_view body, uint32_t choices = 1) {
  ReplyReader reader(endpoint, streamed, {.choices = choices});
  reader.Feed(body);
  std::vector<ReplyPiece> rest;
  return reader.Finish(true, rest).complete;
}

std::string Text(const Value& object, std::string_view name) {
  const Value* v = object.Find(name);
  return v != nullptr && v->is_string() ? v->as_string() : "";
}

TEST(StreamToPlain, MergesDeltas) {
  struct Case {
    const char* name;
    std::vector<std::string> deltas;
    const char* message;
  };
  const Case cases[] = {
      {"text",
       {R"({"role":"assistant","content":""})", R"({"content":"Hé"})", R"({"content":"llo"})"},
       R"({"role":"assistant","content":"Héllo"})"},
      {"content before any role",
       {R"({"content":"a"})", R"({"role":"assistant"})"},
       R"({"role":"assistant","content":"a"})"},
      {"no text at all",
       {R"({"role":"assistant","content":null,"refusal":null})"},
       R"({"role":"assistant","content":null,"refusal":null})"},
      {"refusal",
       {R"({"content":null,"refusal":"I "})", R"({"refusal":"won't"})"},
       R"({"content":null,"refusal":"I won't"})"},
      {"a lone surrogate",
       {R"({"content":"\ud83d"})", R"({"content":"x"})"},
       R"({"content":"\ud83dx"})"},
      {"reasoning of each name",
       {R"({"reasoning":"a","reasoning_content":"1","channel":"analysis"})",
        R"({"reasoning":"b","reasoning_content":"2","channel":"final"})"},
       R"({"reasoning":"ab","reasoning_content":"12"})"},
      {"tool calls by index",
       {R"({"tool_calls":[{"index":0,"id":"a","type":"function","function":{"name":"f","arguments":""}}]})",
        R"({"tool_calls":[{"index":1,"id":"b","type":"function","function":{"name":"g","arguments":"{\"id\":"}}]})",
        R"({"tool_calls":[{"index":0,"function":{"arguments":"{}"}},{"index":1,"id":"","function":{"name":"","arguments":"2512292042121000001}"}}]})"},
       R"({"tool_calls":[{"id":"a","type":"function","function":{"name":"f","arguments":"{}"}},
                         {"id":"b","type":"function","function":{"name":"g","arguments":"{\"id\":2512292042121000001}"}}]})"},
      {"whole tool calls without an index",
       {R"({"tool_calls":[{"id":"","function":{"name":"f","arguments":"{}"}},{"function":{"name":"g","arguments":"{}"}}]})"},
       R"({"tool_calls":[{"id":"","type":"function","function":{"name":"f","arguments":"{}"}},
                         {"type":"function","function":{"name":"g","arguments":"{}"}}]})"},
      {"custom tools",
       {R"({"tool_calls":[{"index":0,"id":"a","type":"custom","custom":{"name":"f","input":"x"}}]})",
        R"({"tool_calls":[{"index":0,"custom":{"input":"y"}}]})"},
       R"({"tool_calls":[{"id":"a","type":"custom","custom":{"name":"f","input":"xy"}}]})"},
      {"a function call",
       {R"({"function_call":{"name":"f","arguments":""}})",
        R"({"function_call":{"arguments":"{}"}})"},
       R"({"function_call":{"name":"f","arguments":"{}"}})"},
      {"content that is a list",
       {R"({"content":""})",
        R"({"content":[{"type":"thinking","thinking":[{"type":"text","text":"Let "}]}]})",
        R"({"content":[{"type":"thinking","thinking":[{"type":"text","text":"me"}]}]})",
        R"({"content":"So"})", R"({"content":" it is"})",
        R"({"content":[{"type":"reference","reference_ids":[1]}]})", R"({"content":""})"},
       R"({"content":[{"type":"thinking","thinking":[{"type":"text","text":"Let me"}]},
                      {"type":"text","text":"So it is"},{"type":"reference","reference_ids":[1]}]})"},
      {"reasoning details",
       {R"({"reasoning_details":[]})",
        R"({"reasoning_details":[{"type":"reasoning.text","text":"a","format":"f","index":0}]})",
        R"({"reasoning_details":[{"type":"reasoning.text","text":"b","format":"f","index":0},{"type":"reasoning.encrypted","data":"x","index":1}]})",
        R"({"reasoning_details":[{"type":"reasoning.text","signature":"s","index":0}]})"},
       R"({"reasoning_details":[{"type":"reasoning.text","text":"ab","signature":"s","format":"f","index":0},
                                {"type":"reasoning.encrypted","data":"x","index":1}]})"},
      {"annotations",
       {R"({"annotations":[{"a":0.10}]})", R"({"annotations":[{"b":1e2}]})"},
       R"({"annotations":[{"a":0.10},{"b":1e2}]})"},
      {"what is null says nothing",
       {R"({"content":"a","tool_calls":null,"audio":null})"},
       R"({"content":"a","tool_calls":null,"audio":null})"},
  };
  for (const Case& c : cases) {
    std::string stream;
    for (const std::string& delta : c.deltas) stream += Events({Delta(delta)});
    const auto plain = StreamToPlain(kChat, stream + Chunks({kStop}));
    ASSERT_TRUE(plain.has_value()) << c.name;
    const Value body = ParseJson(*plain);
    const Value& choice = body.Find("choices")->items().at(0);
    EXPECT_EQ(json::Canonical(*choice.Find("message")), json::Canonical(ParseJson(c.message)))
        << c.name;
    EXPECT_EQ(Text(choice, "finish_reason"), "stop") << c.name;
    EXPECT_TRUE(IsComplete(kChat, false, *plain)) << c.name;
  }
}

TEST(StreamToPlain, WhatIsUnknownIsAMiss) {
  const std::string deltas[] = {
      R"({"new_field":"a"})",
      R"({"audio":{"data":"AA=="}})",
      R"({"content":{"text":"a"}})",
      R"({"content":[{"type":"image_url","image_url":"u"}]})",
      R"({"content":[{"type":"text","text":"a","extra":1}]})",
      R"({"tool_calls":[{"index":"0","id":"a"}]})",
      R"({"tool_calls":[{"index":0,"mystery":1}]})",
      R"({"tool_calls":[{"function":{"arguments":"{"}}]})",
      R"({"tool_calls":[{"index":0,"function":{"arguments":{}}}]})",
      R"({"tool_calls":[{"index":0,"id":"a"},{"index":0,"id":"b"}]})",
      R"({"tool_calls":{}})",
      R"({"reasoning_details":[{"type":"reasoning.text","index":0,"mystery":1}]})",
      R"({"annotations":"a"})",
      R"("a")",
  };
  for (const std::string& delta : deltas) {
    EXPECT_FALSE(StreamToPlain(kChat, Chunks({Delta(delta), kStop}))) << delta;
  }
  const std::string streams[] = {
      Events({Delta("{}"), kStop}),                                  // no [DONE]
      Chunks({}),                                                    // nothing
      Chunks({kStop, R"({"error":{"message":"x"},"choices":[]})"}),  // an error
      "event: error\ndata: {}\n\n" + Chunks({kStop}),                // likewise
      "event: news\ndata: {}\n\n" + Chunks({kStop}),                 // an event of another name
      Chunks({"{", kStop}),                                          // no JSON
      Chunks({R"({"choices":[{"index":1,"delta":{}}]})"}),           // no choice 0
      Chunks({R"({"x":1,"choices":[]})", R"({"x":2,"choices":[]})", kStop}),  // two values
      Chunks({R"({"choices":[{"index":0,"logprobs":{"other":[]}}]})"}),
      Chunks({R"({"choices":[{"index":0,"delta":{"content":"ab"},"message":{"content":"a"}}]})"}),
      "",
  };
  for (const std::string& stream : streams) EXPECT_FALSE(StreamToPlain(kChat, stream)) << stream;
  EXPECT_FALSE(StreamToPlain(Endpoint::kEmbeddings, Chunks({kStop})));
}

std::string MessageStream(std::initializer_list<std::string_view> inside) {
  return Events(
             {R"({"type":"message_start","message":{"id":"m","type":"message","role":"assistant","content":[],"model":"c","stop_reason":null,"usage":{"input_tokens":9,"output_tokens":1}}})",
              R"({"type": "ping"})"}) +
         Events(inside) +
         Events(
             {R"({"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"input_tokens":null,"output_tokens":5}})",
              R"({"type":"message_stop"})"});
}

// No choice of input makes merging slow or large: all of it takes well under a second.
TEST(StreamToPlain, MoreThanAnyAnswerHasIsAMiss) {
  const auto repeated = [](int n, auto&& one) {
    std::string all;
    for (int i = 0; i < n; ++i) all += (i > 0 ? "," : "") + one(std::to_string(i));
    return all;
  };
  const std::string many_choices =
      R"({"choices":[)" + repeated(50000, [](auto i) { return R"({"index":)" + i + "}"; }) + "]}";
  const std::string many_calls =
      Delta(R"({"tool_calls":[)" +
            repeated(50000, [](auto i) { return R"({"index":)" + i + "}"; }) + "]}");
  const std::string many_details =
      Delta(R"({"reasoning_details":[)" +
            repeated(50000, [](auto i) { return R"({"index":)" + i + "}"; }) + "]}");
  const std::string many_members =
      "{" + repeated(50000, [](auto i) { return "\"m" + i + "\":1"; }) + "}";
  for (const std::string& chunk : {many_choices, many_calls, many_details, many_members}) {
    EXPECT_FALSE(StreamToPlain(kChat, Chunks({chunk, chunk, kStop})));
    ComparableAnswer(kChat, Chunks({chunk, chunk, kStop}), true);
  }
  const std::string usage = R"({"type":"message_delta","delta":{},"usage":)" + many_members + "}";
  EXPECT_FALSE(StreamToPlain(kMessages, MessageStream({usage, usage})));
  EXPECT_FALSE(IsComplete(kMessages, true, MessageStream({usage, usage})));
}

TEST(StreamToPlain, WhatStandsBesideTheDeltas) {
  const std::string stream =
      ": ping\n\n" +
      Chunks(
          {R"({"id":"","created":0,"model":"","object":"","choices":[],"prompt_filter_results":[{"prompt_index":0}]})",
           R"({"id":"c1","object":"chat.completion.chunk","created":7,"model":"m","system_fingerprint":"fp","service_tier":null,"choices":[{"index":1,"delta":{"content":"B"},"logprobs":{"content":[{"token":"B","logprob":-0.10}],"refusal":null},"finish_reason":null}],"usage":null,"obfuscation":"xx"})",
           R"({"id":"c1","created":8,"model":"m","choices":[{"index":0,"delta":{"content":"A"},"logprobs":null,"finish_reason":"length","native_finish_reason":"MAX"}],"citations":["u"],"x_groq":{"id":"q"}})",
           R"({"id":"c1","created":9,"model":"m","choices":[{"index":1,"delta":{"content":"C"},"logprobs":{"content":[{"token":"C","logprob":-1e-05}]},"finish_reason":"stop"}],"citations":["u","v"]})",
           R"({"id":"c1","model":"m","choices":[],"usage":{"total_tokens":3,"cost":0.10},"x_groq":{"usage":1}})"});
  const auto plain = StreamToPlain(kChat, stream);
  ASSERT_TRUE(plain.has_value());
  // Numbers as they came; the rest in a fixed order.
  EXPECT_EQ(
      *plain,
      R"({"id":"c1","object":"chat.completion","created":7,"model":"m","choices":[)"
      R"({"index":0,"message":{"content":"A"},"logprobs":null,"native_finish_reason":"MAX","finish_reason":"length"},)"
      R"({"index":1,"message":{"content":"BC"},"logprobs":{"content":[{"token":"B","logprob":-0.10},{"token":"C","logprob":-1e-05}],"refusal":null},"finish_reason":"stop"}],)"
      R"("usage":{"total_tokens":3,"cost":0.10},"prompt_filter_results":[{"prompt_index":0}],"system_fingerprint":"fp","service_tier":null,"citations":["u","v"],"x_groq":{"id":"q","usage":1}})");
}

TEST(StreamToPlain, Completions) {
  const auto plain = StreamToPlain(
      kCompletions,
      Chunks(
          {R"({"id":"c","object":"text_completion","choices":[{"text":"a","index":0,"logprobs":{"tokens":["a"],"token_logprobs":[null],"text_offset":[0]},"finish_reason":null}]})",
           R"({"id":"c","object":"text_completion","choices":[{"text":"b","index":0,"logprobs":{"tokens":["b"],"token_logprobs":[-0.5],"text_offset":[1]},"finish_reason":"length"}]})"}));
  ASSERT_TRUE(plain.has_value());
  EXPECT_TRUE(
      ParseJson(*plain) ==
      ParseJson(
          R"({"id":"c","object":"text_completion","choices":[{"text":"ab","index":0,"logprobs":
          {"tokens":["a","b"],"token_logprobs":[null,-0.5],"text_offset":[0,1]},"finish_reason":"length"}]})"))
      << *plain;
}

TEST(StreamToPlain, Messages) {
  const auto plain = StreamToPlain(
      kMessages,
      MessageStream(
          {R"({"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":"","signature":""}})",
           R"({"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"Hm"}})",
           R"({"type":"content_block_delta","index":0,"delta":{"type":"signature_delta","signature":"c2ln"}})",
           R"({"type":"content_block_stop","index":0})",
           R"({"type":"content_block_start","index":1,"content_block":{"type":"text","text":""}})",
           R"({"type":"content_block_delta","index":1,"delta":{"type":"citations_delta","citation":{"start":0}}})",
           R"({"type":"content_block_delta","index":1,"delta":{"type":"text_delta","text":"a"}})",
           R"({"type":"content_block_delta","index":1,"delta":{"type":"text_delta","text":"b"}})",
           R"({"type":"content_block_stop","index":1})",
           R"({"type":"content_block_start","index":2,"content_block":{"type":"tool_use","id":"t","name":"f","input":{}}})",
           R"({"type":"content_block_delta","index":2,"delta":{"type":"input_json_delta","partial_json":""}})",
           R"({"type":"content_block_delta","index":2,"delta":{"type":"input_json_delta","partial_json":"{\"id\": 25122920421"}})",
           R"({"type":"content_block_delta","index":2,"delta":{"type":"input_json_delta","partial_json":"21000001, \"x\": 0.10}"}})",
           R"({"type":"content_block_stop","index":2})",
           R"({"type":"content_block_start","index":3,"content_block":{"type":"web_search_tool_result","content":[{"url":"u"}]}})",
           R"({"type":"content_block_stop","index":3})"}));
  ASSERT_TRUE(plain.has_value());
  EXPECT_EQ(
      *plain,
      R"({"id":"m","type":"message","role":"assistant","content":[)"
      R"({"type":"thinking","thinking":"Hm","signature":"c2ln"},)"
      R"({"type":"text","text":"ab","citations":[{"start":0}]},)"
      R"({"type":"tool_use","id":"t","name":"f","input":{"id":2512292042121000001,"x":0.10}},)"
      R"({"type":"web_search_tool_result","content":[{"url":"u"}]}],)"
      R"("model":"c","stop_reason":"end_turn","usage":{"input_tokens":9,"output_tokens":5}})");

  const std::string_view begin =
      R"({"type":"content_block_start","index":0,"content_block":{"type":"tool_use","input":{}}})";
  const std::string_view end = R"({"type":"content_block_stop","index":0})";
  const std::string misses[] = {
      MessageStream(
          {begin,
           R"({"type":"content_block_delta","index":0,"delta":{"type":"new_delta","x":"y"}})",
           end}),
      MessageStream(
          {begin,
           R"({"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"y","z":1}})",
           end}),
      MessageStream(
          {begin,
           R"({"type":"content_block_delta","index":0,"delta":{"type":"input_json_delta","partial_json":"{\"a\":"}})",
           end}),
      MessageStream({begin}),              // no stop
      MessageStream({begin, begin, end}),  // begun twice
      MessageStream({end}),                // never begun
      MessageStream(
          {R"({"type":"content_block_delta","index":7,"delta":{"type":"text_delta","text":"a"}})"}),
      MessageStream({R"({"type":"news"})"}),
      MessageStream({R"({"type":"error","error":{}})"}),
      MessageStream({R"({"type":"message_start","message":{"id":"other","content":[]}})"}),
      Events({R"({"type":"message_stop"})"}),
  };
  for (const std::string& stream : misses) EXPECT_FALSE(StreamToPlain(kMessages, stream)) << stream;
}

TEST(StreamToPlain, ResponsesAreTheTextOfTheLastEvent) {
  const std::string delta = R"({"type":"response.output_text.delta","delta":"a"})";
  const std::string whole =
      R"({"id":"r",  "status":"completed","output":[{"type":"message","content":[{"type":"output_text","text":"a","x":0.10}]}]})";
  const std::string completed = R"({"type":"response.completed","response":)" + whole + "}";
  EXPECT_EQ(StreamToPlain(kResponses, Events({delta, completed})), whole);
  EXPECT_FALSE(StreamToPlain(kResponses, Events({delta, delta, completed})))
      << "not what was streamed";
  EXPECT_FALSE(StreamToPlain(kResponses, Events({delta})));
  EXPECT_FALSE(StreamToPlain(kResponses,
                             Events({R"({"type":"response.failed","response":{}})", completed})));
}

// There and back again: the same JSON value, whatever of the known fields a body has.
TEST(PlainToStream, ComesBackAsItWas) {
  struct Case {
    Endpoint endpoint;
    const char* body;
  };
  const Case cases[] = {
      {kChat,
       R"({"id":"c","object":"chat.completion","created":1,"model":"m","system_fingerprint":null,"service_tier":"default",
           "choices":[{"index":0,"message":{"role":"assistant","content":"Hi","refusal":null,"annotations":[]},"logprobs":null,"finish_reason":"stop"}],
           "usage":{"prompt_tokens":1,"cost":0.10}})"},
      {kChat,
       R"({"id":"c","object":"chat.completion","choices":[
           {"index":0,"message":{"role":"assistant","content":null,"reasoning_content":"hm","tool_calls":[
              {"id":"a","type":"function","function":{"name":"f","arguments":"{\"id\":2512292042121000001}"}},
              {"index":1,"id":"b","type":"function","function":{"name":"g","arguments":""},"extra_content":{"google":{"thought_signature":"x"}}}]},"finish_reason":"tool_calls"},
           {"index":1,"message":{"role":"assistant","content":"b"},"logprobs":{"content":[{"token":"b","logprob":-0.10,"bytes":[98],"top_logprobs":[]}],"refusal":null},"finish_reason":"length"}],
           "citations":["u"],"moderation":{"a":7.10e-5},"usage":{"prompt_tokens":1}})"},
      {kChat,
       R"({"id":"c","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":[
           {"type":"thinking","thinking":[{"type":"text","text":"a"}]},{"type":"text","text":"b"},{"type":"text","text":"c"}]},
           "finish_reason":"stop","native_finish_reason":"STOP","content_filter_results":{"hate":{"filtered":false}}}]})"},
      {kChat,
       R"({"id":"","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"","reasoning":"x","reasoning_details":[
           {"type":"reasoning.text","text":"a","index":0},{"type":"reasoning.text","text":"b","signature":null,"index":0}]},"finish_reason":"stop"}]})"},
      {kCompletions,
       R"({"id":"c","object":"text_completion","created":1,"model":"m","choices":[{"text":"a\u2028","index":0,"logprobs":{"tokens":["a"],"token_logprobs":[-1e-3]},"finish_reason":"stop"},
           {"text":"","index":1,"logprobs":null,"finish_reason":"length"}],"usage":{"prompt_tokens":1}})"},
      {kMessages,
       R"({"id":"m","type":"message","role":"assistant","model":"c","content":[
           {"type":"thinking","thinking":"hm","signature":"s"},{"type":"redacted_thinking","data":"xx"},
           {"type":"text","text":"a","citations":[{"x":0.10},{"y":1}]},{"type":"text","text":"b","citations":null},
           {"type":"tool_use","id":"t","name":"f","input":{"id":2512292042121000001}},
           {"type":"server_tool_use","id":"s","name":"web_search","input":{}},
           {"type":"web_search_tool_result","tool_use_id":"s","content":[{"type":"web_search_result","url":"u"}]}],
           "stop_reason":"tool_use","stop_sequence":null,"stop_details":null,"container":null,"context_management":{"applied_edits":[]},
           "usage":{"input_tokens":3,"output_tokens":4,"service_tier":null}})"},
      {kResponses,
       R"({"id":"r","object":"response","status":"completed","error":null,"model":"m","temperature":1.0,"output":[
           {"type":"reasoning","id":"rs","summary":[{"type":"summary_text","text":"hm"}],"content":[{"type":"reasoning_text","text":"hm"}]},
           {"type":"message","id":"ms","role":"assistant","status":"completed","content":[
             {"type":"output_text","text":"a","annotations":[{"type":"url_citation"}],"logprobs":[]},{"type":"refusal","refusal":"no"}]},
           {"type":"function_call","id":"fc","call_id":"x","name":"f","arguments":"{}","status":"completed"},
           {"type":"web_search_call","id":"ws","status":"completed","action":{}}],
           "usage":{"input_tokens":1,"output_tokens":2}})"},
      {kResponses,
       R"({"id":"r","status":"incomplete","incomplete_details":{"reason":"max_output_tokens"},"output":[]})"},
  };
  for (const Case& c : cases) {
    for (const bool include_usage : {true, false}) {
      const auto stream = PlainToStream(c.endpoint, c.body, include_usage);
      ASSERT_TRUE(stream.has_value()) << c.body;
      Value want = ParseJson(c.body);
      const auto choices = want.Find("choices");
      EXPECT_TRUE(IsComplete(c.endpoint, true, *stream,
                             choices ? static_cast<uint32_t>(choices->items().size()) : 1))
          << *stream;
      const auto back = StreamToPlain(c.endpoint, *stream);
      ASSERT_TRUE(back.has_value()) << *stream;
      const bool chunked = c.endpoint == kChat || c.endpoint == kCompletions;
      if (chunked && !include_usage) want.Erase("usage");
      // A tool call's place is said twice by some.
      if (Value* calls = choices ? choices->items()[0].Find("message") : nullptr) {
        calls = calls->Find("tool_calls");
        if (calls != nullptr) calls->items().at(1).Erase("index");
      }
      EXPECT_EQ(json::Canonical(ParseJson(*back)), json::Canonical(want));
      EXPECT_EQ(chunked && include_usage && want.Find("usage"),
                stream->find("\"usage\":{\"prompt") != std::string::npos);
      // Comparisons see one answer.
      EXPECT_EQ(FirstDifference(ComparableAnswer(c.endpoint, c.body, false),
                                ComparableAnswer(c.endpoint, *stream, true)),
                "");
    }
  }
}

TEST(PlainToStream, WhatDoesNotComeBackIsAMiss) {
  const std::pair<Endpoint, const char*> cases[] = {
      {kChat,
       R"({"object":"chat.completion","choices":[{"index":0,"message":{"audio":{"id":"a"}},"finish_reason":"stop"}]})"},
      {kChat, R"({"object":"other","choices":[{"index":0,"message":{},"finish_reason":"stop"}]})"},
      {kChat,
       R"({"object":"chat.completion","choices":[{"index":3,"message":{},"finish_reason":"stop"}]})"},
      {kChat, R"({"object":"chat.completion","choices":[]})"},
      {kChat, R"({"object":"chat.completion","choices":{}})"},
      {kChat, R"({"object":"chat.completion","choices":[1]})"},
      {kChat,
       R"({"object":"chat.completion","choices":[{"index":0,"message":{"tool_calls":[1]}}]})"},
      {kChat, R"({"error":{"message":"x"}})"},
      {kChat, "[]"},
      {kChat, ""},
      {kMessages, R"({"type":"message","content":[],"stop_reason":null})"},
      {kMessages, R"({"type":"message","content":[3],"stop_reason":"end_turn"})"},
      {kMessages,
       R"({"type":"message","content":[{"type":"text","text":5}],"stop_reason":"end_turn"})"},
      {kResponses, R"({"status":"queued","output":[]})"},
      {kResponses, R"({"status":"completed","output":[7]})"},
      {Endpoint::kEmbeddings, R"({"data":[]})"},
  };
  for (const auto& [endpoint, body] : cases)
    EXPECT_FALSE(PlainToStream(endpoint, body, true)) << body;
}

TEST(WithoutUsage, OnlyWhatWasAskedForGoes) {
  struct Case {
    const char* event;
    std::optional<std::string> want;
  };
  const Case cases[] = {
      {"data: {\"id\":\"c\",\"choices\":[{\"index\":0}],\"usage\":null}\n\n",
       "data: {\"id\":\"c\",\"choices\":[{\"index\":0}]}\n\n"},
      {"data: {\"usage\" : null , \"choices\":[{}]}\r\n\r\n", "data: { \"choices\":[{}]}\r\n\r\n"},
      {"data: {\"id\":\"c\", \"usage\": null, \"obfuscation\":\"x\"}\n\n",
       "data: {\"id\":\"c\", \"obfuscation\":\"x\"}\n\n"},
      {": c\ndata:{\"usage\":null}\nid: 4\n\n", ": c\ndata:{}\nid: 4\n\n"},
      {": {\"usage\":null}\ndata: {\"usage\":null}\n\n", ": {\"usage\":null}\ndata: {}\n\n"},
      // The chunk that only holds usage.
      {"data: "
       "{\"id\":\"c\",\"choices\":[],\"usage\":{\"total_tokens\":3},\"obfuscation\":\"\"}\n\n",
       std::nullopt},
      // One that says more stays, without it.
      {"data: {\"choices\":[],\"usage\":{\"total_tokens\":3},\"moderation\":{}}\n\n",
       "data: {\"choices\":[],\"moderation\":{}}\n\n"},
      // Usage that a vendor gives anyway stays; so does what is not understood.
      {"data: {\"choices\":[{\"index\":0}],\"usage\":{\"total_tokens\":3}}\n\n",
       "data: {\"choices\":[{\"index\":0}],\"usage\":{\"total_tokens\":3}}\n\n"},
      {"data: {\"choices\":[{\"delta\":{\"content\":\"\\\"usage\\\":null\"}}]}\n\n",
       "data: {\"choices\":[{\"delta\":{\"content\":\"\\\"usage\\\":null\"}}]}\n\n"},
      {"data: {\"a\":1,\ndata: \"usage\":null}\n\n", "data: {\"a\":1,\ndata: \"usage\":null}\n\n"},
      {"data: [DONE]\n\n", "data: [DONE]\n\n"},
      {": usage ping\n\n", ": usage ping\n\n"},
      {"data: {\"usage\":\n\n", "data: {\"usage\":\n\n"},
      {"", ""},
  };
  for (const Case& c : cases) EXPECT_EQ(WithoutUsage(c.event), c.want) << c.event;
}

TEST(FirstDifference, NamesWhatDiffers) {
  const auto answer = [](const std::string& content, const std::string& call, const char* reason,
                         const char* model, const char* fingerprint) {
    return ComparableAnswer(
        kChat,
        R"({"id":"random","model":")" + std::string(model) + R"(","system_fingerprint":")" +
            fingerprint + R"(","choices":[{"index":0,"message":{"content":")" + content +
            R"(","tool_calls":[{"id":"random","function":{"name":"f","arguments":")" + call +
            R"("}}]},"finish_reason":")" + reason + R"("}]})",
        false);
  };
  const Value a = answer("a", "{}", "stop", "m", "fp");
  EXPECT_EQ(FirstDifference(a, answer("a", "{}", "stop", "m", "fp")), "");
  EXPECT_EQ(FirstDifference(a, answer("b", "{}", "stop", "m2", "fp")), "text");
  EXPECT_EQ(FirstDifference(a, answer("a", "{ }", "stop", "m", "fp")), "tool_calls");
  EXPECT_EQ(FirstDifference(a, answer("a", "{}", "length", "m", "fp")), "finish_reason");
  EXPECT_EQ(FirstDifference(a, answer("a", "{}", "stop", "m2", "fp2")), "model");
  EXPECT_EQ(FirstDifference(a, answer("a", "{}", "stop", "m", "fp2")), "system_fingerprint");
  EXPECT_EQ(FirstDifference(a, ComparableAnswer(kChat, "{", false)), "unreadable");
  EXPECT_EQ(FirstDifference(a, ComparableAnswer(kChat, R"({"choices":[]})", false)), "choices");
  EXPECT_EQ(FirstDifference(
                ComparableAnswer(Endpoint::kEmbeddings, R"({"data":[{"embedding":[1.0]}]})", false),
                ComparableAnswer(Endpoint::kEmbeddings, R"({"data":[{"embedding":[1]}]})", false)),
            "");
  EXPECT_EQ(
      FirstDifference(ComparableAnswer(Endpoint::kCountTokens, R"({"input_tokens":3})", false),
                      ComparableAnswer(Endpoint::kCountTokens, R"({"input_tokens":4})", false)),
      "text");
}

void ExpectAssembledChat(const Recording& r, const Value& plain) {
  const Value* choices = r.assembled.Find("choices");
  ASSERT_NE(choices, nullptr) << r.name;
  for (const auto& [index, want] : choices->members()) {
    const Value& choice = plain.Find("choices")->items().at(std::stoul(index));
    const Value* found = choice.Find("message");
    const Value& message = found != nullptr ? *found : choice;
    EXPECT_EQ(Text(message, found != nullptr ? "content" : "text"), Text(want, "content"))
        << r.name;
    EXPECT_EQ(Text(message, "reasoning") + Text(message, "reasoning_content"),
              Text(want, "reasoning"))
        << r.name;
    EXPECT_EQ(Text(message, "refusal"), Text(want, "refusal")) << r.name;
    EXPECT_EQ(Text(choice, "finish_reason"), Text(want, "finish_reason")) << r.name;
    const Value* tools = want.Find("tool_calls");
    const Value* calls = message.Find("tool_calls");
    const size_t many = tools != nullptr ? tools->members().size() : 0;
    ASSERT_EQ(calls != nullptr && calls->is_array() ? calls->items().size() : 0, many) << r.name;
    for (size_t i = 0; i < many; ++i) {
      const Value& tool = tools->members()[i].second;
      EXPECT_EQ(Text(calls->items()[i], "id"), Text(tool, "id")) << r.name;
      EXPECT_EQ(Text(*calls->items()[i].Find("function"), "name"), Text(tool, "name")) << r.name;
      EXPECT_EQ(Text(*calls->items()[i].Find("function"), "arguments"), Text(tool, "arguments"))
          << r.name;
    }
    const Value* tokens = want.Find("logprob_tokens");
    const Value* all = choice.Find("logprobs");
    const Value* said = all != nullptr ? all->Find("content") : nullptr;
    const size_t logprobs = said != nullptr && said->is_array() ? said->items().size() : 0;
    if (tokens != nullptr) {
      EXPECT_EQ(logprobs, tokens->AsUint64()) << r.name;
    }
  }
}

void ExpectAssembledMessage(const Recording& r, const Value& plain) {
  const Value* blocks = r.assembled.Find("blocks");
  if (blocks == nullptr) return;
  for (const auto& [key, want] : blocks->members()) {
    const Value& block = plain.Find("content")->items().at(std::stoul(key));
    const std::string kind = key.substr(key.find(':') + 1), text = want.as_string();
    if (kind == "text_delta" || kind == "thinking_delta") {
      EXPECT_EQ(Text(block, kind.substr(0, kind.find('_'))), text) << r.name;
    }
    if (kind == "input_json_delta") {
      EXPECT_TRUE(*block.Find("input") == ParseJson(text.empty() ? "{}" : text)) << r.name;
    }
  }
}

// Recorded answers: what the conversion says is what their clients assembled, and it comes back.
TEST(StreamToPlain, RecordedAnswers) {
  SKIP_WITHOUT_VECTORS("streams");
  // Two messages spliced into one stream: nobody says which one it is.
  const std::set<std::string> misses = {"ai-anthropic-spliced-message-start"};
  size_t converted = 0;
  for (const Recording& r : test::Recordings()) {
    if (!r.streamed) {
      if (r.status == 200 && r.endpoint != Endpoint::kCountTokens) {
        EXPECT_TRUE(PlainToStream(r.endpoint, r.body, true)) << r.name;
      }
      continue;
    }
    const auto plain = StreamToPlain(r.endpoint, r.body);
    EXPECT_EQ(StreamToPlain(r.endpoint, WithCrLf(r.body)), plain) << r.name;
    EXPECT_EQ(plain.has_value(), r.cacheable && !misses.contains(r.name)) << r.name;
    if (!plain) continue;
    ++converted;
    EXPECT_TRUE(IsComplete(r.endpoint, false, *plain, r.choices)) << r.name;
    const Value body = ParseJson(*plain);
    if (r.endpoint == kMessages) {
      ExpectAssembledMessage(r, body);
    } else if (r.endpoint == kResponses) {
      EXPECT_EQ(
          Text(ComparableAnswer(kResponses, *plain, false).Find("choices")->items().at(0), "text"),
          Text(r.assembled, "output_text"))
          << r.name;
    } else {
      ExpectAssembledChat(r, body);
    }
    if (const Value* usage = r.assembled.Find("usage")) {
      for (const auto& [name, value] : usage->members()) {
        const Value* ours = body.Find("usage")->Find(name);
        EXPECT_TRUE(ours != nullptr && *ours == value) << r.name << ": " << name;
      }
    }
    const auto stream = PlainToStream(r.endpoint, *plain, true);
    ASSERT_TRUE(stream.has_value()) << r.name;
    const auto again = StreamToPlain(r.endpoint, *stream);
    ASSERT_TRUE(again.has_value()) << r.name;
    EXPECT_TRUE(ParseJson(*again) == body) << r.name;
    EXPECT_EQ(FirstDifference(ComparableAnswer(r.endpoint, r.body, true),
                              ComparableAnswer(r.endpoint, *stream, true)),
              "")
        << r.name;
  }
  EXPECT_GT(converted, 20u);
}

// Stripping live, piece by piece, gives what stripping the record gives.
TEST(WithoutUsage, LiveAndOfARecord) {
  SKIP_WITHOUT_VECTORS("streams");
  std::mt19937 random(20261130);
  for (const Recording& r : test::Recordings()) {
    if (!r.streamed || (r.endpoint != kChat && r.endpoint != kCompletions)) continue;
    for (const std::string& body : {r.body, WithCrLf(r.body)}) {
      ReplyReader reader(r.endpoint, true, {.choices = r.choices});
      std::string live;
      std::vector<ReplyPiece> pieces;
      for (std::string_view packet : Packets(body, random)) {
        for (ReplyPiece& piece : reader.Feed(packet)) pieces.push_back(std::move(piece));
      }
      reader.Finish(true, pieces);
      for (const ReplyPiece& piece : pieces) {
        live += WithoutUsage(piece.bytes).value_or("");
        std::string kept = piece.bytes;
        kept.erase(piece.usage.begin, piece.usage.size);
        EXPECT_EQ(kept, WithoutUsage(piece.bytes).value_or("")) << r.name;
      }
      const std::string replayed = StreamWithoutUsage(body);
      EXPECT_EQ(live, replayed) << r.name;
      EXPECT_EQ(replayed.find("\"usage\":null"), std::string::npos) << r.name;
      EXPECT_EQ(FirstDifference(ComparableAnswer(r.endpoint, body, true),
                                ComparableAnswer(r.endpoint, replayed, true)),
                r.name.starts_with("groq-tool-use-failed") ? "unreadable" : "")
          << r.name;
      EXPECT_EQ(StreamWithoutUsage(replayed), replayed) << r.name;
    }
  }
}

}  // namespace
}  // namespace verbatim::gateway
