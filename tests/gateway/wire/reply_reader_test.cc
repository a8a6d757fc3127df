#include "gateway/wire/reply_reader.h"

#include <gtest/gtest.h>

#include <random>

#include "gateway/wire/sse.h"
#include "tests/gateway/wire/vectors.h"

namespace verbatim::gateway {
namespace {

using test::Packets;
using test::ParseJson;
using test::Recording;
using test::WithCrLf;

struct Read {
  std::vector<ReplyPiece> pieces;
  ReplySummary summary;

  std::string Joined() const {
    std::string all;
    for (const ReplyPiece& piece : pieces) all += piece.bytes;
    return all;
  }
  // What may be passed on before the commit.
  std::string Live() const {
    std::string all;
    for (const ReplyPiece& piece : pieces) {
      if (piece.completes) break;
      all += piece.bytes;
    }
    return all;
  }
};

Read ReadAll(Endpoint endpoint, bool streamed, const std::vector<std::string_view>& packets,
             bool whole = true, ReplyOptions options = {}) {
  ReplyReader reader(endpoint, streamed, options);
  Read read;
  for (std::string_view packet : packets) {
    for (ReplyPiece& piece : reader.Feed(packet)) read.pieces.push_back(std::move(piece));
  }
  read.summary = reader.Finish(whole, read.pieces);
  EXPECT_EQ(read.summary.complete, read.summary.why_not.empty());
  return read;
}

std::string Chunk(std::string_view choices, std::string_view more = "") {
  return "data: {\"id\":\"c1\",\"model\":\"m\",\"choices\":[" + std::string(choices) + "]" +
         std::string(more) + "}\n\n";
}

constexpr auto kChat = Endpoint::kChatCompletions;
constexpr auto kMessages = Endpoint::kMessages;
constexpr auto kResponses = Endpoint::kResponses;
constexpr const char* kUsage = ",\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":5}";
constexpr const char* kDone = "data: [DONE]\n\n";

TEST(ReplyReader, Verdicts) {
  const std::string said = R"({"index":0,"delta":{"content":"a"},"finish_reason":null})";
  const std::string stop = R"({"index":0,"delta":{},"finish_reason":"stop"})";
  const std::string second = R"({"index":1,"delta":{},"finish_reason":"length"})";
  const std::string silent = R"({"index":0,"delta":{"content":"a"}})";
  const std::string start =
      "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"m1\"}}\n\n";
  const std::string delta =
      "event: message_delta\ndata: "
      "{\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"}}\n\n";
  const std::string end = "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n";
  const std::string ping = "event: ping\ndata: {\"type\":\"ping\"}\n\n";
  const auto response = [](const char* type, const char* status) {
    return std::string("data: {\"type\":\"") + type +
           "\",\"response\":{\"id\":\"r\",\"status\":\"" + status + "\",\"output\":[]}}\n\n";
  };
  struct Case {
    const char* name;
    Endpoint endpoint;
    bool streamed;
    std::string body;
    const char* why_not;
    uint32_t choices = 1;
    bool whole = true;
  };
  const Case cases[] = {
      {"well", kChat, true, Chunk(said) + Chunk(stop) + kDone, ""},
      {"usage after the end of the choice", kChat, true, Chunk(stop) + Chunk("", kUsage) + kDone,
       ""},
      {"CRLF", kChat, true, WithCrLf(Chunk(said) + Chunk(stop) + kDone), ""},
      {"comments, pings, retry, an id, empty data", kChat, true,
       "retry: 3000\n\n: hi\n\nid: 7\n" + Chunk(said) + ping +
           "event: ping\ndata: now\n\ndata:\n\n" + Chunk(stop) + kDone,
       ""},
      {"closed without [DONE]", kChat, true, Chunk(said) + Chunk(stop), "no_end"},
      {"[DONE] without its blank line", kChat, true, Chunk(stop) + "data: [DONE]\n", "no_end"},
      {"[DONE], but no finish reason", kChat, true, Chunk(said) + kDone, "no_finish_reason"},
      {"... with usage, of one who says null", kChat, true, Chunk(said) + Chunk("", kUsage) + kDone,
       "no_finish_reason"},
      {"... with usage, of one who never says", kChat, true,
       Chunk(silent) + Chunk("", kUsage) + kDone, ""},
      {"... without usage", kChat, true, Chunk(silent) + kDone, "no_finish_reason"},
      {"[DONE] alone", kChat, true, kDone, "unknown_shape"},
      {"two choices", kChat, true, Chunk(stop) + Chunk(second) + kDone, "", 2},
      {"the second is missing", kChat, true, Chunk(stop) + kDone, "missing_choice", 2},
      {"the first is missing", kChat, true, Chunk(second) + kDone, "missing_choice"},
      {"the second has no end", kChat, true,
       Chunk(R"({"index":1,"delta":{"content":"b"},"finish_reason":null})") + Chunk(stop) + kDone,
       "no_finish_reason"},
      {"an error, then the end", kChat, true,
       Chunk(said) + "data: {\"error\":{\"message\":\"x\"}}\n\n" + Chunk(stop) + kDone,
       "error_event"},
      {"an error in a chunk after the finish reason", kChat, true,
       Chunk(stop) + Chunk("", ",\"error\":{\"code\":502}") + kDone, "error_event"},
      {"an error as the finish reason", kChat, true,
       Chunk(R"({"index":0,"delta":{},"finish_reason":"error"})") + kDone, "error_event"},
      {"an error event", kChat, true, Chunk(said) + "event: error\ndata: oops\n\n", "error_event"},
      {"an error of null", kChat, true, Chunk(stop, ",\"error\":null") + kDone, ""},
      {"an error after the end", kChat, true, Chunk(stop) + kDone + "data: {\"error\":{}}\n\n", ""},
      {"chunks after the end", kChat, true, Chunk(stop) + kDone + Chunk(said), ""},
      {"no JSON in the middle", kChat, true, Chunk(said) + "data: {\n\n" + Chunk(stop) + kDone,
       "not_json"},
      {"a JSON error in place of events", kChat, true, "{\"error\":\"x\"}\n", "empty"},
      {"nothing", kChat, true, "", "empty"},
      {"only comments", kChat, true, ": a\n\n: b\n\n", "empty"},
      {"broken off after its end", kChat, true, Chunk(stop) + kDone, "truncated", 1, false},
      {"a wild index", kChat, true, Chunk(R"({"index":99999999999,"delta":{}})") + kDone,
       "unknown_shape"},
      {"choices of another type", kChat, true, "data: {\"choices\":{}}\n\n", "unknown_shape"},

      {"plain", kChat, false, R"({"choices":[{"index":0,"message":{},"finish_reason":"stop"}]})",
       ""},
      {"plain, no reason", kChat, false, R"({"choices":[{"message":{},"finish_reason":null}]})",
       "no_finish_reason"},
      {"plain, no choices", kChat, false, R"({"choices":[]})", "unknown_shape"},
      {"plain, too few", kChat, false, R"({"choices":[{"finish_reason":"stop"}]})",
       "missing_choice", 2},
      {"plain error with status 200", kChat, false, R"({"error":{"message":"x"}})", "error_event"},
      {"half of it", kChat, false, R"({"choices":[{"fin)", "not_json"},
      {"plain, broken off", kChat, false, R"({"choices":[{"finish_reason":"stop"}]})", "truncated",
       1, false},
      {"events to who asked for a plain body", kChat, false, Chunk(stop) + kDone, "not_json"},
      {"a page", kChat, false, "<html></html>", "not_json"},
      {"no object", kChat, false, "[1]", "not_json"},
      {"no byte", kChat, false, "", "empty"},

      {"message", kMessages, true, start + ping + delta + end, ""},
      {"message without its last blank line", kMessages, true,
       start + delta + end.substr(0, end.size() - 1), ""},
      {"message without its last line's end", kMessages, true,
       start + delta + end.substr(0, end.size() - 2), "no_end"},
      {"message, closed early", kMessages, true, start + delta, "no_end"},
      {"message, no reason", kMessages, true, start + end, "no_finish_reason"},
      {"message, no start", kMessages, true, delta + end, "unknown_shape"},
      {"message, overloaded", kMessages, true,
       start +
           "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\"}}\n\n",
       "error_event"},
      {"plain message", kMessages, false,
       R"({"type":"message","content":[],"stop_reason":"end_turn"})", ""},
      {"plain message, no reason", kMessages, false,
       R"({"type":"message","content":[],"stop_reason":null})", "no_finish_reason"},
      {"something else", kMessages, false, R"({"type":"thing"})", "unknown_shape"},

      {"response", kResponses, true,
       response("response.created", "in_progress") + response("response.completed", "completed"),
       ""},
      {"response, then [DONE]", kResponses, true,
       response("response.completed", "completed") + kDone, ""},
      {"response cut", kResponses, true, response("response.created", "in_progress"), "no_end"},
      {"response failed", kResponses, true, response("response.failed", "failed"), "not_completed"},
      {"response incomplete, nobody says why", kResponses, true,
       response("response.incomplete", "incomplete"), "not_completed"},
      {"response cut at its length", kResponses, true,
       R"(data: {"type":"response.incomplete","response":{"status":"incomplete","output":[],"incomplete_details":{"reason":"max_output_tokens"}}})"
       "\n\n",
       ""},
      {"a status that is not the event's", kResponses, true,
       response("response.completed", "failed"), "not_completed"},
      {"response queued", kResponses, false, R"({"status":"queued","output":[]})", "not_completed"},
      {"plain response", kResponses, false, R"({"status":"completed","output":[],"error":null})",
       ""},

      {"embeddings", Endpoint::kEmbeddings, false,
       R"({"data":[{"embedding":[0.1]},{"embedding":"AAAA"}]})", ""},
      {"no embedding", Endpoint::kEmbeddings, false, R"({"data":[{"embedding":[0.1]},{}]})",
       "unknown_shape"},
      {"no embeddings", Endpoint::kEmbeddings, false, R"({"data":[]})", "unknown_shape"},
      {"fewer embeddings than inputs", Endpoint::kEmbeddings, false,
       R"({"data":[{"embedding":[0.1]},{"embedding":[0.2]}]})", "missing_choice", 3},
      {"an embedding for each", Endpoint::kEmbeddings, false,
       R"({"data":[{"embedding":[0.1]},{"embedding":[0.2]}]})", "", 2},
      {"tokens", Endpoint::kCountTokens, false, R"({"input_tokens":3})", ""},
      {"no tokens", Endpoint::kCountTokens, false, R"({"input_tokens":"3"})", "unknown_shape"},
  };
  std::mt19937 random(1);
  for (const Case& c : cases) {
    const ReplyOptions options{.choices = c.choices};
    for (int cut = 0; cut < 4; ++cut) {
      const auto packets =
          cut == 0 ? std::vector<std::string_view>{c.body} : Packets(c.body, random);
      const Read read = ReadAll(c.endpoint, c.streamed, packets, c.whole, options);
      EXPECT_EQ(read.summary.why_not, c.why_not) << c.name;
      EXPECT_EQ(read.Joined(), c.body) << c.name;
    }
  }
}

