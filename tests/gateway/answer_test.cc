// Traces and the bytes that they become.
#include "gateway/wire/answer.h"

#include <gtest/gtest.h>

#include "gateway/trace.h"
#include "gateway/wire/reply_convert.h"
#include "gateway/wire/reply_reader.h"

namespace verbatim::gateway {
namespace {

TokenPiece Piece(uint32_t choice, int32_t token, std::string text) {
  TokenPiece piece{choice, token, {}, std::move(text)};
  piece.digest.fill(static_cast<uint8_t>(token));
  return piece;
}

// Choice 0: "a", "b"; choice 1: "x" and its end.
Trace TwoChoices(bool second_first) {
  Trace trace{2, 3, {}};
  TraceOrder order(2);
  auto first = [&] {
    order.Add(Piece(0, 1, "a"), trace.events);
    order.Add(Piece(0, 2, "b\n"), trace.events);
    order.Add(ChoiceEnd{0, "length", {}}, trace.events);
  };
  auto second = [&] {
    order.Add(Piece(1, 3, "x"), trace.events);
    order.Add(ChoiceEnd{1, "stop", {}}, trace.events);
  };
  second_first ? second() : first();
  EXPECT_FALSE(order.complete());
  second_first ? first() : second();
  EXPECT_TRUE(order.complete());
  return trace;
}

TEST(Trace, OrderDoesNotDependOnArrival) {
  const Trace trace = TwoChoices(false);
  EXPECT_EQ(trace.events, TwoChoices(true).events);
  std::string order;
  for (const TraceEvent& e : trace.events) {
    order += std::to_string(e.choice) + (e.end ? "end " : " ");
  }
  EXPECT_EQ(order, "0 1 0 1end 0end ");
  EXPECT_EQ(trace.Generated(), 3u);
}

TEST(Trace, EncodedAndBack) {
  const Trace trace = TwoChoices(false);
  auto back = DecodeTrace(EncodeTrace(trace));
  ASSERT_TRUE(back.ok()) << back.error().message;
  EXPECT_EQ(back->events, trace.events);
  EXPECT_EQ(back->prompt_tokens, 3u);
}

TEST(Trace, StopStringIsKept) {
  Trace trace{1, 3, {}};
  TraceOrder order(1);
  order.Add(Piece(0, 1, "a"), trace.events);
  order.Add(ChoiceEnd{0, "stop", {}, "\nUser:"}, trace.events);
  auto back = DecodeTrace(EncodeTrace(trace));
  ASSERT_TRUE(back.ok()) << back.error().message;
  EXPECT_EQ(back->events.back().stop, "\nUser:");
  trace.events.back().stop.clear();
  EXPECT_EQ(FirstDivergence(*back, trace)->what, "finish_reason");
}

TEST(Trace, DamagedBytesAreRefused) {
  for (const char* bytes :
       {"", "{}", R"({"trace":2,"prompt_tokens":1,"choices":[]})",
        R"({"trace":1,"prompt_tokens":-1,"choices":[{}]})",
        R"({"trace":1,"prompt_tokens":1,"choices":[]})",
        R"({"trace":1,"prompt_tokens":1,"choices":[{"tokens":[1],"texts":[],"digests":"",)"
        R"("finish_reason":"stop","chain":""}]})",
        R"({"trace":1,"prompt_tokens":1,"choices":[{"tokens":[4294967296],"texts":["a"],)"
        R"("digests":"00000000000000000000000000000000","finish_reason":"stop",)"
        R"("chain":"0000000000000000000000000000000000000000000000000000000000000000"}]})"}) {
    EXPECT_FALSE(DecodeTrace(bytes).ok()) << bytes;
  }
}

TEST(Trace, FirstDivergenceNamesTheStep) {
  const Trace trace = TwoChoices(false);
  EXPECT_FALSE(FirstDivergence(trace, trace));
  struct Case {
    const char* what;
    uint32_t choice;
    uint64_t step;
    void (*change)(Trace&);
  };
  const Case cases[] = {
      {"token", 0, 1, [](Trace& t) { t.events[2].token = 9; }},
      {"logits", 1, 0, [](Trace& t) { t.events[1].digest[15] ^= 1; }},
      {"text", 0, 0, [](Trace& t) { t.events[0].text = "A"; }},
      {"finish_reason", 1, 1, [](Trace& t) { t.events[3].finish_reason = "length"; }},
      {"length", 0, 2, [](Trace& t) { t.events.pop_back(); }},
  };
  for (const Case& c : cases) {
    Trace again = trace;
    c.change(again);
    auto divergence = FirstDivergence(trace, again);
    ASSERT_TRUE(divergence) << c.what;
    EXPECT_EQ(divergence->what, c.what);
    EXPECT_EQ(divergence->choice, c.choice) << c.what;
    EXPECT_EQ(divergence->step, c.step) << c.what;
  }
}

// These bytes are part of the answer version (fingerprint.h): a change here raises it.
TEST(Answer, TheExactBytes) {
  Trace trace{1, 5, {}};
  TraceOrder order(1);
  order.Add(Piece(0, 1, "Hi \"you\""), trace.events);
  order.Add(Piece(0, 2, ""), trace.events);
  order.Add(ChoiceEnd{0, "stop", {}}, trace.events);
  AnswerHead head{Endpoint::kChatCompletions, "chatcmpl-1", "m", "fp_1", 1700000000};
  EXPECT_EQ(Render(head, trace, {}),
            R"({"id":"chatcmpl-1","object":"chat.completion","created":1700000000,"model":"m",)"
            R"("system_fingerprint":"fp_1","choices":[{"index":0,"message":{"role":"assistant",)"
            R"("content":"Hi \"you\"","refusal":null},"logprobs":null,"finish_reason":"stop"}],)"
            R"("usage":{"prompt_tokens":5,"completion_tokens":2,"total_tokens":7}})");
  const std::string start =
      R"(data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,)"
      R"("model":"m","system_fingerprint":"fp_1","choices":[)";
  const std::string open = R"(,"logprobs":null,"finish_reason":null}]})"
                           "\n\n";
  EXPECT_EQ(Render(head, trace, {true, false}),
            start + R"({"index":0,"delta":{"role":"assistant","content":"","refusal":null})" +
                open + start + R"({"index":0,"delta":{"content":"Hi \"you\""})" + open + start +
                R"({"index":0,"delta":{"content":""})" + open + start +
                R"({"index":0,"delta":{},"logprobs":null,"finish_reason":"stop"}]})"
                "\n\n" +
                "data: [DONE]\n\n");
  head.endpoint = Endpoint::kCompletions;
  EXPECT_EQ(Render(head, trace, {}),
            R"({"id":"chatcmpl-1","object":"text_completion","created":1700000000,"model":"m",)"
            R"("system_fingerprint":"fp_1","choices":[{"index":0,"text":"Hi \"you\"",)"
            R"("logprobs":null,"finish_reason":"stop"}],)"
            R"("usage":{"prompt_tokens":5,"completion_tokens":2,"total_tokens":7}})");
}

