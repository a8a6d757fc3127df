#include "gateway/access.h"

#include <sys/stat.h>

#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "base/crypto.h"
#include "base/log.h"
#include "gateway/api_keys.h"
#include "gateway/jwt.h"
#include "policies/loader.h"
#include "store/data_folder.h"

namespace verbatim::gateway {
namespace {

using policies::Config;

uint8_t RoleBits(const std::vector<std::string>& roles) {
  uint8_t bits = 0;
  for (const std::string& role : roles) bits = static_cast<uint8_t>(bits | RoleBit(role));
  return bits;
}

std::shared_ptr<const Grant> MakeGrant(const std::vector<std::string>& models,
                                       const policies::RateLimits& limits,
                                       const policies::Budget& budget) {
  if (models.empty() && !limits.any() && budget.tokens == 0) return nullptr;
  return std::make_shared<const Grant>(Grant{models, limits, budget});
}

Result<ApiKey> FromConfig(const policies::InlineKey& given) {
  ApiKey key;
  if (given.secret.empty()) {
    auto digest = HexDecodeDigest(given.sha256);
    if (!digest) return digest.error();
    key.secret_digest = *digest;
  } else {
    auto secret = policies::ResolveSecret(given.secret);
    if (!secret) return secret.error();
    key.secret_digest = Sha256(*secret);
    Wipe(*secret);
  }
  key.principal.tenant = given.tenant;
  key.principal.subject = given.subject.empty() ? given.id : given.subject;
  key.principal.key_id = given.id;
  key.principal.roles =
      given.roles.empty() ? static_cast<uint8_t>(Role::kClient) : RoleBits(given.roles);
  key.principal.groups = given.groups;
  key.principal.grant = MakeGrant(given.models, given.limits, given.budget);
  return key;
}

ApiKey FromStored(const StoredKey& stored) {
  ApiKey key;
  key.secret_digest = HexDecodeDigest(stored.sha256).value();  // ParseKeys has checked it
  key.principal.tenant = stored.tenant;
  key.principal.subject = stored.subject;
  key.principal.key_id = stored.id;
  key.principal.roles = RoleBits(stored.roles);
  key.principal.groups = stored.groups;
  key.principal.grant = MakeGrant(stored.models, stored.limits, stored.budget);
  key.expires_micros = stored.expires;
  return key;
}

Result<std::shared_ptr<const JwtVerifier>> LoadIssuers(const policies::AccessConfig& access) {
  if (access.issuers.empty()) return std::shared_ptr<const JwtVerifier>();
  std::vector<JwtVerifier::Issuer> issuers;
  for (const policies::JwtIssuerConfig& config : access.issuers) {
    const auto text = store::ReadFile(config.keys);
    if (!text) return text.error();
    auto keys = ParseIssuerKeys(*text);
    if (!keys) {
      return Error{Code::kInvalid, config.keys + ": " + keys.error().message +
                                       "; it must hold the public keys of " + config.issuer};
    }
    issuers.push_back({config, *std::move(keys)});
  }
  return std::shared_ptr<const JwtVerifier>(std::make_shared<JwtVerifier>(std::move(issuers)));
}

// `skip`, where set, leaves out stored keys for now.
Result<AccessRules> MakeRules(const Config& config, const std::vector<StoredKey>& stored,
                              const std::function<bool(const StoredKey&)>& skip) {
  const policies::AccessConfig& access = config.access;
  AccessRules rules;
  rules.required = access.configured || !stored.empty();
  rules.tenants = config.tenants;
  for (const policies::InlineKey& given : access.keys) {
    auto key = FromConfig(given);
    if (!key) {
      return Error{key.error().code, "access.keys: " + given.id + ": " + key.error().message};
    }
    rules.keys.push_back(*std::move(key));
  }
  for (const StoredKey& key : stored) {
    if (key.revoked == 0 && !(skip && skip(key))) rules.keys.push_back(FromStored(key));
  }
  auto jwt = LoadIssuers(access);
  if (!jwt) return jwt.error();
  rules.jwt = *std::move(jwt);
  rules.trusted_header = access.trusted_header.name;
  rules.trusted_tenant = access.trusted_header.tenant;
  for (const std::string& text : access.trusted_header.from) {
    auto network = ParseNetwork(text);
    if (!network) {
      return Error{Code::kInvalid, "access.trusted_header.from: " + network.error().message};
    }
    rules.trusted_from.push_back(*std::move(network));
  }
  return rules;
}

// What changes when a file is written or replaced.
using Stamp = std::tuple<ino_t, off_t, time_t, long>;

Stamp StampOf(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return {};
  return {info.st_ino, info.st_size, info.st_mtim.tv_sec, info.st_mtim.tv_nsec};
}

std::map<std::string, Stamp> StampsOf(const Config& config) {
  std::map<std::string, Stamp> stamps;
  stamps[KeysFile(config)] = {};
  for (const auto& issuer : config.access.issuers) stamps[issuer.keys] = {};
  for (auto& [path, stamp] : stamps) stamp = StampOf(path);
  return stamps;
}

}  // namespace

std::string KeysFile(const Config& config) {
  return config.access.keys_file.empty() ? config.data + "/api-keys.json" : config.access.keys_file;
}

Result<AccessRules> LoadAccess(const Config& config) {
  auto stored = ReadKeys(KeysFile(config));
  if (!stored) return stored.error();
  return MakeRules(config, *stored, nullptr);
}

bool MayUseModel(const policies::Tenants& tenants, const Principal& principal,
                 std::string_view model) {
  if (!tenants.empty()) {
    const policies::TenantConfig* tenant = policies::FindTenant(tenants, principal.tenant);
    if (tenant == nullptr || !policies::InList(tenant->models, model)) return false;
  }
  return !principal.grant || policies::InList(principal.grant->models, model);
}

bool HasModelList(const policies::Tenants& tenants, const Principal& principal) {
  if (principal.grant && !principal.grant->models.empty()) return true;
  if (tenants.empty()) return false;
  const policies::TenantConfig* tenant = policies::FindTenant(tenants, principal.tenant);
  return tenant == nullptr || !tenant->models.empty();
}

HttpError NoSuchModel(std::string_view model) {
  HttpError error;
  error.status = 404;
  error.message = "The model `" + std::string(model) +
                  "` does not exist or you do not have access to it; GET /v1/models lists those "
                  "that you may use.";
  error.param = "model";
  error.code = "model_not_found";
  return error;
}

struct AccessWatch::State {
  State(Config c, Authenticator a, store::Ledger& l)
      : config(std::move(c)), authenticator(std::move(a)), ledger(l), recorded(config.data) {}

