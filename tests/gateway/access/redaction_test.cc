#include "gateway/redaction.h"

#include <gtest/gtest.h>

#include "base/clock.h"
#include "gateway/redaction_patterns.h"
#include "gateway/wire/sse.h"

namespace verbatim::gateway {
namespace {

using policies::RedactRule;

std::string Marked(const TextPattern& pattern, const std::string& text) {
  std::string out;
  size_t kept = 0;
  for (const TextRange& r : pattern.Find(text)) {
    out += text.substr(kept, r.begin - kept) + "<" + text.substr(r.begin, r.end - r.begin) + ">";
    kept = r.end;
  }
  return out + text.substr(kept);
}

TEST(RedactionPatterns, Named) {
  struct Case {
    const char* name;
    const char* want;  // < and > stand around matches
  };
  const Case cases[] = {
      {"email", "write to <a.b+c@example.co.uk>."},
      {"email", "<alice@example.com>,<bob@example.org>"},
      {"email", "<m\xc3\xbcller@b\xc3\xbcro.example>"},
      {"email", "a@b, @example.com, a@@b.com, user at example.com, a@b.c, a@-b.com, a@b..com"},
      {"email", "<a@b.com>.5 a@b.m2.7, <x@mail.b-c.org>-, <a@b.com>@c.org"},
      {"email", "<a@b.xn--p1ai>, <a@b.co-op.org>, <a@b.co>-op"},
      {"email", "<\xe4\xbe\x8b@\xe4\xbe\x8b.\xe4\xbe\x8b>"},
      {"email", "mailto:<x@y.zz>?subject=1"},
      {"credit_card", "card <4111 1111 1111 1111> ok"},
      {"credit_card", "<4111111111111111>"},
      {"credit_card", "<5500-0000-0000-0004>, <340000000000009>"},
      {"credit_card", "4111 1111 1111 1112"},
      {"credit_card", "order 1 <4111 1111 1111 1111>"},
      {"credit_card", "4111  1111 1111 1111"},
      {"credit_card", "14111111111111111"},
      {"iban", "<DE89 3704 0044 0532 0130 00> IS MINE"},
      {"iban", "<DE89370400440532013000>"},
      {"iban", "<gb29nwbk60161331926819>"},
      {"iban", "DE88 3704 0044 0532 0130 00"},
      {"phone", "call <+49 30 1234567> now"},
      {"phone", "<+1 212 555 0123>, <(212) 555-0123>, <212-555-0123>"},
      {"phone", "<030 1234567> and <0171-1234567>"},
      {"phone", "in 2026, 1234567 rows, 3.14159265 and 10.0.0.1"},
      {"us_ssn", "ssn <123-45-6789>, <123 45 6789>"},
      {"us_ssn", "000-45-6789 666-45-6789 900-45-6789 123-00-6789 123-45-0000 123-45 6789"},
      {"us_ssn", "1123-45-6789 123-45-67890"},
  };
  for (const Case& c : cases) {
    std::string text;
    for (const char* p = c.want; *p; ++p) {
      if (*p != '<' && *p != '>') text += *p;
    }
    EXPECT_EQ(Marked(TextPattern::Named(c.name), text), c.want) << c.name;
  }
}

// What is long is not cut: only what matches goes, and an expression gets time with the text.
TEST(RedactionPatterns, LongTexts) {
  std::string prose;
  while (prose.size() < (size_t{1} << 20)) {
    prose += "The quick brown fox jumps over the dog on 2026-11-30, in room 204; no. 48213. ";
  }
  const std::string end = "x a@b.com; +49 30 1234567; 123-45-6789";
  const std::pair<TextPattern, size_t> cases[] = {
      {TextPattern::Named("email"), 2},
      {TextPattern::Named("phone"), 11},
      {TextPattern::Named("us_ssn"), 27},
      {TextPattern::Regex("[a-z.]+@[a-z.]+").value(), 2}};
  for (const auto& [pattern, at] : cases) {
    const auto found = pattern.Find(prose + end);
    ASSERT_EQ(found.size(), 1u) << at;
    EXPECT_EQ(found[0].begin, prose.size() + at);
  }
}

TEST(RedactionPatterns, HostileTextsEnd) {
  const int64_t begin = MonotonicMicros();
  const size_t n = 1 << 20;
  const std::string texts[] = {std::string(n, 'a'),    std::string(n, '1'), std::string(n, '@'),
                               std::string(n, '\xff'), std::string(n, '+'), std::string(n, '0')};
  for (const char* name : {"email", "credit_card", "iban", "phone", "us_ssn"}) {
    for (const std::string& text : texts) (void)TextPattern::Named(name).Find(text);
  }
  // An expression that would take for ever: the rest of the text counts as a match.
  const auto evil = TextPattern::Regex("(a+)+$").value();
  const auto found = evil.Find(std::string(40, 'a') + "b");
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].end, 41u);
  EXPECT_LT(MonotonicMicros() - begin, 30'000'000);
}

