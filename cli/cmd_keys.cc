// verbatim keys: the API keys of a data folder, and its log's own key.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "cli/commands.h"
#include "cli/files.h"
#include "gateway/access.h"
#include "gateway/anchoring.h"
#include "gateway/api_keys.h"
#include "policies/loader.h"
#include "store/data_folder.h"
#include "store/ledger.h"

namespace verbatim::cli {
namespace {

using gateway::StoredKey;

struct Flags {
  std::string config, data, expires, id;
  StoredKey key;
  bool json = false;
};

[[noreturn]] void Fail(const std::string& message) {
  std::fprintf(stderr, "verbatim keys: %s\n", message.c_str());
  throw CLI::RuntimeError(2);
}

policies::Config LoadConfig(const Flags& flags) {
  policies::Config config = policies::DefaultConfig();
  if (!flags.config.empty()) {
    auto loaded = policies::LoadConfig(flags.config);
    if (!loaded.ok()) Fail(loaded.error().message);
    config = std::move(loaded).value();
  }
  if (!flags.data.empty()) config.data = flags.data;
  if (config.data.empty()) {
    auto folder = DefaultDataFolder();
    if (!folder.ok()) Fail(folder.error().message);
    config.data = *folder;
  }
  return config;
}

// A day ("2027-01-31", at its first moment in UTC) or a time, to come.
int64_t ParseExpiry(const std::string& text) {
  if (text.empty()) return 0;
  const auto time = ParseTime(text.size() == 10 ? text + "T00:00:00Z" : text);
  if (!time.ok()) Fail("--expires " + text + " is no day such as 2027-01-31");
  if (*time <= NowMicros()) Fail("--expires " + text + " is over already");
  return *time;
}

void CheckNames(const Flags& flags) {
  std::vector<std::pair<std::string, std::string>> names = {{"--tenant", flags.key.tenant},
                                                            {"--subject", flags.key.subject}};
  for (const std::string& group : flags.key.groups) names.emplace_back("--group", group);
  for (const auto& [flag, name] : names) {
    if (!policies::IsPrincipalName(name)) {
      Fail(flag + " must be 1 to 200 bytes of text without control characters");
    }
  }
  for (const std::string& role : flags.key.roles) {
    if (gateway::RoleBit(role) == 0) {
      Fail("--roles " + role + " is unknown; there are: client, operator, auditor");
    }
  }
}

// Where no server has the folder, the ledger is opened here. A server that has it sees the changed
// file within a second, and one that starts later sees what is not in its ledger yet.
void RecordChange(const policies::Config& config, Result<store::DataFolder> locked) {
  if (!locked.ok()) return;
  store::DataFolder folder = *std::move(locked);
  if (!std::filesystem::exists(folder.database() + "/CURRENT")) return;  // no server ever ran
  const auto keys = gateway::ReadKeys(gateway::KeysFile(config));
  if (!keys.ok()) Fail(keys.error().message);
  store::LedgerOptions options;
  options.origin = config.origin;
  options.control_socket = false;
  options.token = gateway::ToTokenConfig(config.log.pkcs11);
  gateway::RecordedKeys recorded(folder.path());
  auto ledger = store::Ledger::Open(std::move(folder), std::move(options));
  if (!ledger.ok())
    Fail("the key is changed, and not yet in the ledger: " + ledger.error().message);
  Status status = recorded.Load();
  if (status.ok()) status = recorded.Record(**ledger, *keys);
  const Status closed = (*ledger)->Close();
  if (status.ok()) status = closed;
  if (!status.ok())
    Fail("the key is changed, and not yet in the ledger: " + status.error().message);
}

// Changes the file, and returns the data folder with its lock where no server has it.
Result<store::DataFolder> Change(const policies::Config& config,
                                 const std::function<Status(std::vector<StoredKey>&)>& change) {
  auto folder = store::DataFolder::Open(config.data);
  if (!folder.ok() && folder.error().code != Code::kFailedPrecondition) {
    Fail(folder.error().message);
  }
  const Status changed = gateway::UpdateKeys(gateway::KeysFile(config), change);
  if (!changed.ok()) Fail(changed.error().message);
  return folder;
}

std::string Joined(const std::vector<std::string>& names) {
  std::string out;
  for (const std::string& name : names) out += (out.empty() ? "" : ",") + name;
  return out;
}

const char* StateOf(const StoredKey& key) {
  if (key.revoked != 0) return "revoked";
  return key.expires != 0 && key.expires <= NowMicros() ? "expired" : "active";
}

json::Value ToJson(const StoredKey& key) {
  const auto list = [](const std::vector<std::string>& names) {
    json::Value out = json::Value::MakeArray();
    for (const std::string& name : names) out.Append(name);
    return out;
  };
  const auto time = [](int64_t t) { return t == 0 ? json::Value() : json::Value(FormatTime(t)); };
  return json::Object{
      {"id", key.id},
      {"state", StateOf(key)},
      {"tenant", key.tenant},
      {"subject", key.subject},
      {"groups", list(key.groups)},
      {"roles", list(key.roles)},
      {"models", list(key.models)},
      {"limits", json::Object{{"requests_per_minute", key.limits.requests_per_minute},
                              {"tokens_per_minute", key.limits.tokens_per_minute},
                              {"concurrent", key.limits.concurrent}}},
      {"budget",
       json::Object{{"tokens", key.budget.tokens}, {"per", policies::NameOf(key.budget.per)}}},
      {"created", time(key.created)},
      {"expires", time(key.expires)},
      {"revoked", time(key.revoked)}};
}

void NewApi(const Flags& flags) {
  CheckNames(flags);
  StoredKey key = flags.key;
  if (key.roles.empty()) key.roles = {"client"};
  for (auto* list : {&key.groups, &key.roles, &key.models}) {
    std::sort(list->begin(), list->end());
    list->erase(std::unique(list->begin(), list->end()), list->end());
  }
  key.expires = ParseExpiry(flags.expires);
  key.created = NowMicros();
  const std::string secret = gateway::MakeSecret(key);
  const policies::Config config = LoadConfig(flags);
  auto folder = Change(config, [&](std::vector<StoredKey>& keys) -> Status {
    keys.push_back(key);
    return {};
  });
  if (flags.json) {
    json::Value out = ToJson(key);
    out.Set("secret", secret);
    std::printf("%s\n", json::Serialize(out).c_str());
  } else {
    std::printf("%s\n", secret.c_str());
  }
  std::fflush(stdout);
  std::fprintf(stderr,
               "%s of tenant %s, subject %s, roles %s. It is shown this once: keep it now.\n",
               key.id.c_str(), key.tenant.c_str(), key.subject.c_str(), Joined(key.roles).c_str());
  RecordChange(config, std::move(folder));
}

void List(const Flags& flags) {
  const auto keys = gateway::ReadKeys(gateway::KeysFile(LoadConfig(flags)));
  if (!keys.ok()) Fail(keys.error().message);
  if (flags.json) {
    json::Value list = json::Value::MakeArray();
    for (const StoredKey& key : *keys) list.Append(ToJson(key));
    std::printf("%s\n", json::Serialize(json::Object{{"keys", std::move(list)}}).c_str());
    return;
  }
  for (const StoredKey& key : *keys) {
    std::printf(
        "%s  %-7s  tenant %s, subject %s, roles %s, made %s%s\n", key.id.c_str(), StateOf(key),
        key.tenant.c_str(), key.subject.c_str(), Joined(key.roles).c_str(),
        FormatTime(key.created).substr(0, 10).c_str(),
        key.expires == 0 ? "" : (", expires " + FormatTime(key.expires).substr(0, 10)).c_str());
  }
}

void Revoke(const Flags& flags) {
  bool before = false;
  const policies::Config config = LoadConfig(flags);
  auto folder = Change(config, [&](std::vector<StoredKey>& keys) -> Status {
    for (StoredKey& key : keys) {
      if (key.id != flags.id) continue;
      before = key.revoked != 0;
      if (!before) key.revoked = NowMicros();
      return {};
    }
    return Error{Code::kNotFound,
                 "no key " + flags.id + "; verbatim keys list shows those there are"};
  });
  std::fprintf(stderr, before ? "%s was revoked before\n" : "%s is revoked\n", flags.id.c_str());
  RecordChange(config, std::move(folder));
}

// Another key signs the log's heads from now on.
void NewLog(const Flags& flags) {
  const policies::Config config = LoadConfig(flags);
  Result<store::DataFolder> folder = store::DataFolder::Open(config.data);
  if (!folder.ok()) Fail(folder.error().message);
  if (!std::filesystem::exists(folder->database() + "/CURRENT")) {
    Fail(config.data + " holds no log yet; its first server makes the log's first key");
  }
  store::LedgerOptions options;
  options.origin = config.origin;
  options.control_socket = false;
  options.token = gateway::ToTokenConfig(config.log.pkcs11);
  auto ledger = store::Ledger::Open(*std::move(folder), std::move(options));
  if (!ledger.ok()) Fail(ledger.error().message);
  const std::string old_vkey = (*ledger)->Log().vkey;
  const auto log = (*ledger)->RotateKey(gateway::ToTokenConfig(config.log.pkcs11));
  const Status closed = (*ledger)->Close();
  if (!log.ok()) Fail(log.error().message);
  if (!closed.ok()) Fail(closed.error().message);
  if (flags.json) {
    const json::Value out = json::Object{{"origin", log->origin},
                                         {"old", old_vkey},
                                         {"vkey", log->vkey},
                                         {"from", log->keys.back().from}};
    std::printf("%s\n", json::Serialize(out).c_str());
    return;
  }
  std::printf("%s\n", log->vkey.c_str());
  std::fprintf(
      stderr,
      "It signs heads from size %llu on. Give it to auditors, and to the log's witnesses.\n",
      static_cast<unsigned long long>(log->keys.back().from));
}

void AddPlace(CLI::App* command, const std::shared_ptr<Flags>& flags) {
  command->add_option("--config", flags->config, "The server's configuration")->type_name("FILE");
  command->add_option("--data", flags->data, "Data folder (~/.local/share/verbatim)")
      ->type_name("DIR");
}

}  // namespace

void AddKeys(CLI::App& app) {
  auto flags = std::make_shared<Flags>();
  CLI::App* command =
      app.add_subcommand("keys", "API keys, also beside a running server, and the log's own key");
  command->require_subcommand(1);

  CLI::App* make = command->add_subcommand(
      "new-api", "Make an API key: its text goes to stdout, once, and is kept nowhere");
  make->add_option("--tenant", flags->key.tenant, "Whose requests they are")->required();
  make->add_option("--subject", flags->key.subject, "Who asks: a person or a system")->required();
  make->add_option("--roles", flags->key.roles, "client (else), operator, auditor; a list")
      ->delimiter(',');
  make->add_option("--group", flags->key.groups, "A group of the subject; repeatable");
  make->add_option("--model", flags->key.models, "A model, or pattern with *; repeatable (all)");
  make->add_option("--requests-per-minute", flags->key.limits.requests_per_minute, "0: no limit")
      ->check(CLI::Range(uint64_t{0}, uint64_t{1'000'000'000}));
  make->add_option("--tokens-per-minute", flags->key.limits.tokens_per_minute, "0: no limit")
      ->check(CLI::Range(uint64_t{0}, uint64_t{10'000'000'000}));
  make->add_option("--concurrent", flags->key.limits.concurrent, "Requests at once; 0: no limit")
      ->check(CLI::Range(uint64_t{0}, uint64_t{1'000'000'000}));
  std::map<std::string, policies::Period> periods;
  for (const auto per : {policies::Period::kDay, policies::Period::kMonth}) {
    periods.emplace(policies::NameOf(per), per);
  }
  make->add_option("--budget", flags->key.budget.tokens, "Tokens in each period; 0: no budget")
      ->check(CLI::Range(uint64_t{0}, policies::kMaxBudget));
  make->add_option("--budget-per", flags->key.budget.per, "day or month, of UTC (month)")
      ->transform(CLI::CheckedTransformer(periods));
  make->add_option("--expires", flags->expires, "The day on which it ends, as 2027-01-31");
  make->add_flag("--json", flags->json, "Print one JSON object, with the key as \"secret\"");
  AddPlace(make, flags);
  make->footer("Example: KEY=$(verbatim keys new-api --data DIR --tenant acme --subject ci)");
  make->callback([flags] { NewApi(*flags); });

  CLI::App* log = command->add_subcommand(
      "new-log",
      "Make another key for the log, in a file or where log.key.pkcs11 says; no server "
      "may run");
  log->add_flag("--json", flags->json, "Print one JSON object");
  AddPlace(log, flags);
  log->footer("Example: verbatim keys new-log --data DIR");
  log->callback([flags] { NewLog(*flags); });

  CLI::App* list = command->add_subcommand("list", "List API keys, without their secrets");
  list->add_flag("--json", flags->json, "Print one JSON object");
  AddPlace(list, flags);
  list->callback([flags] { List(*flags); });

  CLI::App* revoke = command->add_subcommand(
      "revoke", "Revoke an API key; a running server refuses it within a second");
  revoke->add_option("ID", flags->id, "As keys list shows it")->required();
  AddPlace(revoke, flags);
  revoke->footer("Example: verbatim keys revoke --data DIR key_0123456789abcdef");
  revoke->callback([flags] { Revoke(*flags); });
}

}  // namespace verbatim::cli