  Status Apply(const Config& with);
  void Run();

  std::mutex mutex;  // guards what follows, and lets one at a time apply
  Config config;
  Authenticator authenticator;
  store::Ledger& ledger;
  RecordedKeys recorded;
  std::map<std::string, Stamp> stamps;
  bool failing = false;
  bool stop = false;
  std::condition_variable wake;
  std::thread thread;
};

Status AccessWatch::State::Apply(const Config& with) {
  stamps = StampsOf(with);
  auto stored = ReadKeys(KeysFile(with));
  if (!stored) return stored.error();
  if (Status loaded = recorded.Load(); !loaded.ok()) return loaded;
  const auto unrecorded = [this](const StoredKey& key) { return !recorded.IsMade(key.id); };
  auto rules = MakeRules(with, *stored, unrecorded);
  if (!rules) return rules.error();
  authenticator.Replace(*std::move(rules));
  if (Status s = recorded.Record(ledger, *stored); !s.ok()) return s;
  rules = MakeRules(with, *stored, unrecorded);
  if (!rules) return rules.error();
  authenticator.Replace(*std::move(rules));
  return {};
}

void AccessWatch::State::Run() {
  std::unique_lock lock(mutex);
  while (!wake.wait_for(lock, std::chrono::seconds(1), [this] { return stop; })) {
    if (!failing && StampsOf(config) == stamps) continue;
    const Status applied = Apply(config);
    if (!applied.ok() && !failing) {
      LogError("keys are as before: " + applied.error().message);
    } else if (applied.ok()) {
      LogInfo("keys were read again");
    }
    failing = !applied.ok();
  }
}

AccessWatch::AccessWatch(Config config, Authenticator authenticator, store::Ledger& ledger)
    : state_(std::make_unique<State>(std::move(config), std::move(authenticator), ledger)) {
  const Status applied = Check();
  if (!applied.ok()) LogError("keys are as before: " + applied.error().message);
  state_->thread = std::thread([state = state_.get()] { state->Run(); });
}

AccessWatch::~AccessWatch() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->stop = true;
  }
  state_->wake.notify_one();
  state_->thread.join();
}

Status AccessWatch::Replace(Config config) {
  const std::lock_guard lock(state_->mutex);
  config.data = state_->config.data;  // a server keeps its data folder
  if (auto rules = LoadAccess(config); !rules) return rules.error();
  if (Status applied = state_->Apply(config); !applied.ok()) return applied;
  state_->config = std::move(config);
  state_->failing = false;
  return {};
}

Status AccessWatch::Check() {
  const std::lock_guard lock(state_->mutex);
  Status applied = state_->Apply(state_->config);
  state_->failing = !applied.ok();
  return applied;
}

}  // namespace verbatim::gateway
