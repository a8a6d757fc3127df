#include "store/hits.h"

#include <algorithm>
#include <limits>

#include "base/crypto.h"

namespace verbatim::store {

Result<std::vector<ClosedBatch>> Hits::Restore() {
  std::lock_guard lock(mutex_);
  Result<std::optional<std::string>> stored = kv_.Get(Table::kMeta, kMetaInterval);
  if (!stored.ok()) return stored.error();
  next_ = {};
  if (*stored) {
    Result<HitCounters> counters = DecodeHitCounters(**stored);
    if (!counters.ok()) return counters.error();
    next_ = *counters;
    if (next_.slot > ring_.End()) {
      return Error{Code::kFailedPrecondition,
                   "the hits' keyring is older than the database: restore both from one backup"};
    }
  }
  open_.clear();
  std::vector<ClosedBatch> left;
  Status problem;
  std::string begin;
  AppendU64(begin, next_.interval);
  const Status scanned =
      kv_.Scan(Table::kHit, begin, "", [&](std::string_view key, std::string_view value) {
        Result<HitRow> row = DecodeHitRow(value);
        if (key.size() != kHitKeyBytes || !row.ok() || ReadU64(key) >= kMaxHitNumber ||
            row->slot >= ring_.End()) {
          problem = Error{Code::kCorrupt, "a row of hits is damaged; run verbatim fsck"};
          return false;
        }
        next_.interval = std::max(next_.interval, ReadU64(key) + 1);
        next_.slot = std::max(next_.slot, row->slot + 1);
        const std::string_view batch = key.substr(0, kHitBatchKeyBytes);
        if (left.empty() || left.back().key != batch) left.push_back({std::string(batch), 0, 0});
        return true;
      });
  if (!scanned.ok()) return scanned.error();
  if (!problem.ok()) return problem.error();
  // A batch with its leaf is closed although the counters do not say so.
  std::vector<ClosedBatch> open;
  for (ClosedBatch& batch : left) {
    Result<std::optional<std::string>> entry = kv_.Get(Table::kHitBatch, batch.key);
    if (!entry.ok()) return entry.error();
    if (!*entry) open.push_back(std::move(batch));
  }
  return open;
}

Status Hits::Record(const HitRequest& hit, int64_t now) {
  HitRecord record{hit.kind,       hit.tenant, hit.subject, hit.key_id,
                   hit.request_id, hit.result, now,         hit.extra};
  const std::string bytes = EncodeHitRecord(record);
  const Digest digest = Sha256(bytes);
  const std::string pseudonym = PseudonymBytes(keys_.Pseudonym(hit.tenant));

  std::lock_guard lock(mutex_);
  if (!hit.request_id.empty()) {
    Result<std::optional<std::string>> taken = kv_.Get(Table::kReceipt, hit.request_id);
    if (!taken.ok()) return taken.error();
    if (*taken) {
      Result<ReceiptRow> owner = DecodeReceiptRow(**taken);
      if (!owner.ok()) return owner.error();
      if (owner->pseudonym != pseudonym) {
        return Error{Code::kAlreadyExists, "the request id is taken; send another one"};
      }
    }
  }
  OpenBatch& batch = open_[pseudonym];
  CHECK(batch.count < std::numeric_limits<uint32_t>::max());
  auto slot = batch.slots.find(hit.subject);
  if (slot == batch.slots.end()) {
    if (Status prepared = ring_.Prepare(next_.slot); !prepared.ok()) return prepared;
    slot = batch.slots.emplace(hit.subject, next_.slot++).first;
  }
  Result<SlotKeys> slot_keys = ring_.Get(slot->second);
  if (!slot_keys.ok()) return slot_keys.error();
  const std::string key = HitKey(next_.interval, pseudonym, batch.count);
  const SlotKeys keys = DeriveHitKeys(*slot_keys, key);
  Batch writes;
  writes.Put(Table::kHit, key,
             EncodeHitRow({slot->second, Commitment(keys.salt, digest),
                           SealPart(keys.key, next_.interval, Part::kHit, bytes)}));
  if (!hit.request_id.empty()) {
    writes.Put(Table::kReceipt, hit.request_id, EncodeReceiptRow({pseudonym, 0, key}));
  }
  if (Status written = kv_.Commit(writes, false); !written.ok()) return written;
  if (batch.count++ == 0) batch.from = now;
  batch.to = std::max(batch.to, now);
  return {};
}

std::vector<ClosedBatch> Hits::CloseInterval() {
  std::lock_guard lock(mutex_);
  std::vector<ClosedBatch> closed;
  if (open_.empty()) return closed;
  for (const auto& [pseudonym, batch] : open_) {
    closed.push_back({HitBatchKey(next_.interval, pseudonym), batch.from, batch.to});
  }
  open_.clear();
  ++next_.interval;
  return closed;
}

HitCounters Hits::counters() const {
  std::lock_guard lock(mutex_);
  return next_;
}

}  // namespace verbatim::store