Trace OneChoice(std::string finish_reason, std::string stop = "") {
  Trace trace{1, 5, {}};
  TraceOrder order(1);
  order.Add(Piece(0, 1, "Hi"), trace.events);
  order.Add(Piece(0, 2, ""), trace.events);
  order.Add(ChoiceEnd{0, std::move(finish_reason), {}, std::move(stop)}, trace.events);
  return trace;
}

AnswerHead ResponseHead(const std::string& more = "") {
  const std::string text = R"({"model":"m","input":"x")" + more + "}";
  auto request = Decode(Endpoint::kResponses, std::get<json::Value>(ParseBody(text)));
  AnswerHead head = HeadOf(std::get<GenerationRequest>(request), "resp_07", "fp_1");
  head.created = 1700000000;
  return head;
}

TEST(Answer, TheExactBytesOfResponses) {
  const std::string echo =
      R"("instructions":null,"max_output_tokens":null,"metadata":{},"parallel_tool_calls":true,)"
      R"("previous_response_id":null,"prompt_cache_key":null,)"
      R"("reasoning":{"effort":null,"summary":null},"safety_identifier":null,)"
      R"("service_tier":"default","store":false,"temperature":1,)"
      R"("text":{"format":{"type":"text"},"verbosity":"medium"},"tool_choice":"auto","tools":[],)"
      R"("top_logprobs":0,"top_p":1,"truncation":"disabled","user":null)";
  const auto response = [&](const std::string& status, const std::string& why,
                            const std::string& output, const std::string& usage) {
    return R"({"id":"resp_07","object":"response","created_at":1700000000,"status":")" + status +
           R"(","background":false,"error":null,"incomplete_details":)" + why +
           R"(,"model":"m","output":[)" + output + "]," + echo + ",\"usage\":" + usage + "}";
  };
  const auto part = [](const std::string& text) {
    return R"({"type":"output_text","annotations":[],"logprobs":[],"text":")" + text + "\"}";
  };
  const auto item = [&](const std::string& status, const std::string& content) {
    return R"({"id":"msg_07","type":"message","status":")" + status + R"(","content":[)" + content +
           R"(],"role":"assistant"})";
  };
  const std::string usage =
      R"({"input_tokens":5,"input_tokens_details":{"cached_tokens":0,"cache_write_tokens":0},)"
      R"("output_tokens":2,"output_tokens_details":{"reasoning_tokens":0},"total_tokens":7})";
  const AnswerHead head = ResponseHead();
  const std::string whole = response("completed", "null", item("completed", part("Hi")), usage);
  const std::string cut = response("incomplete", R"({"reason":"max_output_tokens"})",
                                   item("incomplete", part("Hi")), usage);
  EXPECT_EQ(Render(head, OneChoice("stop"), {}), whole);
  EXPECT_EQ(Render(head, OneChoice("length"), {}), cut);

  const std::string begun = response("in_progress", "null", "", "null");
  const std::string place = R"("item_id":"msg_07","output_index":0,"content_index":0)";
  const std::pair<const char*, std::string> events[] = {
      {"response.created", "\"response\":" + begun},
      {"response.in_progress", "\"response\":" + begun},
      {"response.output_item.added", R"("output_index":0,"item":)" + item("in_progress", "")},
      {"response.content_part.added", place + ",\"part\":" + part("")},
      {"response.output_text.delta", place + R"(,"delta":"Hi","logprobs":[])"},
      {"response.output_text.delta", place + R"(,"delta":"","logprobs":[])"},
      {"response.output_text.done", place + R"(,"text":"Hi","logprobs":[])"},
      {"response.content_part.done", place + ",\"part\":" + part("Hi")},
      {"response.output_item.done", R"("output_index":0,"item":)" + item("completed", part("Hi"))},
      {"response.completed", "\"response\":" + whole},
  };
  std::string want;
  for (size_t i = 0; i < std::size(events); ++i) {
    const std::string type = events[i].first;
    want += "event: " + type + "\ndata: {\"type\":\"" + type +
            "\",\"sequence_number\":" + std::to_string(i) + "," + events[i].second + "}\n\n";
  }
  EXPECT_EQ(Render(head, OneChoice("stop"), {true, false}), want);
  const std::string stream = Render(head, OneChoice("length"), {true, false});
  EXPECT_NE(stream.find("event: response.incomplete\n"), stream.npos);
  EXPECT_EQ(stream.find("response.completed"), stream.npos);
  EXPECT_TRUE(stream.ends_with(cut + "}\n\n"));
}

