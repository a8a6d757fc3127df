#include "audit/reexecute.h"

#include <unistd.h>

#include <charconv>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <utility>

#include "base/crypto.h"
#include "engine/engine.h"
#include "gateway/endpoint.h"
#include "gateway/engine_backend.h"
#include "gateway/fingerprint.h"
#include "gateway/recorder.h"
#include "gateway/trace.h"
#include "gateway/wire/answer.h"

namespace verbatim::audit {
namespace {

using gateway::GenerationRequest;

Error Unsupported(const std::string& why) { return {Code::kUnsupported, why}; }

// A run as it comes.
struct Execution {
  explicit Execution(uint32_t choices) : order(choices) {}
  std::mutex mutex;  // guards what follows
  std::condition_variable ended;
  gateway::TraceOrder order;
  gateway::Trace trace;
  std::optional<gateway::RunEnd> end;
};

std::optional<double> Double(const json::Value& object, const char* name) {
  const json::Value* value = object.Find(name);
  return value ? value->AsDouble() : std::nullopt;
}

// The request with the sampling that was in force: policy may have set some of it.
Status SetParameters(const json::Value& recorded, GenerationRequest& request) {
  engine::SamplingParams& sampling = request.sampling;
  const Error damaged = Unsupported("its record does not hold the parameters in force");
  for (const auto& [name, to] : {std::pair("temperature", &sampling.temperature),
                                 std::pair("repetition_penalty", &sampling.repetition_penalty),
                                 std::pair("frequency_penalty", &sampling.frequency_penalty),
                                 std::pair("presence_penalty", &sampling.presence_penalty)}) {
    const std::optional<double> value = Double(recorded, name);
    if (!value) return damaged;
    *to = static_cast<float>(*value);
  }
  const json::Value* top_k = recorded.Find("top_k");
  const json::Value* max_tokens = recorded.Find("max_tokens");
  const json::Value* bias = recorded.Find("logit_bias");
  const json::Value* stop = recorded.Find("stop");
  const json::Value* ignore_eos = recorded.Find("ignore_eos");
  const std::optional<double> top_p = Double(recorded, "top_p"), min_p = Double(recorded, "min_p");
  if (!top_k || !top_k->AsInt64() || !max_tokens || !max_tokens->AsUint64() || !top_p || !min_p ||
      !bias || !bias->is_object() || !stop || !stop->is_array() || !ignore_eos ||
      !ignore_eos->is_bool()) {
    return damaged;
  }
  sampling.top_k = *top_k->AsInt64();
  sampling.top_p = *top_p;
  sampling.min_p = *min_p;
  request.max_tokens = static_cast<uint32_t>(*max_tokens->AsUint64());
  request.ignore_eos = ignore_eos->as_bool();
  request.stop.clear();
  for (const json::Value& text : stop->items()) {
    if (!text.is_string()) return damaged;
    request.stop.push_back(text.as_string());
  }
  sampling.logit_bias.clear();
  for (const auto& [token, add] : bias->members()) {
    int32_t id = 0;
    const char* end = token.data() + token.size();
    const auto parsed = std::from_chars(token.data(), end, id);
    if (parsed.ec != std::errc() || parsed.ptr != end || !add.AsDouble()) return damaged;
    sampling.logit_bias.emplace_back(id, static_cast<float>(*add.AsDouble()));
  }
  return {};
}

class EngineExecutor {
 public:
  explicit EngineExecutor(std::string file) : file_(std::move(file)) {}

