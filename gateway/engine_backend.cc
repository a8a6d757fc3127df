#include "gateway/engine_backend.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/crypto.h"
#include "engine/chat_template.h"
#include "engine/tokenizer.h"
#include "gateway/fingerprint.h"
#include "gateway/wire/fields.h"
#include "gateway/wire/openai.h"

namespace verbatim::gateway {

namespace {

using engine::Engine;

HttpError BadRequest(std::string message, std::string param, std::string code) {
  return {.status = 400,
          .message = std::move(message),
          .param = std::move(param),
          .code = std::move(code)};
}

// Clients wait for no longer than a minute.
constexpr double kLongestWait = 60;

// queue_seconds: of EngineStats.
HttpError QueueFull(double queue_seconds) {
  const double seconds = std::clamp(std::ceil(queue_seconds), 1.0, kLongestWait);
  return {.status = 429,
          .message = "The engine's queue is full; try again shortly.",
          .type = "rate_limit_error",
          .code = "queue_full",
          .headers = {{"retry-after", std::to_string(static_cast<int>(seconds))}}};
}

// What the engine refuses or reports, as the client sees it.
HttpError FromEngine(const Error& error, double queue_seconds = 0) {
  switch (error.code) {
    case Code::kInvalid: {
      // The engine's messages begin with the field: "stop: each string must be ...".
      const size_t colon = error.message.find(':');
      const std::string field = error.message.substr(0, colon);
      const bool named = colon != std::string::npos && FindField(field, kAllFields) != nullptr;
      return BadRequest(error.message, named ? field : "", "invalid_value");
    }
    case Code::kUnavailable:
      return QueueFull(queue_seconds);
    case Code::kNumericFault:
      return {.status = 500,
              .message =
                  "The model produced a number outside its range for this request; the "
                  "answer was withheld.",
              .code = "numeric_fault"};
    default:
      return {.status = 500, .message = error.message, .code = CodeName(error.code)};
  }
}

// The field that holds the prompt, and the one that bounds the answer.
const char* PromptField(Endpoint endpoint) {
  if (endpoint == Endpoint::kCompletions) return "prompt";
  return endpoint == Endpoint::kResponses ? "input" : "messages";
}
const char* LengthField(Endpoint endpoint) {
  return endpoint == Endpoint::kResponses ? "max_output_tokens" : "max_tokens";
}

struct Prompt {
  std::vector<int32_t> tokens;
  Digest digest{};
};

Answered<Prompt> RenderChat(const Engine& engine, const GenerationRequest& request,
                            int64_t clock_micros) {
  const char* field = PromptField(request.endpoint);
  const engine::ChatTemplate* chat_template = engine.chat_template();
  if (!chat_template) {
    return BadRequest("This model has no chat template that can be used (" +
                          engine.template_error().message + "); use /v1/completions.",
                      field, "no_chat_template");
  }
  engine::ChatRequest chat;
  chat.messages = request.messages;
  if (request.template_variables.is_object()) chat.variables = request.template_variables;
  chat.bos_token = engine.tokenizer().bos_text();
  chat.eos_token = engine.tokenizer().eos_text();
  chat.clock_micros = clock_micros;
  auto segments = chat_template->RenderChat(chat);
  if (!segments.ok()) {
    return BadRequest(
        "The model's chat template refuses these messages: " + segments.error().message, field,
        "template_error");
  }
  auto tokens = engine.tokenizer().Encode(*segments, true);
  if (!tokens.ok()) return BadRequest(tokens.error().message, field, "invalid_value");
  return Prompt{*std::move(tokens), Sha256(engine::JoinSegments(*segments))};
}

Answered<Prompt> EncodePrompt(const Engine& engine, const GenerationRequest& request) {
  if (request.has_prompt_tokens) {
    for (int32_t id : request.prompt_tokens) {
      if (id < 0 || static_cast<uint32_t>(id) >= engine.info().vocab_size) {
        return BadRequest("prompt: token " + std::to_string(id) + " is not in the vocabulary of " +
                              std::to_string(engine.info().vocab_size) + " tokens.",
                          "prompt", "invalid_value");
      }
    }
    return Prompt{request.prompt_tokens, PromptDigestOfTokens(request.prompt_tokens)};
  }
  // The caller wrote the whole prompt, so control tokens in it are meant (a chat message's are
  // not).
  const engine::Segment segment{request.prompt, true};
  auto tokens = engine.tokenizer().Encode({&segment, 1}, true);
  if (!tokens.ok()) return BadRequest(tokens.error().message, "prompt", "invalid_value");
  return Prompt{*std::move(tokens), Sha256(request.prompt)};
}

// How many tokens may be sampled, from what is asked for (0: no number) and the room that the
// prompt leaves.
Answered<uint32_t> MaxTokens(uint32_t context, size_t prompt, const GenerationRequest& request,
                             bool open) {
  const uint32_t asked = request.max_tokens;
  const std::string sizes = "This model's context has " + std::to_string(context) +
                            " tokens; the prompt has " + std::to_string(prompt);
  if (prompt >= context) {
    return BadRequest(sizes + ". Shorten it.", PromptField(request.endpoint),
                      "context_length_exceeded");
  }
  const auto room = static_cast<uint32_t>(context - prompt);
  if (asked == 0) return room;
  if (asked <= room || open) return std::min(asked, room);
  return BadRequest(sizes + ", and " + std::to_string(asked) + " are asked for. Ask for at most " +
                        std::to_string(room) + ".",
                    LengthField(request.endpoint), "context_length_exceeded");
}

class EngineRun : public Run {
 public:
  EngineRun(std::shared_ptr<Engine> engine, uint64_t id) : engine_(std::move(engine)), id_(id) {}
  ~EngineRun() override { engine_->Cancel(id_); }
  void Cancel() override { engine_->Cancel(id_); }

