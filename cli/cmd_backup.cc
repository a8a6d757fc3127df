// verbatim backup, restore: copies of a data folder, and what comes after one was lost.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <string>

#include "base/clock.h"
#include "cli/commands.h"
#include "cli/files.h"
#include "store/backup.h"
#include "store/restore.h"

namespace verbatim::cli {
namespace {

constexpr int64_t kQuietMicros = 2'000'000, kProgressMicros = 1'000'000;

struct BackupFlags {
  store::BackupOptions options;
  bool json = false;
};
struct RestoreFlags {
  store::RestoreOptions options;
  std::string checkpoint, origin;
  bool acknowledge = false, json = false;
};

[[noreturn]] void Fail(const char* command, const Error& error) {
  std::fprintf(stderr, "verbatim %s: %s\n", command, error.message.c_str());
  throw CLI::RuntimeError(error.code == Code::kCorrupt ? 1 : 2);
}

std::function<void(const std::string&)> Progress(const char* command) {
  const int64_t begin = MonotonicMicros();
  return [=, last = int64_t{0}](const std::string& line) mutable {
    const int64_t now = MonotonicMicros();
    if (now - begin < kQuietMicros || now - last < kProgressMicros) return;
    last = now;
    std::fprintf(stderr, "%s: %s\n", command, line.c_str());
  };
}

void PrintJson(const json::Value& value) { std::printf("%s\n", json::Serialize(value).c_str()); }

void Backup(const BackupFlags& flags) {
  store::BackupOptions options = flags.options;
  options.progress = Progress("backup");
  const Result<store::BackupReport> report = store::MakeBackup(options);
  if (!report.ok()) Fail("backup", report.error());
  if (flags.json) {
    PrintJson(json::Object{{"entries", report->entries},
                           {"hits", report->hits},
                           {"origin", report->origin},
                           {"root", HexEncode(report->root)}});
    return;
  }
  std::printf("%llu entries and %llu batched hits of %s copied and verified\nroot %s\n",
              static_cast<unsigned long long>(report->entries),
              static_cast<unsigned long long>(report->hits), report->origin.c_str(),
              HexEncode(report->root).c_str());
}

void PrintRestored(const store::RestoreReport& report) {
  std::printf(
      "%llu entries and %llu batched hits of %s restored and verified, %llu erasures "
      "carried out again\nroot %s\n",
      static_cast<unsigned long long>(report.entries), static_cast<unsigned long long>(report.hits),
      report.origin.c_str(), static_cast<unsigned long long>(report.erasures),
      HexEncode(report.root).c_str());
}

// What a restored folder needs before it is served from; true where that is given.
bool Settle(const RestoreFlags& flags, json::Value& out) {
  if (flags.acknowledge) {
    const auto begun = store::AcknowledgeRollback(flags.options.data, flags.origin);
    if (!begun.ok()) Fail("restore", begun.error());
    out.Set("origin", begun->origin);
    out.Set("former", begun->former);
    if (!flags.json) {
      std::printf(
          "a new log begins: %s; its first leaf names the old one's last checkpoint\nthe "
          "old log lies in %s/%s\n",
          begun->origin.c_str(), flags.options.data.c_str(), begun->former.c_str());
    }
    return true;
  }
  if (flags.checkpoint.empty()) return false;
  const Result<std::string> note = ReadWhole(flags.checkpoint);
  if (!note.ok()) Fail("restore", note.error());
  const Status confirmed = store::ConfirmRestored(flags.options.data, *note);
  if (!confirmed.ok()) Fail("restore", confirmed.error());
  if (!flags.json) std::printf("the log goes on\n");
  return true;
}

void Restore(const RestoreFlags& flags) {
  if (flags.options.from.empty() && !flags.acknowledge && flags.checkpoint.empty()) {
    Fail("restore", {Code::kInvalid,
                     "name a backup with --from, or settle a folder with --checkpoint or "
                     "--acknowledge-rollback"});
  }
  json::Value out = json::Value::MakeObject();
  if (!flags.options.from.empty()) {
    store::RestoreOptions options = flags.options;
    options.progress = Progress("restore");
    const Result<store::RestoreReport> report = store::RestoreBackup(options);
    if (!report.ok()) Fail("restore", report.error());
    out.Set("entries", report->entries);
    out.Set("hits", report->hits);
    out.Set("origin", report->origin);
    out.Set("root", HexEncode(report->root));
    out.Set("erasures", report->erasures);
    out.Set("log_went_on", report->log_went_on);
    if (!flags.json) PrintRestored(*report);
  }
  const bool settled = Settle(flags, out);
  out.Set("settled", settled);
  if (flags.json) PrintJson(out);
  if (!settled && !flags.json) {
    std::printf(
        "before it is served from: verbatim restore --data %s with --checkpoint FILE (the newest "
        "checkpoint that was published), or with --acknowledge-rollback (begins a new log)\n",
        flags.options.data.c_str());
  }
}

void AddBackupCommand(CLI::App& app) {
  auto flags = std::make_shared<BackupFlags>();
  flags->options.reason = "backup";
  flags->options.authority = "operator";
  CLI::App* command = app.add_subcommand(
      "backup", "Copy a data folder, also beside its running server, and verify the copy");
  command->add_option("--data", flags->options.data, "The data folder")
      ->type_name("DIR")
      ->required();
  command->add_option("--out", flags->options.out, "A new or empty folder")
      ->type_name("DIR")
      ->required();
  command
      ->add_option("--keyring", flags->options.keyring,
                   "Another one, for keys and keyring alone (else in --out)")
      ->type_name("DIR");
  command->add_option("--reason", flags->options.reason, "Why (backup); goes into the log");
  command->add_option("--authority", flags->options.authority, "On whose order (operator)");
  command->add_flag("--json", flags->json, "Print one JSON object");
  command->footer(
      "Exit status: 0 copied and verified, 1 the copy does not verify, 2 it could not run.\n"
      "Example: verbatim backup --data /var/lib/verbatim --out /backup/$(date +%F)");
  command->callback([flags] { Backup(*flags); });
}

void AddRestoreCommand(CLI::App& app) {
  auto flags = std::make_shared<RestoreFlags>();
  CLI::App* command = app.add_subcommand(
      "restore", "Make a data folder of a backup, and settle how its log goes on");
  command->add_option("--from", flags->options.from, "A backup")->type_name("DIR");
  command->add_option("--keyring", flags->options.keyring, "Where its keyring lies apart")
      ->type_name("DIR");
  command
      ->add_option("--erasures", flags->options.erasures,
                   "A newer copy of the file erasures: they are carried out again")
      ->type_name("FILE");
  command->add_option("--data", flags->options.data, "With --from: a new or empty folder")
      ->type_name("DIR")
      ->required();
  CLI::Option* checkpoint = command->add_option(
      "--checkpoint", flags->checkpoint,
      "The newest checkpoint that was published: the log goes on if the folder holds it");
  checkpoint->type_name("FILE");
  command
      ->add_flag("--acknowledge-rollback", flags->acknowledge,
                 "Entries are lost: begin a new log that names the old one")
      ->excludes(checkpoint);
  command->add_option("--origin", flags->origin, "Of the new log (else the old one's and a number)")
      ->type_name("NAME");
  command->add_flag("--json", flags->json, "Print one JSON object");
  command->footer(
      "Exit status: 0 done, 1 the backup does not verify, 2 it could not run.\n"
      "Example: verbatim restore --from /backup/2026-11-30 --data /var/lib/verbatim "
      "--acknowledge-rollback");
  command->callback([flags] { Restore(*flags); });
}

}  // namespace

void AddBackup(CLI::App& app) {
  AddBackupCommand(app);
  AddRestoreCommand(app);
}

}  // namespace verbatim::cli