Redactor Make(std::vector<RedactRule> rules) {
  auto redactor = Redactor::Make(rules);
  EXPECT_TRUE(redactor.ok()) << (redactor.ok() ? "" : redactor.error().message);
  return *redactor;
}

RedactRule Rule(const char* pointer, const char* pattern = "", const char* regex = "") {
  RedactRule rule;
  rule.pointer = pointer;
  rule.pattern = pattern;
  rule.regex = regex;
  rule.replace = "[X]";
  return rule;
}

TEST(Redaction, Bodies) {
  struct Case {
    RedactRule rule;
    const char* body;
    const char* want;
  };
  const Case cases[] = {
      {Rule("", "email"), R"({"a": "to a@b.com", "b":1.50 })", R"({"a": "to [X]", "b":1.50 })"},
      {Rule("", "email"), R"({"a":"none" , "n":10000000000000000000001})",
       R"({"a":"none" , "n":10000000000000000000001})"},
      {Rule("", "email"), R"("a\u0040b.com")", R"("[X]")"},
      {Rule("", "email"), R"(["\ud800 a@b.com \ud83d\ude00"])",
       "[\"\\ud800 [X] \xf0\x9f\x98\x80\"]"},
      {Rule("/user"), R"({"user":"alice","users":["alice"]})",
       R"({"user":"[X]","users":["alice"]})"},
      {Rule("/messages/*/content"),
       R"({"messages":[{"role":"user","content":"s"},{"role":"user","content":[{"type":"text","text":"t"}]}]})",
       R"({"messages":[{"role":"user","content":"[X]"},{"role":"user","content":[{"type":"[X]","text":"[X]"}]}]})"},
      {Rule("/messages/1/content"), R"({"messages":[{"content":"s"},{"content":"t"}]})",
       R"({"messages":[{"content":"s"},{"content":"[X]"}]})"},
      {Rule("/a~1b/~0c"), R"({"a/b":{"~c":"s","c":"s"}})", R"({"a/b":{"~c":"[X]","c":"s"}})"},
      {Rule("/*", "us_ssn"), R"({"a":"123-45-6789","b":{"c":"123-45-6789"},"n":"x"})",
       R"({"a":"[X]","b":{"c":"[X]"},"n":"x"})"},
      {Rule("/a", "", "C-\\d+"), R"({"a":"C-17 and C-18","b":"C-19"})",
       R"({"a":"[X] and [X]","b":"C-19"})"},
      {Rule("/a"), R"({"a":"","b":""})", R"({"a":"","b":""})"},
  };
  for (const Case& c : cases) {
    const Redactor redactor = Make({c.rule});
    const Redacted request = redactor.Request(c.body);
    EXPECT_EQ(request.bytes, c.want) << c.body;
    EXPECT_EQ(request.any(), std::string(c.body) != c.want) << c.body;
    EXPECT_EQ(redactor.Response(c.body, false).bytes, c.want) << c.body;
    EXPECT_TRUE(json::Parse(request.bytes).ok()) << request.bytes;
    EXPECT_FALSE(redactor.Request(request.bytes).bytes != request.bytes) << "twice is once";
  }
}

TEST(Redaction, SeveralRulesAndTheirNames) {
  RedactRule named = Rule("", "", "secret \\w+");
  named.name = "project names";
  named.replace = "\"quoted\"\n";
  const Redactor redactor = Make({Rule("", "email"), named, Rule("/id")});
  const Redacted r = redactor.Request(R"({"id":"7","t":"a@b.com has secret a@b.com"})");
  EXPECT_EQ(r.bytes, R"({"id":"[X]","t":"[X] has \"quoted\"\n"})") << "what overlaps goes whole";
  EXPECT_EQ(r.rules, (std::vector<std::string>{"email", "project names", "rule 3"}));
  EXPECT_EQ(json::Serialize(RedactionNote(r, {"", {"iban"}})),
            R"({"redacted":true,"redaction_rules":["email","iban","project names","rule 3"]})");
}