 private:
  std::shared_ptr<Engine> engine_;
  uint64_t id_;
};

RunEnd ToRunEnd(const engine::Finish& finish) {
  using Outcome = engine::Finish::Outcome;
  if (finish.outcome == Outcome::kComplete) return {};
  RunEnd end{.outcome = RunEnd::Outcome::kCancelled};
  end.cause = "cancelled";
  if (finish.outcome == Outcome::kCancelled) return end;
  end.outcome = RunEnd::Outcome::kFailed;
  end.error = FromEngine(finish.error);
  end.cause = CodeName(finish.error.code);
  // Layer and operation, for the record.
  end.report = json::Value::MakeObject();
  end.report.Set("fault", finish.error.message);
  return end;
}

class EnginePrepared : public PreparedRequest {
 public:
  EnginePrepared(std::shared_ptr<Engine> engine, engine::GenerateRequest request,
                 std::optional<uint64_t> seed, const Digest& prompt_digest, bool length_counts,
                 int64_t clock_micros)
      : engine_(std::move(engine)),
        request_(std::move(request)),
        seed_(seed),
        clock_micros_(clock_micros) {
    const engine::ModelInfo& info = engine_->info();
    identity_ =
        ToJson(EngineIdentity{info.model_digest, info.fidelity, info.numerics, prompt_digest});
    system_fingerprint_ = SystemFingerprint(identity_);
    if (length_counts) identity_.Set("max_tokens", static_cast<uint64_t>(request_.max_tokens));
  }

  bool timeless() const override {
    const engine::ChatTemplate* chat_template = engine_->chat_template();
    return !chat_template || !chat_template->uses_clock();
  }
  const json::Value& identity() const override { return identity_; }
  std::string system_fingerprint() const override { return system_fingerprint_; }
  uint32_t choices() const override { return 1; }
  uint32_t prompt_tokens() const override {
    return static_cast<uint32_t>(request_.prompts[0].size());
  }

  json::Value parameters() const override {
    const engine::SamplingParams& s = request_.sampling;
    json::Value stop = json::Value::MakeArray();
    for (const std::string& text : request_.stop) stop.Append(text);
    json::Value bias = json::Value::MakeObject();
    for (const auto& [token, add] : s.logit_bias) {
      bias.Set(std::to_string(token), static_cast<double>(add));
    }
    json::Value v = json::Value::MakeObject();
    v.Set("temperature", static_cast<double>(s.temperature));
    v.Set("top_p", s.top_p);
    v.Set("top_k", s.top_k);
    v.Set("min_p", s.min_p);
    v.Set("repetition_penalty", static_cast<double>(s.repetition_penalty));
    v.Set("frequency_penalty", static_cast<double>(s.frequency_penalty));
    v.Set("presence_penalty", static_cast<double>(s.presence_penalty));
    v.Set("logit_bias", std::move(bias));
    v.Set("max_tokens", static_cast<uint64_t>(request_.max_tokens));
    v.Set("stop", std::move(stop));
    v.Set("ignore_eos", request_.ignore_eos);
    v.Set("template_clock_micros", clock_micros_);
    return v;
  }

  json::Value description() const override {
    const engine::ModelInfo& info = engine_->info();
    json::Value v = json::Value::MakeObject();
    v.Set("kind", "engine");
    v.Set("architecture", info.architecture);
    v.Set("model_digest", HexEncode(info.model_digest));
    v.Set("fidelity", info.fidelity);
    v.Set("isa", info.isa);
    return v;
  }

  std::string model_digest() const override { return HexEncode(engine_->info().model_digest); }
  std::string numerics() const override { return engine_->info().numerics; }

