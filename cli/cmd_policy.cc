// verbatim policy: check a policy or a configuration, and explain what a policy does to a request.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <string>

#include "cli/commands.h"
#include "cli/files.h"
#include "policies/loader.h"

namespace verbatim::cli {
namespace {

struct Flags {
  std::string file, request, endpoint = "/v1/chat/completions";
  std::string tenant = "default", subject = "anonymous";
  bool config = false;
};

[[noreturn]] void Fail(const std::string& message, int code) {
  std::fprintf(stderr, "verbatim policy: %s\n", message.c_str());
  throw CLI::RuntimeError(code);
}

int ExitCode(const Error& error) { return error.code == Code::kInvalid ? 1 : 2; }

void PrintJson(const json::Value& v) { std::printf("%s\n", json::Serialize(v).c_str()); }

policies::Policy Load(const std::string& name) {
  auto policy = policies::BuiltinPolicyText(name).empty() ? policies::LoadPolicy(name)
                                                          : policies::BuiltinPolicy(name);
  if (!policy.ok()) Fail(policy.error().message, ExitCode(policy.error()));
  return *std::move(policy);
}

void Check(const Flags& flags) {
  policies::Policy policy;
  if (flags.config) {
    auto config = policies::LoadConfig(flags.file);
    if (!config.ok()) Fail(config.error().message, ExitCode(config.error()));
    policy = std::move(config->policy);
  } else {
    policy = Load(flags.file);
  }
  PrintJson(json::Object{{"ok", true},
                         {"digest", HexEncode(policies::PolicyDigest(policy))},
                         {"policy", policies::ToJson(policy)}});
}

void Explain(const Flags& flags) {
  const policies::Policy policy = Load(flags.file);
  const auto text = ReadWhole(flags.request);
  if (!text.ok()) Fail(text.error().message, 2);
  const auto request = json::Parse(*text);
  if (!request.ok()) Fail(flags.request + ": " + request.error().message, 2);
  if (!request->is_object()) Fail(flags.request + ": a request is a JSON object", 2);
  const policies::Decision d = policies::Decide(policy, {flags.tenant, flags.subject, "none"},
                                                flags.endpoint, *request, text->size());
  if (d.refusal) {
    PrintJson(json::Object{{"refused", json::Object{{"param", d.refusal->param},
                                                    {"code", d.refusal->code},
                                                    {"message", d.refusal->message}}}});
    throw CLI::RuntimeError(1);
  }
  json::Value changed = json::Value::MakeArray();
  for (const std::string& field : d.changed) changed.Append(field);
  PrintJson(json::Object{{"mode", policies::ModeName(d.mode)},
                         {"namespace", d.name_space},
                         {"changed", std::move(changed)},
                         {"verify_rate", d.verify_rate},
                         {"strict_hits", d.strict_hits},
                         {"retention_seconds", d.retention_seconds},
                         {"break_glass_seconds", d.break_glass_seconds},
                         {"request", d.request}});
}

}  // namespace

void AddPolicy(CLI::App& app) {
  auto flags = std::make_shared<Flags>();
  CLI::App* command = app.add_subcommand("policy", "Check a policy, or explain what it does");
  command->require_subcommand(1);

  CLI::App* check = command->add_subcommand(
      "check", "Say whether a policy is sound, and print it with every field and its digest");
  check->add_option("FILE", flags->file, "A YAML file, or default or strict")->required();
  check->add_flag("--config", flags->config, "FILE is a server's configuration");
  check->footer("Example: verbatim policy check policies/strict.yaml");
  check->callback([flags] { Check(*flags); });

  CLI::App* explain = command->add_subcommand(
      "explain", "Print what a policy makes of a request (exit 1: refused)");
  explain->add_option("FILE", flags->file, "A YAML file, or default or strict")->required();
  explain->add_option("--request", flags->request, "The request's JSON; - is standard input")
      ->required()
      ->type_name("FILE");
  explain->add_option("--endpoint", flags->endpoint, "The request's path")->type_name("PATH");
  explain->add_option("--tenant", flags->tenant, "Who asks")->type_name("NAME");
  explain->add_option("--subject", flags->subject, "Who asks within the tenant")->type_name("NAME");
  explain->footer("Example: verbatim policy explain strict --request request.json");
  explain->callback([flags] { Explain(*flags); });
}

}  // namespace verbatim::cli
