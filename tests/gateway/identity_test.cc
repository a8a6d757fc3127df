// What may change without a request's fingerprint changing: instruction set, threads, batch size.
// On a real model, where the file is present.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "engine/engine.h"
#include "gateway/engine_backend.h"
#include "gateway/fingerprint.h"
#include "gateway/wire/openai.h"

namespace verbatim::gateway {
namespace {

std::string ModelFile() {
  if (const char* env = std::getenv("VERBATIM_MODEL")) return env;
  const char* home = std::getenv("HOME");
  return std::string(home != nullptr ? home : "") +
         "/.cache/verbatim/SmolLM2-135M-Instruct.Q4_1.gguf";
}

// The fingerprint of `body` with an engine that is loaded as `options` say.
std::string PrintWith(engine::EngineOptions options, const char* body) {
  options.path = ModelFile();
  options.kv_tokens = 2048;
  auto loaded = engine::Engine::Load(options);
  if (!loaded.ok()) {
    ADD_FAILURE() << loaded.error().message;
    return "";
  }
  const EngineBackend backend(std::shared_ptr<engine::Engine>(*std::move(loaded)));
  const json::Value request = std::get<json::Value>(ParseBody(body));
  auto decoded = Decode(Endpoint::kChatCompletions, request);
  auto prepared = backend.Prepare(std::get<GenerationRequest>(decoded), {});
  if (const auto* error = std::get_if<HttpError>(&prepared)) {
    ADD_FAILURE() << error->message;
    return "";
  }
  const json::Value identity =
      std::get<std::shared_ptr<const PreparedRequest>>(prepared)->identity();
  return HexEncode(Fingerprint({"tenant:\"t\"", "/v1/chat/completions", request, identity, {}}));
}

TEST(Identity, MachineDoesNotCountAndModelDoes) {
  if (!std::filesystem::exists(ModelFile())) GTEST_SKIP() << "no model file: " << ModelFile();
  const char* body = R"({"model":"m","messages":[{"role":"user","content":"hi"}],"max_tokens":5})";
  const std::string base = PrintWith({.threads = 1, .isa = "scalar"}, body);
  EXPECT_EQ(PrintWith({.threads = 2, .max_batch = 4, .prefill_chunk = 64}, body), base);
  EXPECT_NE(PrintWith({.fidelity = "w8a16"}, body), base);
  EXPECT_NE(
      PrintWith({}, R"({"model":"m","messages":[{"role":"user","content":"ho"}],"max_tokens":5})"),
      base);
}

}  // namespace
}  // namespace verbatim::gateway
