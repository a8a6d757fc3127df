#include "engine/engine.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "engine/chat_template.h"
#include "engine/gguf.h"
#include "engine/kv_cache.h"
#include "engine/model.h"
#include "engine/scheduler.h"
#include "engine/tokenizer.h"
#include "engine/tokenizer_gguf.h"
#include "engine/worker_pool.h"
#include "kernels/isa.h"
#include "kernels/self_test.h"

namespace verbatim::engine {
namespace {

constexpr uint32_t kMaxThreads = 256;
constexpr uint32_t kMaxBatch = 4096;
constexpr uint32_t kMaxChunk = 65536;
constexpr uint32_t kDefaultKvTokens = 32768;
constexpr int kKvBits = 16;

Status CheckOptions(const EngineOptions& o) {
  const auto refuse = [](const char* name, uint32_t max) {
    return Error{Code::kInvalid, std::string(name) + " must be from 1 to " + std::to_string(max)};
  };
  if (o.threads > kMaxThreads) return refuse("threads", kMaxThreads);
  if (o.max_batch < 1 || o.max_batch > kMaxBatch) return refuse("max_batch", kMaxBatch);
  if (o.prefill_chunk < 1 || o.prefill_chunk > kMaxChunk) return refuse("prefill_chunk", kMaxChunk);
  if (o.queue_limit < 1) return refuse("queue_limit", UINT32_MAX);
  return {};
}

// Rounding and self-test on every thread that will compute.
Status CheckMachine(const kernels::Ops& ops, WorkerPool& workers) {
  std::vector<Status> results(workers.size());
  workers.Run([&](uint32_t worker) { results[worker] = kernels::SelfTest(ops); });
  for (Status& s : results) {
    if (!s.ok()) return std::move(s);
  }
  return {};
}

Result<std::unique_ptr<const ChatTemplate>> LoadChatTemplate(const GgufFile& file) {
  Result<std::string_view> source = file.String("tokenizer.chat_template");
  if (source) return ChatTemplate::Parse(*source);
  if (source.error().code != Code::kNotFound) return source.error();
  return Error{Code::kNotFound, "the model file has no chat template; use a prompt instead"};
}

}  // namespace

struct Engine::State {
  State(uint32_t threads, const kernels::Ops& the_ops) : workers(threads), ops(the_ops) {}
  WorkerPool workers;
  const kernels::Ops& ops;
  Model model;
  std::unique_ptr<const Tokenizer> tokenizer;
  std::unique_ptr<const ChatTemplate> chat_template;
  Error template_error;
  ModelInfo info;
  std::unique_ptr<Scheduler> scheduler;  // last: it uses what stands above
};

Engine::Engine(std::unique_ptr<State> state) : state_(std::move(state)) {}
Engine::~Engine() = default;

Result<std::unique_ptr<Engine>> Engine::Load(const EngineOptions& options,
                                             const LoadProgress& progress) {
  const auto report = [&progress](std::string_view step, double done) {
    if (progress) progress(step, done);
  };
  // The machine.
  if (Status s = CheckOptions(options); !s.ok()) return s.error();
  Result<kernels::Isa> isa = kernels::ChooseIsa(options.isa);
  if (!isa) return isa.error();
  const uint32_t cores = std::clamp(std::thread::hardware_concurrency(), 1u, kMaxThreads);
  auto state = std::make_unique<State>(options.threads == 0 ? cores : options.threads,
                                       kernels::Select(*isa));
  report("self-test", 0);
  if (Status s = CheckMachine(state->ops, state->workers); !s.ok()) return s.error();

  // The file: tokenizer, template, weights. It is not needed afterwards.
  report("file", 0);
  Result<GgufFile> file = GgufFile::Open(options.path);
  if (!file) return file.error();
  Fidelity fidelity = DefaultFidelity(*file);
  if (!options.fidelity.empty()) {
    Result<Fidelity> parsed = ParseFidelity(options.fidelity);
    if (!parsed) return parsed.error();
    fidelity = *parsed;
  }
  report("tokenizer", 0);
  Result<std::unique_ptr<const Tokenizer>> tokenizer = LoadTokenizer(*file);
  if (!tokenizer) return tokenizer.error();
  state->tokenizer = std::move(*tokenizer);
  Result<std::unique_ptr<const ChatTemplate>> chat_template = LoadChatTemplate(*file);
  if (chat_template) {
    state->chat_template = std::move(*chat_template);
  } else {
    state->template_error = chat_template.error();
  }
  Result<Model> model =
      LoadModel(*file, fidelity, state->workers, [&](double done) { report("weights", done); });
  if (!model) return model.error();
  state->model = std::move(*model);
  const ModelConfig& c = state->model.config;
  if (state->tokenizer->vocab_size() != c.vocab) {
    return Error{Code::kCorrupt, "the tokenizer has " +
                                     std::to_string(state->tokenizer->vocab_size()) +
                                     " tokens and the model " + std::to_string(c.vocab)};
  }

  // The KV cache, and what a sequence may have of it.
  uint64_t kv_tokens = options.kv_tokens;
  if (kv_tokens == 0) {
    kv_tokens = std::clamp<uint64_t>(uint64_t{4} * c.context_length, KvCache::kPageTokens,
                                     kDefaultKvTokens);
  }
  const kernels::KvTileLayout layout{.head_dim = c.head_dim, .bits = kKvBits};
  Result<KvCache> cache = KvCache::Create(layout, c.layers, c.kv_heads, kv_tokens);
  if (!cache) return cache.error();
  uint64_t context = std::min<uint64_t>(c.context_length, cache->capacity_tokens());
  if (options.context_limit != 0) context = std::min<uint64_t>(context, options.context_limit);

  ModelInfo& info = state->info;
  info.model_digest = state->model.digest;
  info.architecture = c.architecture;
  info.display_name = state->model.display_name;
  info.fidelity = FidelityName(fidelity);
  info.numerics = "1";
  info.isa = kernels::IsaName(*isa);
  info.context_length = static_cast<uint32_t>(context);
  info.vocab_size = c.vocab;
  info.threads = state->workers.size();
  info.kv_tokens = cache->capacity_tokens();
  info.parameters = state->model.parameters;

  const Scheduler::Limits limits{.context_length = info.context_length,
                                 .max_batch = options.max_batch,
                                 .prefill_chunk = options.prefill_chunk,
                                 .queue_limit = options.queue_limit,
                                 .prefix_cache = options.prefix_cache};
  state->scheduler = std::make_unique<Scheduler>(state->model, *state->tokenizer, state->ops,
                                                 std::move(*cache), state->workers, limits);
  report("ready", 1);
  return std::unique_ptr<Engine>(new Engine(std::move(state)));
}

const ModelInfo& Engine::info() const { return state_->info; }
const Tokenizer& Engine::tokenizer() const { return *state_->tokenizer; }
const ChatTemplate* Engine::chat_template() const { return state_->chat_template.get(); }
const Error& Engine::template_error() const { return state_->template_error; }

Result<uint64_t> Engine::Submit(GenerateRequest request, GenerateCallbacks callbacks) {
  return state_->scheduler->Submit(std::move(request), std::move(callbacks));
}
void Engine::Cancel(uint64_t id) { state_->scheduler->Cancel(id); }
EngineStats Engine::stats() const { return state_->scheduler->stats(); }

}  // namespace verbatim::engine
