// verbatim fingerprint: the fingerprint that a server would give a request, and why two differ.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <map>
#include <memory>
#include <string>

#include "base/clock.h"
#include "cli/commands.h"
#include "cli/files.h"
#include "engine/engine.h"
#include "gateway/engine_backend.h"
#include "gateway/fingerprint.h"
#include "gateway/io_threads.h"
#include "gateway/manifest.h"
#include "gateway/upstream/upstream_backend.h"
#include "gateway/wire/openai.h"
#include "policies/loader.h"

namespace verbatim::cli {
namespace {

using gateway::HttpError;

struct Flags {
  std::string file, endpoint = "/v1/chat/completions", tenant = "default", subject = "anonymous";
  std::string config, other;
  std::vector<std::string> models, headers;
  std::string query;
  bool json = false;
};

[[noreturn]] void Fail(const std::string& message, int code) {
  std::fprintf(stderr, "verbatim fingerprint: %s\n", message.c_str());
  throw CLI::RuntimeError(code);
}

void Note(const std::string& message) {
  std::fprintf(stderr, "verbatim fingerprint: %s\n", message.c_str());
}

policies::Config MakeConfig(const Flags& flags) {
  policies::Config config = policies::DefaultConfig();
  if (!flags.config.empty()) {
    auto loaded = policies::LoadConfig(flags.config);
    if (!loaded.ok()) Fail(loaded.error().message, 2);
    config = *std::move(loaded);
  }
  for (const std::string& model : flags.models) {
    const size_t equals = model.find('=');
    if (equals == 0 || equals == std::string::npos || equals + 1 == model.size()) {
      Fail("--model '" + model + "' must be NAME=FILE", 2);
    }
    config.models[model.substr(0, equals)].file = model.substr(equals + 1);
  }
  return config;
}

// Engines as the server would load them, each once.
class Backends {
 public:
  explicit Backends(const policies::Config& config) : config_(config) {}

  // Null where the configuration has no model of that name, nor an upstream for it.
  const gateway::Backend* Find(const std::string& name) {
    const auto model = config_.models.find(name);
    if (model == config_.models.end()) return FindUpstream(name);
    auto& backend = loaded_[name];
    if (backend) return backend.get();
    engine::EngineOptions options;
    options.path = model->second.file;
    options.fidelity = model->second.fidelity;
    options.threads = static_cast<uint32_t>(config_.engine.threads);
    options.max_batch = static_cast<uint32_t>(config_.engine.max_batch);
    options.kv_tokens = static_cast<uint32_t>(config_.engine.kv_tokens);
    options.context_limit = static_cast<uint32_t>(config_.engine.context_limit);
    options.isa = config_.engine.isa;
    auto loaded = engine::Engine::Load(options);
    if (!loaded.ok()) Fail("model " + name + ": " + loaded.error().message, 2);
    backend = std::make_unique<gateway::EngineBackend>(
        std::shared_ptr<engine::Engine>(*std::move(loaded)));
    return backend.get();
  }

  // Nothing is asked of it, so it needs no secret.
  const gateway::Backend* FindUpstream(const std::string& name) {
    const std::string id = policies::UpstreamFor(config_.upstreams, name);
    if (id.empty()) return nullptr;
    auto& backend = upstreams_[id];
    if (backend) return backend.get();
    policies::UpstreamConfig upstream = config_.upstreams.at(id);
    upstream.credentials = {};
    std::erase_if(upstream.headers.add, [](const auto& header) {
      return header.second.starts_with("env:") || header.second.starts_with("file:");
    });
    auto made = gateway::MakeUpstream(id, upstream, {.io = &io_});
    if (!made.ok()) Fail(made.error().message, 2);
    backend = *std::move(made);
    return backend.get();
  }

  // What the policy adds to every fingerprint; it may need the manifest, and that every model.
  json::Value ExtraKey() {
    const policies::Policy& policy = config_.policy;
    if (!policy.key_manifest && policy.key_software.empty()) {
      return policies::ExtraKey(policy, json::Value());
    }
    std::vector<std::pair<std::string, json::Value>> descriptions;
    for (const auto& [name, model] : config_.models) {
      descriptions.emplace_back(name, Find(name)->Describe());
    }
    const json::Value manifest = gateway::MakeManifest(descriptions).value;
    const Status status = policies::CheckSoftware(policy, manifest);
    if (!status.ok()) Fail(status.error().message, 1);
    return policies::ExtraKey(policy, manifest);
  }

