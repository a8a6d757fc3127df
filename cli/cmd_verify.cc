// verbatim verify: checks an evidence bundle offline.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <string>

#include "audit/archive.h"
#include "audit/reexecute.h"
#include "audit/verify.h"
#include "cli/commands.h"

namespace verbatim::cli {
namespace {

struct Flags {
  std::string bundle, key, model, timestamp_ca;
  std::vector<std::string> witnesses;
  bool reexecute = false, json = false;
};

[[noreturn]] void Fail(const std::string& message) {
  std::fprintf(stderr, "verbatim verify: %s\n", message.c_str());
  throw CLI::RuntimeError(2);
}

void Run(const Flags& flags) {
  audit::VerifyOptions options;
  if (!flags.key.empty()) {
    Result<store::VerifierKey> key = store::ParseVerifierKey(flags.key);
    if (!key.ok()) Fail("--key: " + key.error().message);
    options.key = std::move(*key);
  }
  for (const std::string& text : flags.witnesses) {
    Result<store::CosignerKey> key = store::ParseCosignerKey(text);
    if (!key.ok()) Fail("--witness: " + key.error().message);
    options.witnesses.push_back(std::move(*key));
  }
  if (!flags.timestamp_ca.empty() && ::access(flags.timestamp_ca.c_str(), R_OK) != 0) {
    Fail("--timestamp-ca: " + flags.timestamp_ca + " cannot be read");
  }
  options.timestamp_ca = flags.timestamp_ca;
  if (flags.reexecute) {
    Result<audit::Executor> executor = audit::MakeExecutor(flags.model);
    if (!executor.ok()) Fail("--model: " + executor.error().message);
    options.execute = std::move(*executor);
  }
  Result<audit::MappedFile> bundle = audit::MappedFile::Open(flags.bundle);
  if (!bundle.ok()) Fail(bundle.error().message);
  const audit::Verification verification = audit::VerifyBundle(bundle->bytes(), options);
  if (flags.json) {
    std::printf("%s\n", json::Serialize(audit::ToJson(verification)).c_str());
  } else {
    std::fputs(audit::ToText(verification).c_str(), stdout);
  }
  if (!verification.holds()) throw CLI::RuntimeError(1);
}

}  // namespace

void AddVerify(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "verify", "Check an evidence bundle offline: what holds, what does not, what is unknown");
  auto flags = std::make_shared<Flags>();
  command->add_option("BUNDLE", flags->bundle, "as verbatim export wrote it")->required();
  command->add_option("--key", flags->key, "the log's public key, from elsewhere than the bundle")
      ->type_name("VKEY");
  command
      ->add_option("--witness", flags->witnesses,
                   "the key of a witness that must have cosigned a checkpoint; repeatable")
      ->type_name("VKEY");
  command
      ->add_option("--timestamp-ca", flags->timestamp_ca,
                   "certificates (PEM) of who issued the time-stamping authority's")
      ->type_name("FILE");
  CLI::Option* model = command->add_option("--model", flags->model, "the model's GGUF file");
  model->type_name("FILE");
  CLI::Option* again = command->add_flag(
      "--reexecute", flags->reexecute,
      "execute the embedded engine's answers again, from the bundle and the model alone");
  again->needs(model);
  model->needs(again);
  command->add_flag("--json", flags->json, "print one JSON object");
  command->footer(
      "Exit status: 0 nothing is wrong, 1 something does not hold (each named), 2 it could not "
      "run.\n"
      "Example: verbatim verify acme.zip --key 'verbatim/1f2e+8d7c6b5a+AbC...='");
  command->callback([flags] { Run(*flags); });
}

}  // namespace verbatim::cli
