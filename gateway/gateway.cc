#include "gateway/gateway.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "engine/engine.h"
#include "gateway/access.h"
#include "gateway/access_log.h"
#include "gateway/anchoring.h"
#include "gateway/engine_backend.h"
#include "gateway/gauges.h"
#include "gateway/io_threads.h"
#include "gateway/limits.h"
#include "gateway/manifest.h"
#include "gateway/metrics.h"
#include "gateway/operator_api.h"
#include "gateway/pipeline.h"
#include "gateway/reproducibility.h"
#include "gateway/server.h"
#include "gateway/upstream/upstream_backend.h"
#include "gateway/upstream/upstream_set.h"
#include "policies/loader.h"
#include "policies/reload.h"
#include "store/anchors.h"
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

// As configured, or one per core.
size_t IoThreadCount(const policies::ServerConfig& config) {
  if (config.threads > 0) return config.threads;
  return std::clamp(std::thread::hardware_concurrency(), 1u, kMaxIoThreads);
}

ServerOptions ToServerOptions(const policies::ServerConfig& config) {
  ServerOptions options;
  options.listen = config.listen;
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

LogLevel LevelOf(const std::string& name) {
  if (name == "error") return LogLevel::kError;
  return name == "warning" ? LogLevel::kWarning : LogLevel::kInfo;
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
  options.prefix_cache = config.prefix_cache;
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
  Status Reload(const Result<policies::Config>& next) override;
  Status Drain(milliseconds limit, const Progress& progress) override;

 private:
  Status OpenFolder(const std::string& path);
  Status StartServer(const policies::Config& config);
  Status LoadModels(const policies::Config& config, const Progress& progress);
  void MakeUpstreamSet();
  Result<InForce> MakeInForce(const policies::Config& config);
  Status OpenLedger(const policies::Config& config);
  Status BuildPipeline(const policies::Config& config, InForce in_force);
  Status TakeOver(const policies::Config& next);
  void SetMetricNames(const policies::Config& config);
  Router MakeRouter();
  std::string NotServing() const;

  // In the order in which they may go, last first: runs refer to engines and live on the threads,
  // the pipeline to the ledger, handlers to the pipeline.
  policies::Config config_;                    // in force
  std::unique_ptr<store::DataFolder> folder_;  // until the ledger owns it
  std::vector<ServedModel> engines_;
  std::string models_;
  Metrics metrics_;
  std::unique_ptr<AccessLog> access_log_;
  Manifest manifest_;
  std::string locked_;
  std::atomic<bool> draining_ = false;
  Authenticator authenticator_;
  std::unique_ptr<IoThreads> io_;
  std::unique_ptr<UpstreamSet> upstreams_;
  std::unique_ptr<store::Ledger> ledger_;
  std::unique_ptr<Anchoring> anchoring_;
  Reproducibility reproducibility_;
  std::unique_ptr<Limiter> limiter_;
  std::unique_ptr<AccessWatch> access_watch_;
  std::unique_ptr<Pipeline> pipeline_;
  std::unique_ptr<Server> server_;
};

Status GatewayImpl::Init(const policies::Config& config, const Progress& progress) {
  if (config.models.empty() && config.upstreams.empty()) {
    return Error{Code::kInvalid,
                 "no model to serve; add --model NAME=FILE (tools/fetch-model prints the default "
                 "model's path), or name upstreams in the configuration"};
  }
  config_ = config;
  if (Status status = OpenFolder(config.data); !status.ok()) return status;
  if (Status status = StartServer(config); !status.ok()) return status;
  if (Status status = LoadModels(config, progress); !status.ok()) return status;
  MakeUpstreamSet();
  Result<InForce> in_force = MakeInForce(config);
  if (!in_force.ok()) return in_force.error();
  if (Status status = OpenLedger(config); !status.ok()) return status;
  if (Status s = BuildPipeline(config, std::move(in_force).value()); !s.ok()) return s;
  server_->SetRouter(MakeRouter());
  return Status();
}

void GatewayImpl::MakeUpstreamSet() {
  UpstreamOptions options;
  options.io = io_.get();
  options.on_attempt = [this](const AttemptReport& attempt) {
    const bool ok = attempt.outcome.size() == 3 && attempt.outcome.front() == '2';
    metrics_.CountUpstreamAttempt({.upstream = attempt.upstream,
                                   .model = attempt.model,
                                   .endpoint = attempt.endpoint,
                                   .error_type = ok ? "" : attempt.outcome,
                                   .seconds = attempt.seconds,
                                   .retry = attempt.retry});
  };
  upstreams_ = std::make_unique<UpstreamSet>(std::move(options));
}

Status GatewayImpl::OpenFolder(const std::string& path) {
  Result<store::DataFolder> folder = store::DataFolder::Open(path);
  if (!folder.ok()) return folder.error();
  folder_ = std::make_unique<store::DataFolder>(std::move(folder).value());
  return Status();
}

Status GatewayImpl::StartServer(const policies::Config& config) {
  SetLogLevel(LevelOf(config.log_level));
  Result<AccessRules> rules = LoadAccess(config);
  if (!rules.ok()) return rules.error();
  authenticator_ = Authenticator(std::move(rules).value());
  Result<std::unique_ptr<AccessLog>> log = AccessLog::Open(config.server.access_log);
  if (!log.ok()) return log.error();
  access_log_ = std::move(log).value();
  ServerOptions options = ToServerOptions(config.server);
  options.access_log = access_log_.get();
  io_ = std::make_unique<IoThreads>(IoThreadCount(config.server));
  options.io = io_.get();
  auto server = Server::Start(std::move(options), MakeStartupRouter(), authenticator_);
  if (!server.ok()) return server.error();
  server_ = std::move(server).value();
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
    engines_.push_back(std::move(served));
  }
  for (const auto& [id, upstream] : config.upstreams) {
    if (!models_.empty()) models_ += ", ";
    models_ += id + " (upstream)";
  }
  manifest_ = MakeManifest(descriptions);
  return Status();
}

