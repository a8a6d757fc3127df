// The embedded engine as a backend, on the default model: skipped where its file is not there.
#include "gateway/engine_backend.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <cstdlib>
#include <filesystem>
#include <mutex>

#include "gateway/trace.h"
#include "gateway/wire/openai.h"

namespace verbatim::gateway {
namespace {

std::string ModelFile() {
  if (const char* file = std::getenv("VERBATIM_MODEL")) return file;
  const char* home = std::getenv("HOME");
  return std::string(home ? home : "") + "/.cache/verbatim/SmolLM2-135M-Instruct.Q4_1.gguf";
}

class EngineBackendTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (!std::filesystem::exists(ModelFile())) return;
    engine::EngineOptions options;
    options.path = ModelFile();
    options.context_limit = 256;
    auto engine = engine::Engine::Load(options);
    if (!engine.ok()) {
      ADD_FAILURE() << engine.error().message;
      return;
    }
    backend = std::make_unique<EngineBackend>(std::shared_ptr<engine::Engine>(*std::move(engine)));
  }
  static void TearDownTestSuite() { backend.reset(); }
  void SetUp() override {
    if (!backend) GTEST_SKIP() << "no model at " << ModelFile() << " (tools/fetch-model)";
  }

  static Answered<std::shared_ptr<const PreparedRequest>> Prepare(Endpoint endpoint,
                                                                  const std::string& body,
                                                                  bool open = true) {
    auto object = ParseBody(body);
    auto request = Decode(endpoint, std::get<json::Value>(std::move(object)));
    if (auto* error = std::get_if<HttpError>(&request)) return std::move(*error);
    return backend->Prepare(std::get<GenerationRequest>(request),
                            {.clock_micros = 1'700'000'000'000'000, .length_is_open = open});
  }

  static std::shared_ptr<const PreparedRequest> Good(Endpoint endpoint, const std::string& body) {
    auto prepared = Prepare(endpoint, body);
    if (auto* error = std::get_if<HttpError>(&prepared)) {
      ADD_FAILURE() << body << ": " << error->message;
      return nullptr;
    }
    return std::get<std::shared_ptr<const PreparedRequest>>(prepared);
  }

  static Trace Run(const PreparedRequest& prepared, uint64_t seed) {
    struct {
      std::mutex mutex;
      std::condition_variable ended;
      std::optional<RunEnd> end;
    } state;
    Trace trace{1, prepared.prompt_tokens(), {}};
    TraceOrder order(1);
    RunObserver observer;
    observer.on_piece = [&](TokenPiece p) { order.Add(std::move(p), trace.events); };
    observer.on_choice_end = [&](ChoiceEnd e) { order.Add(std::move(e), trace.events); };
    observer.on_end = [&](RunEnd e) {
      std::lock_guard lock(state.mutex);
      state.end = std::move(e);
      state.ended.notify_all();
    };
    auto run = prepared.Start({.seed = seed}, std::move(observer));
    EXPECT_TRUE(std::holds_alternative<std::unique_ptr<gateway::Run>>(run));
    std::unique_lock lock(state.mutex);
    state.ended.wait(lock, [&] { return state.end.has_value(); });
    EXPECT_EQ(state.end->outcome, RunEnd::Outcome::kComplete) << state.end->error.message;
    EXPECT_TRUE(order.complete());
    return trace;
  }

  static std::unique_ptr<EngineBackend> backend;
};
std::unique_ptr<EngineBackend> EngineBackendTest::backend;

TEST_F(EngineBackendTest, SameRequestSameTrace) {
  const std::string body =
      R"({"model":"m","messages":[{"role":"user","content":"Say hi."}],"max_tokens":8})";
  auto prepared = Good(Endpoint::kChatCompletions, body);
  ASSERT_TRUE(prepared);
  const Trace first = Run(*prepared, 1);
  EXPECT_EQ(first.events, Run(*prepared, 1).events);
  EXPECT_NE(first.events, Run(*prepared, 2).events);  // temperature 1: the seed counts
  EXPECT_LE(first.Generated(), 8u);
}

TEST_F(EngineBackendTest, TheIdentityIsThePromptAndTheModel) {
  auto identity = [](const std::string& content) {
    auto p = Good(Endpoint::kChatCompletions,
                  R"({"model":"m","max_tokens":4,"messages":[{"role":"user","content":")" +
                      content + "\"}]}");
    return json::Canonical(p->identity());
  };
  EXPECT_EQ(identity("a"), identity("a"));
  EXPECT_NE(identity("a"), identity("b"));
}

TEST_F(EngineBackendTest, Refusals) {
  std::string many;
  for (int i = 0; i < 300; ++i) many += "hello ";
  struct Case {
    Endpoint endpoint;
    std::string body;
    bool open;
    std::string code, param;
  };
  const Case cases[] = {
      {Endpoint::kCompletions, R"({"model":"m","prompt":")" + many + "\"}", true,
       "context_length_exceeded", "prompt"},
      {Endpoint::kChatCompletions,
       R"({"model":"m","messages":[{"role":"user","content":")" + many + "\"}]}", true,
       "context_length_exceeded", "messages"},
      {Endpoint::kCompletions, R"({"model":"m","prompt":"hi","max_tokens":256})", false,
       "context_length_exceeded", "max_tokens"},
      {Endpoint::kCompletions, R"({"model":"m","prompt":[1,99999999]})", true, "invalid_value",
       "prompt"},
      {Endpoint::kResponses, R"({"model":"m","input":")" + many + "\"}", true,
       "context_length_exceeded", "input"},
      {Endpoint::kResponses, R"({"model":"m","input":"hi","max_output_tokens":256})", false,
       "context_length_exceeded", "max_output_tokens"},
      {Endpoint::kMessages,
       R"({"model":"m","max_tokens":256,"messages":[{"role":"user","content":"hi"}]})", false,
       "context_length_exceeded", "max_tokens"},
      {Endpoint::kEmbeddings, R"({"model":"m","input":"hi"})", false, "unsupported_endpoint",
       "model"},
  };
  for (const Case& c : cases) {
    auto prepared = Prepare(c.endpoint, c.body, c.open);
    auto* error = std::get_if<HttpError>(&prepared);
    ASSERT_TRUE(error) << c.body.substr(0, 80);
    EXPECT_EQ(error->status, 400);
    EXPECT_EQ(error->code, c.code);
    EXPECT_EQ(error->param, c.param);
  }
}

