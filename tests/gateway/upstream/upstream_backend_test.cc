#include "gateway/upstream/upstream_backend.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <condition_variable>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <mutex>

#include "base/clock.h"
#include "gateway/io_threads.h"
#include "gateway/upstream/pass_through.h"
#include "gateway/wire/openai.h"
#include "policies/loader.h"
#include "tests/gateway/upstream/scripted_upstream.h"

namespace verbatim::gateway {
namespace {

using test::HttpReply;
using test::kClose;
using test::kHang;
using test::kThenClose;
using test::kThenHang;
using test::ScriptedUpstream;
using test::StreamReply;

constexpr char kSecret[] = "sk-secret-of-the-operator";

// A complete plain chat answer.
constexpr char kAnswer[] =
    R"({"id":"c1","object":"chat.completion","model":"m-1","system_fingerprint":"fp",)"
    R"("choices":[{"index":0,"message":{"role":"assistant","content":"Hi"},"finish_reason":"stop"}],)"
    R"("usage":{"prompt_tokens":3,"completion_tokens":1}})";

constexpr char kFinishChunk[] =
    "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n";

// What an observer hears of a run, and a way to wait for its end.
class Heard {
 public:
  RunObserver Observer() {
    return {.on_reply =
                [this](ReplyHead head) {
                  const std::lock_guard lock(mutex_);
                  head_ = std::move(head);
                  changed_.notify_all();
                },
            .on_body =
                [this](std::vector<ReplyPiece> pieces) {
                  const std::lock_guard lock(mutex_);
                  for (ReplyPiece& piece : pieces) pieces_.push_back(std::move(piece));
                  changed_.notify_all();
                },
            .on_end =
                [this](RunEnd end) {
                  const std::lock_guard lock(mutex_);
                  ++ends_;
                  end_ = std::move(end);
                  changed_.notify_all();
                }};
  }
  const RunEnd& End() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return ends_ > 0; });
    EXPECT_EQ(ends_, 1);
    return end_;
  }
  size_t WaitForPieces(size_t n) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return pieces_.size() >= n || ends_ > 0; });
    return pieces_.size();
  }
  // After the end.
  const ReplyHead& head() const { return head_; }
  const std::vector<ReplyPiece>& pieces() const { return pieces_; }
  std::string Body() const {
    std::string out;
    for (const ReplyPiece& piece : pieces_) out += piece.bytes;
    return out;
  }

 private:
  std::mutex mutex_;  // guards everything below
  std::condition_variable changed_;
  ReplyHead head_;
  std::vector<ReplyPiece> pieces_;
  int ends_ = 0;
  RunEnd end_;
};

struct ClientRequest {
  Endpoint endpoint = Endpoint::kChatCompletions;
  std::string body = R"({"model":"m","messages":[ {"role":"user","content":"\u0048i"} ]})";
  Headers headers{};
  std::string query{};
};

class UpstreamBackendTest : public testing::Test {
 protected:
  void SetUp() override {
    setenv("VERBATIM_TEST_KEY", kSecret, 1);
    for (const char* name : {"HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy"}) {
      unsetenv(name);
    }
  }

  // `config`: what stands below the upstream's id "up", in YAML's flow style, without braces. Waits
  // between attempts are a millisecond or so.
  void Configure(const std::string& url, const std::string& config = "") {
    backend_.reset();
    std::string all = "url: \"" + url + "\"";
    if (config.find("models:") == config.npos) all += ", models: [m]";
    if (config.find("retries:") == config.npos) all += ", retries: {base_ms: 1, max_ms: 3}";
    if (!config.empty()) all += ", " + config;
    auto parsed = policies::ParseConfig("upstreams: {up: {" + all + "}}", "c.yaml", "");
    ASSERT_TRUE(parsed.ok()) << parsed.error().message;
    auto made = MakeUpstream("up", parsed->upstreams.at("up"),
                             {.io = &io_, .on_attempt = [this](const AttemptReport& attempt) {
                                const std::lock_guard lock(mutex_);
                                outcomes_ += std::string(attempt.upstream) + ":" +
                                             std::string(attempt.outcome) + " ";
                                EXPECT_GE(attempt.seconds, 0);
                                retries_ += attempt.retry ? 1 : 0;
                              }});
    ASSERT_TRUE(made.ok()) << made.error().message;
    backend_ = *std::move(made);
  }

  Answered<std::shared_ptr<const PreparedRequest>> TryPrepare(const ClientRequest& request) {
    const auto body = json::Parse(request.body);
    EXPECT_TRUE(body.ok());
    const auto decoded = backend_->Decode(request.endpoint, *body);
    if (const auto* error = std::get_if<HttpError>(&decoded)) return *error;
    return backend_->Prepare(
        std::get<GenerationRequest>(decoded),
        {.headers = &request.headers, .query = request.query, .body = request.body});
  }