// All that can be wrong about policy and upstreams on this machine, before anything is written.
Result<InForce> GatewayImpl::MakeInForce(const policies::Config& config) {
  InForce in_force;
  const policies::Policy& policy = config.policy;
  in_force.policy = policy;
  in_force.tenants = config.tenants;
  if (!policy.key_secret.empty()) {
    Result<std::string> secret = policies::ResolveSecret(policy.key_secret);
    if (!secret.ok()) return secret.error();
    in_force.key_secret = std::move(secret).value();
  }
  if (Status s = policies::CheckComponents(policy, manifest_.value); !s.ok()) return s.error();
  const Status software = policies::CheckSoftware(policy, manifest_.value);
  if (!software.ok()) in_force.locked = software.error().message;
  Result<Redactor> redactor = Redactor::Make(policy.redact);
  if (!redactor.ok()) return redactor.error();
  in_force.redactor = std::move(redactor).value();
  if (!policy.pass_through.empty() && !config.upstreams.contains(policy.pass_through)) {
    return Error{Code::kInvalid, "pass_through names " + policy.pass_through +
                                     ", which is no upstream of the configuration"};
  }

  for (const ServedModel& model : engines_) in_force.catalog.AddModel(model);
  UpstreamSet::Upstreams now;
  if (pipeline_) now = pipeline_->in_force()->upstreams;
  Result<UpstreamSet::Upstreams> upstreams = upstreams_->Make(config.upstreams, now);
  if (!upstreams.ok()) return upstreams.error();
  in_force.upstreams = std::move(upstreams).value();
  for (const auto& [id, upstream] : config.upstreams) {
    const std::shared_ptr<const UpstreamBackend> shared = in_force.upstreams.at(id);
    in_force.catalog.AddUpstream(id, shared);
    if (id == policy.pass_through) in_force.pass_through = shared;
    for (const policies::UpstreamModel& model : upstream.models) {
      if (model.client.ends_with('*')) continue;
      if (policies::UpstreamFor(config.upstreams, model.client) != id) continue;
      in_force.catalog.ListName({model.client, shared, NowMicros() / 1'000'000, id});
    }
  }
  in_force.catalog.SetUpstreamFor([upstreams = config.upstreams](std::string_view model) {
    return policies::UpstreamFor(upstreams, model);
  });
  return in_force;
}

Status GatewayImpl::OpenLedger(const policies::Config& config) {
  store::LedgerOptions options;
  options.origin = config.origin;
  options.manifest = HexEncode(manifest_.digest);
  options.start_detail = json::Value::MakeObject();
  options.start_detail.Set("policy", HexEncode(policies::PolicyDigest(config.policy)));
  options.heartbeat_micros = static_cast<int64_t>(config.log.heartbeat_seconds) * 1'000'000;
  if (options.heartbeat_micros != 0) {
    options.start_detail.Set("heartbeat_seconds", config.log.heartbeat_seconds);
  }
  options.token = ToTokenConfig(config.log.pkcs11);
  Result<store::AnchorOptions> anchors = ToAnchorOptions(config.log);
  if (!anchors.ok()) return anchors.error();
  options.anchors = std::move(anchors).value();
  options.on_commit = [this](int64_t micros, size_t entries) {
    metrics_.ObserveLedgerCommit(static_cast<double>(micros) * 1e-6, entries);
  };
  auto ledger = store::Ledger::Open(std::move(*folder_), std::move(options));
  folder_.reset();
  if (!ledger.ok()) return ledger.error();
  ledger_ = std::move(ledger).value();
  auto anchoring = Anchoring::Start(config.log, *ledger_);
  if (!anchoring.ok()) return anchoring.error();
  anchoring_ = std::move(anchoring).value();
  return Status();
}