TEST(Answer, ResponsesRepeatTheirRequest) {
  const AnswerHead head = ResponseHead(
      R"(,"instructions":"Be \"brief\".","temperature":5e-1,"top_p":0.90,"max_output_tokens":7,)"
      R"("metadata":{"b":"2","a":"1"},"user":"u","tool_choice":"none","safety_identifier":"s")");
  auto body = json::Parse(Render(head, OneChoice("stop"), {}));
  ASSERT_TRUE(body.ok());
  const std::pair<const char*, const char*> members[] = {{"instructions", R"("Be \"brief\".")"},
                                                         {"temperature", "0.5"},
                                                         {"top_p", "0.9"},
                                                         {"max_output_tokens", "7"},
                                                         {"metadata", R"({"a":"1","b":"2"})"},
                                                         {"user", "\"u\""},
                                                         {"tool_choice", "\"none\""},
                                                         {"safety_identifier", "\"s\""},
                                                         {"store", "false"},
                                                         {"tools", "[]"}};
  for (const auto& [name, want] : members) {
    const json::Value* v = body->Find(name);
    ASSERT_TRUE(v) << name;
    EXPECT_EQ(json::Serialize(*v), want) << name;
  }
  // Another spelling of the same request has the same bytes.
  const AnswerHead other = ResponseHead(
      R"(,"user":"u","metadata":{"a":"1","b":"2"},"top_p":9e-1,"temperature":0.5,)"
      R"("instructions":"Be \u0022brief\u0022.","max_output_tokens":7.0,"tool_choice":"none",)"
      R"("safety_identifier":"s","store":null)");
  EXPECT_EQ(other.echo, head.echo);
}

