#include "gateway/gateway.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "engine/engine.h"
#include "gateway/engine_backend.h"
#include "gateway/manifest.h"
#include "gateway/metrics.h"
#include "gateway/operator_api.h"
#include "gateway/pipeline.h"
#include "gateway/server.h"
#include "policies/loader.h"
#include "store/data_folder.h"
#include "store/ledger.h"

namespace verbatim::gateway {
namespace {

using std::chrono::milliseconds;

// I/O is light beside the engine's computing, which wants the cores.
constexpr unsigned kMaxIoThreads = 4;

uint32_t ToU32(uint64_t v) {
  return static_cast<uint32_t>(std::min<uint64_t>(v, std::numeric_limits<uint32_t>::max()));
}

ServerOptions ToServerOptions(const policies::ServerConfig& config) {
  ServerOptions options;
  options.listen = config.listen;
  const unsigned cores = std::max(1u, std::thread::hardware_concurrency());
  options.threads = config.threads > 0 ? static_cast<int>(ToU32(config.threads))
                                       : static_cast<int>(std::min(cores, kMaxIoThreads));
  options.tls.certificate = config.tls.certificate;
  options.tls.key = config.tls.key;
  options.tls.client_ca = config.tls.client_ca;
  using Clients = TlsOptions::Clients;
  if (config.tls.client_certificates == "optional") options.tls.clients = Clients::kOptional;
  if (config.tls.client_certificates == "required") options.tls.clients = Clients::kRequired;
  options.tls.min_version = config.tls.min_version == "1.3" ? 13 : 12;
  options.operator_certificates = config.tls.operator_certificates;
  options.half_close = config.half_close;
  options.limits.header_bytes = config.header_bytes;
  options.limits.header_count = config.header_count;
  options.limits.body_bytes = config.body_bytes;
  options.limits.connections = config.connections;
  options.limits.header_time = milliseconds(config.header_ms);
  options.limits.body_time = milliseconds(config.body_ms);
  options.limits.write_stall = milliseconds(config.write_stall_ms);
  options.limits.keep_alive_idle = milliseconds(config.keep_alive_ms);
  return options;
}

// What every request gets until the gateway is ready.
Router MakeStartupRouter() {
  const Handler starting = [](const Request&, ResponseSink& sink) -> boost::asio::awaitable<void> {
    HttpError error;
    error.status = 503;
    error.message = "The server is starting: its models are being loaded. Try again soon.";
    error.code = "starting";
    error.headers.emplace_back("retry-after", "1");
    (void)co_await SendError(sink, std::move(error));
  };
  Router router;
  for (const char* method : {"GET", "POST"}) router.Add({method, "/{*}", 0, starting});
  return router;
}

Result<std::shared_ptr<engine::Engine>> LoadEngine(const std::string& name,
                                                   const policies::ModelConfig& model,
                                                   const policies::EngineConfig& config,
                                                   const Gateway::Progress& progress) {
  engine::EngineOptions options;
  options.path = model.file;
  options.fidelity = model.fidelity;
  options.threads = ToU32(config.threads);
  options.max_batch = ToU32(config.max_batch);
  options.kv_tokens = ToU32(config.kv_tokens);
  options.context_limit = ToU32(config.context_limit);
  options.prefill_chunk = ToU32(config.prefill_chunk);
  options.queue_limit = ToU32(config.queue_limit);
  options.isa = config.isa;
  std::string last_step;
  int64_t last_line = 0;
  const auto report = [&](std::string_view step, double done) {
    const int64_t now = MonotonicMicros();
    if (step == last_step && now - last_line < 1'000'000) return;
    last_step = step;
    last_line = now;
    progress("loading " + name + ": " + last_step + ", " +
             std::to_string(static_cast<int>(done * 100)) + " %");
  };
  Result<std::unique_ptr<engine::Engine>> loaded = engine::Engine::Load(options, report);
  if (!loaded.ok()) {
    Error error = loaded.error();
    error.message = "model " + name + ": " + error.message;
    if (error.code == Code::kNotFound) {
      error.message += "; name a GGUF file with --model " + name +
                       "=FILE (tools/fetch-model prints the default model's path)";
    }
    return error;
  }
  return std::shared_ptr<engine::Engine>(std::move(loaded).value());
}

class GatewayImpl : public Gateway {
 public:
  Status Init(const policies::Config& config, const Progress& progress);
  ~GatewayImpl() override { server_.reset(); }

  std::string url() const override { return server_->url(); }
  std::string models() const override { return models_; }
  std::string locked() const override { return locked_; }
  Status Drain(milliseconds limit, const Progress& progress) override;

 private:
  Status OpenFolder(const std::string& path);
  Status LoadModels(const policies::Config& config, const Progress& progress);
  Status CheckPolicy(const policies::Policy& policy);
  Status OpenLedger(const policies::Config& config);
  Status BuildPipeline(const policies::Config& config);
  Router MakeRouter();
  std::string NotServing() const;