TEST(ReplyReader, HoldsBackFromThePieceThatCompletes) {
  const std::string one = Chunk(R"({"index":0,"delta":{"content":"a"}})");
  const std::string first_ends = Chunk(R"({"index":0,"delta":{},"finish_reason":"stop"})");
  const std::string second_ends = Chunk(R"({"index":1,"delta":{},"finish_reason":"stop"})");
  const std::string usage = Chunk("", kUsage);
  const auto live = [](Endpoint endpoint, const std::string& body, uint32_t choices) {
    return ReadAll(endpoint, true, {body}, true, {.choices = choices}).Live();
  };
  EXPECT_EQ(live(kChat, one + first_ends + usage + kDone, 1), one);
  EXPECT_EQ(live(kChat, one + first_ends + second_ends + kDone, 2), one + first_ends);
  EXPECT_EQ(live(kChat, one + usage + kDone, 1), one + usage) << "nobody says why it ended";
  const std::string start = "data: {\"type\":\"message_start\",\"message\":{}}\n\n";
  EXPECT_EQ(
      live(kMessages,
           start + "data: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"x\"}}\n\n" +
               "data: {\"type\":\"message_stop\"}\n\n",
           1),
      start);
  EXPECT_EQ(live(kResponses, "data: {\"type\":\"response.created\",\"response\":{}}\n\n", 1),
            "data: {\"type\":\"response.created\",\"response\":{}}\n\n");
  // A plain body is held whole.
  EXPECT_EQ(ReadAll(kChat, false, {"{\"choices\":", "[]}"}).Live(), "");
}