TEST(Redaction, WhatCannotBeReadIsNotKept) {
  const Redactor redactor = Make({Rule("", "email")});
  for (const char* body : {"a@b.com", "{\"a\":\"a@b.com\"", "{\"a\":1,\"a\":\"x\"}", "\xff"}) {
    EXPECT_EQ(redactor.Request(body).bytes, "\"[REDACTED]\"") << body;
    EXPECT_EQ(redactor.Response(body, false).rules, std::vector<std::string>{"unreadable"});
    EXPECT_EQ(Redactor().Request(body).bytes, body) << "without rules nothing is looked at";
  }
  EXPECT_TRUE(Redactor().empty());
  EXPECT_EQ(redactor.Request("").bytes, "");
  const auto bad = Redactor::Make({Rule("", "", "a(")});
  ASSERT_FALSE(bad.ok());
  EXPECT_NE(bad.error().message.find("rule 1"), std::string::npos) << bad.error().message;
}

// The text of a chat stream's choice, put together as a client does.
std::string ChatText(const std::string& stream, int64_t choice = 0) {
  std::string text;
  for (const SsePiece& piece : ParseEventStream(stream)) {
    if (!piece.event || piece.event->data == "[DONE]") continue;
    const auto value = json::Parse(piece.event->data);
    if (!value) return "not JSON: " + piece.event->data;
    for (const json::Value& c : value->Find("choices")->items()) {
      if (c.Find("index")->AsInt64() != choice) continue;
      const json::Value* content = c.Find("delta")->Find("content");
      if (content) text += content->as_string();
    }
  }
  return text;
}

std::string Delta(int choice, const std::string& content) {
  return "data: {\"id\":\"c1\",\"choices\":[{\"index\":" + std::to_string(choice) +
         ",\"delta\":{\"content\":" + json::Quote(content) + "}}]}\n\n";
}

// An address cut at every two places, between the deltas of two choices that come by turns.
TEST(Redaction, TextThatIsSplitOverDeltas) {
  const Redactor redactor = Make({Rule("", "email"), Rule("", "credit_card")});
  const std::string text = "Write to alice@example.com, card 4111 1111 1111 1111.";
  for (size_t i = 0; i <= text.size(); ++i) {
    for (size_t j = i; j <= text.size(); j += 3) {
      const std::string stream = Delta(0, text.substr(0, i)) + Delta(1, "left ") +
                                 Delta(0, text.substr(i, j - i)) + Delta(1, "as it is") +
                                 Delta(0, text.substr(j)) + "data: [DONE]\n\n";
      const Redacted r = redactor.Response(stream, true);
      ASSERT_EQ(ChatText(r.bytes), "Write to [X], card [X].") << i << " " << j;
      ASSERT_EQ(ChatText(r.bytes, 1), "left as it is");
      ASSERT_TRUE(r.bytes.ends_with("data: [DONE]\n\n"));
      ASSERT_EQ(r.rules, (std::vector<std::string>{"credit_card", "email"}));
      for (const char* raw : {"alice", "example", "4111", "1111"}) {
        ASSERT_EQ(r.bytes.find(raw), std::string::npos) << i << " " << j << "\n" << r.bytes;
      }
    }
  }
}