  Status Execute(const ExecutableEntry& entry) {
    const store::Record& record = entry.record;
    const auto endpoint = gateway::EndpointOfPath(record.endpoint);
    const auto form = gateway::FormOf(record);
    const json::Value* fidelity = record.backend.Find("fidelity");
    const json::Value* clock = record.parameters.Find("template_clock_micros");
    if (!endpoint || !form || !fidelity || !fidelity->is_string() || !clock || !clock->AsInt64() ||
        !record.fingerprint) {
      return Unsupported("its record does not say how it was executed");
    }
    if (record.extra.Find("redacted")) {
      return Unsupported("its request was redacted before it was recorded");
    }
    if (Status loaded = Load(fidelity->as_string()); !loaded.ok()) return loaded;
    if (HexEncode(engine_->info().model_digest) != entry.leaf.model) {
      return Unsupported("another model answered it: " + entry.leaf.model);
    }

    const Result<json::Value> body = json::Parse(entry.request);
    if (!body.ok()) return body.error();
    const gateway::EngineBackend backend(engine_);
    auto decoded = backend.Decode(*endpoint, *body);
    if (auto* error = std::get_if<gateway::HttpError>(&decoded)) {
      return Unsupported(error->message);
    }
    auto& request = std::get<GenerationRequest>(decoded);
    if (Status set = SetParameters(record.parameters, request); !set.ok()) return set;
    gateway::PrepareOptions options;
    options.clock_micros = *clock->AsInt64();
    auto prepared = backend.Prepare(request, options);
    if (auto* error = std::get_if<gateway::HttpError>(&prepared)) {
      return Unsupported(error->message);
    }
    return Compare(entry, *form, request,
                   *std::get<std::shared_ptr<const gateway::PreparedRequest>>(prepared));
  }

 private:
  Status Load(const std::string& fidelity) {
    if (engine_ && engine_->info().fidelity == fidelity) return {};
    engine_.reset();
    engine::EngineOptions options;
    options.path = file_;
    options.fidelity = fidelity;
    Result<std::unique_ptr<engine::Engine>> loaded = engine::Engine::Load(options);
    if (!loaded.ok()) return Unsupported(loaded.error().message);
    engine_ = std::move(*loaded);
    return {};
  }

  static Status Compare(const ExecutableEntry& entry, const gateway::AnswerForm& form,
                        const GenerationRequest& request,
                        const gateway::PreparedRequest& prepared) {
    if (prepared.numerics() != entry.leaf.numerics) {
      return Unsupported("it was computed by " + entry.leaf.numerics + ", this program computes " +
                         prepared.numerics());
    }
    const auto execution = std::make_shared<Execution>(prepared.choices());
    gateway::RunObserver observer;
    observer.on_piece = [execution](gateway::TokenPiece piece) {
      const std::lock_guard lock(execution->mutex);
      execution->order.Add(std::move(piece), execution->trace.events);
    };
    observer.on_choice_end = [execution](gateway::ChoiceEnd end) {
      const std::lock_guard lock(execution->mutex);
      execution->order.Add(std::move(end), execution->trace.events);
    };
    observer.on_end = [execution](gateway::RunEnd end) {
      const std::lock_guard lock(execution->mutex);
      execution->end = std::move(end);
      execution->ended.notify_all();
    };
    auto started = prepared.Start({.seed = entry.record.seed.value_or(0)}, std::move(observer));
    if (auto* error = std::get_if<gateway::HttpError>(&started)) {
      return Unsupported(error->message);
    }
    std::unique_lock lock(execution->mutex);
    execution->ended.wait(lock, [&] { return execution->end.has_value(); });
    if (execution->end->outcome != gateway::RunEnd::Outcome::kComplete) {
      return Unsupported("it did not run to its end: " + execution->end->error.message);
    }
    gateway::Trace& trace = execution->trace;
    trace.choices = prepared.choices();
    trace.prompt_tokens = prepared.prompt_tokens();
    if (trace.Chains() != entry.record.chain_heads) {
      return Error{Code::kCorrupt, "executed again, its logits chain is another"};
    }
    gateway::AnswerHead head = gateway::HeadOf(
        request, gateway::AnswerId(entry.record.endpoint, *entry.record.fingerprint),
        prepared.system_fingerprint());
    head.created = entry.record.created;
    if (gateway::Render(head, trace, form) != entry.response) {
      return Error{Code::kCorrupt, "executed again, its answer has other bytes"};
    }
    return {};
  }

  const std::string file_;
  std::shared_ptr<engine::Engine> engine_;
};

}  // namespace

Result<Executor> MakeExecutor(const std::string& model_file) {
  if (::access(model_file.c_str(), R_OK) != 0) {
    return Error{Code::kNotFound, model_file + " cannot be read; name the model's file"};
  }
  const auto executor = std::make_shared<EngineExecutor>(model_file);
  return Executor([executor](const ExecutableEntry& entry) { return executor->Execute(entry); });
}

}  // namespace verbatim::audit