TEST(ReplyReader, Summary) {
  const std::string chat = "data: {\"id\":\"\",\"model\":\"\",\"choices\":[]}\n\n" +
                           Chunk(R"({"index":1,"delta":{},"finish_reason":"length"})",
                                 ",\"system_fingerprint\":\"fp\"") +
                           Chunk(R"({"index":0,"delta":{},"finish_reason":"stop"})") +
                           Chunk("", kUsage) + kDone;
  const ReplySummary s = ReadAll(kChat, true, {chat}, true, {.choices = 2}).summary;
  EXPECT_EQ(s.finish_reasons, (std::vector<std::string>{"stop", "length"}));
  EXPECT_EQ(s.id + s.model + s.system_fingerprint, "c1mfp");
  EXPECT_EQ(json::Serialize(s.usage), R"({"prompt_tokens":3,"completion_tokens":5})");
  EXPECT_EQ(s.prompt_tokens, 3u);
  EXPECT_EQ(s.completion_tokens, 5u);

  const std::string message =
      R"({"type":"message","id":"m","model":"c","content":[],"stop_reason":"refusal",)"
      R"("usage":{"input_tokens":3,"cache_read_input_tokens":4,"cache_creation_input_tokens":null,"output_tokens":5}})";
  const ReplySummary m = ReadAll(kMessages, false, {message}).summary;
  EXPECT_EQ(m.finish_reasons, std::vector<std::string>{"refusal"});
  EXPECT_EQ(m.prompt_tokens, 7u) << "what was read from a cache is a prompt too";
  EXPECT_EQ(m.completion_tokens, 5u);

  const std::string hostile =
      R"({"type":"message","content":[],"usage":{"input_tokens":18446744073709551615,"cache_read_input_tokens":18446744073709551615,"output_tokens":-1}})";
  const ReplySummary h = ReadAll(kMessages, false, {hostile}).summary;
  EXPECT_EQ(h.prompt_tokens, UINT64_MAX);
  EXPECT_EQ(h.completion_tokens, 0u);
}