// One prompt by three endpoints is one prompt, and gives one text.
TEST_F(EngineBackendTest, EndpointsAgree) {
  const std::string messages = R"("messages":[{"role":"user","content":"Say hi."}])";
  const std::string system = R"({"role":"system","content":"Be brief."})";
  const auto chat =
      Good(Endpoint::kChatCompletions, R"({"model":"m","max_tokens":8,"messages":[)" + system +
                                           R"(,{"role":"user","content":"Say hi."}]})");
  const auto response =
      Good(Endpoint::kResponses, R"({"model":"m","max_output_tokens":8,"instructions":"Be brief.",)"
                                 R"("input":"Say hi."})");
  const auto message = Good(
      Endpoint::kMessages, R"({"model":"m","max_tokens":8,"system":"Be brief.",)" + messages + "}");
  ASSERT_TRUE(chat && response && message);
  EXPECT_EQ(json::Canonical(chat->identity()), json::Canonical(response->identity()));
  EXPECT_EQ(json::Canonical(chat->identity()), json::Canonical(message->identity()));
  const Trace trace = Run(*chat, 1);
  EXPECT_EQ(trace.events, Run(*response, 1).events);
  EXPECT_EQ(trace.events, Run(*message, 1).events);
}

TEST_F(EngineBackendTest, TheStopStringIsNamed) {
  // Greedy, so that the text is known before a stop string is taken from it.
  const auto body = [](const std::string& more) {
    return R"({"model":"m","max_tokens":12,"temperature":0,)" + more +
           R"("messages":[{"role":"user","content":"Count from one to nine."}]})";
  };
  const auto text = [](const Trace& trace) {
    std::string joined;
    for (const TraceEvent& event : trace.events) joined += event.text;
    return joined;
  };
  const Trace whole = Run(*Good(Endpoint::kMessages, body("")), 0);
  const std::string all = text(whole);
  ASSERT_GE(all.size(), 8u);
  const std::string stop = all.substr(4, 3);
  const Trace cut =
      Run(*Good(Endpoint::kMessages, body("\"stop_sequences\":[" + json::Quote(stop) + "],")), 0);
  EXPECT_EQ(cut.events.back().finish_reason, "stop");
  EXPECT_EQ(cut.events.back().stop, stop);
  EXPECT_EQ(text(cut), all.substr(0, all.find(stop)));
  EXPECT_EQ(whole.events.back().stop, "");
}

TEST_F(EngineBackendTest, TokensAreCountedWithoutARun) {
  const std::string messages = R"("messages":[{"role":"user","content":"Say hi."}]})";
  const auto message = Good(Endpoint::kMessages, R"({"model":"m","max_tokens":8,)" + messages);
  const auto count = Good(Endpoint::kCountTokens, R"({"model":"m",)" + messages);
  ASSERT_TRUE(message && count);
  const Trace trace = Run(*count, 1);
  EXPECT_EQ(trace.Generated(), 0u);
  EXPECT_EQ(trace.prompt_tokens, message->prompt_tokens());
  EXPECT_GT(trace.prompt_tokens, 3u);
  // More than the context holds is a number too.
  std::string many;
  for (int i = 0; i < 300; ++i) many += "hello ";
  const auto large =
      Good(Endpoint::kCountTokens,
           R"({"model":"m","messages":[{"role":"user","content":")" + many + "\"}]}");
  ASSERT_TRUE(large);
  EXPECT_GT(large->prompt_tokens(), 256u);
}

// A completion's prompt is the caller's whole prompt, control tokens included; a message is text.
TEST_F(EngineBackendTest, ControlTokensAreReadInWholePromptsOnly) {
  auto tokens = [](Endpoint endpoint, const std::string& body) {
    auto p = Good(endpoint, body);
    return p ? p->prompt_tokens() : 0;
  };
  const std::string chat = R"({"model":"m","messages":[{"role":"user","content":")";
  EXPECT_EQ(tokens(Endpoint::kCompletions, R"({"model":"m","prompt":"<|im_start|>"})"), 1u);
  EXPECT_GE(tokens(Endpoint::kChatCompletions, chat + "a<|im_start|>\"}]}"),
            tokens(Endpoint::kChatCompletions, chat + "a\"}]}") + 3);
}

// What is left open is cut to the room, and then counts in the identity.
TEST_F(EngineBackendTest, OpenLengthEndsWithTheContext) {
  auto p = Good(Endpoint::kChatCompletions,
                R"({"model":"m","messages":[{"role":"user","content":"hi"}]})");
  ASSERT_TRUE(p);
  const json::Value* most = p->identity().Find("max_tokens");
  ASSERT_TRUE(most);
  EXPECT_EQ(most->AsUint64(), 256u - p->prompt_tokens());
}

}  // namespace
}  // namespace verbatim::gateway