  std::shared_ptr<const PreparedRequest> Prepare(const ClientRequest& request = {}) {
    auto prepared = TryPrepare(request);
    EXPECT_TRUE(prepared.index() == 0) << std::get<HttpError>(prepared).message;
    return std::get<0>(std::move(prepared));
  }

  std::unique_ptr<gateway::Run> Start(const PreparedRequest& prepared, Heard& heard,
                                      const RunOptions& options = {}) {
    auto started = prepared.Start(options, heard.Observer());
    EXPECT_TRUE(started.index() == 0);
    return std::get<0>(std::move(started));
  }

  RunEnd RunOnce(Heard& heard, const ClientRequest& request = {}, const RunOptions& options = {}) {
    const auto run = Start(*Prepare(request), heard, options);
    return heard.End();
  }
  RunEnd RunOnce() {
    Heard heard;
    return RunOnce(heard);
  }

  std::string Outcomes() {
    const std::lock_guard lock(mutex_);
    return std::exchange(outcomes_, "");
  }

  std::mutex mutex_;
  std::string outcomes_;
  int retries_ = 0;
  IoThreads io_{2};
  std::unique_ptr<UpstreamBackend> backend_;
};

// The attempts of a report: "429 200", "connect_failed".
std::string Attempts(const RunEnd& end) {
  std::string out;
  for (const json::Value& attempt : end.report.Find("attempts")->items()) {
    if (!out.empty()) out += ' ';
    const json::Value* status = attempt.Find("status");
    out += status ? status->number_text() : attempt.Find("cause")->as_string();
    EXPECT_TRUE(attempt.Find("micros"));
  }
  return out;
}

TEST_F(UpstreamBackendTest, SendsTheClientsBytes) {
  struct Case {
    const char* config;
    const char* path;  // of the configured URL
    ClientRequest request;
    const char* want;  // without host and lengths
  };
  const ClientRequest chat;
  const std::string body = chat.body;
  const Case cases[] = {
      {"credentials: {value: env:VERBATIM_TEST_KEY}",
       "/v1",
       {.headers = {{"authorization", "Bearer CLIENT"}, {"openai-beta", "b"}}},
       "POST /v1/chat/completions\nopenai-beta: b\nuser-agent: verbatim\n"
       "content-type: application/json\naccept: application/json\n"
       "authorization: Bearer sk-secret-of-the-operator\n\n"
       R"({"model":"m","messages":[ {"role":"user","content":"\u0048i"} ]})"},
      {"credentials: {from: client}, models: {m: their-m}",
       "/api/v1/",
       {.body = R"({"stream":true, "model":"m", "seed":2512292042121000001})",
        .headers = {{"authorization", "Bearer CLIENT"}},
        .query = "beta=true"},
       "POST /api/v1/chat/completions?beta=true\nuser-agent: verbatim\n"
       "content-type: application/json\naccept: text/event-stream\n"
       "authorization: Bearer CLIENT\n\n"
       R"({"stream":true,"model":"their-m","seed":2512292042121000001,)"
       R"("stream_options":{"include_usage":true}})"},
      {"ask_usage: false",
       "/v1",
       {.body = R"({"model":"m","stream":true})"},
       "POST /v1/chat/completions\nuser-agent: verbatim\ncontent-type: application/json\n"
       "accept: text/event-stream\n\n{\"model\":\"m\",\"stream\":true}"},
      {"kind: azure, api_version: 2024-10-21, models: {m: my/deployment}, "
       "credentials: {value: env:VERBATIM_TEST_KEY}",
       "",
       {.body = R"({"model":"m"})"},
       "POST /openai/deployments/my%2Fdeployment/chat/completions?api-version=2024-10-21\n"
       "user-agent: verbatim\ncontent-type: application/json\naccept: application/json\n"
       "api-key: sk-secret-of-the-operator\n\n{\"model\":\"my/deployment\"}"},
      {"kind: azure, api_version: 2024-10-21, "
       "credentials: {value: env:VERBATIM_TEST_KEY, header: authorization}",
       "/openai",
       {.endpoint = Endpoint::kEmbeddings,
        .body = R"({"model":"m"})",
        .query = "api-version=2025-01-01-preview"},
       "POST /openai/deployments/m/embeddings?api-version=2025-01-01-preview\n"
       "user-agent: verbatim\ncontent-type: application/json\naccept: application/json\n"
       "authorization: Bearer sk-secret-of-the-operator\n\n{\"model\":\"m\"}"},
      {"kind: azure, api_version: 2025-03-01-preview",
       "/",
       {.endpoint = Endpoint::kResponses, .body = R"({"model":"m"})"},
       "POST /openai/responses?api-version=2025-03-01-preview\nuser-agent: verbatim\n"
       "content-type: application/json\naccept: application/json\n\n{\"model\":\"m\"}"},
      {"kind: azure",
       "/openai/v1",
       {.body = R"({"model":"m"})"},
       "POST /openai/v1/chat/completions\nuser-agent: verbatim\n"
       "content-type: application/json\naccept: application/json\n\n{\"model\":\"m\"}"},
      {"kind: anthropic, credentials: {value: env:VERBATIM_TEST_KEY}",
       "/v1",
       {.endpoint = Endpoint::kMessages,
        .body = R"({"model":"m","stream":true})",
        .headers = {{"x-api-key", "CLIENT"}, {"anthropic-beta", "b"}}},
       "POST /v1/messages\nanthropic-beta: b\nanthropic-version: 2023-06-01\n"
       "user-agent: verbatim\ncontent-type: application/json\naccept: text/event-stream\n"
       "x-api-key: sk-secret-of-the-operator\n\n{\"model\":\"m\",\"stream\":true}"},
  };
  for (const Case& c : cases) {
    ScriptedUpstream upstream({HttpReply(200, kAnswer)});
    Configure(upstream.url() + c.path, c.config);
    for (int i = 0; i < 2; ++i) {
      Heard heard;
      RunOnce(heard, c.request);
    }
    const auto requests = upstream.requests();
    ASSERT_EQ(requests.size(), 2u);
    EXPECT_EQ(requests[0], requests[1]) << "equal requests go upstream as equal bytes";
    std::string got;
    std::istringstream lines(requests[0].substr(0, requests[0].find("\r\n\r\n")));
    for (std::string line; std::getline(lines, line);) {
      if (line.ends_with('\r')) line.pop_back();
      if (line.ends_with(" HTTP/1.1")) line.resize(line.size() - 9);
      if (line.starts_with("host: ") || line.starts_with("content-length: ") ||
          line.starts_with("connection: ")) {
        continue;
      }
      got += line + "\n";
    }
    got += "\n" + requests[0].substr(requests[0].find("\r\n\r\n") + 4);
    EXPECT_EQ(got, c.want) << c.config;
  }
}