TEST(Redaction, StreamsOfOtherForms) {
  const Redactor redactor = Make({Rule("", "email")});
  struct Case {
    const char* name;
    std::string stream;
  };
  const Case cases[] = {
      {"Anthropic's",
       "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":"
       "{\"type\":\"text_delta\",\"text\":\"ali\"}}\n\n"
       "event: ping\ndata: {\"type\":\"ping\"}\n\n"
       "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":"
       "{\"type\":\"text_delta\",\"text\":\"ce@example.com\"}}\n\n"},
      {"Responses'",
       "event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\","
       "\"output_index\":0,\"content_index\":0,\"delta\":\"alice@exam\"}\n\n"
       "event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\","
       "\"output_index\":0,\"content_index\":0,\"delta\":\"ple.com\"}\n\n"
       "event: response.output_text.done\ndata: {\"type\":\"response.output_text.done\","
       "\"output_index\":0,\"content_index\":0,\"text\":\"alice@example.com\"}\n\n"},
      {"tool call",
       "data: {\"choices\":[{\"index\":0,\"delta\":{\"tool_calls\":[{\"index\":1,\"id\":\"t\","
       "\"function\":{\"arguments\":\"{\\\"to\\\":\\\"ali\"}}]}}]}\r\n\r\n"
       "data: {\"choices\":[{\"index\":0,\"delta\":{\"tool_calls\":[{\"index\":1,"
       "\"function\":{\"arguments\":\"ce@example.com\\\"}\"}}]}}]}\r\n\r\n"},
      {"comment", ": for alice@example.com\n\ndata: {\"a\":\"x\"}\n\n"},
      {"id", "id: alice@example.com\ndata: {\"a\":\"x\"}\n\n"},
      {"data of no JSON", "data: {\"a\":\"x\"}\n\ndata: alice@example.com\n\n"},
      {"data of several lines", "data: {\"a\":\ndata: \"alice@example.com\"}\n\n"},
      {"broken off", "data: {\"a\":\"x\"}\n\ndata: {\"a\":\"alice@example.com\"}"},
      {"logprobs",
       "data: {\"a\":\"alice@example.com\",\"logprobs\":{\"content\":[{\"token\":\"ali\"},"
       "{\"token\":\"ce@\"},{\"token\":\"example.com\"}]}}\n\n"},
  };
  for (const Case& c : cases) {
    const Redacted r = redactor.Response(c.stream, true);
    EXPECT_TRUE(r.any()) << c.name;
    for (const char* raw : {"ali", "ce@", "exam", "ple.com"}) {
      EXPECT_EQ(r.bytes.find(raw), std::string::npos) << c.name << "\n" << r.bytes;
    }
    for (const SsePiece& piece : ParseEventStream(r.bytes)) {
      ASSERT_TRUE(piece.event) << c.name << "\n" << r.bytes;
      EXPECT_TRUE(json::Parse(piece.event->data).ok()) << c.name << "\n" << r.bytes;
    }
  }
}

std::string Event(const std::string& json) { return "data: " + json + "\n\n"; }

// A pointer into the plain answer covers its stream.
TEST(Redaction, OnePlaceInBothForms) {
  struct Case {
    const char* pointer;
    std::string stream;
    bool covered;
  };
  const std::string chat = Event(R"({"choices":[{"index":1,"delta":{"content":"se"}}]})") +
                           Event(R"({"choices":[{"index":1,"delta":{"content":"cret"}}]})");
  const std::string call = Event(
      R"({"choices":[{"index":0,"delta":{"tool_calls":[{"index":2,"function":{"arguments":"secret"}}]}}]})");
  const std::string text = Event(R"({"choices":[{"index":0,"text":"secret"}]})");
  const std::string output = Event(
      R"({"type":"response.output_text.delta","output_index":1,"content_index":2,"delta":"secret"})");
  const std::string done = Event(
      R"({"type":"response.output_item.done","output_index":1,"item":{"content":[{"text":"secret"}]}})");
  const std::string whole = Event(
      R"({"type":"response.completed","response":{"output":[{"content":[{"text":"secret"}]}]}})");
  const std::string summary = Event(
      R"({"type":"response.reasoning_summary_text.done","output_index":0,"summary_index":1,"text":"secret"})");
  const std::string unknown =
      Event(R"({"type":"response.new_thing.delta","output_index":0,"delta":"secret"})");
  const std::string block = Event(
      R"({"type":"content_block_delta","index":1,"delta":{"type":"text_delta","text":"secret"}})");
  const std::string input = Event(
      R"({"type":"content_block_delta","index":0,"delta":{"type":"input_json_delta","partial_json":"secret"}})");
  const std::string start =
      Event(R"({"type":"content_block_start","index":0,"content_block":{"text":"secret"}})");
  const Case cases[] = {
      {"/choices/*/message/content", chat, true},
      {"/choices/*/delta/content", chat, true},
      {"/choices/1/message/content", chat, true},
      {"/choices/0/message/content", chat, false},
      {"/choices/*/message/refusal", chat, false},
      {"/choices/*/message/tool_calls/2/function/arguments", call, true},
      {"/choices/*/message/tool_calls/1/function/arguments", call, false},
      {"/choices/*/text", text, true},
      {"/output/*/content/*/text", output, true},
      {"/output/1/content/2/text", output, true},
      {"/output/0", output, false},
      {"/output/*/content/*/text", done, true},
      {"/output/*/content/*/text", whole, true},
      {"/output/*/summary/1/text", summary, true},
      {"/output/*/content/*/text", summary, false},
      {"/output/*/content/*/text", unknown, true},
      {"/content/*/text", block, true},
      {"/content/0/text", block, false},
      {"/content/*/input/name", input, true},
      {"/content/*/text", input, false},
      {"/content/*/text", start, true},
  };
  for (const Case& c : cases) {
    const Redacted r = Make({Rule(c.pointer)}).Response(c.stream, true);
    EXPECT_EQ(r.any(), c.covered) << c.pointer << "\n" << c.stream;
    EXPECT_EQ(
        r.bytes.find("secret") == std::string::npos && r.bytes.find("cret") == std::string::npos,
        c.covered)
        << c.pointer << "\n"
        << r.bytes;
  }
  const Redacted plain = Make({Rule("/choices/*/delta/content")})
                             .Response(R"({"choices":[{"message":{"content":"secret"}}]})", false);
  EXPECT_TRUE(plain.any()) << "a place in chunks is one in the plain form";
  for (const char* pointer : {"/delta/text", "/item", "/response/output", "/content_block/text"}) {
    const auto refused = Redactor::Make({Rule(pointer)});
    ASSERT_FALSE(refused.ok()) << pointer;
    EXPECT_NE(refused.error().message.find("in the plain answer"), std::string::npos);
  }
}

