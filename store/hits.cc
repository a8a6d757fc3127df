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
  std::vector<std::string> records(hits.size());
  std::vector<Digest> digests(hits.size());
  for (size_t i = 0; i < hits.size(); ++i) {
    const HitRequest& hit = hits[i];
    records[i] = EncodeHitRecord({hit.kind, hit.tenant, hit.subject, hit.key_id, hit.request_id,
                                  hit.result, now, hit.extra});
    digests[i] = Sha256(records[i]);
  }

  std::vector<Status> statuses(hits.size());
  std::lock_guard lock(mutex_);
  const std::vector<size_t> order = Sorted(hits, statuses);
  std::vector<NewRow> rows;
  for (size_t i = 0; i < order.size();) {
    const HitRequest& first = hits[order[i]];
    Result<NewRow> row = OpenRow(first.tenant, first.subject);
    for (; i < order.size() && (!row.ok() || row->hits.size() < kMaxHitsOfRow); ++i) {
      const HitRequest& hit = hits[order[i]];
      if (hit.tenant != first.tenant || hit.subject != first.subject) break;
      if (!row.ok()) {
        statuses[order[i]] = row.error();
        continue;
      }
      AddToRow(*row, order[i], digests[order[i]], std::move(records[order[i]]));
    }
    if (row.ok()) rows.push_back(std::move(*row));
  }
  // One table after the other, since the database inserts fastest what comes in order.
  Batch writes;
  for (const NewRow& row : rows) {
    for (size_t place = 0; place < row.hits.size(); ++place) {
      const std::string& id = hits[row.hits[place]].request_id;
      if (id.empty()) continue;
      writes.Put(Table::kReceipt, id,
                 EncodeReceiptRow({"", 0, row.key, static_cast<uint16_t>(place)}));
    }
  }
  for (NewRow& row : rows) {
    row.values.sealed = SealPart(row.slot->keys.KeyOfRow(row.key), next_.interval, Part::kHit,
                                 JoinHitRecords(row.records));
    writes.Put(Table::kHit, row.key, EncodeHitRow(row.values));
  }
  const Status written = writes.empty() ? Status() : kv_.Commit(writes, false);
  for (const NewRow& row : rows) {
    OpenBatch& batch = *row.batch;
    batch.from = batch.from == 0 ? now : std::min(batch.from, now);
    batch.to = std::max(batch.to, now);
    if (!written.ok()) batch.tree.reset();
    for (const Digest& commitment : row.values.commitments) {
      if (batch.tree) batch.tree->Append(LeafHash(AsBytes(commitment)), nullptr);
    }
    for (const size_t hit : row.hits) statuses[hit] = written;
  }
  if (!written.ok()) EndInterval();
  return statuses;
}

// The hits that can be recorded, by tenant and subject and then as they came. The others get why
// not into their status.
std::vector<size_t> Hits::Sorted(std::span<const HitRequest> hits, std::vector<Status>& statuses) {
  std::vector<size_t> order;
  order.reserve(hits.size());
  RequestIds ids;
  for (size_t i = 0; i < hits.size(); ++i) {
    statuses[i] = CheckRequestId(hits[i], ids);
    if (statuses[i].ok()) order.push_back(i);
  }
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    const int tenants = hits[a].tenant.compare(hits[b].tenant);
    return tenants != 0 ? tenants < 0 : hits[a].subject < hits[b].subject;
  });
  return order;
}

// A row at the next number of the tenant's batch, without hits yet.
Result<Hits::NewRow> Hits::OpenRow(const std::string& tenant, const std::string& subject) {
  OpenBatch& batch = BatchOf(tenant);
  Result<OpenBatch::Slot*> slot = SlotOf(batch, subject);
  if (!slot.ok()) return slot.error();
  NewRow row;
  row.batch = &batch;
  row.slot = *slot;
  row.key = HitKey(next_.interval, batch.pseudonym, batch.count);
  row.values.slot = (*slot)->number;
  return row;
}

// Gives the hit the next number of the row's batch.
void Hits::AddToRow(NewRow& row, size_t hit, const Digest& digest, std::string record) {
  OpenBatch& batch = *row.batch;
  CHECK(batch.count < std::numeric_limits<uint32_t>::max());
  const std::string key = HitKey(next_.interval, batch.pseudonym, batch.count++);
  row.values.commitments.push_back(Commitment(row.slot->keys.SaltOfHit(key), digest));
  row.records.push_back(std::move(record));
  row.hits.push_back(hit);
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
Status Hits::CheckRequestId(const HitRequest& hit, RequestIds& group) {
  if (hit.request_id.empty() || hit.new_request_id) return {};
  const std::string& pseudonym = BatchOf(hit.tenant).pseudonym;
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