  // In the order in which they may go, last first: runs refer to engines, the pipeline to the
  // ledger, handlers to the pipeline.
  std::unique_ptr<store::DataFolder> folder_;  // until the ledger owns it
  Catalog catalog_;                            // until the pipeline owns it
  std::string models_;
  Metrics metrics_;
  Manifest manifest_;
  std::string key_secret_;
  std::string locked_;
  std::atomic<bool> draining_ = false;
  std::unique_ptr<store::Ledger> ledger_;
  std::unique_ptr<Pipeline> pipeline_;
  std::unique_ptr<Server> server_;
};

Status GatewayImpl::Init(const policies::Config& config, const Progress& progress) {
  if (config.models.empty()) {
    return Error{Code::kInvalid,
                 "no model to serve; add --model NAME=FILE (tools/fetch-model prints the default "
                 "model's path)"};
  }
  if (Status status = OpenFolder(config.data); !status.ok()) return status;
  auto server = Server::Start(ToServerOptions(config.server), MakeStartupRouter(), Authenticator());
  if (!server.ok()) return server.error();
  server_ = std::move(server).value();
  if (Status status = LoadModels(config, progress); !status.ok()) return status;
  if (Status status = CheckPolicy(config.policy); !status.ok()) return status;
  if (Status status = OpenLedger(config); !status.ok()) return status;
  if (Status status = BuildPipeline(config); !status.ok()) return status;
  server_->SetRouter(MakeRouter());
  return Status();
}

Status GatewayImpl::OpenFolder(const std::string& path) {
  Result<store::DataFolder> folder = store::DataFolder::Open(path);
  if (!folder.ok()) return folder.error();
  folder_ = std::make_unique<store::DataFolder>(std::move(folder).value());
  return Status();
}

Status GatewayImpl::LoadModels(const policies::Config& config, const Progress& progress) {
  std::vector<std::pair<std::string, json::Value>> descriptions;
  for (const auto& [name, model] : config.models) {
    auto loaded = LoadEngine(name, model, config.engine, progress);
    if (!loaded.ok()) return loaded.error();
    const engine::ModelInfo& info = (*loaded)->info();
    if (!models_.empty()) models_ += ", ";
    models_ += name + " (" + info.fidelity + ", " + info.isa + ")";
    ServedModel served;
    served.name = name;
    served.backend = std::make_shared<EngineBackend>(std::move(loaded).value());
    served.created = NowMicros() / 1'000'000;
    descriptions.emplace_back(name, served.backend->Describe());
    catalog_.AddModel(std::move(served));
  }
  manifest_ = MakeManifest(descriptions);
  return Status();
}

// All that can be wrong about the policy on this machine, before anything is written.
Status GatewayImpl::CheckPolicy(const policies::Policy& policy) {
  if (!policy.key_secret.empty()) {
    Result<std::string> secret = policies::ResolveSecret(policy.key_secret);
    if (!secret.ok()) return secret.error();
    key_secret_ = std::move(secret).value();
  }
  if (Status s = policies::CheckComponents(policy, manifest_.value); !s.ok()) return s;
  const Status software = policies::CheckSoftware(policy, manifest_.value);
  if (!software.ok()) locked_ = software.error().message;
  return Status();
}

Status GatewayImpl::OpenLedger(const policies::Config& config) {
  store::LedgerOptions options;
  options.origin = config.origin;
  options.manifest = HexEncode(manifest_.digest);
  options.start_detail = json::Value::MakeObject();
  options.start_detail.Set("policy", HexEncode(policies::PolicyDigest(config.policy)));
  auto ledger = store::Ledger::Open(std::move(*folder_), std::move(options));
  folder_.reset();
  if (!ledger.ok()) return ledger.error();
  ledger_ = std::move(ledger).value();
  return Status();
}

Status GatewayImpl::BuildPipeline(const policies::Config& config) {
  PipelineOptions options;
  options.policy = std::make_shared<const policies::Policy>(config.policy);
  options.ledger = ledger_.get();
  options.metrics = &metrics_;
  options.manifest = &manifest_;
  options.catalog = std::move(catalog_);
  options.key_secret = std::move(key_secret_);
  options.locked = locked_;
  pipeline_ = std::make_unique<Pipeline>(std::move(options));
  return pipeline_->RecordConfiguration();
}

std::string GatewayImpl::NotServing() const {
  if (!locked_.empty()) return locked_;
  if (draining_) return "the server is shutting down";
  return pipeline_->Serving() ? "" : "no model is served";
}

Router GatewayImpl::MakeRouter() {
  metrics_.AddGauge("connections", "Open client connections.", [server = server_.get()] {
    return static_cast<double>(server->open_connections());
  });
  metrics_.AddGauge("requests_running", "HTTP requests that are being answered.",
                    [server = server_.get()] { return static_cast<double>(server->running()); });
  Router router;
  pipeline_->AddRoutes(router);
  OperatorApiOptions options;
  options.ledger = ledger_.get();
  options.manifest = &manifest_;
  options.metrics = &metrics_;
  options.not_serving = [this] { return NotServing(); };
  options.not_ready = [this] { return pipeline_->Overload(); };
  AddOperatorRoutes(router, std::move(options));
  return router;
}

Status GatewayImpl::Drain(milliseconds limit, const Progress& progress) {
  draining_ = true;
  const bool finished = server_->Drain(limit, [&](size_t running) {
    progress("finishing " + std::to_string(running) + " running requests");
  });
  if (!finished) progress("the time is over: requests that still ran were ended");
  pipeline_->Drain();
  return ledger_->Close();
}

}  // namespace

Result<std::unique_ptr<Gateway>> Gateway::Start(const policies::Config& config,
                                                const Progress& progress) {
  auto gateway = std::make_unique<GatewayImpl>();
  if (Status status = gateway->Init(config, progress); !status.ok()) return status.error();
  return std::unique_ptr<Gateway>(std::move(gateway));
}

}  // namespace verbatim::gateway
