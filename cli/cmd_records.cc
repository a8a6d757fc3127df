// verbatim hold, release, shred, prune: what happens to records after they were made.
#include <CLI/CLI.hpp>
#include <charconv>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>

#include "base/clock.h"
#include "cli/commands.h"
#include "store/carry.h"

namespace verbatim::cli {
namespace {

using store::LifeCommand;
using store::LifeReport;
using Verb = LifeCommand::Verb;

constexpr int kQuietSeconds = 2;

struct Flags {
  const char* name = "";
  std::string data, range, before;
  std::optional<uint64_t> entry;
  LifeCommand command;
  bool json = false;
};

[[noreturn]] void Fail(const Flags& flags, const std::string& message) {
  std::fprintf(stderr, "verbatim %s: %s\n", flags.name, message.c_str());
  throw CLI::RuntimeError(2);
}

std::optional<uint64_t> ParseNumber(std::string_view text) {
  uint64_t n = 0;
  const char* end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, n);
  if (text.empty() || parsed.ec != std::errc() || parsed.ptr != end) return std::nullopt;
  return n;
}

LifeCommand CommandOf(const Flags& flags) {
  LifeCommand command = flags.command;
  if (flags.entry) command.entries = {*flags.entry, *flags.entry};
  if (!flags.range.empty()) {
    const size_t colon = flags.range.find(':');
    const auto first = ParseNumber(std::string_view(flags.range).substr(0, colon));
    const auto last = colon == std::string::npos
                          ? std::nullopt
                          : ParseNumber(std::string_view(flags.range).substr(colon + 1));
    if (!first || !last) Fail(flags, "--range wants the first and the last entry, as 100:199");
    command.entries = {*first, *last};
  }
  if (!flags.before.empty()) {
    command.before = ParseNumber(flags.before);
    if (!command.before) {
      const bool day = flags.before.size() == 10;
      const auto time = ParseTime(day ? flags.before + "T00:00:00Z" : flags.before);
      if (!time.ok()) {
        Fail(flags, "--before " + flags.before + " is no entry, day or time, as 2027-01-31");
      }
      command.before_time = *time;
    }
  }
  return command;
}

void PrintReport(Verb verb, const LifeReport& report) {
  const auto n = [](uint64_t number) { return static_cast<unsigned long long>(number); };
  if (report.outcome != "ok") {
    std::printf(
        "REFUSED: %llu entries are under a legal hold, %llu must be retained; entry %llu "
        "says so\n",
        n(report.held), n(report.retained), n(*report.entry));
    return;
  }
  if (!report.entry) {
    std::printf("nothing to do: it is erased already, or there is nothing of it\n");
    return;
  }
  switch (verb) {
    case Verb::kHold:
      std::printf("held; entry %llu says so\n", n(*report.entry));
      break;
    case Verb::kRelease:
      std::printf("%llu holds released; entry %llu says so\n", n(report.entries), n(*report.entry));
      break;
    case Verb::kPrune:
      std::printf("pruned up to entry %llu: ", n(report.before));
      [[fallthrough]];
    default:
      std::printf(
          "the keys and salts of %llu entries and %llu groups of hits are destroyed; entry "
          "%llu says so\n",
          n(report.entries), n(report.hits_slots), n(*report.entry));
  }
  if (report.held + report.retained > 0) {
    std::printf("left: %llu entries under a legal hold, %llu that must be retained\n",
                n(report.held), n(report.retained));
  }
  for (const std::string& path : report.backups_not_reached) {
    std::printf(
        "not reached: the backup in %s; restoring it needs a newer copy of the file "
        "erasures\n",
        path.c_str());
  }
}

void Run(const Flags& flags) {
  const LifeCommand command = CommandOf(flags);
  int seconds = 0;
  const auto waiting = [&] {
    if (++seconds < kQuietSeconds) return;
    std::fprintf(stderr, "%s: the server reads the records in question, %d s\n", flags.name,
                 seconds);
  };
  const Result<LifeReport> report = store::CarryOut(flags.data, command, waiting);
  if (!report.ok()) Fail(flags, report.error().message);
  if (flags.json) {
    std::printf("%s\n", json::Serialize(store::ToJson(*report)).c_str());
  } else {
    PrintReport(command.verb, *report);
  }
  if (report->outcome != "ok") throw CLI::RuntimeError(1);
}

std::shared_ptr<Flags> Add(CLI::App& app, Verb verb, const char* name, const char* help,
                           const char* example) {
  auto flags = std::make_shared<Flags>();
  flags->name = name;
  flags->command.verb = verb;
  CLI::App* command = app.add_subcommand(name, help);
  command->add_option("--data", flags->data, "The data folder")->type_name("DIR")->required();
  command->add_option("--reason", flags->command.reason, "Why; goes into the log")->required();
  command->add_option("--authority", flags->command.authority, "On whose or which order; likewise")
      ->required();
  if (verb == Verb::kPrune) {
    command
        ->add_option("--before", flags->before,
                     "The first entry that stays, or a day or time in UTC")
        ->type_name("N|TIME")
        ->required();
  } else {
    command->add_option("--entry", flags->entry, "One entry")->type_name("N");
    command->add_option("--range", flags->range, "Entries from A to B, both included")
        ->type_name("A:B");
    command->add_option("--subject", flags->command.subject, "All of a subject, with --tenant");
    command->add_option("--tenant", flags->command.tenant, "Whose subject it is");
  }
  if (verb == Verb::kShred) {
    command->add_flag("--partial", flags->command.partial,
                      "Leave out what a hold or a retention protects, instead of refusing");
  }
  command->add_flag("--json", flags->json, "Print one JSON object");
  command->footer(std::string("Exit status: 0 done, 1 refused by a hold or a retention, 2 it could "
                              "not run.\nExample: verbatim ") +
                  name + " --data DIR --reason \"litigation 7/26\" --authority counsel " + example);
  command->callback([flags] { Run(*flags); });
  return flags;
}

}  // namespace

void AddRecords(CLI::App& app) {
  Add(app, Verb::kHold, "hold", "Put records under a legal hold: nothing erases them",
      "--tenant acme --subject alice");
  Add(app, Verb::kRelease, "release", "End a legal hold, named as it was made",
      "--tenant acme --subject alice");
  Add(app, Verb::kShred, "shred",
      "Erase records by destroying their keys and salts; leaves and proofs stay", "--entry 17");
  Add(app, Verb::kPrune, "prune",
      "Remove records and payloads before an entry or time that nothing protects",
      "--before 2026-01-01");
}

}  // namespace verbatim::cli
