// verbatim export: writes an evidence bundle.
#include <pwd.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <cstdio>
#include <memory>
#include <string>

#include "audit/export.h"
#include "audit/open_ledger.h"
#include "base/clock.h"
#include "cli/commands.h"
#include "cli/files.h"
#include "store/control.h"
#include "store/ledger.h"

namespace verbatim::cli {
namespace {

constexpr int64_t kQuietMicros = 2'000'000, kProgressMicros = 1'000'000;

struct Flags {
  std::string data, out, range, since, until;
  std::optional<uint64_t> entry;
  std::vector<std::string> tenants, checkpoints;
  bool no_payloads = false, json = false;
};

[[noreturn]] void Fail(const std::string& message) {
  std::fprintf(stderr, "verbatim export: %s\n", message.c_str());
  throw CLI::RuntimeError(2);
}

uint64_t ParseNumber(std::string_view text) {
  uint64_t n = 0;
  const char* end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, n);
  if (text.empty() || parsed.ec != std::errc() || parsed.ptr != end) {
    Fail("--range wants two numbers of entries, as 100:199");
  }
  return n;
}

// A day, at its first moment in UTC (its last one with `end`), or a time.
int64_t ParseDay(const std::string& flag, const std::string& text, bool end) {
  const bool day = text.size() == 10;
  const auto time = ParseTime(day ? text + (end ? "T23:59:59.999999Z" : "T00:00:00Z") : text);
  if (!time.ok())
    Fail(flag + " " + text + " is no day or time, as 2027-01-31 or 2027-01-31T08:00:00Z");
  return *time;
}

audit::ExportRequest RequestOf(const Flags& flags) {
  audit::ExportRequest request;
  if (flags.entry) request.range.emplace(*flags.entry, *flags.entry);
  if (!flags.range.empty()) {
    const std::string_view text = flags.range;
    const size_t colon = std::min(text.find(':'), text.size());
    request.range.emplace(ParseNumber(text.substr(0, colon)),
                          ParseNumber(text.substr(std::min(colon + 1, text.size()))));
  }
  if (!flags.since.empty()) request.since = ParseDay("--since", flags.since, false);
  if (!flags.until.empty()) request.until = ParseDay("--until", flags.until, true);
  if (!request.range && !request.since && !request.until && flags.tenants.empty()) {
    Fail("say what: --entry N, --range FIRST:LAST, --since TIME, --until TIME or --tenant NAME");
  }
  request.tenants = flags.tenants;
  request.payloads = !flags.no_payloads;
  for (const std::string& file : flags.checkpoints) {
    Result<std::string> note = ReadWhole(file);
    if (!note.ok()) Fail(note.error().message);
    request.checkpoints.push_back(std::move(*note));
  }
  return request;
}

std::string User() {
  const passwd* user = ::getpwuid(::getuid());
  return user ? user->pw_name : std::to_string(::getuid());
}

// Through the server where one has the folder, else in the ledger itself. The entry's number.
Result<std::string> Record(const std::string& data, std::optional<store::DataFolder> owned,
                           const std::string& argument) {
  if (!owned) {
    Result<std::string> asked =
        store::AskServer(store::DataFolder::Unlocked(data), "exported " + argument);
    if (asked.ok() || asked.error().code != Code::kNotFound) return asked;
    Result<store::DataFolder> folder = store::DataFolder::Open(data);  // it stopped meanwhile
    if (!folder.ok()) return folder.error();
    owned.emplace(std::move(*folder));
  }
  Result<store::AppendRequest> entry = store::ExportedEntry(argument);
  if (!entry.ok()) return entry.error();
  store::LedgerOptions options;
  options.control_socket = false;
  auto ledger = store::Ledger::Open(std::move(*owned), std::move(options));
  if (!ledger.ok()) return ledger.error();
  Result<store::Appended> appended = (*ledger)->Append(std::move(*entry));
  const Status closed = (*ledger)->Close();
  if (!appended.ok()) return appended.error();
  if (!closed.ok()) return closed.error();
  return std::to_string(appended->entry);
}

void Run(const Flags& flags) {
  audit::ExportRequest request = RequestOf(flags);
  const int64_t begin = MonotonicMicros();
  int64_t last = 0;
  request.progress = [&](uint64_t done, uint64_t total) {
    const int64_t now = MonotonicMicros();
    if (now - begin < kQuietMicros || now - last < kProgressMicros) return;
    last = now;
    std::fprintf(stderr, "export: %llu of %llu entries\n", static_cast<unsigned long long>(done),
                 static_cast<unsigned long long>(total));
  };
  if (::access(flags.out.c_str(), F_OK) == 0) {
    Fail(flags.out + " is there already; name a new file with --out");
  }
  Result<std::unique_ptr<audit::OpenLedger>> ledger = audit::OpenLedger::Open(flags.data);
  if (!ledger.ok()) Fail(ledger.error().message);
  // Nobody gets the file under its name before the ledger says that it was written.
  const std::string partial = flags.out + ".partial";
  ::unlink(partial.c_str());
  Result<audit::ExportResult> result =
      audit::WriteBundle((*ledger)->reader(), (*ledger)->checkpoint(), request, partial);
  std::optional<store::DataFolder> owned = audit::OpenLedger::Close(std::move(*ledger));
  Result<std::string> entry = Error{};
  if (result.ok()) {
    json::Value argument = json::Value::MakeObject();
    argument.Set("detail", audit::ExportDetail(*result));
    argument.Set("extra", audit::ExportExtra(*result, request));
    argument.Find("extra")->Set("by", User());
    entry = Record(flags.data, std::move(owned), json::Serialize(argument));
  }
  const Error* error = !result.ok() ? &result.error() : !entry.ok() ? &entry.error() : nullptr;
  if (!error && ::rename(partial.c_str(), flags.out.c_str()) == 0) {
    const std::string digest = HexEncode(result->digest);
    if (flags.json) {
      json::Value out =
          json::Object{{"bundle", flags.out},
                       {"digest", digest},
                       {"from", result->index.from},
                       {"to", result->index.to},
                       {"entries", result->selected},
                       {"supporting", result->index.entries.size() - result->selected},
                       {"size", result->index.size},
                       {"exported_entry", json::Value::NumberFromText(*entry)}};
      std::printf("%s\n", json::Serialize(out).c_str());
    } else {
      std::printf(
          "%s: %llu entries and %llu in support, SHA-256 %s\nrecorded as entry %s; check it with: "
          "verbatim verify %s --key VKEY\n",
          flags.out.c_str(), static_cast<unsigned long long>(result->selected),
          static_cast<unsigned long long>(result->index.entries.size() - result->selected),
          digest.c_str(), entry->c_str(), flags.out.c_str());
    }
    return;
  }
  ::unlink(partial.c_str());
  Fail(error ? error->message : "cannot make " + flags.out + "; check the folder and its rights");
}

}  // namespace

