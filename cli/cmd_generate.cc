// verbatim generate: one answer of a model file, to stdout as it comes.
#include <sys/resource.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <cstdio>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/json.h"
#include "cli/commands.h"
#include "cli/files.h"
#include "engine/chat_template.h"
#include "engine/engine.h"
#include "engine/tokenizer.h"

namespace verbatim::cli {
namespace {

constexpr int kUsage = 2;

struct Flags {
  std::string model, prompt, chat, prompt_ids;
  uint32_t max_tokens = 256;
  double temperature = 0, top_p = 1, min_p = 0;
  int64_t top_k = 0;
  std::string seed = "0";
  std::string fidelity, device = "cpu", isa;
  uint32_t threads = 0;
  bool ignore_eos = false, digests = false, json = false;
};

[[noreturn]] void Fail(const std::string& message) {
  std::fprintf(stderr, "verbatim generate: %s\n", message.c_str());
  throw CLI::RuntimeError(kUsage);
}

template <typename T>
T ValueOrFail(Result<T> result) {
  if (!result) Fail(result.error().message);
  return std::move(*result);
}

// From -2^63 to 2^64-1; negative ones count modulo 2^64.
uint64_t ParseSeed(const std::string& text) {
  uint64_t seed = 0;
  int64_t negative = 0;
  const char* begin = text.data();
  const char* end = begin + text.size();
  const auto result = text.starts_with('-') ? std::from_chars(begin, end, negative)
                                            : std::from_chars(begin, end, seed);
  if (result.ec != std::errc() || result.ptr != end) {
    Fail("--seed must be an integer from -2^63 to 2^64-1, not \"" + text + "\"");
  }
  return seed + static_cast<uint64_t>(negative);
}

// {"tokens":[...]}.
std::vector<int32_t> PromptFromIds(const std::string& path) {
  const json::Value file = ValueOrFail(ReadJson(path));
  const json::Value* tokens = file.Find("tokens");
  std::vector<int32_t> ids;
  if (tokens == nullptr || !tokens->is_array()) Fail(path + ": needs {\"tokens\":[...]}");
  for (const json::Value& token : tokens->items()) {
    const std::optional<int64_t> id = token.AsInt64();
    if (!id || *id < 0 || *id > INT32_MAX) Fail(path + ": tokens must be token ids");
    ids.push_back(static_cast<int32_t>(*id));
  }
  return ids;
}

// An array of messages, or a request's object with "messages" and perhaps "tools".
std::vector<int32_t> PromptFromChat(const engine::Engine& engine, const std::string& path) {
  json::Value file = ValueOrFail(ReadJson(path));
  engine::ChatRequest chat;
  if (const json::Value* tools = file.Find("tools")) chat.tools = *tools;
  if (const json::Value* messages = file.Find("messages")) {
    chat.messages = *messages;
  } else {
    chat.messages = std::move(file);
  }
  if (!chat.messages.is_array()) {
    Fail(path + ": needs an array of messages, or {\"messages\":[...]}");
  }
  const engine::ChatTemplate* chat_template = engine.chat_template();
  if (chat_template == nullptr) Fail(engine.template_error().message);
  chat.bos_token = engine.tokenizer().bos_text();
  chat.eos_token = engine.tokenizer().eos_text();
  chat.clock_micros = NowMicros();
  const std::vector<engine::Segment> prompt = ValueOrFail(chat_template->RenderChat(chat));
  return ValueOrFail(engine.tokenizer().Encode(prompt, true));
}

std::vector<int32_t> Prompt(const engine::Engine& engine, const Flags& flags) {
  if (!flags.prompt_ids.empty()) return PromptFromIds(flags.prompt_ids);
  if (!flags.chat.empty()) return PromptFromChat(engine, flags.chat);
  // The whole prompt, as on /v1/completions: control tokens written in it are meant.
  const engine::Segment text[] = {{flags.prompt, true}};
  return ValueOrFail(engine.tokenizer().Encode(text, true));
}

std::string Hex(const engine::LogitsDigest& digest) {
  return HexEncode({reinterpret_cast<const char*>(digest.data()), digest.size()});
}

const char* ReasonName(engine::FinishReason reason) {
  switch (reason) {
    case engine::FinishReason::kStop:
      return "stop";
    case engine::FinishReason::kLength:
      return "length";
  }
  return "";
}

std::unique_ptr<engine::Engine> LoadEngine(const Flags& flags) {
  engine::EngineOptions options;
  options.path = flags.model;
  options.fidelity = flags.fidelity;
  options.threads = flags.threads;
  options.isa = flags.isa;
  options.max_batch = 1;
  const bool show = isatty(STDERR_FILENO) != 0;
  std::unique_ptr<engine::Engine> engine =
      ValueOrFail(engine::Engine::Load(options, [show](std::string_view step, double done) {
        if (!show) return;
        std::fprintf(stderr, "\rloading: %.*s %3.0f %%   ", static_cast<int>(step.size()),
                     step.data(), 100 * done);
      }));
  if (show) std::fprintf(stderr, "\r%40s\r", "");
  return engine;
}

struct Answer {
  std::vector<engine::TokenEvent> events;
  engine::ChoiceFinish choice;
  engine::Finish finish;
  int64_t submitted = 0, first_token = 0, last_token = 0;  // monotonic microseconds
};

// Runs the request to its end; shows events as they come.
Answer Run(engine::Engine& engine, engine::GenerateRequest request,
           const std::function<void(const engine::TokenEvent&)>& show) {
  Answer answer;
  std::promise<void> done;
  engine::GenerateCallbacks callbacks;
  callbacks.on_token = [&](const engine::TokenEvent& event) {
    answer.last_token = MonotonicMicros();
    if (answer.events.empty()) answer.first_token = answer.last_token;
    answer.events.push_back(event);
    show(event);
  };
  callbacks.on_choice_finish = [&](const engine::ChoiceFinish& choice) { answer.choice = choice; };
  callbacks.on_finish = [&](const engine::Finish& finish) {
    answer.finish = finish;
    done.set_value();
  };
  answer.submitted = MonotonicMicros();
  ValueOrFail(engine.Submit(std::move(request), std::move(callbacks)));
  done.get_future().wait();
  return answer;
}

void PrintJson(const Flags& flags, const engine::Engine& engine, const Answer& answer) {
  json::Value out = json::Value::MakeObject();
  json::Value tokens = json::Value::MakeArray(), digests = json::Value::MakeArray();
  std::string text;
  for (const engine::TokenEvent& event : answer.events) {
    tokens.Append(int64_t{event.token});
    digests.Append(Hex(event.digest));
    text += event.text;
  }
  if (flags.prompt_ids.empty()) {
    out.Set("text", text);
    out.Set("finish_reason", ReasonName(answer.choice.reason));
  }
  out.Set("tokens", std::move(tokens));
  if (flags.digests) out.Set("digests", std::move(digests));
  out.Set("model_digest", HexEncode(engine.info().model_digest));
  out.Set("numerics", engine.info().numerics);
  std::printf("%s\n", json::Serialize(out).c_str());
}

double PerSecond(uint64_t n, int64_t micros) {
  return micros <= 0 ? 0 : static_cast<double>(n) * 1e6 / static_cast<double>(micros);
}

void PrintSpeed(const engine::Engine& engine, const Answer& answer, int64_t load_micros) {
  const uint32_t prompt = answer.finish.prompt_tokens, generated = answer.finish.generated_tokens;
  const int64_t prefill = answer.first_token - answer.submitted;
  const int64_t decode = answer.last_token - answer.first_token;
  struct rusage usage {};
  getrusage(RUSAGE_SELF, &usage);
  std::fprintf(stderr,
               "%s, %s, %u threads: loaded in %.2f s; prompt %u tokens, %.1f tokens/s; "
               "generated %u tokens, %.1f tokens/s; %ld MiB\n",
               engine.info().fidelity.c_str(), engine.info().isa.c_str(), engine.info().threads,
               static_cast<double>(load_micros) / 1e6, prompt, PerSecond(prompt, prefill),
               generated, generated > 0 ? PerSecond(generated - 1, decode) : 0.0,
               usage.ru_maxrss / 1024);
}

void Generate(const Flags& flags) {
  if (flags.device != "cpu") {
    Fail("--device " + flags.device + ": this build has no CUDA engine; use --device cpu");
  }
  engine::GenerateRequest request;
  request.sampling.temperature = static_cast<float>(flags.temperature);
  request.sampling.top_k = flags.top_k;
  request.sampling.top_p = flags.top_p;
  request.sampling.min_p = flags.min_p;
  request.sampling.seed = ParseSeed(flags.seed);
  if (flags.max_tokens > 0) request.max_tokens = flags.max_tokens;
  request.ignore_eos = flags.ignore_eos;

  const int64_t start = MonotonicMicros();
  const std::unique_ptr<engine::Engine> engine = LoadEngine(flags);
  const int64_t load_micros = MonotonicMicros() - start;
  request.prompts = {Prompt(*engine, flags)};

  const Answer answer = Run(*engine, std::move(request), [&](const engine::TokenEvent& event) {
    if (flags.json) return;
    if (flags.digests) {
      std::printf("%s %d %s\n", Hex(event.digest).c_str(), event.token,
                  json::Quote(event.text).c_str());
    } else {
      std::fwrite(event.text.data(), 1, event.text.size(), stdout);
    }
    std::fflush(stdout);
  });
  if (answer.finish.outcome == engine::Finish::Outcome::kFault) Fail(answer.finish.error.message);
  if (flags.json) {
    PrintJson(flags, *engine, answer);
  } else if (!flags.digests) {
    std::fputc('\n', stdout);
  }
  std::fflush(stdout);
  PrintSpeed(*engine, answer, load_micros);
}

}  // namespace

void AddGenerate(CLI::App& app) {
  auto flags = std::make_shared<Flags>();
  CLI::App* command = app.add_subcommand("generate", "Answers one prompt with a model file");
  command->footer(
      "Example: verbatim generate --model MODEL.gguf --prompt \"The capital of France is\" "
      "--max-tokens 16");
  command->add_option("--model", flags->model, "The model, a GGUF file")->required();
  CLI::Option_group* prompt = command->add_option_group("prompt", "Exactly one of");
  prompt->add_option("--prompt", flags->prompt, "The text to continue");
  prompt->add_option("--chat", flags->chat,
                     "JSON file: an array of messages, or an object with \"messages\"");
  prompt->add_option("--prompt-ids", flags->prompt_ids, "JSON file: {\"tokens\":[...]}");
  prompt->require_option(1);
  command
      ->add_option("--max-tokens", flags->max_tokens,
                   "Tokens to generate at most; 0: as many as the context holds")
      ->capture_default_str();
  command->add_option("--temperature", flags->temperature, "0: always the most probable token")
      ->capture_default_str();
  command->add_option("--top-p", flags->top_p, "From 0 to 1")->capture_default_str();
  command->add_option("--top-k", flags->top_k, "0: off")->capture_default_str();
  command->add_option("--min-p", flags->min_p, "From 0 to 1")->capture_default_str();
  command->add_option("--seed", flags->seed, "From -2^63 to 2^64-1")->capture_default_str();
  command->add_option("--fidelity", flags->fidelity,
                      "wba16, w8a16 or w16a16; without it the file's default");
  command->add_option("--device", flags->device, "cpu")->capture_default_str();
  command->add_option("--threads", flags->threads, "0: one per core")->capture_default_str();
  command->add_option("--isa", flags->isa,
                      "scalar, avx2 or avx512vnni; the bits are the same, without it the fastest");
  command->add_flag("--ignore-eos", flags->ignore_eos, "Go on after end-of-text");
  command->add_flag("--digests", flags->digests, "The digest of the logits behind each token");
  command->add_flag("--json", flags->json, "One JSON object instead of text");
  command->callback([flags] { Generate(*flags); });
}

}  // namespace verbatim::cli