TEST(Answer, TheExactBytesOfMessages) {
  const AnswerHead head{Endpoint::kMessages, "msg_1", "m", "fp_1", 1700000000};
  const std::string opening = R"({"id":"msg_1","type":"message","role":"assistant","model":"m",)";
  const auto usage = [](int generated) {
    return R"("usage":{"input_tokens":5,"cache_creation_input_tokens":0,)"
           R"("cache_read_input_tokens":0,"output_tokens":)" +
           std::to_string(generated) + "}";
  };
  struct Case {
    Trace trace;
    const char* stop;
  };
  const Case cases[] = {
      {OneChoice("stop"), R"("stop_reason":"end_turn","stop_sequence":null)"},
      {OneChoice("length"), R"("stop_reason":"max_tokens","stop_sequence":null)"},
      {OneChoice("stop", "\nH"), R"("stop_reason":"stop_sequence","stop_sequence":"\nH")"},
  };
  for (const Case& c : cases) {
    EXPECT_EQ(Render(head, c.trace, {}), opening + R"("content":[{"type":"text","text":"Hi"}],)" +
                                             c.stop + "," + usage(2) + "}");
    const std::string delta =
        "event: content_block_delta\n"
        R"(data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":")";
    EXPECT_EQ(
        Render(head, c.trace, {true, false}),
        "event: message_start\ndata: {\"type\":\"message_start\",\"message\":" + opening +
            R"("content":[],"stop_reason":null,"stop_sequence":null,)" + usage(0) + "}}\n\n" +
            "event: content_block_start\n"
            R"(data: {"type":"content_block_start","index":0,"content_block":)"
            R"({"type":"text","text":""}})"
            "\n\n" +
            delta + "Hi\"}}\n\n" + delta + "\"}}\n\n" +
            "event: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":0}\n\n" +
            "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{" + c.stop + "}," +
            usage(2) + "}\n\n" + "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n");
  }
}

TEST(Answer, TokenCounts) {
  Trace trace{1, 14, {}};
  TraceOrder order(1);
  order.Add(ChoiceEnd{0, "stop", {}}, trace.events);
  EXPECT_EQ(Render({.endpoint = Endpoint::kCountTokens}, trace, {}), R"({"input_tokens":14})");
}

// Whatever says that the answer is complete comes with the trace's last event or after it, which is
// what a gateway holds back.
TEST(Answer, StreamPartsJoinToTheWhole) {
  struct Case {
    AnswerHead head;
    Trace trace;
    const char* completes;
  };
  const Case cases[] = {
      {{Endpoint::kChatCompletions, "id", "m", "fp", 1}, TwoChoices(false), "\"length\""},
      {{Endpoint::kCompletions, "id", "m", "fp", 1}, OneChoice("stop"), "\"stop\""},
      {ResponseHead(), OneChoice("stop"), "completed\""},
      {{Endpoint::kMessages, "id", "m", "fp", 1}, OneChoice("stop"), "message_delta"},
  };
  for (const Case& c : cases) {
    for (const bool usage : {false, true}) {
      auto writer = NewStreamWriter(c.head, {true, usage}, c.trace.choices, c.trace.prompt_tokens);
      std::string parts = writer->Begin();
      for (size_t i = 0; i < c.trace.events.size(); ++i) {
        if (i + 1 == c.trace.events.size()) {
          EXPECT_EQ(parts.find(c.completes), parts.npos) << parts;
        }
        parts += writer->Event(c.trace.events[i]);
      }
      parts += writer->End(c.trace);
      EXPECT_NE(parts.find(c.completes), parts.npos) << parts;
      EXPECT_EQ(parts, Render(c.head, c.trace, {true, usage}));
    }
  }
}