TEST_F(UpstreamBackendTest, APlainAnswer) {
  ScriptedUpstream upstream(
      {HttpReply(200, kAnswer, "x-request-id: req-7\r\nset-cookie: a=b\r\nopenai-version: v\r\n")});
  Configure(upstream.url() + "/v1");
  Heard heard;
  const RunEnd end = RunOnce(heard);
  EXPECT_EQ(end.outcome, RunEnd::Outcome::kComplete) << end.cause;
  EXPECT_EQ(heard.Body(), kAnswer);
  EXPECT_EQ(heard.head().status, 200);
  EXPECT_EQ(heard.head().content_type, "application/json");
  EXPECT_FALSE(heard.head().streamed);
  const Headers want = {{"verbatim-upstream-request-id", "req-7"}, {"openai-version", "v"}};
  EXPECT_EQ(heard.head().headers, want);
  EXPECT_TRUE(end.reply.complete);
  EXPECT_EQ(end.reply.model, "m-1");
  EXPECT_EQ(end.reply.prompt_tokens, 3u);
  EXPECT_EQ(Attempts(end), "200");
  EXPECT_EQ(end.report.Find("upstream")->as_string(), "up");
  EXPECT_EQ(end.report.Find("request_id")->as_string(), "req-7");
  EXPECT_EQ(Outcomes(), "up:200 ");
}

const std::vector<std::string> kEvents = {
    "data: {\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"H\"}}]}\n\n",
    "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"i\"}}]}\r\n\r\n",
    "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n",
    "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":2}}\n\n",
    "data: [DONE]\n\n"};
const ClientRequest kStreamed = {.body = R"({"model":"m","stream":true})"};

TEST_F(UpstreamBackendTest, AStreamedAnswer) {
  ScriptedUpstream upstream({StreamReply(kEvents)});
  Configure(upstream.url() + "/v1");
  EXPECT_TRUE(Prepare(kStreamed)->requests_usage());
  EXPECT_FALSE(Prepare()->requests_usage());
  Heard heard;
  const RunEnd end = RunOnce(heard, kStreamed);
  EXPECT_EQ(end.outcome, RunEnd::Outcome::kComplete) << end.cause;
  EXPECT_TRUE(heard.head().streamed);
  ASSERT_EQ(heard.pieces().size(), kEvents.size());
  for (size_t i = 0; i < kEvents.size(); ++i) {
    EXPECT_EQ(heard.pieces()[i].bytes, kEvents[i]);
    EXPECT_EQ(heard.pieces()[i].completes, i >= 2) << i;
  }
  EXPECT_EQ(end.reply.completion_tokens, 2u);
}