TEST(ReplyReader, TooLarge) {
  const std::string stop = Chunk(R"({"index":0,"delta":{},"finish_reason":"stop"})") + kDone;
  const std::string plain = R"({"choices":[{"finish_reason":"stop"}]})";
  for (const bool streamed : {true, false}) {
    const std::string& body = streamed ? stop : plain;
    for (const size_t limit : {body.size() - 1, body.size()}) {
      std::mt19937 random(2);
      const Read read = ReadAll(kChat, streamed, Packets(body, random), true, {.max_bytes = limit});
      EXPECT_EQ(read.summary.why_not, limit < body.size() ? "too_large" : "");
      EXPECT_EQ(read.Joined(), body);
    }
  }
  const Read read = ReadAll(kChat, true, {stop}, true, {.max_event_bytes = 20});
  EXPECT_EQ(read.summary.why_not, "too_large");
  EXPECT_EQ(read.Joined(), stop);
}

// Recorded answers: the same verdict and summary however they are cut, and as recorded.
TEST(ReplyReader, RecordedAnswers) {
  SKIP_WITHOUT_VECTORS("streams");
  std::mt19937 random(20261130);
  size_t complete = 0;
  for (const Recording& r : test::Recordings()) {
    if (r.status != 200) continue;
    const ReplyOptions options{.choices = r.choices};
    for (const std::string& body : {r.body, WithCrLf(r.body)}) {
      for (int round = 0; round < 5; ++round) {
        const auto packets =
            round == 0 ? std::vector<std::string_view>{body} : Packets(body, random);
        const Read read = ReadAll(r.endpoint, r.streamed, packets, true, options);
        EXPECT_EQ(read.Joined(), body) << r.name;
        if (r.streamed) {
          EXPECT_EQ(read.summary.complete, r.cacheable) << r.name << ": " << read.summary.why_not;
        } else {
          EXPECT_TRUE(read.summary.complete) << r.name << ": " << read.summary.why_not;
        }
        complete += read.summary.complete;
        if (const json::Value* usage = r.assembled.Find("usage")) {
          for (const auto& [name, value] : usage->members()) {
            const json::Value* ours = read.summary.usage.Find(name);
            ASSERT_NE(ours, nullptr) << r.name << ": " << name;
            EXPECT_EQ(*ours, value) << r.name << ": " << name;
          }
        }
        if (const json::Value* choices = r.assembled.Find("choices")) {
          for (const auto& [index, choice] : choices->members()) {
            const json::Value& want = *choice.Find("finish_reason");
            EXPECT_EQ(read.summary.finish_reasons.at(std::stoul(index)),
                      want.is_string() ? want.as_string() : "")
                << r.name;
          }
        }
        if (const json::Value* reason = r.assembled.Find("stop_reason")) {
          EXPECT_EQ(read.summary.finish_reasons, std::vector{reason->as_string()}) << r.name;
        }
      }
    }
  }
  EXPECT_GT(complete, 100u);
}