void AddExport(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "export", "Write entries, their proofs and what they say as one file for an auditor");
  auto flags = std::make_shared<Flags>();
  command->add_option("--data", flags->data, "the data folder, also of a running server")
      ->required();
  auto* entry = command->add_option("--entry", flags->entry, "one entry")->type_name("N");
  command->add_option("--range", flags->range, "the entries FIRST to LAST, both included")
      ->type_name("FIRST:LAST")
      ->excludes(entry);
  command->add_option("--since", flags->since, "entries from this day or time (UTC) on");
  command->add_option("--until", flags->until, "entries up to this day or time (UTC), included");
  command->add_option("--tenant", flags->tenants, "only this tenant's entries; repeatable");
  command
      ->add_option("--checkpoint", flags->checkpoints,
                   "a file with an older checkpoint of this log: the bundle proves that this one "
                   "continues it; repeatable")
      ->type_name("FILE");
  command->add_flag("--no-payloads", flags->no_payloads,
                    "leave requests and answers out; their digests stay");
  command->add_option("--out", flags->out, "the bundle to write; must not exist")
      ->required()
      ->type_name("BUNDLE");
  command->add_flag("--json", flags->json, "print one JSON object");
  command->footer(
      "The export is itself an entry of the ledger.\n"
      "Example: verbatim export --data /var/lib/verbatim --tenant acme --since 2027-01-01 --out "
      "acme.zip");
  command->callback([flags] { Run(*flags); });
}

}  // namespace verbatim::cli
