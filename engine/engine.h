// The embedded engine: a model file in, tokens with the digest of the logits each was chosen from
// out. What a request gets depends on the model, the fidelity, the prompt and the sampling
// parameters alone: never on load, batch, chunking, threads or instruction set (numerics.md).
//
// One thread of the engine owns the batch. Submit, Cancel and the accessors may be called from any
// thread; callbacks run on the engine's thread, must not block and must not call into the engine
// except for Submit and Cancel.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/result.h"
#include "engine/sampler.h"

namespace verbatim::engine {

class ChatTemplate;  // engine/chat_template.h
class Tokenizer;     // engine/tokenizer.h

struct EngineOptions {
  std::string path = {};         // a GGUF file
  std::string fidelity = {};     // "wba16", "w8a16" or "w16a16"; empty: the default for the file
  uint32_t threads = 0;          // threads that compute; 0: one per core
  uint32_t max_batch = 32;       // sequences that run together
  uint32_t kv_tokens = 0;        // size of the KV cache in tokens, rounded up to pages of 64;
                                 // 0: room for four full contexts, at most 32,768 tokens
  uint32_t context_limit = 0;    // positions a sequence may have; 0: the model's, or the KV cache's
  uint32_t prefill_chunk = 256;  // rows of one forward pass beyond one per running sequence
  uint32_t queue_limit = 1024;   // requests of one tenant that may wait to begin, an eighth of what
                                 // may of all together; more are refused with kUnavailable
  bool prefix_cache = true;      // keys and values of a tenant's prompts and answers are kept while
                                 // there is room, for what begins with the same tokens
  std::string isa = {};          // "scalar", "avx2", "avx512vnni"; empty: the best of this machine
};

// Called during Load with a step ("weights") and the share of it that is done, 0 to 1.
using LoadProgress = std::function<void(std::string_view step, double done)>;

struct ModelInfo {
  Digest model_digest{};        // weights as loaded, config, tokenizer and template; not the names
  std::string architecture;     // "llama"
  std::string display_name;     // general.name of the file, for people; may be empty
  std::string fidelity;         // "wba16"
  std::string numerics;         // version of numerics.md: "1"
  std::string isa;              // what computes: "avx512vnni"; for the manifest, never for a key
  uint32_t context_length = 0;  // positions a sequence may have here
  uint32_t vocab_size = 0;
  uint32_t threads = 0;
  uint64_t kv_tokens = 0;
  uint64_t parameters = 0;  // elements of all tensors
};

struct GenerateRequest {
  // One or more, each with at least one id. A choice's number is that of its prompt times `choices`
  // plus its own among these.
  std::vector<std::vector<int32_t>> prompts;
  uint32_t choices = 1;  // of each prompt; the i-th draws from sampling.stream + i
  SamplingParams sampling;
  // Sampled tokens of a choice at most, and at most as many as the context holds. 0: the prompts
  // are only scored.
  uint32_t max_tokens = UINT32_MAX;
  std::vector<std::string>
      stop;                 // non-empty UTF-8 strings; the earliest match ends the text before it
  bool ignore_eos = false;  // end-of-text tokens are ordinary tokens (their text stays empty)
  // With each token its logprob, and those of so many most likely tokens.
  std::optional<uint32_t> logprobs;
  bool prompt_logprobs = false;  // of the prompts' tokens too: of their logits as they are, without
                                 // penalties and bias; only with `logprobs`
  std::string tenant;  // tenants take turns, and share no keys and values in the prefix cache
  bool low_priority = false;  // runs where nobody else wants the place (verification)
};

// Of a prompt's token but the first, in order, before the first token of its choices.
struct PromptTokenEvent {
  uint32_t prompt = 0;
  uint32_t position = 0;  // from 1 on
  TokenLogprobs logprobs;
};

// One per sampled token, in order within a choice, the end-of-text token and the tokens of a
// matched stop string included. The texts of a choice's events joined are its text: whole UTF-8
// only, with what might still become part of a character or of a stop string held back, so a text
// may be empty, and the last event has all that is left (an incomplete character as U+FFFD).
struct TokenEvent {
  uint32_t choice = 0;
  int32_t token = 0;
  LogitsDigest digest{};  // of the raw logits that the token was chosen from
  std::string text{};
  std::optional<TokenLogprobs> logprobs{};  // where asked for
};

enum class FinishReason { kStop, kLength };

// A choice is complete.
struct ChoiceFinish {
  uint32_t choice = 0;
  FinishReason reason = FinishReason::kStop;
  uint32_t generated_tokens = 0;
  std::string stop{};     // the stop string that matched; empty for end-of-text
  Digest logits_chain{};  // over the digests of its events (engine/sampler.h)
};

struct Finish {
  enum class Outcome { kComplete, kCancelled, kFault };
  Outcome outcome = Outcome::kComplete;
  Error error{};                  // where it is a fault: kNumericFault, or what stopped the engine
  uint32_t prompt_tokens = 0;     // of all prompts
  uint32_t generated_tokens = 0;  // token events delivered
};

struct GenerateCallbacks {
  std::function<void(const PromptTokenEvent&)> on_prompt_token;  // where prompt_logprobs
  std::function<void(const TokenEvent&)> on_token;
  std::function<void(const ChoiceFinish&)> on_choice_finish;
  std::function<void(const Finish&)> on_finish;  // exactly once, last
};

// What the engine did since it was loaded, for metrics and for tests that must see batching.
struct EngineStats {
  uint64_t steps = 0;        // forward passes
  uint64_t rows = 0;         // of all of them
  uint64_t prompt_rows = 0;  // of those, prefill of sequences that have no token yet
  uint64_t sampled_tokens = 0;
  uint64_t shared_steps = 0;       // forward passes with rows of more than one sequence
  uint64_t prompt_tokens = 0;      // of sequences that began
  uint64_t prefix_hit_tokens = 0;  // of these, those whose keys and values were there already
  uint64_t preempted = 0;  // sequences whose pages were taken; they are computed again, equal
  uint32_t running = 0, waiting = 0;  // sequences
  uint32_t queued = 0;                // requests that have not begun
  uint32_t kv_pages = 0;
  uint32_t kv_pages_used = 0;    // by sequences
  uint32_t kv_pages_cached = 0;  // remembered for others, used or not
  // By the pace of late, when the last of those that are queued now will have begun.
  double queue_seconds = 0;
};

class Engine {
 public:
  // Runs the kernels' self-test, reads and checks the file, packs the weights, allocates the KV
  // cache and starts the threads. Errors: kInvalid (the options), kNotFound, kIo, kCorrupt (the
  // file is no sound GGUF), kUnsupported (by name: architecture, tensor type, rope scaling,
  // tokenizer), kNumericFault (a weight, or the self-test on this machine).
  static Result<std::unique_ptr<Engine>> Load(const EngineOptions& options,
                                              const LoadProgress& progress = {});
  // Cancels what waits and runs (on_finish is called) and stops the threads.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  const ModelInfo& info() const;
  const Tokenizer& tokenizer() const;
  // Null where the file has no template or one outside the subset; template_error then says why.
  const ChatTemplate* chat_template() const;
  const Error& template_error() const;

  // Queues a request and returns its id. Errors: kInvalid (message begins with the field's name:
  // prompt empty, not shorter than the context, or an id outside the vocabulary; n, logprobs,
  // sampling; stop), kUnavailable (the queue is full, or the engine is stopping). On an error no
  // callback is called.
  Result<uint64_t> Submit(GenerateRequest request, GenerateCallbacks callbacks);

  // The request ends with kCancelled at the next step. Unknown and finished ids are ignored.
  void Cancel(uint64_t id);

  EngineStats stats() const;

 private:
  struct State;
  explicit Engine(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace verbatim::engine
