#include "store/hits.h"

#include <algorithm>
#include <limits>
#include <utility>

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
  closed_.clear();
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
        if (left.empty() || left.back().key != batch) left.push_back({std::string(batch)});
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

std::vector<Status> Hits::Record(std::span<const HitRequest> hits, int64_t now) {
  std::vector<Placed> placed(hits.size());
  for (size_t i = 0; i < hits.size(); ++i) {
    const HitRequest& hit = hits[i];
    placed[i].bytes = EncodeHitRecord({hit.kind, hit.tenant, hit.subject, hit.key_id,
                                       hit.request_id, hit.result, now, hit.extra});
    placed[i].digest = Sha256(placed[i].bytes);
  }
  const std::string nonces = RandomBytes(hits.size() * kNonceBytes);

  std::vector<Status> statuses(hits.size());
  std::lock_guard lock(mutex_);
  RequestIds ids;
  for (size_t i = 0; i < hits.size(); ++i) {
    const auto nonce = std::string_view(nonces).substr(i * kNonceBytes, kNonceBytes);
    statuses[i] = Place(hits[i], placed[i], nonce, ids);
  }
  // One table after the other, since the database inserts fastest what comes in order.
  Batch writes;
  for (size_t i = 0; i < hits.size(); ++i) {
    if (!placed[i].batch || hits[i].request_id.empty()) continue;
    writes.Put(Table::kReceipt, hits[i].request_id,
               EncodeReceiptRow({placed[i].batch->pseudonym, 0, placed[i].key}));
  }
  for (Placed& p : placed) {
    if (p.batch) writes.Put(Table::kHit, std::move(p.key), std::move(p.row));
  }
  const Status written = writes.empty() ? Status() : kv_.Commit(writes, false);
  for (size_t i = 0; i < hits.size(); ++i) {
    OpenBatch* batch = placed[i].batch;
    if (!batch) continue;
    statuses[i] = written;
    if (batch->from == 0) batch->from = now;
    batch->to = std::max(batch->to, now);
    if (!written.ok()) batch->tree.reset();
    if (batch->tree) batch->tree->Append(LeafHash(AsBytes(placed[i].commitment)), nullptr);
  }
  if (!written.ok()) EndInterval();
  return statuses;
}

// Gives the hit the next number of its batch, or changes nothing.
Status Hits::Place(const HitRequest& hit, Placed& placed, std::string_view nonce,
                   RequestIds& group) {
  OpenBatch& batch = BatchOf(hit.tenant);
  CHECK(batch.count < std::numeric_limits<uint32_t>::max());
  if (Status owned = CheckRequestId(hit, batch.pseudonym, group); !owned.ok()) return owned;
  Result<OpenBatch::Slot*> slot = SlotOf(batch, hit.subject);
  if (!slot.ok()) return slot.error();
  placed.key = HitKey(next_.interval, batch.pseudonym, batch.count);
  const SlotKeys keys = (*slot)->keys.Derive(placed.key);
  placed.commitment = Commitment(keys.salt, placed.digest);
  placed.row = EncodeHitRow({(*slot)->number, placed.commitment,
                             SealPart(keys.key, next_.interval, Part::kHit, placed.bytes, nonce)});
  placed.batch = &batch;
  ++batch.count;
  return {};
}

Hits::OpenBatch& Hits::BatchOf(const std::string& tenant) {
  OpenBatch& batch = open_[tenant];
  if (batch.pseudonym.empty()) batch.pseudonym = PseudonymBytes(keys_.Pseudonym(tenant));
  return batch;
}

Result<Hits::OpenBatch::Slot*> Hits::SlotOf(OpenBatch& batch, const std::string& subject) {
  if (const auto at = batch.slots.find(subject); at != batch.slots.end()) return &at->second;
  if (Status prepared = ring_.Prepare(next_.slot); !prepared.ok()) return prepared.error();
  Result<SlotKeys> keys = ring_.Get(next_.slot);
  if (!keys.ok()) return keys.error();
  OpenBatch::Slot slot{next_.slot++, HitKeyDeriver(*keys)};
  return &batch.slots.emplace(subject, std::move(slot)).first->second;
}

// Nobody gets another tenant's receipt by sending its request id.
Status Hits::CheckRequestId(const HitRequest& hit, const std::string& pseudonym,
                            RequestIds& group) {
  if (hit.request_id.empty() || hit.new_request_id) return {};
  std::string owner = pseudonym;
  if (const auto at = group.emplace(hit.request_id, pseudonym); !at.second) {
    owner = at.first->second;
  } else {
    Result<std::optional<std::string>> taken = kv_.Get(Table::kReceipt, hit.request_id);
    if (!taken.ok()) return taken.error();
    if (*taken) {
      Result<ReceiptRow> row = DecodeReceiptRow(**taken);
      if (!row.ok()) return row.error();
      owner = row->pseudonym;
    }
  }
  if (owner == pseudonym) return {};
  return Error{Code::kAlreadyExists, "the request id is taken; send another one"};
}

std::vector<ClosedBatch> Hits::CloseInterval() {
  std::lock_guard lock(mutex_);
  EndInterval();
  return std::exchange(closed_, {});
}

void Hits::EndInterval() {
  if (open_.empty()) return;
  for (const auto& [tenant, batch] : open_) {
    ClosedBatch closed{HitBatchKey(next_.interval, batch.pseudonym), batch.from, batch.to};
    if (batch.tree) {
      closed.sum = {.count = batch.tree->size(), .root = batch.tree->Root()};
      for (const auto& [subject, slot] : batch.slots) {
        closed.sum->slots_end = std::max(closed.sum->slots_end, slot.number + 1);
      }
    }
    closed_.push_back(std::move(closed));
  }
  open_.clear();
  ++next_.interval;
}

void Hits::Distrust() {
  std::lock_guard lock(mutex_);
  for (auto& [tenant, batch] : open_) batch.tree.reset();
  for (ClosedBatch& batch : closed_) batch.sum.reset();
}

HitCounters Hits::counters() const {
  std::lock_guard lock(mutex_);
  return next_;
}

}  // namespace verbatim::store