TEST(Redaction, AStreamWithNothingToHideKeepsItsBytes) {
  const Redactor redactor = Make({Rule("", "email"), Rule("/secret")});
  const std::string stream =
      "\xef\xbb\xbf: ping\r\n\r\nretry: 3000\nid: 7\nevent: x\ndata: {\"a\": \"b@\"}\n\n"
      "data: {\"a\":\"c\"}\r\rdata: [DONE]\n\n";
  const Redacted r = redactor.Response(stream, true);
  EXPECT_EQ(r.bytes, stream);
  EXPECT_FALSE(r.any());
}

// What a place costs does not grow with the names above it, times the strings below it.
TEST(Redaction, ManyStringsBelowALongName) {
  const Redactor redactor = Make({Rule("", "email")});
  std::string body = "{\"x\":{\"" + std::string(1'000'000, 'n') + "\":[";
  for (int i = 0; i < 20'000; ++i) body += "\"\",";
  body += "\"me@x.com\"]}}";
  const Redacted r = redactor.Request(body);
  EXPECT_TRUE(r.any());
  EXPECT_EQ(r.bytes.find("me@x.com"), std::string::npos);
  EXPECT_LT(r.bytes.size(), body.size() + 100);
}

TEST(Redaction, WhatTheDecoderRefusesForItsSizeIsNotKept) {
  const Redactor redactor = Make({Rule("", "email")});
  std::string body = "[";
  for (int i = 0; i < 300'000; ++i) body += "0,";
  body += "0]";
  EXPECT_EQ(redactor.Request(body).rules, std::vector<std::string>{"unreadable"});
  EXPECT_FALSE(redactor.Response(body, false).any());
}

TEST(Redaction, FieldsThatOnlyBeginLikeData) {
  const Redactor redactor = Make({Rule("", "email")});
  const Redacted r = redactor.Response("data: {\"a\":1}\ndatabase: me@x.com\n\n", true);
  EXPECT_TRUE(r.any());
  EXPECT_EQ(r.bytes.find("me@x.com"), std::string::npos);
}

TEST(Redaction, TokensGoWithTheTextThatTheySpell) {
  const Redactor redactor = Make({Rule("", "email")});
  const std::string body =
      R"({"choices":[{"text":"a@b.com","logprobs":{"tokens":["a@","b.com"]},"token_ids":[1,2]}],"logprobs":true})";
  EXPECT_EQ(redactor.Response(body, false).bytes,
            R"({"choices":[{"text":"[X]","logprobs":null,"token_ids":null}],"logprobs":true})");
}

}  // namespace
}  // namespace verbatim::gateway