TEST_F(UpstreamBackendTest, WhatBreaksOffReachesTheClientAndIsNotAskedAgain) {
  struct Case {
    std::string reply;
    const char* cause;
    bool broken;
    size_t pieces;
  };
  const std::string stream = StreamReply(kEvents);
  const std::string head = stream.substr(0, stream.find("\r\n\r\n") + 4);
  const std::string first = stream.substr(0, stream.find("i\"}"));
  const Case cases[] = {
      {first + std::string(kThenClose), "upstream_broken", true, 2},
      {first + std::string(kThenHang), "upstream_timeout", true, 2},
      {head + std::string(kThenClose), "upstream_broken", true, 0},
      {StreamReply({kEvents[0], kEvents[1]}), "no_end", false, 2},
      {StreamReply({kEvents[0], kEvents[4]}), "no_finish_reason", false, 2},
      {HttpReply(200, "{\"error\":{\"message\":\"x\"}}"), "error_event", false, 1},
  };
  for (const Case& c : cases) {
    ScriptedUpstream upstream({c.reply});
    Configure(upstream.url() + "/v1", "timeouts: {idle_ms: 500}");
    Heard heard;
    const RunEnd end = RunOnce(heard, kStreamed);
    EXPECT_EQ(end.outcome, RunEnd::Outcome::kIncomplete);
    EXPECT_EQ(end.cause, c.cause);
    EXPECT_EQ(end.broken, c.broken) << c.cause;
    EXPECT_EQ(heard.pieces().size(), c.pieces) << c.cause;
    EXPECT_EQ(upstream.requests().size(), 1u);
  }
}

TEST_F(UpstreamBackendTest, Retries) {
  const std::string ok = HttpReply(200, kAnswer);
  struct Case {
    std::vector<std::string> replies;
    const char* attempts;
    const char* cause;  // "": complete
    int status;         // of the error
    bool elsewhere;
  };
  const std::string soon = "retry-after-ms: 1\r\n", late = "retry-after: 60\r\n";
  const Case cases[] = {
      {{HttpReply(503, ""), ok}, "503 200", "", 0, false},
      {{HttpReply(429, "", soon), HttpReply(500, ""), ok}, "429 500 200", "", 0, false},
      {{HttpReply(408, ""), HttpReply(409, ""), ok}, "408 409 200", "", 0, false},
      {{std::string(kClose), ok}, "reset 200", "", 0, false},
      {{HttpReply(529, "")}, "529 529 529", "upstream_529", 529, true},
      {{HttpReply(429, "")}, "429 429 429", "upstream_429", 429, true},
      {{HttpReply(429, "", late), ok}, "429", "upstream_429", 429, true},
      {{HttpReply(429, "", "x-should-retry: false\r\n"), ok}, "429", "upstream_429", 429, true},
      {{HttpReply(400, "", "x-should-retry: true\r\n"), ok}, "400 200", "", 0, false},
      {{HttpReply(400, ""), ok}, "400", "upstream_400", 400, false},
      {{HttpReply(401, ""), ok}, "401", "upstream_401", 401, false},
      {{HttpReply(307, "", "location: /x\r\n"), ok}, "307", "upstream_307", 307, false},
      {{"SSH-2.0-x\r\n\r\n" + std::string(kThenClose), ok},
       "malformed",
       "upstream_broken",
       502,
       true},
  };
  for (const Case& c : cases) {
    ScriptedUpstream upstream(c.replies);
    Configure(upstream.url() + "/v1");
    Heard heard;
    const RunEnd end = RunOnce(heard);
    EXPECT_EQ(Attempts(end), c.attempts);
    EXPECT_EQ(end.cause, c.cause) << c.attempts;
    EXPECT_EQ(end.outcome,
              *c.cause == '\0' ? RunEnd::Outcome::kComplete : RunEnd::Outcome::kFailed);
    EXPECT_EQ(end.outcome == RunEnd::Outcome::kFailed ? end.error.status : 0, c.status)
        << c.attempts;
    EXPECT_EQ(end.elsewhere, c.elsewhere) << c.attempts;
  }
}

TEST_F(UpstreamBackendTest, BackgroundRunsAskTwiceAtMost) {
  ScriptedUpstream upstream({HttpReply(500, "")});
  Configure(upstream.url() + "/v1", "retries: {attempts: 9, base_ms: 1, max_ms: 2}");
  Heard heard;
  EXPECT_EQ(Attempts(RunOnce(heard, {}, {.background = true})), "500 500");
  EXPECT_EQ(retries_, 1);
}

TEST_F(UpstreamBackendTest, HeadersOfTheRunTakeThePlaceOfTheRequests) {
  ScriptedUpstream upstream({HttpReply(200, kAnswer)});
  Configure(upstream.url() + "/v1", "headers: {forward: [traceparent]}");
  Heard heard;
  RunOnce(heard, {.headers = {{"traceparent", "clients"}}}, {.headers = {{"traceparent", "ours"}}});
  const std::string request = upstream.requests().at(0);
  EXPECT_NE(request.find("\r\ntraceparent: ours\r\n"), std::string::npos) << request;
  EXPECT_EQ(request.find("clients"), std::string::npos) << request;
}

