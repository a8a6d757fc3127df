#include "store/life_targets.h"

#include <limits>

#include "store/intents.h"
#include "store/life.h"
#include "store/rows.h"

namespace verbatim::store {
namespace {

constexpr char kVerifies[] = "verifies";

}  // namespace

Result<std::vector<ActiveHold>> ReadHolds(const Kv& kv) {
  std::vector<ActiveHold> holds;
  const std::string prefix = kMetaHold;
  Status problem;
  const Status scanned = kv.Scan(
      Table::kMeta, prefix, PrefixEnd(prefix), [&](std::string_view key, std::string_view value) {
        Result<json::Value> detail = json::Parse(value);
        Result<Ranges> entries =
            detail.ok() ? Ranges::FromMember(*detail, "entries") : detail.error();
        if (key.size() != prefix.size() + 8 || !entries.ok()) {
          problem = Error{Code::kCorrupt, "a row of legal holds is damaged; run verbatim fsck"};
          return false;
        }
        ActiveHold hold{ReadU64(key.substr(prefix.size())), std::move(*entries), {}};
        const json::Value* subject = detail->Find("subject");
        if (subject && subject->is_string()) hold.subject = subject->as_string();
        holds.push_back(std::move(hold));
        return true;
      });
  if (!scanned.ok()) return scanned.error();
  if (!problem.ok()) return problem.error();
  return holds;
}

Result<Targets> TargetCollector::Collect(const Selection& selection) {
  if (Status read = ReadBatches(); !read.ok()) return read.error();
  if (selection.before) {
    Result<std::vector<OpenIntent>> open = ReadOpenIntents(reader_.kv(), 0);
    if (!open.ok()) return open.error();
    for (const OpenIntent& intent : *open) intents_.insert(intent.entry);
  }
  if (Status read = CollectEntries(selection); !read.ok()) return read.error();
  if (!selection.subject.empty()) {
    if (Status read = CollectSubjectHits(selection); !read.ok()) return read.error();
  }
  return std::move(targets_);
}

Result<Targets> TargetCollector::Pruned(uint64_t before, const Ranges& kept) {
  if (Status read = ReadBatches(); !read.ok()) return read.error();
  Status problem;
  const Status scanned = reader_.kv().Scan(
      Table::kLeaf, "", EntryKey(before), [&](std::string_view key, std::string_view bytes) {
        const uint64_t entry = ReadU64(key);
        Result<Leaf> leaf = ParseLeaf(bytes);
        if (!leaf.ok()) {
          problem = leaf.error();
          return false;
        }
        if (leaf->tenant.empty() || kept.Contains(entry)) return true;
        targets_.entries.Add(entry);
        if (const auto batch = batches_.find(entry); batch != batches_.end()) {
          const std::string& batch_key = batch->second;
          problem = reader_.kv().Scan(Table::kHit, batch_key, PrefixEnd(batch_key),
                                      [&](std::string_view, std::string_view value) {
                                        Result<HitRow> row = DecodeHitRow(value);
                                        if (row.ok()) targets_.slots.Add(row->slot);
                                        return true;
                                      });
          if (!problem.ok()) return false;
        }
        return true;
      });
  if (!scanned.ok()) return scanned.error();
  if (!problem.ok()) return problem.error();
  return std::move(targets_);
}

Status TargetCollector::ReadBatches() {
  Status problem;
  const Status scanned = reader_.kv().Scan(Table::kHitBatch, "", "",
                                           [&](std::string_view key, std::string_view value) {
                                             Result<uint64_t> entry = DecodeU64(value);
                                             if (!entry.ok()) problem = entry.error();
                                             if (entry.ok()) batches_[*entry] = std::string(key);
                                             return entry.ok();
                                           });
  return scanned.ok() ? problem : scanned;
}

Status TargetCollector::CollectEntries(const Selection& selection) {
  const std::string begin = selection.entries ? EntryKey(selection.entries->first) : "";
  const std::string end = selection.before ? EntryKey(*selection.before) : "";
  Status problem;
  const auto visit = [&](std::string_view key, std::string_view bytes) {
    const uint64_t entry = ReadU64(key);
    Result<Leaf> leaf = ParseLeaf(bytes);
    if (!leaf.ok()) {
      problem = Error{Code::kCorrupt, "entry " + std::to_string(entry) +
                                          " is damaged; run verbatim fsck and restore a backup"};
      return false;
    }
    problem = Consider(entry, *leaf, selection);
    return problem.ok();
  };
  if (selection.before == 0u) return {};
  const Status scanned = reader_.kv().Scan(Table::kLeaf, begin, end, visit);
  return scanned.ok() ? problem : scanned;
}

Status TargetCollector::Consider(uint64_t entry, const Leaf& leaf, const Selection& selection) {
  if (leaf.tenant.empty() || selected_.Contains(entry)) return {};
  Protection protection;
  bool belongs = selection.before.has_value();
  if (selection.entries) {
    belongs = entry >= selection.entries->first && entry <= selection.entries->second;
  }
  for (const Reference& reference : leaf.references) {
    if (reference.relation != kVerifies) continue;
    belongs |= selected_.Contains(reference.entry);
    protection.held |= targets_.held.Contains(reference.entry);
    protection.retained |= targets_.retained.Contains(reference.entry);
  }
  const bool of_tenant =
      !selection.subject.empty() && leaf.tenant == reader_.keys().Pseudonym(selection.tenant);
  if (!belongs && !of_tenant) return {};

  Result<SlotKeys> keys = reader_.entry_keys().Get(entry);
  const bool erased = !keys.ok() && keys.error().code == Code::kNotFound;
  if (!keys.ok() && !erased) return keys.error();
  if (erased) {
    if (belongs) selected_.Add(entry);
    return {};
  }
  Result<Record> record = reader_.OpenRecord(entry, leaf, *keys);
  if (!record.ok()) return record.error();
  belongs |=
      of_tenant && record->tenant == selection.tenant && record->subject == selection.subject;
  if (!belongs) return {};
  selected_.Add(entry);
  if (selection.before && intents_.contains(entry)) {
    targets_.open_intents.Add(entry);
    return {};
  }
  protection.Add(
      ProtectionOf(entry, SubjectPseudonym(reader_.keys(), record->tenant, record->subject)));
  protection.retained |= IsRetained(record->extra, leaf.time);
  if (const auto batch = batches_.find(entry); batch != batches_.end()) {
    Result<std::map<uint64_t, Protection>> slots = ReadBatch(batch->second, entry);
    if (!slots.ok()) return slots.error();
    for (const auto& [slot, of_slot] : *slots) {
      protection.Add(of_slot);
      if (!of_slot.any()) targets_.slots.Add(slot);
    }
    // Pruning leaves a batch whole.
    if (selection.before && protection.any()) {
      Ranges others;
      targets_.slots.ForEach([&](uint64_t slot) {
        if (!slots->contains(slot)) others.Add(slot);
        return true;
      });
      targets_.slots = std::move(others);
    }
  }
  if (protection.held) targets_.held.Add(entry);
  if (protection.retained) targets_.retained.Add(entry);
  if (!protection.any()) {
    targets_.entries.Add(entry);
    if (record->serves_hits && record->fingerprint) {
      targets_.index_keys.push_back(
          reader_.keys().IndexKey(record->name_space, *IndexedBy(*record)));
    }
  }
  return ConsiderIntents(leaf, selection);
}

// What was received stands in the intent, too.
Status TargetCollector::ConsiderIntents(const Leaf& leaf, const Selection& selection) {
  for (const Reference& reference : leaf.references) {
    if (reference.relation != kIntentRelation || selected_.Contains(reference.entry)) continue;
    Result<EntryView> view = reader_.Entry(reference.entry, false);
    if (!view.ok()) return view.error();
    Selection alone = selection;
    if (!selection.before) {
      alone = Selection{.entries = std::pair(reference.entry, reference.entry),
                        .tenant = {},
                        .subject = {},
                        .before = std::nullopt};
    } else if (reference.entry >= *selection.before) {
      continue;
    }
    if (Status s = Consider(reference.entry, view->leaf, alone); !s.ok()) return s;
  }
  return {};
}

TargetCollector::Protection TargetCollector::ProtectionOf(uint64_t entry,
                                                          const std::string& subject) const {
  Protection protection;
  for (const ActiveHold& hold : holds_) {
    protection.held |= hold.entries.Contains(entry);
    protection.held |= !hold.subject.empty() && hold.subject == subject;
  }
  return protection;
}

bool TargetCollector::IsRetained(const json::Value& extra, int64_t time) const {
  const json::Value* value = extra.is_object() ? extra.Find("retention_seconds") : nullptr;
  const std::optional<uint64_t> seconds = value ? value->AsUint64() : std::nullopt;
  if (!seconds || now_ < time) return seconds.value_or(0) > 0;
  return *seconds > static_cast<uint64_t>(now_ - time) / 1'000'000;
}

Result<std::map<uint64_t, TargetCollector::Protection>> TargetCollector::ReadBatch(
    const std::string& key, uint64_t entry) {
  std::map<uint64_t, Protection> slots;
  std::set<uint64_t> others;
  Status problem;
  const Status scanned = reader_.kv().Scan(
      Table::kHit, key, PrefixEnd(key), [&](std::string_view row_key, std::string_view value) {
        Result<HitRow> row = DecodeHitRow(value);
        problem =
            row.ok() ? AddRow(row_key, *row, entry, nullptr, slots, others) : Status(row.error());
        return problem.ok();
      });
  if (!scanned.ok()) return scanned.error();
  if (!problem.ok()) return problem.error();
  return slots;
}

// The row's slot, with what protects its hits: where `subject` is given, only if it is that one's.
Status TargetCollector::AddRow(std::string_view key, const HitRow& row, uint64_t entry,
                               const std::string* subject, std::map<uint64_t, Protection>& slots,
                               std::set<uint64_t>& others) {
  if (others.contains(row.slot)) return {};
  Result<std::vector<OpenedHit>> hits = reader_.OpenHits(key, row);
  if (!hits.ok() && hits.error().code == Code::kNotFound) return {};  // erased
  if (!hits.ok()) return hits.error();
  for (const OpenedHit& hit : *hits) {
    const std::string pseudonym =
        SubjectPseudonym(reader_.keys(), hit.record.tenant, hit.record.subject);
    if (subject && pseudonym != *subject) {
      others.insert(row.slot);
      return {};
    }
    Protection& protection = slots[row.slot];
    protection.Add(ProtectionOf(entry, pseudonym));
    protection.retained |= IsRetained(hit.record.extra, hit.record.time);
  }
  return {};
}

Status TargetCollector::CollectSubjectHits(const Selection& selection) {
  const std::string tenant = PseudonymBytes(reader_.keys().Pseudonym(selection.tenant));
  const std::string subject = SubjectPseudonym(reader_.keys(), selection.tenant, selection.subject);
  std::map<std::string, uint64_t, std::less<>> entries;
  for (const auto& [entry, key] : batches_) entries[key] = entry;
  std::map<uint64_t, Protection> slots;
  std::map<uint64_t, uint64_t> entry_of;  // slot -> its batch's
  std::set<uint64_t> others;
  Status problem;
  const Status scanned =
      reader_.kv().Scan(Table::kHit, "", "", [&](std::string_view key, std::string_view value) {
        if (key.size() != kHitKeyBytes || key.substr(8, 16) != tenant) return true;
        const auto batch = entries.find(key.substr(0, kHitBatchKeyBytes));
        if (batch == entries.end()) return true;  // recorded since the command began
        Result<HitRow> row = DecodeHitRow(value);
        problem = row.ok() ? AddRow(key, *row, batch->second, &subject, slots, others)
                           : Status(row.error());
        if (row.ok()) entry_of[row->slot] = batch->second;
        return problem.ok();
      });
  if (!scanned.ok()) return scanned;
  if (!problem.ok()) return problem;
  for (const auto& [slot, protection] : slots) {
    if (protection.held) targets_.held.Add(entry_of[slot]);
    if (protection.retained) targets_.retained.Add(entry_of[slot]);
    if (!protection.any()) targets_.slots.Add(slot);
  }
  return {};
}

}  // namespace verbatim::store