// The engine's answers are to this gateway what an upstream's are: complete, with the event that
// completes them where it says, and one form becomes the other.
TEST(Answer, ReadAsAnUpstreams) {
  struct Case {
    AnswerHead head;
    Trace trace;
    const char* finish_reason;
    const char* completes;  // the last event that is not held back comes before the first with this
  };
  const Case cases[] = {
      {{Endpoint::kChatCompletions, "id", "m", "fp", 1}, OneChoice("stop"), "stop", "\"stop\""},
      {{Endpoint::kCompletions, "id", "m", "fp", 1}, OneChoice("length"), "length", "\"length\""},
      {ResponseHead(), OneChoice("stop"), "completed", "response.completed"},
      {ResponseHead(), OneChoice("length"), "max_output_tokens", "response.incomplete"},
      {{Endpoint::kMessages, "msg_1", "m", "fp", 1},
       OneChoice("stop"),
       "end_turn",
       "message_delta"},
      {{Endpoint::kMessages, "msg_1", "m", "fp", 1},
       OneChoice("stop", "x"),
       "stop_sequence",
       "message_delta"},
  };
  for (const Case& c : cases) {
    const std::string plain = Render(c.head, c.trace, {});
    const std::string stream = Render(c.head, c.trace, {true, true});
    for (const bool streamed : {false, true}) {
      ReplyReader reader(c.head.endpoint, streamed);
      std::vector<ReplyPiece> pieces = reader.Feed(streamed ? stream : plain);
      const ReplySummary summary = reader.Finish(true, pieces);
      EXPECT_TRUE(summary.complete) << summary.why_not << (streamed ? stream : plain);
      EXPECT_EQ(summary.finish_reasons, std::vector<std::string>{c.finish_reason});
      EXPECT_EQ(summary.prompt_tokens, 5u);
      EXPECT_EQ(summary.completion_tokens, 2u);
      std::string before;
      for (const ReplyPiece& piece : pieces) {
        if (!piece.completes) before += piece.bytes;
      }
      EXPECT_EQ(before, streamed ? stream.substr(0, before.size()) : "");
      EXPECT_EQ(before.find(c.completes), before.npos) << before;
    }
    const std::optional<std::string> converted = StreamToPlain(c.head.endpoint, stream);
    ASSERT_TRUE(converted) << stream;
    EXPECT_EQ(json::Canonical(*json::Parse(*converted)), json::Canonical(*json::Parse(plain)));
  }
}

TEST(Answer, ErrorsByEndpoint) {
  const HttpError error{.status = 503, .message = "a \"b\"", .param = "p", .code = "c"};
  const std::string object =
      R"("error":{"message":"a \"b\"","type":"server_error","param":"p","code":"c"}})";
  EXPECT_EQ(StreamError(error, Endpoint::kChatCompletions, "req_1"), "data: {" + object + "\n\n");
  EXPECT_EQ(StreamError(error, Endpoint::kResponses, "req_1", 7),
            R"(event: error
data: {"type":"error","sequence_number":7,"code":"c","message":"a \"b\"","param":"p",)" +
                object + "\n\n");
  EXPECT_EQ(StreamError(error, Endpoint::kMessages, "req_1"),
            R"(event: error
data: {"type":"error","error":{"type":"overloaded_error","message":"a \"b\""},)"
            R"("request_id":"req_1"})"
            "\n\n");
  // The number goes on from the events that were sent.
  const AnswerHead head = ResponseHead();
  auto writer = NewStreamWriter(head, {true, false}, 1, 5);
  (void)writer->Begin();
  (void)writer->Event(OneChoice("stop").events[0]);
  EXPECT_EQ(writer->Error(error, ""), StreamError(error, Endpoint::kResponses, "", 5));
}

TEST(Answer, AnthropicsErrorTypes) {
  const std::pair<int, const char*> cases[] = {{400, "invalid_request_error"},
                                               {401, "authentication_error"},
                                               {403, "permission_error"},
                                               {404, "not_found_error"},
                                               {408, "invalid_request_error"},
                                               {413, "request_too_large"},
                                               {429, "rate_limit_error"},
                                               {500, "api_error"},
                                               {502, "api_error"},
                                               {503, "overloaded_error"},
                                               {504, "timeout_error"},
                                               {529, "overloaded_error"}};
  for (const auto& [status, type] : cases) {
    const std::string body =
        ErrorJson({.status = status, .message = "m"}, ErrorForm::kAnthropic, "req_1");
    EXPECT_EQ(body, std::string(R"({"type":"error","error":{"type":")") + type +
                        R"(","message":"m"},"request_id":"req_1"})");
  }
  EXPECT_TRUE(
      ErrorJson({.message = "m"}, ErrorForm::kAnthropic).ends_with(R"("request_id":null})"));
}

}  // namespace
}  // namespace verbatim::gateway