TEST_F(UpstreamBackendTest, AnErrorPassesAsItCame) {
  const std::string body = "{\"error\": {\"message\": \"no \\u0041\"}}";
  ScriptedUpstream upstream({HttpReply(422, body, "x-request-id: r\r\nset-cookie: a\r\n")});
  Configure(upstream.url() + "/v1");
  const RunEnd end = RunOnce();
  EXPECT_EQ(end.outcome, RunEnd::Outcome::kFailed);
  EXPECT_EQ(end.error.status, 422);
  EXPECT_EQ(end.error.body, body);
  const Headers want = {{"verbatim-upstream-request-id", "r"},
                        {"content-type", "application/json"}};
  EXPECT_EQ(end.error.headers, want);
}

TEST_F(UpstreamBackendTest, UpstreamsThatAreNotThere) {
  std::string url;
  {
    ScriptedUpstream gone({"x"});
    url = gone.url();
  }
  Configure(url + "/v1");
  const RunEnd end = RunOnce();
  EXPECT_EQ(Attempts(end), "connect_failed connect_failed connect_failed");
  EXPECT_EQ(end.cause, "upstream_unreachable");
  EXPECT_EQ(end.error.status, 502);
  EXPECT_TRUE(end.elsewhere);
}

TEST_F(UpstreamBackendTest, TimeLimits) {
  {
    ScriptedUpstream upstream({std::string(kHang)});
    Configure(upstream.url() + "/v1", "timeouts: {first_byte_ms: 30}");
    const RunEnd end = RunOnce();
    EXPECT_EQ(Attempts(end), "first_byte_timeout");
    EXPECT_EQ(end.cause, "upstream_timeout");
    EXPECT_EQ(end.error.status, 504);
    EXPECT_TRUE(end.elsewhere);
  }
  {
    ScriptedUpstream upstream({HttpReply(500, ""), std::string(kHang)});
    Configure(upstream.url() + "/v1", "timeouts: {total_ms: 500}");
    const RunEnd end = RunOnce();
    EXPECT_EQ(Attempts(end), "500 total_timeout");
    EXPECT_EQ(end.cause, "upstream_timeout");
    EXPECT_EQ(end.error.status, 504);
  }
  {
    ScriptedUpstream upstream({HttpReply(500, "", "retry-after: 5\r\n")});
    Configure(upstream.url() + "/v1",
              "timeouts: {total_ms: 4000}, retries: {base_ms: 1, max_ms: 10000}");
    const RunEnd end = RunOnce();
    EXPECT_EQ(Attempts(end), "500") << "the time would be over before the next attempt";
    EXPECT_EQ(end.cause, "upstream_500");
  }
}

TEST_F(UpstreamBackendTest, CancelEndsARunAnywhere) {
  const std::string stream = StreamReply(kEvents);
  const std::string begun = stream.substr(0, stream.find("i\"}"));
  struct Case {
    std::string reply;
    size_t pieces;  // to wait for before the cancellation
  };
  const Case cases[] = {{std::string(kHang), 0},
                        {begun + std::string(kThenHang), 1},
                        {HttpReply(500, "", "retry-after: 3600\r\n"), 0}};
  for (const Case& c : cases) {
    ScriptedUpstream upstream({c.reply});
    Configure(upstream.url() + "/v1",
              "retries: {base_ms: 7200000, max_ms: 7200000}, timeouts: {total_ms: 86400000}");
    Heard heard;
    auto run = Start(*Prepare(kStreamed), heard);
    EXPECT_GE(heard.WaitForPieces(c.pieces), c.pieces);
    while (upstream.requests().empty()) std::this_thread::yield();
    const int64_t began = MonotonicMicros();
    run->Cancel();
    EXPECT_EQ(heard.End().outcome, RunEnd::Outcome::kCancelled);
    EXPECT_LT(MonotonicMicros() - began, 5'000'000);
  }
}

TEST_F(UpstreamBackendTest, ARunThatNobodyHoldsIsCancelled) {
  ScriptedUpstream upstream({std::string(kHang)});
  Configure(upstream.url() + "/v1");
  Heard heard;
  Start(*Prepare(), heard);
  backend_.reset();
  EXPECT_EQ(heard.End().outcome, RunEnd::Outcome::kCancelled);
}

TEST_F(UpstreamBackendTest, AnOpenCircuitAnswersAtOnce) {
  ScriptedUpstream upstream(
      {HttpReply(500, ""), HttpReply(400, ""), HttpReply(500, ""), HttpReply(500, "")});
  Configure(upstream.url() + "/v1", "retries: {attempts: 1}, breaker: {failures: 3}");
  for (const char* want : {"500", "400", "500", "500"}) EXPECT_EQ(Attempts(RunOnce()), want);
  const RunEnd end = RunOnce();
  EXPECT_EQ(Attempts(end), "circuit_open");
  EXPECT_EQ(end.cause, "upstream_unavailable");
  EXPECT_EQ(end.error.status, 503);
  EXPECT_EQ(end.error.code, "upstream_unavailable");
  const std::string after(FindHeader(end.error.headers, "retry-after"));
  EXPECT_TRUE(after == "10" || after == "9" || after == "8") << after;
  EXPECT_TRUE(end.elsewhere);
  EXPECT_EQ(upstream.requests().size(), 4u);
  EXPECT_EQ(Outcomes(), "up:500 up:400 up:500 up:500 up:circuit_open ");
}

