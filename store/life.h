// What happens to records after they were made: legal holds and their release, erasure, pruning.
// Each leaves an entry of its own, with reason and authority in its private record; what is refused
// leaves one too. store/FORMAT.md says what the entries hold.
//
// Erasure destroys the keys and salts of entries and hits (keyring.h); leaves, tree and all other
// proofs stay. Its entry comes first, then the line in the folder's log of erasures, then the keys
// are destroyed, here and in the backups that can be reached; the next start completes what a kill
// interrupted.
//
// Threads: one Apply at a time, by whoever calls Ledger::Apply. No snapshot of the folder is made
// meanwhile, and none may be in use: kUnavailable else.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "store/ranges.h"

namespace verbatim::store {

struct LifeCommand {
  enum class Verb { kHold, kRelease, kShred, kPrune, kBackup };
  Verb verb = Verb::kHold;
  // Hold, release and shred: either entries first to last, or a subject of a tenant. A subject's
  // hold is of its entries and hits to come, too; an erasure of those there are.
  std::optional<std::pair<uint64_t, uint64_t>> entries;
  std::string tenant, subject;
  // Prune: entries before this one, or those of before this time (microseconds).
  std::optional<uint64_t> before;
  std::optional<int64_t> before_time;
  // Shred: leaves out what a hold or a retention protects, instead of refusing the whole.
  bool partial = false;
  std::string reason, authority;  // why, and on whose or which order; both needed
  std::string by;                 // who runs it, as it says itself ("uid 1000")
  std::string backup;             // kBackup: the absolute path that a backup is being made to
};
// One object; FromJson refuses what is incomplete or contradicts itself (kInvalid, names the flag).
json::Value ToJson(const LifeCommand& command);
Result<LifeCommand> LifeCommandFromJson(const json::Value& value);

struct LifeReport {
  std::optional<uint64_t> entry;    // the (last) entry that says so; absent where nothing was to do
  std::string outcome = "ok";       // "held" or "retained": refused
  uint64_t entries = 0;             // held, released (holds), erased or pruned
  uint64_t hits_slots = 0;          // of the hits' keyring: one per interval and subject
  uint64_t held = 0, retained = 0;  // what a hold or a retention protects
  uint64_t before = 0;              // prune: up to this entry
  std::vector<std::string> backups_not_reached;  // where the erasure was not carried out yet
};
json::Value ToJson(const LifeReport& report);
Result<LifeReport> LifeReportFromJson(const json::Value& value);
// The report or error in an answer to the control socket's "records".
Result<LifeReport> LifeReportFromAnswer(std::string_view answer);

// 32 hex digits that stand for a subject of a tenant in leaves: the first 16 bytes of
// HMAC-SHA-256(tenant.key, "verbatim-subject-1" || length of the tenant's name u64 || tenant's name
// || subject).
struct Keys;
std::string SubjectPseudonym(const Keys& keys, std::string_view tenant, std::string_view subject);

class Reader;
class Keyring;
class Batch;
class Kv;
class Sequencer;
class DataFolder;
struct Erasure;

class Life {
 public:
  struct Parts {
    Kv& kv;
    Keyring& entry_keys;
    Keyring& hit_keys;
    const Reader& reader;
    Sequencer& sequencer;
    const DataFolder& folder;
    std::string manifest;
    std::function<int64_t()> now;
  };
  explicit Life(Parts parts) : p_(std::move(parts)) {}

  // Destroys what entries say is erased, where a kill came in between. At start-up.
  Status Complete();
  Result<LifeReport> Apply(const LifeCommand& command);
  void OnErased(std::function<void(const Ranges&)> forget);  // Ledger::OnErased
  // The control socket's "records": a command as JSON -> {"report": ...}, or {"error": {"code",
  // "message"}}.
  std::string Answer(std::string_view command);

 private:
  struct Effects;
  Result<LifeReport> HoldRecords(const LifeCommand& command);
  Result<LifeReport> ReleaseRecords(const LifeCommand& command);
  Result<LifeReport> Shred(const LifeCommand& command);
  Result<LifeReport> Prune(const LifeCommand& command);
  Result<LifeReport> NoteBackup(const LifeCommand& command);
  Result<uint64_t> Commit(const LifeCommand& command, Effects effects);
  Status EndHitInterval();
  Status CheckEntries(const LifeCommand& command) const;
  Result<uint64_t> EntryAtTime(int64_t time) const;
  Status CheckNoReaders() const;
  Status Destroy(uint64_t entry, const Ranges& entries, const Ranges& slots, bool prune,
                 std::vector<std::string>* not_reached);
  Status CommitRows(const Batch& batch);
  Status RemoveRows(const Ranges& entries);
  void EraseInBackups(const Erasure& erasure, std::vector<std::string>* not_reached);

  const Parts p_;
  std::mutex mutex_;         // one command at a time
  std::mutex forget_mutex_;  // guards forget_, and is held while it is called
  std::function<void(const Ranges&)> forget_;
};

}  // namespace verbatim::store
