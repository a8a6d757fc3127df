#include "store/backup.h"

#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>
#include <thread>

#include "base/clock.h"
#include "store/carry.h"
#include "store/control.h"
#include "store/erasures.h"
#include "store/fsck.h"
#include "store/keys.h"
#include "store/kv_rocksdb.h"
#include "store/reader.h"

namespace verbatim::store {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kServerWaitMicros = 10'000'000;
constexpr char kMarker[] = "/backup.json";

Error CannotCopy(const std::string& what, const std::error_code& error) {
  return {Code::kIo, "cannot copy " + what + ": " + error.message()};
}

bool Exists(const std::string& path) {
  std::error_code ignored;
  return fs::exists(fs::symlink_status(path, ignored));
}

// The absolute path of a folder that is made, or is there and empty.
Result<std::string> MakeEmpty(const std::string& given) {
  std::error_code error;
  const fs::path path = fs::absolute(given, error).lexically_normal();
  if (error || given.empty())
    return Error{Code::kInvalid, "name a folder: \"" + given + "\" is none"};
  std::string text = path.string();
  while (text.size() > 1 && text.back() == '/') text.pop_back();
  fs::create_directories(fs::path(text).parent_path(), error);
  if (Status made = MakeFolder(text); !made.ok()) return made.error();
  if (!fs::is_empty(text, error) || error) {
    return Error{Code::kInvalid, text + " is not empty; nothing is overwritten: name a new folder"};
  }
  fs::permissions(text, fs::perms::owner_all, error);
  return text;
}

Status CopyFile(const std::string& from, const std::string& to) {
  std::error_code error;
  fs::copy_file(from, to, error);
  if (error) return CannotCopy(from, error);
  fs::permissions(to, fs::perms::owner_read | fs::perms::owner_write, error);
  return SyncFile(to);
}

// The files of a folder, not those of folders in it.
Status CopyFiles(const std::string& from, const std::string& to,
                 const std::function<bool(const std::string& name)>& wanted) {
  if (Status made = MakeFolder(to); !made.ok()) return made;
  std::error_code error;
  for (fs::directory_iterator file(from, error), end; !error && file != end;
       file.increment(error)) {
    const std::string name = file->path().filename().string();
    if (!file->is_regular_file() || !wanted(name)) continue;
    if (Status copied = CopyFile(file->path().string(), to + "/" + name); !copied.ok()) {
      return copied;
    }
  }
  if (error) return CannotCopy(from, error);
  return SyncFolder(to);
}

Status CopyIfThere(const std::string& from, const std::string& to) {
  return Exists(from) ? CopyFile(from, to) : Status();
}

// tables: of the database and checkpoint; rings: of the keyring; secrets: of keys and erasures.
Status CopyAll(const DataFolder& tables, const DataFolder& rings, const DataFolder& secrets,
               const DataFolder& to, const DataFolder& to_rings) {
  const auto all = [](const std::string&) { return true; };
  const auto segments = [](const std::string& name) { return name.ends_with(".keys"); };
  const auto no_lock = [](const std::string& name) { return name != "LOCK"; };
  Status copied = CopyFile(tables.checkpoint(), to.checkpoint());
  if (copied.ok()) copied = CopyFiles(tables.database(), to.database(), no_lock);
  if (copied.ok()) copied = MakeFolder(to_rings.keyring());
  for (const char* ring : {"/entries", "/hits"}) {
    if (!copied.ok()) return copied;
    copied = CopyFiles(rings.keyring() + ring, to_rings.keyring() + ring, segments);
  }
  if (copied.ok()) copied = CopyFiles(secrets.keys(), to_rings.keys(), all);
  if (copied.ok()) copied = CopyIfThere(secrets.erasures(), to_rings.erasures());
  if (copied.ok()) {
    copied = CopyIfThere(secrets.path() + "/api-keys.json", to_rings.path() + "/api-keys.json");
  }
  return copied.ok() ? SyncFolder(to.path()) : copied;
}

Result<FsckReport> Verify(const DataFolder& tables, const DataFolder& rings,
                          const std::function<void(const std::string&)>& progress) {
  FsckOptions options;
  options.deep = true;
  options.unused_keys = false;
  options.progress = [&](uint64_t done, uint64_t total) {
    if (progress && done % 1024 == 0) {
      progress("verifying the copy: " + std::to_string(done) + " of " + std::to_string(total) +
               " entries");
    }
  };
  Result<FsckReport> report = CheckFolder(tables, rings, rings, options);
  if (!report.ok()) return report.error();
  if (!report->clean()) {
    const FsckFinding& first = report->findings.front();
    return Error{Code::kCorrupt, "the copy does not verify: " + first.kind + ": " + first.what +
                                     " (and " + std::to_string(report->findings.size() - 1) +
                                     " more); run verbatim fsck on what it was made from"};
  }
  return report;
}

// Copies as of one moment: from a snapshot of the running server, or from the folder itself.
Status CopyFrom(const std::string& data, const DataFolder& to, const DataFolder& to_rings) {
  const DataFolder unlocked = DataFolder::Unlocked(data);
  const int64_t give_up = MonotonicMicros() + kServerWaitMicros;
  for (;;) {
    Result<SnapshotLease> lease = SnapshotLease::Request(unlocked);
    if (lease.ok()) {
      const DataFolder snapshot = DataFolder::Unlocked(lease->path());
      return CopyAll(snapshot, snapshot, unlocked, to, to_rings);
    }
    Result<DataFolder> owned = DataFolder::Open(data);
    if (owned.ok()) return CopyAll(*owned, *owned, *owned, to, to_rings);
    if (MonotonicMicros() > give_up) return owned.error();
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

Result<BackupReport> FillBackup(const BackupOptions& options, const DataFolder& out,
                                const DataFolder& rings) {
  LifeCommand note;
  note.verb = LifeCommand::Verb::kBackup;
  note.backup = rings.path();
  note.reason = options.reason;
  note.authority = options.authority;
  if (Result<LifeReport> noted = CarryOut(options.data, note, nullptr); !noted.ok()) {
    return noted.error();
  }
  if (Status copied = CopyFrom(options.data, out, rings); !copied.ok()) return copied.error();
  Result<FsckReport> verified = Verify(out, rings, options.progress);
  if (!verified.ok()) return verified.error();
  Result<Keys> keys = LoadKeys(rings, "", false);
  if (!keys.ok()) return keys.error();
  BackupReport report{verified->entries, verified->hits, verified->root, keys->signer->key().name};
  const json::Value marker = json::Object{{"entries", report.entries},
                                          {"made", FormatTime(NowMicros())},
                                          {"origin", report.origin},
                                          {"root", HexEncode(report.root)},
                                          {"version", 1}};
  const Status done = WriteFileDurably(out.path() + kMarker, json::Canonical(marker) + "\n");
  if (!done.ok()) return done.error();
  return report;
}

// What the logs of erasures say, carried out again in the keyring of `folder`.
Status ReapplyErasures(const DataFolder& folder, const std::string& newer, RestoreReport& report) {
  Result<Keys> keys = LoadKeys(folder, "", false);
  if (!keys.ok()) return keys.error();
  report.origin = keys->signer->key().name;
  Result<std::unique_ptr<Kv>> kv = OpenRocksDb(folder.database(), KvAccess::kReadOnly);
  if (!kv.ok()) return kv.error();
  Result<std::vector<LogKey>> log_keys = ReadLogKeys(**kv, keys->signer->key());
  if (!log_keys.ok()) return log_keys.error();
  for (const std::string& path : {folder.erasures(), newer}) {
    if (path.empty()) continue;
    Result<std::string> file = ReadFile(path);
    if (!file.ok() && file.error().code == Code::kNotFound && path == folder.erasures()) continue;
    if (!file.ok()) return file.error();
    Result<std::vector<Erasure>> erasures = ParseErasures(*file, report.origin, *log_keys);
    if (!erasures.ok()) return erasures.error();
    for (const Erasure& erasure : *erasures) {
      for (const auto& [name, slots] :
           {std::pair("entries", &erasure.entries), std::pair("hits", &erasure.slots)}) {
        Result<std::unique_ptr<Keyring>> ring =
            Keyring::Open(folder.keyring() + "/" + name, name, *keys->wrapper, false);
        if (!ring.ok()) return ring.error();
        if (Status erased = (*ring)->Erase(*slots); !erased.ok()) return erased;
      }
      if (Status added = AddErasure(folder.erasures(), erasure, *keys->signer); !added.ok()) {
        return added;
      }
    }
  }
  return {};
}

Result<RestoreReport> FillRestored(const RestoreOptions& options, const DataFolder& data) {
  const DataFolder from = DataFolder::Unlocked(options.from);
  const DataFolder rings =
      DataFolder::Unlocked(options.keyring.empty() ? options.from : options.keyring);
  RestoreReport report;
  // Before anything else: whatever comes after, nobody serves from this.
  Status done = WriteFileDurably(data.restored(), "restored " + FormatTime(NowMicros()) + "\n");
  if (done.ok()) done = CopyAll(from, rings, rings, data, data);
  if (done.ok()) done = ReapplyErasures(data, options.erasures, report);
  if (!done.ok()) return done.error();
  Result<FsckReport> verified = Verify(data, data, options.progress);
  if (!verified.ok()) return verified.error();
  report.entries = verified->entries;
  report.hits = verified->hits;
  report.root = verified->root;
  Result<std::string> file = ReadFile(data.erasures());
  Result<std::vector<Erasure>> erasures = ParseErasures(file.ok() ? *file : "", report.origin, {});
  if (!erasures.ok()) return erasures.error();
  report.erasures = erasures->size();
  for (const Erasure& erasure : *erasures) report.log_went_on |= erasure.entry >= report.entries;
  return report;
}

// Takes away what it made; the folder itself may have been there before.
template <typename Report>
Result<Report> OrNothing(Result<Report> report, const std::vector<std::string>& folders) {
  if (report.ok()) return report;
  std::error_code ignored;
  for (const std::string& folder : folders) {
    for (const fs::directory_entry& left : fs::directory_iterator(folder, ignored)) {
      fs::remove_all(left.path(), ignored);
    }
    fs::remove(folder, ignored);
  }
  return report;
}

}  // namespace

Result<BackupReport> MakeBackup(const BackupOptions& options) {
  Result<std::string> out = MakeEmpty(options.out);
  if (!out.ok()) return out.error();
  Result<std::string> keyring = options.keyring.empty() ? *out : MakeEmpty(options.keyring);
  if (!keyring.ok()) return keyring.error();
  return OrNothing(FillBackup(options, DataFolder::Unlocked(*out), DataFolder::Unlocked(*keyring)),
                   {*out, *keyring});
}

Result<RestoreReport> RestoreBackup(const RestoreOptions& options) {
  if (!Exists(options.from + kMarker)) {
    return Error{Code::kNotFound, options.from +
                                      " is no complete backup: it has no backup.json; name what "
                                      "verbatim backup --out made"};
  }
  Result<std::string> data = MakeEmpty(options.data);
  if (!data.ok()) return data.error();
  return OrNothing(FillRestored(options, DataFolder::Unlocked(*data)), {*data});
}

}  // namespace verbatim::store
