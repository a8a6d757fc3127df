// Traces and the bytes that they become.
#include <gtest/gtest.h>

#include "gateway/trace.h"
#include "gateway/wire/openai_answer.h"

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

TEST(Answer, StreamPartsJoinToTheWhole) {
  const Trace trace = TwoChoices(false);
  const AnswerHead head{Endpoint::kChatCompletions, "id", "m", "fp", 1};
  for (bool usage : {false, true}) {
    std::string parts = StreamBegin(head, 2, usage);
    for (const TraceEvent& e : trace.events) parts += StreamEvent(head, e, usage);
    parts += StreamEnd(head, trace, usage);
    EXPECT_EQ(parts, Render(head, trace, {true, usage}));
  }
}

}  // namespace
}  // namespace verbatim::gateway