  Answered<std::unique_ptr<Run>> Start(const RunOptions& options,
                                       RunObserver observer) const override {
    engine::GenerateRequest request = request_;
    request.sampling.seed = seed_.value_or(options.seed);
    request.low_priority = options.background;
    request.tenant = options.tenant;
    engine::GenerateCallbacks callbacks;
    callbacks.on_token = [on_piece = observer.on_piece](const engine::TokenEvent& event) {
      on_piece({.choice = 0, .token = event.token, .digest = event.digest, .text = event.text});
    };
    callbacks.on_choice_finish = [on_end =
                                      observer.on_choice_end](const engine::ChoiceFinish& finish) {
      const bool stopped = finish.reason == engine::FinishReason::kStop;
      on_end({finish.choice, stopped ? "stop" : "length", finish.logits_chain, finish.stop});
    };
    callbacks.on_finish = [on_end = observer.on_end](const engine::Finish& finish) {
      on_end(ToRunEnd(finish));
    };
    auto id = engine_->Submit(std::move(request), std::move(callbacks));
    if (!id.ok()) return FromEngine(id.error(), engine_->stats().queue_seconds);
    return std::unique_ptr<Run>(std::make_unique<EngineRun>(engine_, *id));
  }

 private:
  std::shared_ptr<Engine> engine_;
  engine::GenerateRequest request_;
  std::optional<uint64_t> seed_;  // the client's
  int64_t clock_micros_;
  json::Value identity_;
  std::string system_fingerprint_;
};

class NoRun : public Run {
 public:
  void Cancel() override {}
};

// A request that only asks how many tokens its prompt has: an answer without any, at once.
class TokenCount : public EnginePrepared {
 public:
  using EnginePrepared::EnginePrepared;

  Answered<std::unique_ptr<Run>> Start(const RunOptions&, RunObserver observer) const override {
    observer.on_choice_end({0, "stop", engine::LogitsChainStart()});
    observer.on_end({});
    return std::unique_ptr<Run>(std::make_unique<NoRun>());
  }
};

}  // namespace

EngineBackend::EngineBackend(std::shared_ptr<Engine> engine) : engine_(std::move(engine)) {}

Answered<GenerationRequest> EngineBackend::Decode(Endpoint endpoint,
                                                  const json::Value& body) const {
  return gateway::Decode(endpoint, body);
}

Answered<std::shared_ptr<const PreparedRequest>> EngineBackend::Prepare(
    const GenerationRequest& request, const PrepareOptions& options) const {
  if (auto unsupported = CheckEngine(request)) return *unsupported;
  const bool whole_prompt = request.endpoint == Endpoint::kCompletions;
  auto prompt = whole_prompt ? EncodePrompt(*engine_, request)
                             : RenderChat(*engine_, request, options.clock_micros);
  if (auto* error = std::get_if<HttpError>(&prompt)) return std::move(*error);
  auto& [tokens, digest] = std::get<Prompt>(prompt);
  if (tokens.empty()) {
    return BadRequest("The prompt has no tokens.", PromptField(request.endpoint), "invalid_value");
  }
  engine::GenerateRequest generate;
  if (request.endpoint == Endpoint::kCountTokens) {
    generate.prompts = {std::move(tokens)};
    return std::shared_ptr<const PreparedRequest>(std::make_shared<TokenCount>(
        engine_, std::move(generate), request.seed, digest, false, options.clock_micros));
  }
  auto max_tokens =
      MaxTokens(engine_->info().context_length, tokens.size(), request, options.length_is_open);
  if (auto* error = std::get_if<HttpError>(&max_tokens)) return std::move(*error);
  // Where the context decides the length, it decides the answer.
  const bool counts = std::get<uint32_t>(max_tokens) != request.max_tokens;

  generate.prompts = {std::move(tokens)};
  generate.sampling = request.sampling;
  generate.max_tokens = std::get<uint32_t>(max_tokens);
  generate.stop = request.stop;
  generate.ignore_eos = request.ignore_eos;
  if (Status s = CheckSamplingParams(generate.sampling, engine_->info().vocab_size); !s.ok()) {
    return FromEngine(s.error());
  }
  return std::shared_ptr<const PreparedRequest>(std::make_shared<EnginePrepared>(
      engine_, std::move(generate), request.seed, digest, counts, options.clock_micros));
}

json::Value EngineBackend::Describe() const {
  const engine::ModelInfo& info = engine_->info();
  json::Value v = json::Value::MakeObject();
  v.Set("model_digest", HexEncode(info.model_digest));
  v.Set("architecture", info.architecture);
  v.Set("fidelity", info.fidelity);
  v.Set("numerics", info.numerics);
  v.Set("isa", info.isa);
  v.Set("threads", std::to_string(info.threads));
  v.Set("context", std::to_string(info.context_length));
  return v;
}

}  // namespace verbatim::gateway
