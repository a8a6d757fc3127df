#include "store/life.h"

#include <algorithm>
#include <filesystem>
#include <future>
#include <memory>

#include "base/clock.h"
#include "base/crypto.h"
#include "base/log.h"
#include "store/control.h"
#include "store/erasures.h"
#include "store/life_targets.h"
#include "store/rows.h"
#include "store/sequencer.h"

namespace verbatim::store {
namespace {

// A leaf has 65,535 bytes at most; a range takes 44 at most.
constexpr size_t kRangesOfLeaf = 1200;
constexpr size_t kRowsOfBatch = 1000;
constexpr char kReleases[] = "releases";

json::Value RangeJson(const std::pair<uint64_t, uint64_t>& range) {
  Ranges ranges;
  ranges.Add(range.first, range.second);
  return ranges.ToJson();
}

// Whom or what a command is about, as leaves and records name it.
json::Value SelectorJson(const Keys& keys, const LifeCommand& command) {
  json::Value selector = json::Value::MakeObject();
  if (command.entries) selector.Set("entries", RangeJson(*command.entries));
  if (!command.subject.empty()) {
    selector.Set("subject", SubjectPseudonym(keys, command.tenant, command.subject));
    selector.Set("tenant", keys.Pseudonym(command.tenant));
  }
  return selector;
}

// At most kRangesOfLeaf ranges each.
std::vector<Ranges> Split(const Ranges& ranges) {
  std::vector<Ranges> parts;
  size_t n = 0;
  for (const auto& [first, last] : ranges.ranges()) {
    if (n++ % kRangesOfLeaf == 0) parts.emplace_back();
    parts.back().Add(first, last);
  }
  return parts;
}

}  // namespace

std::string SubjectPseudonym(const Keys& keys, std::string_view tenant, std::string_view subject) {
  std::string text("verbatim-subject-1");
  AppendU64(text, tenant.size());
  text += tenant;
  text += subject;
  return HexEncode(HmacSha256(keys.tenant_key, text)).substr(0, 32);
}

// An entry that a command leaves, and what its commit changes beside it.
struct Life::Effects {
  Kind kind = Kind::kErased;
  std::string outcome = "ok";
  json::Value detail;
  std::vector<Reference> references;
  std::string meta_prefix;
  std::vector<std::string> meta_removed, index_removed;
  Ranges erased;
};

Result<uint64_t> Life::Commit(const LifeCommand& command, Effects effects) {
  AppendRequest request;
  request.kind = effects.kind;
  request.outcome = std::move(effects.outcome);
  request.manifest = p_.manifest;
  request.references = std::move(effects.references);
  const std::string meta_value =
      effects.kind == Kind::kHeld ? json::Canonical(effects.detail) : std::string();
  request.detail = std::move(effects.detail);
  request.record.extra = json::Object{{"authority", command.authority},
                                      {"by", command.by},
                                      {"reason", command.reason},
                                      {"selector", SelectorJson(p_.reader.keys(), command)}};
  if (!command.backup.empty()) request.record.extra.Set("backup", command.backup);
  const auto promise = std::make_shared<std::promise<Result<Appended>>>();
  Result<PreparedAppend> prepared = PrepareAppend(
      std::move(request),
      [promise](Result<Appended> appended) { promise->set_value(std::move(appended)); });
  if (!prepared.ok()) return prepared.error();
  prepared->meta_prefix = std::move(effects.meta_prefix);
  prepared->meta_value = meta_value;
  prepared->meta_removed = std::move(effects.meta_removed);
  prepared->index_removed = std::move(effects.index_removed);
  prepared->erased = std::move(effects.erased);
  std::future<Result<Appended>> future = promise->get_future();
  p_.sequencer.Push(std::move(*prepared));
  Result<Appended> appended = future.get();
  if (!appended.ok()) return appended.error();
  return appended->entry;
}

// Whoever keeps a hit's keys in memory lets go of them, and every hit so far gets its leaf.
Status Life::EndHitInterval() {
  const auto promise = std::make_shared<std::promise<Result<Appended>>>();
  PreparedAppend barrier;
  barrier.barrier = true;
  barrier.done = [promise](Result<Appended> done) { promise->set_value(std::move(done)); };
  std::future<Result<Appended>> future = promise->get_future();
  p_.sequencer.Push(std::move(barrier));
  Result<Appended> done = future.get();
  return done.ok() ? Status() : done.error();
}

Result<LifeReport> Life::Apply(const LifeCommand& command) {
  std::lock_guard lock(mutex_);
  switch (command.verb) {
    case LifeCommand::Verb::kHold:
      return HoldRecords(command);
    case LifeCommand::Verb::kRelease:
      return ReleaseRecords(command);
    case LifeCommand::Verb::kShred:
      return Shred(command);
    case LifeCommand::Verb::kPrune:
      return Prune(command);
    case LifeCommand::Verb::kBackup:
      return NoteBackup(command);
  }
  CHECK(false);
}

std::string Life::Answer(std::string_view text) {
  Result<json::Value> value = json::Parse(text);
  Result<LifeCommand> command = value.ok() ? LifeCommandFromJson(*value) : value.error();
  Result<LifeReport> report = command.ok() ? Apply(*command) : Result<LifeReport>(command.error());
  if (report.ok()) return json::Canonical(json::Object{{"report", ToJson(*report)}});
  return json::Canonical(
      json::Object{{"error", json::Object{{"code", CodeName(report.error().code)},
                                          {"message", report.error().message}}}});
}

void Life::OnErased(std::function<void(const Ranges&)> forget) {
  std::lock_guard lock(forget_mutex_);
  forget_ = std::move(forget);
}

Result<LifeReport> Life::HoldRecords(const LifeCommand& command) {
  if (Status there = CheckEntries(command); !there.ok()) return there.error();
  Effects effects;
  effects.kind = Kind::kHeld;
  effects.detail = SelectorJson(p_.reader.keys(), command);
  effects.meta_prefix = kMetaHold;
  Result<uint64_t> entry = Commit(command, std::move(effects));
  if (!entry.ok()) return entry.error();
  LifeReport report;
  report.entry = *entry;
  if (command.entries) report.entries = command.entries->second - command.entries->first + 1;
  return report;
}

Result<LifeReport> Life::ReleaseRecords(const LifeCommand& command) {
  Result<std::vector<ActiveHold>> holds = ReadHolds(p_.kv);
  if (!holds.ok()) return holds.error();
  const std::string subject =
      command.subject.empty() ? ""
                              : SubjectPseudonym(p_.reader.keys(), command.tenant, command.subject);
  Ranges entries;
  if (command.entries) entries.Add(command.entries->first, command.entries->second);
  Effects effects;
  effects.kind = Kind::kReleased;
  for (const ActiveHold& hold : *holds) {
    if (hold.subject != subject || hold.entries.ranges() != entries.ranges()) continue;
    if (effects.references.size() == kRangesOfLeaf) break;  // the next call releases the rest
    effects.references.push_back({kReleases, hold.entry});
    effects.meta_removed.push_back(kMetaHold + EntryKey(hold.entry));
  }
  LifeReport report;
  report.entries = effects.references.size();
  if (effects.references.empty()) {
    return Error{Code::kNotFound,
                 "no hold in force is of exactly this; it is released as it was made, by the same "
                 "--entry, --range, or --subject and --tenant"};
  }
  Result<uint64_t> entry = Commit(command, std::move(effects));
  if (!entry.ok()) return entry.error();
  report.entry = *entry;
  return report;
}

Status Life::CheckEntries(const LifeCommand& command) const {
  if (!command.entries || command.entries->second < p_.sequencer.size()) return {};
  return Error{Code::kNotFound, "there is no entry " + std::to_string(command.entries->second) +
                                    "; the log has " + std::to_string(p_.sequencer.size())};
}

// A reader's snapshot holds the keys that are to be destroyed.
Status Life::CheckNoReaders() const {
  if (!SnapshotsInUse(p_.folder)) return {};
  return Error{Code::kUnavailable,
               "somebody reads a snapshot of this folder (fsck, export, backup); try again when "
               "that has ended"};
}

Result<LifeReport> Life::Shred(const LifeCommand& command) {
  if (Status there = CheckEntries(command); !there.ok()) return there.error();
  if (Status free = CheckNoReaders(); !free.ok()) return free.error();
  if (Status ended = EndHitInterval(); !ended.ok()) return ended.error();
  Result<std::vector<ActiveHold>> holds = ReadHolds(p_.kv);
  if (!holds.ok()) return holds.error();
  TargetCollector collector(p_.reader, std::move(*holds), p_.now());
  Result<Targets> targets =
      collector.Collect({command.entries, command.tenant, command.subject, std::nullopt});
  if (!targets.ok()) return targets.error();

  LifeReport report;
  report.held = targets->held.count();
  report.retained = targets->retained.count();
  const bool nothing = targets->entries.empty() && targets->slots.empty();
  if ((report.held > 0 || report.retained > 0) && (!command.partial || nothing)) {
    Effects refused;
    refused.outcome = report.outcome = report.held > 0 ? "held" : "retained";
    refused.detail = json::Object{
        {"refused", json::Object{{"held", report.held}, {"retained", report.retained}}}};
    Result<uint64_t> entry = Commit(command, std::move(refused));
    if (!entry.ok()) return entry.error();
    report.entry = *entry;
    return report;
  }
  if (nothing) return report;  // all of it is erased already, or there never was any
  report.entries = targets->entries.count();
  report.hits_slots = targets->slots.count();

  // The entries first; each can be completed by itself.
  const std::vector<Ranges> entries = Split(targets->entries), slots = Split(targets->slots);
  std::vector<std::pair<uint64_t, size_t>> said;
  for (size_t i = 0; i < std::max(entries.size(), slots.size()); ++i) {
    Effects effects;
    effects.detail = json::Value::MakeObject();
    if (i < entries.size()) effects.detail.Set("entries", entries[i].ToJson());
    if (i < slots.size()) effects.detail.Set("slots", slots[i].ToJson());
    effects.meta_prefix = kMetaErasing;
    if (i == 0) {
      effects.index_removed = targets->index_keys;
      effects.erased = targets->entries;
    }
    Result<uint64_t> entry = Commit(command, std::move(effects));
    if (!entry.ok()) return entry.error();
    report.entry = *entry;
    said.emplace_back(*entry, i);
  }
  for (const auto& [entry, i] : said) {
    const Status destroyed =
        Destroy(entry, i < entries.size() ? entries[i] : Ranges(),
                i < slots.size() ? slots[i] : Ranges(), false, &report.backups_not_reached);
    if (!destroyed.ok()) return destroyed.error();
  }
  return report;
}

Result<uint64_t> Life::EntryAtTime(int64_t time) const {
  uint64_t low = 0, high = p_.sequencer.size();
  while (low < high) {  // leaves' times never go back
    const uint64_t middle = low + (high - low) / 2;
    Result<EntryView> view = p_.reader.Entry(middle, false);
    if (!view.ok()) return view.error();
    if (view->leaf.time < time) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

Result<LifeReport> Life::Prune(const LifeCommand& command) {
  if (Status free = CheckNoReaders(); !free.ok()) return free.error();
  if (Status ended = EndHitInterval(); !ended.ok()) return ended.error();
  Result<uint64_t> before =
      command.before ? Result<uint64_t>(*command.before) : EntryAtTime(*command.before_time);
  if (!before.ok()) return before.error();
  if (*before > p_.sequencer.size()) {
    return Error{Code::kNotFound, "there is no entry " + std::to_string(*before - 1) +
                                      "; the log has " + std::to_string(p_.sequencer.size())};
  }
  Result<std::vector<ActiveHold>> holds = ReadHolds(p_.kv);
  if (!holds.ok()) return holds.error();
  TargetCollector collector(p_.reader, std::move(*holds), p_.now());
  Result<Targets> targets = collector.Collect({std::nullopt, "", "", *before});
  if (!targets.ok()) return targets.error();
  LifeReport report;
  report.before = *before;
  report.held = targets->held.count();
  report.retained = targets->retained.count();
  if (targets->entries.empty() && targets->slots.empty()) return report;
  Ranges kept;
  for (const Ranges* some : {&targets->held, &targets->retained, &targets->open_intents}) {
    for (const auto& [first, last] : some->ranges()) kept.Add(first, last);
  }
  if (kept.ranges().size() > kRangesOfLeaf) {
    return Error{Code::kFailedPrecondition,
                 "holds and retention leave more gaps than one entry can name; prune up to an "
                 "earlier entry"};
  }
  Effects effects;
  effects.kind = Kind::kPruned;
  effects.detail = json::Object{{"before", *before}, {"kept", kept.ToJson()}};
  effects.meta_prefix = kMetaErasing;
  effects.index_removed = targets->index_keys;
  effects.erased = targets->entries;
  Result<uint64_t> entry = Commit(command, std::move(effects));
  if (!entry.ok()) return entry.error();
  report.entry = *entry;
  report.entries = targets->entries.count();
  report.hits_slots = targets->slots.count();
  const Status destroyed =
      Destroy(*entry, targets->entries, targets->slots, true, &report.backups_not_reached);
  if (!destroyed.ok()) return destroyed.error();
  return report;
}

Result<LifeReport> Life::NoteBackup(const LifeCommand& command) {
  // Known before it is made, so that no erasure misses it.
  Result<std::string> known = ReadFile(p_.folder.backups());
  if (!known.ok() && known.error().code != Code::kNotFound) return known.error();
  const std::string list = known.ok() ? *known : std::string();
  const std::string line = command.backup + "\n";
  const bool is_known = ("\n" + list).find("\n" + line) != std::string::npos;
  // A known one is written again: the sync that followed it the last time may have failed.
  const Status written = WriteFileDurably(p_.folder.backups(), is_known ? list : list + line);
  if (!written.ok()) return written.error();
  if (Status ended = EndHitInterval(); !ended.ok()) return ended.error();
  Effects effects;
  effects.kind = Kind::kExported;
  effects.detail = json::Object{{"backup", true}};
  Result<uint64_t> entry = Commit(command, std::move(effects));
  if (!entry.ok()) return entry.error();
  LifeReport report;
  report.entry = *entry;
  report.entries = *entry + 1;
  return report;
}

Status Life::Complete() {
  std::lock_guard lock(mutex_);
  const std::string prefix = kMetaErasing;
  std::vector<uint64_t> pending;
  const Status scanned = p_.kv.Scan(Table::kMeta, prefix, PrefixEnd(prefix),
                                    [&](std::string_view key, std::string_view) {
                                      if (key.size() == prefix.size() + 8)
                                        pending.push_back(ReadU64(key.substr(prefix.size())));
                                      return true;
                                    });
  if (!scanned.ok()) return scanned;
  for (const uint64_t entry : pending) {
    Result<EntryView> view = p_.reader.Entry(entry, false);
    if (!view.ok()) return view.error();
    const json::Value& detail = view->leaf.detail;
    const bool prune = view->leaf.kind == Kind::kPruned;
    Targets targets;
    if (prune) {
      Result<Ranges> kept = Ranges::FromMember(detail, "kept");
      const json::Value* before = detail.Find("before");
      if (!kept.ok() || !before || !before->AsUint64()) {
        return Error{Code::kCorrupt, "entry " + std::to_string(entry) + " is no pruning"};
      }
      Result<Targets> pruned =
          TargetCollector(p_.reader, {}, p_.now()).Pruned(*before->AsUint64(), *kept);
      if (!pruned.ok()) return pruned.error();
      targets = std::move(*pruned);
    } else {
      Result<Ranges> entries = Ranges::FromMember(detail, "entries");
      Result<Ranges> slots = Ranges::FromMember(detail, "slots");
      if (!entries.ok()) return entries.error();
      if (!slots.ok()) return slots.error();
      targets.entries = std::move(*entries);
      targets.slots = std::move(*slots);
    }
    LogInfo("ledger: completing the erasure of entry " + std::to_string(entry));
    const Status destroyed = Destroy(entry, targets.entries, targets.slots, prune, nullptr);
    if (!destroyed.ok()) return destroyed;
  }
  return {};
}

Status Life::Destroy(uint64_t entry, const Ranges& entries, const Ranges& slots, bool prune,
                     std::vector<std::string>* not_reached) {
  {
    std::lock_guard lock(forget_mutex_);
    if (forget_) forget_(entries);
  }
  const Signer& signer = *p_.reader.keys().signer;
  const Erasure erasure{entry, signer.key().name, entries, slots};
  if (Status said = AddErasure(p_.folder.erasures(), erasure, signer); !said.ok()) return said;
  if (Status erased = p_.entry_keys.Erase(entries); !erased.ok()) return erased;
  if (Status erased = p_.hit_keys.Erase(slots); !erased.ok()) return erased;
  if (prune) {
    if (Status removed = RemoveRows(entries); !removed.ok()) return removed;
  }
  EraseInBackups(erasure, not_reached);
  Batch done;
  done.Delete(Table::kMeta, kMetaErasing + EntryKey(entry));
  return CommitRows(done);
}

// Beside the sequencer's commits, so that it does not learn of a failure by itself.
Status Life::CommitRows(const Batch& batch) {
  const Status committed = p_.kv.Commit(batch, true);
  if (!committed.ok()) p_.sequencer.RequestRecovery();
  return committed;
}

// Records and payloads, and of batches of hits the sealed records; the commitments stay.
Status Life::RemoveRows(const Ranges& entries) {
  Batch batch;
  Status problem;
  const auto flush = [&](size_t rows) {
    if (batch.writes().size() < rows || batch.empty()) return true;
    problem = CommitRows(batch);
    batch = Batch();
    return problem.ok();
  };
  entries.ForEach([&](uint64_t entry) {
    batch.Delete(Table::kRecord, EntryKey(entry));
    for (const Part part : {Part::kRequest, Part::kResponse, Part::kTrace}) {
      batch.Delete(Table::kPayload, PayloadKey(entry, part));
    }
    return flush(kRowsOfBatch);
  });
  if (!problem.ok()) return problem;
  std::vector<std::string> batches;
  const Status scanned =
      p_.kv.Scan(Table::kHitBatch, "", "", [&](std::string_view key, std::string_view value) {
        Result<uint64_t> entry = DecodeU64(value);
        if (entry.ok() && entries.Contains(*entry)) batches.emplace_back(key);
        return true;
      });
  if (!scanned.ok()) return scanned;
  for (const std::string& key : batches) {
    const Status stripped = p_.kv.Scan(
        Table::kHit, key, PrefixEnd(key), [&](std::string_view row_key, std::string_view value) {
          Result<HitRow> row = DecodeHitRow(value);
          if (!row.ok() || row->sealed.empty()) return true;  // fsck names it, or it is done
          row->sealed.clear();
          batch.Put(Table::kHit, std::string(row_key), EncodeHitRow(*row));
          return true;
        });
    if (!stripped.ok()) return stripped;
    if (!flush(kRowsOfBatch)) return problem;
  }
  flush(0);
  return problem;
}

// A backup that is not there now gets the erasure when it is restored (its own log of erasures, or
// one that is given then).
void Life::EraseInBackups(const Erasure& erasure, std::vector<std::string>* not_reached) {
  Result<std::string> list = ReadFile(p_.folder.backups());
  if (!list.ok()) return;
  const Keys& keys = p_.reader.keys();
  std::string_view rest = *list;
  while (!rest.empty()) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    const std::string path(rest.substr(0, end));
    rest.remove_prefix(std::min(end + 1, rest.size()));
    const DataFolder backup = DataFolder::Unlocked(path);
    Status done = AddErasure(backup.erasures(), erasure, *keys.signer);
    for (const auto& [name, slots] :
         {std::pair("entries", &erasure.entries), std::pair("hits", &erasure.slots)}) {
      if (!done.ok()) break;
      Result<std::unique_ptr<Keyring>> ring =
          Keyring::Open(backup.keyring() + "/" + name, name, *keys.wrapper, false);
      done = ring.ok() ? (*ring)->Erase(*slots) : Status(ring.error());
    }
    if (done.ok()) continue;
    LogWarning("ledger: the erasure of entry " + std::to_string(erasure.entry) +
               " was not carried out in the backup " + path + ": " + done.error().message);
    if (not_reached) not_reached->push_back(path);
  }
}

}  // namespace verbatim::store