// A stream that breaks off between two events, or inside one, is never complete before its end.
TEST(ReplyReader, CutRecordingsAreNeverComplete) {
  SKIP_WITHOUT_VECTORS("streams");
  std::mt19937 random(20261130);
  for (const Recording& r : test::Recordings()) {
    if (!r.streamed) continue;
    // The events that come after the end do not count.
    size_t end = 0, at = 0;
    std::vector<size_t> cuts;
    for (const SsePiece& piece : ParseEventStream(r.body)) {
      cuts.push_back(at);
      at += piece.bytes.size();
      if (!piece.event) continue;
      const std::string& data = piece.event->data;
      const bool ends = (r.endpoint == kMessages && piece.event->type == "message_stop") ||
                        (r.endpoint == kResponses && piece.event->type == "response.completed") ||
                        data == "[DONE]";
      // Its last line is enough of message_stop.
      if (ends && end == 0) end = at - (r.endpoint == kMessages ? 1 : 0);
    }
    if (end == 0) end = r.body.size();
    for (int i = 0; i < 50; ++i) cuts.push_back(random() % end);
    for (const size_t cut : cuts) {
      if (cut >= end) continue;
      const std::string_view body = std::string_view(r.body).substr(0, cut);
      const Read read = ReadAll(r.endpoint, true, {body}, true, {.choices = r.choices});
      EXPECT_FALSE(read.summary.complete) << r.name << " cut at " << cut;
      EXPECT_EQ(read.Joined(), body) << r.name;
    }
  }
}

}  // namespace
}  // namespace verbatim::gateway
