// verbatim canonical: the canonical form of a JSON file, as fingerprints hash it.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <string>

#include "base/json.h"
#include "cli/commands.h"
#include "cli/files.h"

namespace verbatim::cli {
namespace {

void Canonical(const std::string& file) {
  const auto value = ReadJson(file);
  if (!value.ok()) {
    std::fprintf(stderr, "verbatim canonical: %s\n", value.error().message.c_str());
    throw CLI::RuntimeError(2);
  }
  const std::string canonical = json::Canonical(*value);
  std::fwrite(canonical.data(), 1, canonical.size(), stdout);
}

}  // namespace

void AddCanonical(CLI::App& app) {
  auto file = std::make_shared<std::string>();
  CLI::App* command = app.add_subcommand(
      "canonical", "Print the canonical JSON of a file: bytes only, no newline at the end");
  command->add_option("FILE", *file, "A JSON file; - is standard input")->required();
  command->footer("Example: verbatim canonical request.json | sha256sum");
  command->callback([file] { Canonical(*file); });
}

}  // namespace verbatim::cli