 private:
  const policies::Config& config_;
  gateway::IoThreads io_{1};
  std::map<std::string, std::unique_ptr<gateway::Backend>> loaded_, upstreams_;
};

template <typename T>
T OrFail(const std::string& file, std::variant<T, HttpError> result) {
  if (const auto* error = std::get_if<HttpError>(&result)) {
    Fail(file + ": " + (error->param.empty() ? "" : error->param + ": ") + error->message, 2);
  }
  return std::get<T>(std::move(result));
}

bool Given(const json::Value& body, const char* field) {
  const json::Value* v = body.Find(field);
  return v != nullptr && !v->is_null();
}

// "Name: value", as a request has it.
std::pair<std::string, std::string> ParseHeader(const std::string& text) {
  const size_t colon = text.find(':');
  if (colon == std::string::npos || colon == 0)
    Fail("--header '" + text + "' must be NAME: VALUE", 2);
  std::string name = text.substr(0, colon);
  for (char& c : name) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  const size_t begin = text.find_first_not_of(' ', colon + 1);
  return {std::move(name), begin == std::string::npos ? "" : text.substr(begin)};
}

// The steps of gateway/pipeline.cc up to the fingerprint.
gateway::Envelope MakeEnvelope(const Flags& flags, const std::string& file,
                               const policies::Config& config, Backends& backends) {
  const gateway::Endpoint endpoint = *gateway::EndpointOfPath(flags.endpoint);
  const auto text = ReadWhole(file);
  if (!text.ok()) Fail(text.error().message, 2);
  const json::Value body = OrFail(file, gateway::ParseBody(*text));
  const json::Value* model = body.Find("model");
  const gateway::Backend* backend =
      model && model->is_string() ? backends.Find(model->as_string()) : nullptr;
  const auto decode = [&](const json::Value& request) {
    return OrFail(
        file, backend ? backend->Decode(endpoint, request) : gateway::Decode(endpoint, request));
  };
  decode(body);
  policies::Decision decision = policies::Decide(
      config.policy, {flags.tenant, flags.subject, "none"}, flags.endpoint, body, text->size());
  if (decision.refusal) Fail(file + ": " + decision.refusal->message, 1);
  const gateway::GenerationRequest request = decode(decision.request);

  gateway::Envelope envelope{
      std::move(decision.name_space), flags.endpoint, std::move(decision.request), {}, {}};
  if (backend) {
    const bool open = !Given(body, "max_tokens") && !Given(body, "max_completion_tokens") &&
                      !Given(body, "max_output_tokens");
    gateway::Headers headers;
    for (const std::string& header : flags.headers) headers.push_back(ParseHeader(header));
    auto prepared = OrFail(file, backend->Prepare(request, {.clock_micros = NowMicros(),
                                                            .length_is_open = open,
                                                            .headers = &headers,
                                                            .query = flags.query,
                                                            .body = *text}));
    envelope.identity = prepared->identity();
  } else {
    Note("no model '" + request.model +
         "' is known here, so the identity is null and a server's fingerprint differs; name the "
         "file with --model " +
         request.model + "=FILE or --config");
  }
  envelope.extra = backends.ExtraKey();
  return envelope;
}

json::Value Describe(const gateway::Envelope& envelope, const std::string& fingerprint) {
  return json::Object{{"fingerprint", fingerprint},
                      {"derived_seed", gateway::DerivedSeed(envelope)},
                      {"envelope", gateway::EnvelopeJson(envelope)}};
}

void Run(const Flags& flags) {
  const policies::Config config = MakeConfig(flags);
  Backends backends(config);
  std::string secret;
  if (!config.policy.key_secret.empty()) {
    auto resolved = policies::ResolveSecret(config.policy.key_secret);
    if (!resolved.ok()) Fail(resolved.error().message, 2);
    secret = *std::move(resolved);
  }
  const auto a = MakeEnvelope(flags, flags.file, config, backends);
  const std::string print_a = HexEncode(gateway::Fingerprint(a, secret));
  if (flags.other.empty()) {
    std::printf("%s\n",
                flags.json ? json::Serialize(Describe(a, print_a)).c_str() : print_a.c_str());
    return;
  }

  const auto b = MakeEnvelope(flags, flags.other, config, backends);
  const std::string print_b = HexEncode(gateway::Fingerprint(b, secret));
  const auto differences = gateway::Explain(gateway::EnvelopeJson(a), gateway::EnvelopeJson(b));
  if (flags.json) {
    json::Value list = json::Value::MakeArray();
    for (const gateway::Difference& d : differences) {
      list.Append(json::Object{{"pointer", d.pointer}, {"a", d.a}, {"b", d.b}});
    }
    std::printf("%s\n", json::Serialize(json::Object{{"equal", print_a == print_b},
                                                     {"a", print_a},
                                                     {"b", print_b},
                                                     {"differences", std::move(list)}})
                            .c_str());
    return;
  }
  std::printf("%s %s\n%s %s\n", print_a.c_str(), flags.file.c_str(), print_b.c_str(),
              flags.other.c_str());
  if (print_a == print_b) std::printf("equal: the second is a hit\n");
  for (const gateway::Difference& d : differences) {
    std::printf("%s: %s -> %s\n", d.pointer.c_str(), d.a.empty() ? "(absent)" : d.a.c_str(),
                d.b.empty() ? "(absent)" : d.b.c_str());
  }
}

}  // namespace

void AddFingerprint(CLI::App& app) {
  auto flags = std::make_shared<Flags>();
  CLI::App* command = app.add_subcommand(
      "fingerprint", "Print the fingerprint of a request, or why two requests differ");
  command->add_option("FILE", flags->file, "The request's JSON; - is standard input")->required();
  std::vector<std::string> endpoints;
  for (const gateway::Endpoint e : gateway::AllEndpoints()) {
    endpoints.emplace_back(gateway::EndpointPath(e));
  }
  command->add_option("--endpoint", flags->endpoint, "The request's path (/v1/chat/completions)")
      ->check(CLI::IsMember(endpoints))
      ->type_name("PATH");
  command->add_option("--tenant", flags->tenant, "Who asks (default)")->type_name("NAME");
  command->add_option("--subject", flags->subject, "Who asks within the tenant (anonymous)")
      ->type_name("NAME");
  command->add_option("--config", flags->config, "The server's configuration: models and policy")
      ->type_name("FILE");
  command->add_option("--model", flags->models, "A model by the name in the request; repeatable")
      ->type_name("NAME=FILE");
  command
      ->add_option("--header", flags->headers, "A header of the request, for upstreams; repeatable")
      ->type_name("'NAME: VALUE'");
  command->add_option("--query", flags->query, "The request's query, for upstreams")
      ->type_name("TEXT");
  command->add_option("--explain", flags->other, "Another request: which fields differ?")
      ->type_name("FILE");
  command->add_flag("--json", flags->json, "Print one JSON object, with the whole envelope");
  command->footer("Example: verbatim fingerprint request.json --explain other.json");
  command->callback([flags] { Run(*flags); });
}

}  // namespace verbatim::cli
