// verbatim fsck: checks a ledger and names what is wrong with it.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>

#include "base/clock.h"
#include "cli/commands.h"
#include "store/fsck.h"

namespace verbatim::cli {
namespace {

constexpr int64_t kQuietMicros = 2'000'000, kProgressMicros = 1'000'000;

struct Flags {
  std::string data;
  bool deep = false, json = false;
};

void PrintReport(const store::FsckReport& report) {
  std::printf(
      "%llu entries, %llu batched hits, checkpoint of %llu entries%s\nroot %s\n",
      static_cast<unsigned long long>(report.entries), static_cast<unsigned long long>(report.hits),
      static_cast<unsigned long long>(report.checkpoint_size),
      report.snapshot ? " (a snapshot of the running server)" : "", HexEncode(report.root).c_str());
  for (const store::FsckFinding& finding : report.findings) {
    const std::string entry = finding.entry ? "entry " + std::to_string(*finding.entry) : "ledger";
    std::printf("%s: %s: %s\n", entry.c_str(), finding.kind.c_str(), finding.what.c_str());
  }
  if (report.findings_omitted > 0) {
    std::printf("and %llu more\n", static_cast<unsigned long long>(report.findings_omitted));
  }
  std::printf("%s\n",
              report.clean() ? "clean" : "DAMAGED: restore a backup of what is named above");
}

void Run(const Flags& flags) {
  const int64_t begin = MonotonicMicros();
  int64_t last = 0;
  store::FsckOptions options;
  options.deep = flags.deep;
  options.progress = [&](uint64_t done, uint64_t total) {
    const int64_t now = MonotonicMicros();
    if (now - begin < kQuietMicros || now - last < kProgressMicros) return;
    last = now;
    std::fprintf(stderr, "fsck: %llu of %llu entries\n", static_cast<unsigned long long>(done),
                 static_cast<unsigned long long>(total));
  };
  Result<store::FsckReport> report = store::Fsck(flags.data, options);
  if (!report.ok()) {
    std::fprintf(stderr, "verbatim fsck: %s\n", report.error().message.c_str());
    throw CLI::RuntimeError(2);
  }
  if (flags.json) {
    std::printf("%s\n", json::Serialize(store::ToJson(*report)).c_str());
  } else {
    PrintReport(*report);
  }
  if (!report->clean()) throw CLI::RuntimeError(1);
}

}  // namespace

void AddFsck(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "fsck", "Check every entry, proof and record of a data folder, also beside a running server");
  auto flags = std::make_shared<Flags>();
  command->add_option("--data", flags->data, "the data folder")->required();
  command->add_flag("--deep", flags->deep, "also check every database file against its checksum");
  command->add_flag("--json", flags->json, "print one JSON object");
  command->footer(
      "Exit status: 0 clean, 1 damage (each named), 2 it could not run.\n"
      "Example: verbatim fsck --data /var/lib/verbatim");
  command->callback([flags] { Run(*flags); });
}

}  // namespace verbatim::cli