Status GatewayImpl::BuildPipeline(const policies::Config& config, InForce in_force) {
  locked_ = in_force.locked;
  auto limiter = Limiter::Open(config.tenants, config.data + "/budgets.json");
  if (!limiter.ok()) return limiter.error();
  limiter_ = std::move(limiter).value();
  limiter_->OnRefused([this](std::string_view scope, std::string_view limit) {
    metrics_.CountRateLimited(scope, limit);
  });
  reproducibility_.Rebuild(*ledger_);
  access_watch_ = std::make_unique<AccessWatch>(config, authenticator_, *ledger_);
  SetMetricNames(config);

  PipelineOptions options;
  options.in_force = std::move(in_force);
  options.ledger = ledger_.get();
  options.metrics = &metrics_;
  options.manifest = &manifest_;
  options.limiter = limiter_.get();
  options.authenticator = authenticator_;
  options.hit_memory_bytes = config.server.hit_memory_bytes;
  options.stream_buffer_bytes = config.server.stream_buffer_bytes;
  options.replies_total_bytes = config.server.replies_total_bytes;
  options.generate_traceparent = config.server.generate_traceparent;
  options.refusal_interval_micros = static_cast<int64_t>(config.server.refusal_interval_ms) * 1000;
  options.on_compared = [this](std::string_view upstream, std::string_view model, bool equal) {
    reproducibility_.Count(upstream, model, equal);
  };
  pipeline_ = std::make_unique<Pipeline>(std::move(options));
  return pipeline_->RecordConfiguration();
}

void GatewayImpl::SetMetricNames(const policies::Config& config) {
  std::vector<std::string> models, upstreams;
  for (const ServedModel& model : engines_) models.push_back(model.name);
  for (const auto& [id, upstream] : config.upstreams) {
    upstreams.push_back(id);
    for (const policies::UpstreamModel& model : upstream.models) models.push_back(model.client);
  }
  metrics_.SetNames(std::move(models), std::move(upstreams));
}

Status GatewayImpl::Reload(const Result<policies::Config>& next) {
  const Status status = next.ok() ? TakeOver(*next) : Status(next.error());
  if (status.ok()) return status;
  store::AppendRequest entry;
  entry.kind = store::Kind::kConfiguration;
  entry.manifest = HexEncode(manifest_.digest);
  entry.outcome = "rejected";
  entry.record.extra = json::Value::MakeObject();
  entry.record.extra.Set("reason", status.error().message);
  const auto appended = ledger_->Append(std::move(entry));
  if (!appended.ok()) LogError("the rejection has no entry: " + appended.error().message);
  return status;
}

// Everything that can be wrong is found before anything is changed; the entry comes first.
Status GatewayImpl::TakeOver(const policies::Config& next) {
  if (Status s = policies::CheckReload(config_, next); !s.ok()) return s;
  Result<InForce> in_force = MakeInForce(next);
  if (!in_force.ok()) return in_force.error();
  if (Result<AccessRules> rules = LoadAccess(next); !rules.ok()) return rules.error();
  const std::string& log = next.server.access_log;
  if (auto opened = AccessLog::Open(log); !opened.ok()) return opened.error();
  if (Status s = server_->ReloadTls(); !s.ok()) return s;
  if (Status s = pipeline_->Replace(std::move(in_force).value()); !s.ok()) return s;
  limiter_->Replace(next.tenants);
  SetMetricNames(next);
  SetLogLevel(LevelOf(next.log_level));
  config_ = next;
  // What changed on the disk since it was looked at, a moment ago.
  if (Status s = access_log_->Reopen(log); !s.ok()) LogError("access log: " + s.error().message);
  if (Status s = access_watch_->Replace(next); !s.ok()) LogError(s.error().message);
  return Status();
}

std::string GatewayImpl::NotServing() const {
  if (draining_) return "the server is shutting down";
  return pipeline_->NotServing();
}

Router GatewayImpl::MakeRouter() {
  metrics_.AddGauge("connections", "Open client connections.", [server = server_.get()] {
    return static_cast<double>(server->open_connections());
  });
  metrics_.AddGauge("requests_running", "HTTP requests that are being answered.",
                    [server = server_.get()] { return static_cast<double>(server->running()); });
  AddLedgerGauges(metrics_, *ledger_);
  AddReproducibilityGauges(metrics_, reproducibility_);
  AddAccessLogCounters(metrics_, *access_log_);
  metrics_.AddTable("upstream_breaker_state", "Circuit breaker: 0 closed, 1 half open, 2 open",
                    {"upstream"}, [this] {
                      std::vector<Metrics::Row> rows;
                      for (const auto& [id, upstream] : pipeline_->in_force()->upstreams) {
                        rows.push_back({{id}, static_cast<double>(upstream->breaker_state())});
                      }
                      return rows;
                    });
  Router router;
  pipeline_->AddRoutes(router);
  OperatorApiOptions options;
  options.ledger = ledger_.get();
  options.manifest = &manifest_;
  options.metrics = &metrics_;
  options.reproducibility = &reproducibility_;
  options.not_serving = [this] { return NotServing(); };
  options.not_ready = [this] {
    std::string why = pipeline_->Overload();
    return why.empty() ? ledger_->anchors().Stale() : why;
  };
  options.open_log = config_.log.open;
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
  anchoring_.reset();
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
