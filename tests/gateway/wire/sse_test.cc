#include "gateway/wire/sse.h"

#include <gtest/gtest.h>

#include <random>

#include "base/bytes.h"
#include "tests/gateway/wire/vectors.h"

namespace verbatim::gateway {
namespace {

using std::literals::operator""sv;
using test::Packets;
using test::ParseJson;
using test::WithCrLf;

struct Parsed {
  std::vector<SsePiece> pieces;
  std::optional<uint64_t> retry;

  std::string Joined() const {
    std::string all;
    for (const SsePiece& piece : pieces) all += piece.bytes;
    return all;
  }
  // One line per event.
  std::string Events() const {
    std::string all;
    for (const SsePiece& piece : pieces) {
      if (!piece.event) continue;
      all += piece.event->type + " " + json::Quote(piece.event->id) + " " +
             json::Quote(piece.event->data) + "\n";
    }
    return all;
  }
  std::vector<std::string> Bytes() const {
    std::vector<std::string> all;
    for (const SsePiece& piece : pieces) all.push_back(piece.bytes);
    return all;
  }
};

template <typename Chunks>
Parsed Parse(const Chunks& chunks) {
  SseParser parser;
  Parsed parsed;
  for (const auto& chunk : chunks) parser.Feed(chunk, parsed.pieces);
  parser.Finish(parsed.pieces);
  parsed.retry = parser.retry();
  return parsed;
}

Parsed ParseWhole(std::string_view bytes) { return Parse(std::vector<std::string_view>{bytes}); }

std::vector<std::string_view> ByteByByte(std::string_view bytes) {
  std::vector<std::string_view> all;
  for (size_t i = 0; i < bytes.size(); ++i) all.push_back(bytes.substr(i, 1));
  return all;
}

TEST(Sse, PiecesAndEvents) {
  struct Case {
    std::string_view input;
    std::vector<std::string> pieces;
    std::string events;
  };
  const Case cases[] = {
      {"data: a\n\ndata: b\n\n",
       {"data: a\n\n", "data: b\n\n"},
       "message \"\" \"a\"\nmessage \"\" \"b\"\n"},
      {": ping\n\nevent: e\nid: 7\ndata: a\ndata:b\n\n",
       {": ping\n\n", "event: e\nid: 7\ndata: a\ndata:b\n\n"},
       "e \"7\" \"a\\nb\"\n"},
      // Comments without a blank line belong to the event after them.
      {": one\n: two\ndata: a\n\n", {": one\n: two\ndata: a\n\n"}, "message \"\" \"a\"\n"},
      {"data: a\r\n\r\ndata: b\r\n\r\n",
       {"data: a\r\n\r\n", "data: b\r\n\r\n"},
       "message \"\" \"a\"\nmessage \"\" \"b\"\n"},
      {"data: a\r\rdata: b\r\r",
       {"data: a\r\r", "data: b\r\r"},
       "message \"\" \"a\"\nmessage \"\" \"b\"\n"},
      // After lone CRs a blank line is a lone CR; an LF behind it is no line of its own.
      {"data: a\r\r\ndata: b\r\r",
       {"data: a\r\r", "\ndata: b\r\r"},
       "message \"\" \"a\"\nmessage \"\" \"b\"\n"},
      {"data: first\n\r\ndata: b\n\n",
       {"data: first\n\r\n", "data: b\n\n"},
       "message \"\" \"first\"\nmessage \"\" \"b\"\n"},
      // An id stays in force; one with a NUL does not count, an empty one takes it back.
      {"id: 1\n\ndata: a\n\nid: x\0y\ndata: b\n\nid\ndata: c\n\n"sv,
       {"id: 1\n\n", "data: a\n\n", std::string("id: x\0y\ndata: b\n\n"sv), "id\ndata: c\n\n"},
       "message \"1\" \"a\"\nmessage \"1\" \"b\"\nmessage \"\" \"c\"\n"},
      {"event: gone\n\ndata: a\n\n", {"event: gone\n\n", "data: a\n\n"}, "message \"\" \"a\"\n"},
      {"data\n\ndata:\n\ndata\ndata\n\n",
       {"data\n\n", "data:\n\n", "data\ndata\n\n"},
       "message \"\" \"\"\nmessage \"\" \"\"\nmessage \"\" \"\\n\"\n"},
      {"data: \u2028\u00e9\n\n", {"data: \u2028\u00e9\n\n"}, "message \"\" \"\u2028\u00e9\"\n"},
      {"\xef\xbb\xbf"
       "data: a\n\n\xef\xbb\xbf"
       "data: b\n\n",
       {"\xef\xbb\xbf"
        "data: a\n\n",
        "\xef\xbb\xbf"
        "data: b\n\n"},
       "message \"\" \"a\"\n"},
      // What never got its blank line is passed on, and is no event.
      {"data: a\n\ndata: b\n", {"data: a\n\n", "data: b\n"}, "message \"\" \"a\"\n"},
      {"data: a\n\r", {"data: a\n\r"}, "message \"\" \"a\"\n"},
      {"\xef\xbb", {"\xef\xbb"}, ""},
      {"", {}, ""},
  };
  for (const Case& c : cases) {
    for (const Parsed& parsed : {ParseWhole(c.input), Parse(ByteByByte(c.input))}) {
      EXPECT_EQ(parsed.Bytes(), c.pieces) << json::Quote(c.input);
      EXPECT_EQ(parsed.Events(), c.events) << json::Quote(c.input);
    }
  }
}

TEST(Sse, EventsComeWithTheByteThatEndsThem) {
  SseParser parser;
  std::vector<SsePiece> pieces;
  parser.Feed("data: a\r\n\r", pieces);
  EXPECT_TRUE(pieces.empty()) << "its LF may come";
  parser.Feed("\n", pieces);
  ASSERT_EQ(pieces.size(), 1u);
  parser.Feed("data: b\r\r", pieces);
  EXPECT_EQ(pieces.size(), 2u) << "of lone CRs the second is enough";
  parser.Feed("data: c\n\n", pieces);
  EXPECT_EQ(pieces.size(), 3u);
  EXPECT_EQ(parser.pending(), 0u);
}

TEST(Sse, LongEventsEndTheParsing) {
  const std::string ok = "data: " + std::string(92, 'x') + "\n\n",
                    big = "data: " + std::string(93, 'x') + "\n\n";
  for (const bool in_packets : {false, true}) {
    SseParser parser(100);
    std::vector<SsePiece> pieces;
    const std::string all = ok + big + "data: after\n\n";
    if (in_packets) {
      for (std::string_view packet : ByteByByte(all)) parser.Feed(packet, pieces);
    } else {
      parser.Feed(all, pieces);
    }
    EXPECT_TRUE(parser.too_large());
    EXPECT_EQ(parser.pending(), 0u);
    parser.Finish(pieces);
    std::string joined;
    size_t events = 0;
    for (const SsePiece& piece : pieces) {
      joined += piece.bytes;
      events += piece.event.has_value();
    }
    EXPECT_EQ(joined, all);
    EXPECT_EQ(events, 1u);
  }
}

// The cases of eventsource-parser, of the web platform tests and of public reports, as given,
// whole, byte by byte, cut in two at each offset, and with CRLF.
TEST(Sse, Vectors) {
  SKIP_WITHOUT_VECTORS("sse");
  const json::Value file = ParseJson(test::ReadFile(test::Vectors("sse") / "sse-vectors.json"));
  size_t count = 0;
  for (const json::Value& c : file.Find("cases")->items()) {
    const std::string& name = c.Find("name")->as_string();
    std::vector<std::string> chunks;
    std::string whole, want;
    for (const json::Value& chunk : c.Find("chunks_b64")->items()) {
      Result<std::string> bytes = Base64Decode(chunk.as_string());
      ASSERT_TRUE(bytes.ok()) << name;
      chunks.push_back(std::move(*bytes));
      whole += chunks.back();
    }
    for (const json::Value& e : c.Find("events")->items()) {
      want += e.Find("event")->as_string() + " " + json::Quote(e.Find("id")->as_string()) + " " +
              json::Quote(e.Find("data")->as_string()) + "\n";
    }
    const auto check = [&](const Parsed& parsed, std::string_view input, const char* how) {
      EXPECT_EQ(parsed.Events(), want) << name << ", " << how;
      EXPECT_EQ(parsed.Joined(), input) << name << ", " << how;
      const auto retry = c.Find("retry")->AsUint64();
      EXPECT_EQ(parsed.retry, retry) << name << ", " << how;
    };
    check(Parse(chunks), whole, "as given");
    check(ParseWhole(whole), whole, "whole");
    check(Parse(ByteByByte(whole)), whole, "byte by byte");
    const size_t step = whole.size() > 20000 ? whole.size() / 200 : 1;
    for (size_t at = 1; at < whole.size(); at += step) {
      const std::string_view view = whole;
      check(Parse(std::vector{view.substr(0, at), view.substr(at)}), whole, "in two");
    }
    if (whole.find('\r') == std::string::npos) {
      const std::string crlf = WithCrLf(whole);
      check(ParseWhole(crlf), crlf, "CRLF");
      check(Parse(ByteByByte(crlf)), crlf, "CRLF, byte by byte");
    }
    ++count;
  }
  EXPECT_GT(count, 0u);
}

// Record and replay is the identity on bytes: whatever the bytes and however they are cut, the
// pieces joined are the input, and pieces and events are the same as of the whole.
TEST(Sse, AnyBytesAnyCut) {
  std::mt19937 random(20261130);
  static constexpr std::string_view kParts[] = {
      "data",     "data: ", "data:x",       "event: e", "id: 1", "id:\0"sv, "retry: 10",
      ": c",      "\n",     "\n",           "\n\n",     "\r",    "\r\n",    "\r\r",
      "\r\n\r\n", "\n\r",   "\xef\xbb\xbf", "\xe2\x80", "\xff",  "{}"};
  for (int round = 0; round < 3000; ++round) {
    std::string input;
    const size_t parts = random() % 40;
    for (size_t i = 0; i < parts; ++i) {
      if (random() % 8 == 0) {
        input += static_cast<char>(random());
      } else {
        input += kParts[random() % std::size(kParts)];
      }
    }
    const Parsed whole = ParseWhole(input);
    ASSERT_EQ(whole.Joined(), input);
    const Parsed cut = Parse(Packets(input, random));
    ASSERT_EQ(cut.Bytes(), whole.Bytes()) << json::Quote(input);
    ASSERT_EQ(cut.Events(), whole.Events()) << json::Quote(input);
    ASSERT_EQ(Parse(ByteByByte(input)).Bytes(), whole.Bytes()) << json::Quote(input);
  }
}

}  // namespace
}  // namespace verbatim::gateway