TEST_F(UpstreamBackendTest, TheCircuitClosesAfterASuccess) {
  ScriptedUpstream upstream(
      {HttpReply(500, ""), HttpReply(500, ""), HttpReply(200, kAnswer), HttpReply(500, "")});
  Configure(upstream.url() + "/v1", "retries: {attempts: 1}, breaker: {failures: 2, open_ms: 1}");
  for (const char* want : {"500", "500", "200", "500"}) {
    EXPECT_EQ(Attempts(RunOnce()), want);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

TEST_F(UpstreamBackendTest, CredentialsAreSeenByTheUpstreamOnly) {
  const std::string echo = std::string("{\"error\":\"bad key ") + kSecret + ", CLIENT-KEY\"}";
  for (const char* from : {"value: env:VERBATIM_TEST_KEY", "from: client"}) {
    ScriptedUpstream upstream(
        {HttpReply(401, echo, std::string("x-request-id: ") + kSecret + "-CLIENT-KEY\r\n")});
    Configure(upstream.url() + "/v1",
              std::string("headers: {add: {x-second: env:VERBATIM_TEST_KEY}}, credentials: {") +
                  from + "}");
    const ClientRequest request = {
        .headers = {{"authorization", "Bearer CLIENT-KEY"}, {"cookie", "CLIENT-KEY"}},
        .query = "api_key=CLIENT-KEY"};
    const auto prepared = Prepare(request);
    Heard heard;
    const auto run = Start(*prepared, heard);
    const RunEnd& end = heard.End();
    EXPECT_NE(upstream.requests().at(0).find(kSecret), std::string::npos);
    std::string seen =
        end.error.body + end.error.message + json::Serialize(end.report) +
        json::Serialize(prepared->identity()) + json::Serialize(prepared->description()) +
        json::Serialize(prepared->parameters()) + json::Serialize(backend_->Describe());
    for (const auto& [name, value] : end.error.headers) seen += value;
    EXPECT_EQ(seen.find(kSecret), std::string::npos) << seen;
    if (std::string(from) == "from: client") {
      EXPECT_EQ(seen.find("CLIENT-KEY"), std::string::npos) << seen;
    }
  }
}

TEST_F(UpstreamBackendTest, ARotatedTokenIsUsedAtOnce) {
  const std::string path = testing::TempDir() + "token." + std::to_string(getpid());
  std::ofstream(path) << "first";
  ScriptedUpstream upstream({HttpReply(200, kAnswer)});
  Configure(upstream.url(),
            "kind: azure, api_version: v, credentials: {header: authorization, value: 'file:" +
                path + "'}");
  RunOnce();
  std::ofstream(path + ".new") << "second one";
  std::filesystem::rename(path + ".new", path);
  RunOnce();
  const auto requests = upstream.requests();
  EXPECT_NE(requests.at(0).find("\r\nauthorization: Bearer first\r\n"), std::string::npos);
  EXPECT_NE(requests.at(1).find("\r\nauthorization: Bearer second one\r\n"), std::string::npos);
  std::filesystem::remove(path);
}

TEST_F(UpstreamBackendTest, IdentityHoldsWhatCanChangeAnAnswer) {
  struct Case {
    const char* config;
    ClientRequest request;
    const char* want;
  };
  const Case cases[] = {
      {"",
       {},
       R"({"backend":"upstream","headers":{},"kind":"openai","model":"m","query":{},"upstream":"up"})"},
      {"models: {\"m\": \"x\"}, model_version: m-2024, credentials: {from: client}",
       {.headers = {{"authorization", "Bearer A"}, {"user-agent", "u"}, {"openai-beta", "b"}},
        .query = "beta=true"},
       R"({"backend":"upstream","headers":{"openai-beta":"b"},"kind":"openai","model":"x",)"
       R"("model_version":"m-2024","query":{"beta":"true"},"upstream":"up"})"},
      {"models: [\"*\"], kind: azure, api_version: v1",
       {.query = "api-version=v2"},
       R"({"api_version":"v2","backend":"upstream","headers":{},"kind":"azure","model":"m",)"
       R"("query":{},"upstream":"up"})"},
      {"kind: anthropic, timeouts: {idle_ms: 5}, headers: {add: {x-a: env:VERBATIM_TEST_KEY}}",
       {},
       R"({"backend":"upstream","headers":{"anthropic-version":"2023-06-01"},"kind":"anthropic",)"
       R"("model":"m","query":{},"upstream":"up"})"},
  };
  for (const Case& c : cases) {
    Configure("http://127.0.0.1:1", c.config);
    const auto prepared = Prepare(c.request);
    EXPECT_EQ(json::Canonical(prepared->identity()), c.want);
    EXPECT_TRUE(prepared->external());
    EXPECT_EQ(prepared->model_digest() + prepared->numerics(), "");
  }
}

TEST_F(UpstreamBackendTest, ChoicesToExpect) {
  Configure("http://127.0.0.1:1");
  struct Case {
    Endpoint endpoint;
    const char* body;
    uint32_t want;
  };
  const Case cases[] = {
      {Endpoint::kChatCompletions, R"({"model":"m"})", 1},
      {Endpoint::kChatCompletions, R"({"model":"m","n":3,"prompt":["a","b"]})", 3},
      {Endpoint::kChatCompletions, R"({"model":"m","n":"x"})", 1},
      {Endpoint::kChatCompletions, R"({"model":"m","n":0})", 1},
      {Endpoint::kCompletions, R"({"model":"m","n":2,"prompt":["a","b","c"]})", 6},
      {Endpoint::kCompletions, R"({"model":"m","n":2,"prompt":[1,2,3]})", 2},
      {Endpoint::kCompletions, R"({"model":"m","prompt":[[1,2],[3]]})", 2},
      {Endpoint::kResponses, R"({"model":"m","n":4})", 1},
      {Endpoint::kEmbeddings, R"({"model":"m","input":"a","n":4})", 1},
      {Endpoint::kEmbeddings, R"({"model":"m","input":["a","b","c"]})", 3},
      {Endpoint::kEmbeddings, R"({"model":"m","input":[[1,2],[3]]})", 2},
      {Endpoint::kEmbeddings, R"({"model":"m","input":[1,2,3]})", 1},
      {Endpoint::kEmbeddings, R"({"model":"m","input":[]})", 1},
  };
  for (const Case& c : cases) {
    EXPECT_EQ(Prepare({.endpoint = c.endpoint, .body = c.body})->choices(), c.want) << c.body;
  }
}

TEST_F(UpstreamBackendTest, WhatAnUpstreamDoesNotHave) {
  Configure("http://127.0.0.1:1", "kind: azure, api_version: v, models: [m, \"d*\"]");
  struct Case {
    Endpoint endpoint;
    const char* model;
    const char* code;
  };
  const Case cases[] = {{Endpoint::kChatCompletions, "n", "model_not_found"},
                        {Endpoint::kChatCompletions, "mm", "model_not_found"},
                        {Endpoint::kMessages, "m", "unsupported_endpoint"},
                        {Endpoint::kCountTokens, "d1", "unsupported_endpoint"}};
  for (const Case& c : cases) {
    const auto prepared = TryPrepare(
        {.endpoint = c.endpoint, .body = std::string(R"({"model":")") + c.model + "\"}"});
    ASSERT_TRUE(std::holds_alternative<HttpError>(prepared));
    EXPECT_EQ(std::get<HttpError>(prepared).status, 404);
    EXPECT_EQ(std::get<HttpError>(prepared).code, c.code);
  }
}

TEST_F(UpstreamBackendTest, OtherRequestsPassThrough) {
  ScriptedUpstream upstream({HttpReply(200, "\x01\x02", "", "application/octet-stream")});
  Configure(upstream.url() + "/v1", "credentials: {value: env:VERBATIM_TEST_KEY}");
  const Headers headers = {{"content-type", "multipart/form-data; boundary=b"},
                           {"authorization", "Bearer CLIENT"}};
  const PrepareOptions options = {.headers = &headers, .query = "a=1", .body = "--b--"};
  auto prepared = backend_->PreparePassThrough("POST", "/files/a%2Fb%20c/100%25", options);
  ASSERT_EQ(prepared.index(), 0u);
  Heard heard;
  const auto run = Start(*std::get<0>(prepared), heard);
  EXPECT_EQ(heard.End().outcome, RunEnd::Outcome::kComplete);
  EXPECT_EQ(heard.Body(), "\x01\x02");
  const std::string request = upstream.requests().at(0);
  EXPECT_TRUE(request.starts_with("POST /v1/files/a%2Fb%20c/100%25?a=1 HTTP/1.1\r\n")) << request;
  EXPECT_NE(request.find("\r\ncontent-type: multipart/form-data; boundary=b\r\n"),
            std::string::npos);
  EXPECT_TRUE(request.ends_with("\r\n\r\n--b--"));
  for (const char* path : {"/../admin", "/files/..", "/./x", "//Chat/completions "}) {
    const auto refused = backend_->PreparePassThrough("POST", path, options);
    ASSERT_EQ(refused.index(), 1u) << path;
    EXPECT_EQ(std::get<HttpError>(refused).status, 404) << path;
    EXPECT_EQ(std::get<HttpError>(refused).code, "unknown_url") << path;
  }
}

TEST(PassThrough, NothingThatIsRecorded) {
  struct Case {
    std::string path;
    bool may;
  };
  const Case cases[] = {
      {"/files", true},
      {"/files/file-1/content", true},
      {"/files/", true},
      {"/audio/speech", true},
      {"/images/generations", true},
      {"/chat", true},
      {"/chats/completions", true},
      {"/threads/t/messages", true},
      {"/completions-log", true},
      {"/files/100%", true},
      {"/chat/completions", false},
      {"/chat/completions/", false},
      {"//chat//completions", false},
      {"/Chat/Completions", false},
      {"/chat/completions ", false},
      {"/ chat /completions", false},
      {"/chat/completions;a=1", false},
      {"/chat/completions.", false},
      {"/chat%2Fcompletions", false},
      {"/chat%252fcompletions", false},
      {"/ch%61t/completions", false},
      {"/%25%36%33hat/completions", false},
      {"/chat/completions/chatcmpl-1", false},
      {"/v1/chat/completions", false},
      {"/openai/deployments/d/chat/completions", false},
      {"/completions", false},
      {"/embeddings/", false},
      {"/Responses", false},
      {"/responses/resp_1", false},
      {"/messages", false},
      {"/messages/batches", false},
      {"/messages/count_tokens", false},
      {"/engines/m/completions", false},
      {"/deployments/d/chat/completions", false},
      {"/files/a%2fb", true},
      {"/files/a%2F..%2Fb", false},
      {"/openai%2Fdeployments/d", false},
      {"/files/a\\b", false},
      {"/files/a%5Cb", false},
      {"/files/a\nb", false},
      {"/files/a%00", false},
      {std::string("/files/a\0", 9), false},
      {"/files/%2e%2e/x", false},
      {"/files/%25252525252e", false},
      {"/", false},
      {"", false},
      {"/v1/", false},
  };
  for (const Case& c : cases) EXPECT_EQ(MayPassThrough(c.path), c.may) << c.path;
}

TEST_F(UpstreamBackendTest, AKeyInTheQueryIsNotRepeated) {
  ScriptedUpstream upstream({HttpReply(
      401, R"({"error":{"message":"bad key /v1?key=sk%2Dquery-secret, sk-query-secret"}})")});
  Configure(upstream.url() + "/v1", "credentials: {from: client}");
  Heard heard;
  const RunEnd end = RunOnce(heard, {.query = "key=sk%2Dquery-secret"});
  EXPECT_NE(upstream.requests().at(0).find("key=sk%2Dquery-secret"), std::string::npos);
  EXPECT_EQ(end.error.body, R"({"error":{"message":"bad key /v1?key=[redacted], [redacted]"}})");
}

TEST_F(UpstreamBackendTest, OnlyTwoStatusesAreOfWholeAnswers) {
  struct Case {
    int status;
    const char* cause;
  };
  for (const Case& c : {Case{200, ""}, Case{201, ""}, Case{202, "upstream_202"},
                        Case{203, "upstream_203"}, Case{206, "upstream_206"}}) {
    for (const bool streamed : {false, true}) {
      std::string reply =
          streamed ? StreamReply({kFinishChunk, "data: [DONE]\n\n"}) : HttpReply(c.status, kAnswer);
      if (streamed) reply.replace(reply.find("200"), 3, std::to_string(c.status));
      ScriptedUpstream upstream({reply});
      Configure(upstream.url() + "/v1");
      Heard heard;
      const RunEnd end = RunOnce(heard);
      const bool complete = c.cause[0] == '\0';
      EXPECT_EQ(end.outcome == RunEnd::Outcome::kComplete, complete) << c.status << end.cause;
      EXPECT_EQ(end.reply.complete, complete) << c.status;
      EXPECT_EQ(end.cause, c.cause);
      const auto& pieces = heard.pieces();
      ASSERT_FALSE(pieces.empty());
      EXPECT_EQ(pieces.back().completes, complete) << c.status;
    }
  }
}

TEST_F(UpstreamBackendTest, WhatCannotBeMade) {
  const auto error = [&](const std::string& config) {
    auto parsed = policies::ParseConfig(
        "upstreams: {up: {url: \"http://127.0.0.1:1\", models: [m], " + config + "}}", "c", "");
    EXPECT_TRUE(parsed.ok()) << parsed.error().message;
    const auto made = MakeUpstream("up", parsed->upstreams.at("up"), {.io = &io_});
    return made.ok() ? "made" : made.error().message;
  };
  EXPECT_EQ(error("credentials: {value: env:VERBATIM_NOT_THERE}").substr(0, 45),
            "upstream up: the environment has no VERBATIM_");
  EXPECT_TRUE(error("credentials: {value: file:/nowhere}").starts_with("upstream up: /nowhere"));
  EXPECT_TRUE(error("ca_file: /nowhere").starts_with("upstream up: "));
  EXPECT_TRUE(error("proxy: env:VERBATIM_NOT_THERE").starts_with("upstream up: "));
  EXPECT_TRUE(
      error("client_certificate: /nowhere, client_key: /nowhere").starts_with("upstream up: "));
}

}  // namespace
}  // namespace verbatim::gateway
