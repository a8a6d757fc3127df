#include "store/sequencer.h"

#include <algorithm>
#include <chrono>
#include <initializer_list>
#include <limits>
#include <set>

#include "base/clock.h"
#include "base/crypto.h"
#include "base/log.h"
#include "store/rows.h"

namespace verbatim::store {
namespace {

constexpr size_t kMaxGroupEntries = 256;
constexpr size_t kMaxGroupBytes = size_t{32} << 20;
constexpr size_t kMaxPayloadBytes = size_t{256} << 20;
constexpr size_t kMaxRequestIdBytes = 256;
constexpr size_t kMaxPseudonyms = 1024;
constexpr int64_t kClockTolerance = 1'000'000;  // microseconds that a clock may step back unnoticed
constexpr int64_t kRecoveryInterval = 200'000;  // microseconds between attempts

Error Invalid(const std::string& what) { return {Code::kInvalid, "ledger: " + what}; }

bool IsHexDigestOrEmpty(const std::string& text) {
  if (text.empty()) return true;
  Result<Digest> digest = HexDecodeDigest(text);
  return digest.ok() && HexEncode(*digest) == text;
}

Status CheckRequest(const AppendRequest& request) {
  const Record& record = request.record;
  for (const std::string* text :
       {&request.numerics, &request.outcome, &record.tenant, &record.subject, &record.key_id,
        &record.request_id, &record.endpoint, &record.name_space}) {
    if (!IsUtf8(*text)) return Invalid("a text of the entry is not UTF-8");
  }
  if (!IsHexDigestOrEmpty(request.model) || !IsHexDigestOrEmpty(request.manifest)) {
    return Invalid("model and manifest are SHA-256 digests in lower-case hexadecimal");
  }
  if (record.request_id.size() > kMaxRequestIdBytes) {
    return Invalid("a request id has at most 256 bytes");
  }
  if (record.created < 0) return Invalid("created is before 1970");
  for (const json::Value* value :
       {&request.detail, &record.backend, &record.parameters, &record.usage, &record.timings,
        &record.response, &record.extra}) {
    if (!value->is_null() && !value->is_object()) return Invalid("a part of it is no JSON object");
  }
  for (const std::string* payload : {&request.request, &request.response, &request.trace}) {
    if (payload->size() > kMaxPayloadBytes) return Invalid("a payload is over 256 MiB");
  }
  if ((request.kind == Kind::kIntent) != request.opens_intent ||
      (request.opens_intent && request.closes_intent)) {
    return Invalid("an intent opens itself and nothing else does, and it ends no other");
  }
  if (request.kind == Kind::kInterrupted && !request.closes_intent) {
    return Invalid("what is interrupted is an intent");
  }
  if (record.serves_hits &&
      (!record.fingerprint || record.name_space.empty() || request.response.empty())) {
    return Invalid("what serves hits has a namespace, a fingerprint and a response");
  }
  return {};
}

std::optional<Digest> DigestOf(const std::string& bytes) {
  if (bytes.empty()) return std::nullopt;
  return Sha256(bytes);
}

// An entry of the server's own: public facts, and a record that only makes its commitment.
PreparedAppend OwnEntry(Kind kind, const std::string& manifest, json::Value detail) {
  AppendRequest request;
  request.kind = kind;
  request.manifest = manifest;
  request.detail = std::move(detail);
  Result<PreparedAppend> prepared = PrepareAppend(std::move(request), nullptr);
  CHECK(prepared.ok());
  return std::move(*prepared);
}

}  // namespace

Result<PreparedAppend> PrepareAppend(AppendRequest request, Ledger::AppendCallback done) {
  if (Status checked = CheckRequest(request); !checked.ok()) return checked.error();
  PreparedAppend append;
  request.record.request_digest = DigestOf(request.request);
  request.record.output_digest = DigestOf(request.response);
  request.record.trace_digest = DigestOf(request.trace);
  if (request.renews) {
    json::Value& extra = request.record.extra;
    if (!extra.is_object()) extra = json::Value::MakeObject();
    extra.Set("renews", *request.renews);
  }
  append.record_bytes = EncodeRecord(request.record);
  append.record_digest = Sha256(append.record_bytes);
  append.request = std::move(request);
  append.done = std::move(done);
  return append;
}

// What one commit will change, on top of the sequencer's committed state.
struct Sequencer::Group {
  Batch batch;
  TreeState state;
  int64_t clock = 0;
  std::map<std::string, uint64_t> sequences;             // by pseudonym
  std::map<std::string, std::optional<uint64_t>> index;  // by index key; nothing: removed
  std::map<std::string, std::string> receipts;           // request id -> pseudonym bytes
  std::set<uint64_t> ended_intents;
  std::vector<OpenIntent> new_intents;
};

Sequencer::Sequencer(Kv& kv, const Keys& keys, Keyring& ring, Hits& hits, const Reader& reader,
                     Options options, TreeState state, std::vector<ClosedBatch> unfinished,
                     const std::vector<OpenIntent>& open_intents)
    : kv_(kv),
      keys_(keys),
      ring_(ring),
      hits_(hits),
      reader_(reader),
      options_(std::move(options)),
      state_(std::move(state)),
      state_bytes_(EncodeTreeState(state_)),
      last_clock_(state_.time),
      closed_batches_(std::move(unfinished)),
      size_(state_.tree.size()),
      open_intents_(open_intents.size()) {
  for (const OpenIntent& intent : open_intents) intents_[intent.entry] = intent.pseudonym;
}

Sequencer::~Sequencer() { CHECK(!thread_.joinable()); }

void Sequencer::Start() {
  thread_ = std::thread([this] { Run(); });
}

void Sequencer::Push(PreparedAppend append) {
  bool closing = false;
  {
    std::lock_guard lock(mutex_);
    closing = stopping_;
    if (!closing) queue_.push_back(std::move(append));
  }
  // Woken without the mutex, which it would only wait for.
  if (!closing) return changed_.notify_one();
  append.done(Error{Code::kUnavailable, "the ledger is closing; try again after the restart"});
}

void Sequencer::RequestRecovery() {
  std::lock_guard lock(mutex_);
  failed_ = true;
  changed_.notify_one();
}

void Sequencer::WakeForHits() {
  std::lock_guard lock(mutex_);
  if (wake_) return;
  wake_ = true;
  changed_.notify_one();
}

void Sequencer::Stop(PreparedAppend last) {
  {
    std::lock_guard lock(mutex_);
    CHECK(!stopping_);
    stopping_ = true;
    queue_.push_back(std::move(last));
    changed_.notify_one();
  }
  thread_.join();
}

// Waits for work, and takes a group of it. Empty: hits are due, or a recovery is.
std::vector<PreparedAppend> Sequencer::Take() {
  std::unique_lock lock(mutex_);
  const bool failed_before = failed_;  // then it is next_recovery_ that says when
  const auto ready = [&] {
    return !queue_.empty() || stopping_ || (wake_ && interval_end_ == 0) ||
           (failed_ && !failed_before);
  };
  if (interval_end_ == 0 && !failed_before) {
    if (options_.heartbeat_micros == 0) {
      changed_.wait(lock, ready);
    } else {
      const int64_t wait = std::max<int64_t>(heartbeat_due_ - MonotonicMicros(), 0);
      changed_.wait_for(lock, std::chrono::microseconds(wait), ready);
    }
  } else if (queue_.empty() && !stopping_) {
    int64_t until = failed_before ? next_recovery_ : interval_end_;
    if (interval_end_ != 0) until = std::min(until, interval_end_);
    const int64_t wait = std::max<int64_t>(until - MonotonicMicros(), 0);
    changed_.wait_for(lock, std::chrono::microseconds(wait), ready);
  }
  if (wake_ && interval_end_ == 0) interval_end_ = MonotonicMicros() + options_.hit_interval_micros;
  std::vector<PreparedAppend> group;
  size_t bytes = 0;
  while (!queue_.empty() && group.size() < kMaxGroupEntries && bytes < kMaxGroupBytes) {
    PreparedAppend& next = queue_.front();
    bytes += next.request.request.size() + next.request.response.size() +
             next.request.trace.size() + next.record_bytes.size();
    group.push_back(std::move(next));
    queue_.pop_front();
  }
  return group;
}

void Sequencer::Run() {
  heartbeat_due_ = MonotonicMicros() + options_.heartbeat_micros;
  for (bool running = true; running;) {
    std::vector<PreparedAppend> appends = Take();
    bool last = false;
    {
      std::lock_guard lock(mutex_);
      last = stopping_ && queue_.empty();
      if (std::any_of(appends.begin(), appends.end(),
                      [](const PreparedAppend& append) { return append.barrier; })) {
        wake_ = false;
        interval_end_ = 0;
      }
      if (interval_end_ != 0 && (last || MonotonicMicros() >= interval_end_)) {
        wake_ = false;
        interval_end_ = 0;
      }
    }
    if (interval_end_ == 0) {
      for (ClosedBatch& batch : hits_.CloseInterval()) closed_batches_.push_back(std::move(batch));
    }
    if (failed_) {
      if (Status recovered = Recover(); !recovered.ok()) {
        for (PreparedAppend& append : appends) append.done(recovered.error());
        running = !last;
        continue;
      }
    }
    const bool quiet = appends.empty() && closed_batches_.empty() && not_sent_.empty();
    if (quiet && options_.heartbeat_micros != 0 && MonotonicMicros() >= heartbeat_due_) {
      heartbeat_due_ = MonotonicMicros() + options_.heartbeat_micros;
      appends.push_back(OwnEntry(Kind::kHeartbeat, options_.manifest, json::Value()));
    }
    if (!appends.empty() || !quiet) {
      CommitGroup(std::move(appends));
    }
    running = !last;
  }
}

void Sequencer::CommitGroup(std::vector<PreparedAppend> appends) {
  Group group;
  group.state = state_;
  group.clock = options_.now();
  std::vector<Result<Appended>> results;
  results.reserve(appends.size());

  Status prepared = AddClockJump(group);
  if (prepared.ok()) prepared = AddHitBatches(group);
  if (prepared.ok()) AddNotSent(group);
  for (const PreparedAppend& append : appends) {
    if (prepared.ok() && append.barrier) {
      results.push_back(Appended());
    } else {
      results.push_back(prepared.ok() ? Place(group, append) : prepared.error());
    }
  }
  if (!prepared.ok()) {
    LogError("ledger: " + prepared.error().message);
  } else if (!group.batch.empty()) {
    std::string bytes = EncodeTreeState(group.state);
    group.batch.RequireEquals(Table::kMeta, kMetaTree, state_bytes_);
    group.batch.Put(Table::kMeta, kMetaTree, bytes);
    const int64_t begin = MonotonicMicros();
    const Status committed = kv_.Commit(group.batch, true);
    if (committed.ok()) {
      if (options_.on_commit) {
        options_.on_commit(MonotonicMicros() - begin, group.state.tree.size() - size_);
      }
      state_ = std::move(group.state);
      state_bytes_ = std::move(bytes);
      last_clock_ = group.clock;
      heartbeat_due_ = MonotonicMicros() + options_.heartbeat_micros;
      for (const auto& [pseudonym, sequence] : group.sequences) sequences_[pseudonym] = sequence;
      closed_batches_.clear();
      not_sent_.clear();
      for (const uint64_t entry : group.ended_intents) intents_.erase(entry);
      for (OpenIntent& intent : group.new_intents) {
        intents_[intent.entry] = std::move(intent.pseudonym);
      }
      open_intents_ = intents_.size();
      size_ = state_.tree.size();
      options_.committed(state_);
    } else {
      failed_ = true;
      LogError("ledger: commit failed: " + committed.error().message);
      for (Result<Appended>& result : results) {
        if (result.ok()) result = Error{Code::kIo, committed.error().message};
      }
    }
  }
  for (size_t i = 0; i < appends.size(); ++i) {
    if (appends[i].done) appends[i].done(std::move(results[i]));
  }
  PrepareNext();
}

// What the next entry needs anyway, while nobody waits for it.
void Sequencer::PrepareNext() {
  const uint64_t next = state_.tree.size();
  if (next >= ring_.End()) return;
  Result<SlotKeys> keys = ring_.Get(next);
  if (keys.ok()) next_keys_.emplace(next, std::move(*keys));
}

Status Sequencer::AddClockJump(Group& group) {
  if (group.clock + kClockTolerance >= last_clock_) return {};
  json::Value detail = json::Value::MakeObject();
  detail.Set("from", FormatTime(last_clock_));
  detail.Set("to", FormatTime(group.clock));
  Result<Appended> placed =
      Place(group, OwnEntry(Kind::kClockJumped, options_.manifest, std::move(detail)));
  return placed.ok() ? Status() : placed.error();
}

Result<ClosedBatch::Sum> Sequencer::SumOf(const ClosedBatch& closed) const {
  if (closed.sum) return *closed.sum;
  Result<HitBatch> batch = reader_.ReadBatch(closed.key);
  if (!batch.ok()) return batch.error();
  return ClosedBatch::Sum{batch->hashes.size(), batch->slots_end, RootOf(batch->hashes)};
}

Status Sequencer::AddHitBatches(Group& group) {
  if (closed_batches_.empty()) return {};
  Result<std::optional<std::string>> stored = kv_.Get(Table::kMeta, kMetaInterval);
  if (!stored.ok()) return stored.error();
  Result<HitCounters> counters = *stored ? DecodeHitCounters(**stored) : HitCounters{};
  if (!counters.ok()) return counters.error();
  for (const ClosedBatch& closed : closed_batches_) {
    Result<ClosedBatch::Sum> sum = SumOf(closed);
    if (!sum.ok()) return sum.error();
    if (sum->count == 0) continue;
    counters->interval = std::max(counters->interval, ReadU64(closed.key) + 1);
    counters->slot = std::max(counters->slot, sum->slots_end);
    json::Value hits = json::Value::MakeObject();
    hits.Set("count", sum->count);
    hits.Set("root", HexEncode(sum->root));
    if (closed.from != 0) {
      hits.Set("from", FormatTime(closed.from));
      hits.Set("to", FormatTime(closed.to));
    }
    json::Value detail = json::Value::MakeObject();
    detail.Set("hits", std::move(hits));
    PreparedAppend append = OwnEntry(Kind::kHits, options_.manifest, std::move(detail));
    append.pseudonym = PseudonymText(std::string_view(closed.key).substr(8));
    append.hit_batch = closed.key;
    Result<Appended> placed = Place(group, append);
    if (!placed.ok()) return placed.error();
  }
  if (counters->interval > 0) {
    group.batch.Put(Table::kMeta, kMetaInterval, EncodeHitCounters(*counters));
  }
  return {};
}

// One that does not get its entry here gets it at the next start.
void Sequencer::AddNotSent(Group& group) {
  for (const OpenIntent& intent : not_sent_) {
    Result<PreparedAppend> append = InterruptedEntry(reader_, intent, kOutcomeNotSent, nullptr);
    const Result<Appended> placed = append.ok() ? Place(group, *append) : append.error();
    if (!placed.ok()) {
      LogWarning("ledger: intent " + std::to_string(intent.entry) + ": " + placed.error().message);
    }
  }
}

Result<SlotKeys> Sequencer::KeysOf(uint64_t entry) {
  if (next_keys_ && next_keys_->first == entry) return next_keys_->second;
  if (entry >= ring_.End()) {
    if (Status made = ring_.Prepare(entry); !made.ok()) return made.error();
  }
  return ring_.Get(entry);
}

const std::string& Sequencer::PseudonymOf(const std::string& tenant) {
  const auto known = pseudonyms_.find(tenant);
  if (known != pseudonyms_.end()) return known->second;
  if (pseudonyms_.size() >= kMaxPseudonyms) pseudonyms_.clear();
  return pseudonyms_.emplace(tenant, keys_.Pseudonym(tenant)).first->second;
}

Result<uint64_t> Sequencer::NextSequence(const Group& group, const std::string& pseudonym) const {
  if (const auto at = group.sequences.find(pseudonym); at != group.sequences.end()) {
    return at->second + 1;
  }
  if (const auto at = sequences_.find(pseudonym); at != sequences_.end()) return at->second + 1;
  Result<std::optional<std::string>> row = kv_.Get(Table::kTenant, PseudonymBytes(pseudonym));
  if (!row.ok()) return row.error();
  if (!*row) return uint64_t{1};
  Result<uint64_t> last = DecodeU64(**row);
  if (!last.ok()) return last.error();
  if (*last == std::numeric_limits<uint64_t>::max()) {
    return Error{Code::kCorrupt, "tenant " + pseudonym +
                                     " has a damaged counter; run verbatim "
                                     "fsck"};
  }
  return *last + 1;
}

Result<std::optional<uint64_t>> Sequencer::ResultNow(const Group& group,
                                                     const std::string& index_key) const {
  if (const auto at = group.index.find(index_key); at != group.index.end()) {
    return at->second;
  }
  Result<std::optional<std::string>> row = kv_.Get(Table::kIndex, index_key);
  if (!row.ok()) return row.error();
  if (!*row) return std::optional<uint64_t>();
  Result<uint64_t> entry = DecodeU64(**row);
  if (!entry.ok()) return entry.error();
  return std::optional<uint64_t>(*entry);
}

Status Sequencer::CheckReceiptOwner(const Group& group, const std::string& request_id,
                                    const std::string& pseudonym) const {
  std::string owner = pseudonym;
  if (const auto at = group.receipts.find(request_id); at != group.receipts.end()) {
    owner = at->second;
  } else {
    Result<std::optional<std::string>> row = kv_.Get(Table::kReceipt, request_id);
    if (!row.ok()) return row.error();
    if (*row) {
      Result<ReceiptRow> receipt = DecodeReceiptRow(**row);
      if (!receipt.ok()) return receipt.error();
      owner = receipt->pseudonym;
    }
  }
  if (owner == pseudonym) return {};
  return Error{Code::kAlreadyExists, "the request id is taken; send another one"};
}

Status Sequencer::CheckOpenIntent(const Group& group, uint64_t intent,
                                  const std::string& pseudonym) const {
  const auto open = intents_.find(intent);
  const bool is_open = open != intents_.end() && !group.ended_intents.contains(intent);
  if (is_open && open->second == pseudonym) return {};
  return Error{Code::kFailedPrecondition,
               "ledger: entry " + std::to_string(intent) + " is no open intent of this tenant"};
}

// The list of the log's keys with another that signs from this size on.
Result<std::string> Sequencer::LogKeysWith(const std::string& vkey, uint64_t from) const {
  Result<std::vector<LogKey>> keys = reader_.LogKeys();
  if (!keys.ok()) return keys.error();
  Result<VerifierKey> key = ParseVerifierKey(vkey);
  if (!key.ok()) return key.error();
  for (const LogKey& old : *keys) {
    if (old.key.id == key->id) {
      return Error{Code::kAlreadyExists, "the log has, or had, the key " + vkey};
    }
  }
  keys->push_back({std::move(*key), from});
  return EncodeLogKeys(*keys);
}

// Gives the append the next place in the group, or changes nothing.
Result<Appended> Sequencer::Place(Group& group, const PreparedAppend& append) {
  const AppendRequest& request = append.request;
  const Record& record = request.record;
  const uint64_t entry = group.state.tree.size();
  Result<SlotKeys> keys = KeysOf(entry);
  if (!keys.ok()) return keys.error();

  Leaf leaf;
  leaf.origin = options_.origin;
  leaf.kind = request.kind;
  leaf.time = std::max(group.clock, group.state.time);
  leaf.tenant = append.pseudonym.empty() ? PseudonymOf(record.tenant) : append.pseudonym;
  const std::string tenant_key = PseudonymBytes(leaf.tenant);
  if (!leaf.tenant.empty()) {
    Result<uint64_t> sequence = NextSequence(group, leaf.tenant);
    if (!sequence.ok()) return sequence.error();
    leaf.sequence = *sequence;
  }
  leaf.model = request.model;
  leaf.manifest = request.manifest;
  leaf.numerics = request.numerics;
  leaf.outcome = request.outcome;
  leaf.references = request.references;
  if (request.closes_intent) {
    if (Status open = CheckOpenIntent(group, *request.closes_intent, tenant_key); !open.ok()) {
      return open.error();
    }
    leaf.references.push_back({kIntentRelation, *request.closes_intent});
  }
  leaf.detail = request.detail;
  leaf.commitment = Commitment(keys->salt, append.record_digest);
  Result<std::string> leaf_bytes = EncodeLeaf(leaf);
  if (!leaf_bytes.ok()) return leaf_bytes.error();

  if (!record.request_id.empty()) {
    if (Status owned = CheckReceiptOwner(group, record.request_id, tenant_key); !owned.ok()) {
      return owned.error();
    }
  }
  Appended appended{entry, leaf.time, record.output_digest, false};
  std::string index_key;
  if (record.serves_hits) {
    index_key = keys_.IndexKey(record.name_space, *IndexedBy(record));
    Result<std::optional<uint64_t>> now = ResultNow(group, index_key);
    if (!now.ok()) return now.error();
    appended.serves_hits = !*now || (request.renews && *now == request.renews);
  }

  std::vector<std::string> index_removed;
  for (const std::string& key : append.index_removed) {
    Result<std::optional<uint64_t>> now = ResultNow(group, key);
    if (!now.ok()) return now.error();
    if (*now && append.erased.Contains(**now)) index_removed.push_back(key);
  }
  std::string log_keys;
  if (!request.new_log_key.empty()) {
    Result<std::string> row = LogKeysWith(request.new_log_key, entry + 1);
    if (!row.ok()) return row.error();
    log_keys = std::move(*row);
  }

  // Nothing fails from here on.
  Batch& batch = group.batch;
  for (const std::string& key : index_removed) {
    group.index[key] = std::nullopt;
    batch.Delete(Table::kIndex, key);
  }
  if (!append.meta_prefix.empty()) {
    batch.Put(Table::kMeta, append.meta_prefix + EntryKey(entry), append.meta_value);
  }
  for (const std::string& key : append.meta_removed) batch.Delete(Table::kMeta, key);
  if (!log_keys.empty()) batch.Put(Table::kMeta, kMetaKeys, std::move(log_keys));
  batch.Put(Table::kLeaf, EntryKey(entry), *leaf_bytes);
  batch.Put(Table::kRecord, EntryKey(entry),
            SealPart(keys->key, entry, Part::kRecord, append.record_bytes));
  for (const auto& [part, payload] :
       {std::pair(Part::kRequest, &request.request), std::pair(Part::kResponse, &request.response),
        std::pair(Part::kTrace, &request.trace)}) {
    if (payload->empty()) continue;
    batch.Put(Table::kPayload, PayloadKey(entry, part), SealPart(keys->key, entry, part, *payload));
  }
  if (!leaf.tenant.empty()) {
    group.sequences[leaf.tenant] = leaf.sequence;
    batch.Put(Table::kTenant, tenant_key, EncodeU64(leaf.sequence));
  }
  if (appended.serves_hits) {
    group.index[index_key] = entry;
    batch.Put(Table::kIndex, index_key, EncodeU64(entry));
  }
  if (!record.request_id.empty()) {
    group.receipts[record.request_id] = tenant_key;
    batch.Put(Table::kReceipt, record.request_id, EncodeReceiptRow({tenant_key, entry, ""}));
  }
  if (request.opens_intent) {
    group.new_intents.push_back({entry, tenant_key});
    batch.Put(Table::kIntent, EntryKey(entry), tenant_key);
  }
  if (request.closes_intent) {
    group.ended_intents.insert(*request.closes_intent);
    batch.Delete(Table::kIntent, EntryKey(*request.closes_intent));
  }
  if (!append.hit_batch.empty()) batch.Put(Table::kHitBatch, append.hit_batch, EncodeU64(entry));

  std::vector<Node> completed;
  group.state.tree.Append(LeafHash(*leaf_bytes), &completed);
  group.state.time = leaf.time;
  for (const Node& node : completed) {
    batch.Put(Table::kNode, NodeKey(node.level, node.index), std::string(AsBytes(node.hash)));
  }
  return appended;
}

Status Sequencer::Recover() {
  if (MonotonicMicros() < next_recovery_) {
    return Error{Code::kIo,
                 "the ledger cannot write; see the server's log, free disk space or "
                 "repair the disk"};
  }
  next_recovery_ = MonotonicMicros() + kRecoveryInterval;
  if (Status recovered = kv_.Recover(); !recovered.ok()) return recovered;
  Result<TreeState> state = reader_.ReadTreeState();
  if (!state.ok()) return state.error();
  if (Status accepted = options_.recovered(*state); !accepted.ok()) return accepted;
  hits_.Distrust();
  std::vector<ClosedBatch> open;
  for (ClosedBatch& batch : closed_batches_) {
    batch.sum.reset();
    Result<std::optional<std::string>> entry = kv_.Get(Table::kHitBatch, batch.key);
    if (!entry.ok()) return entry.error();
    if (!*entry) open.push_back(std::move(batch));
  }
  closed_batches_ = std::move(open);
  Result<std::vector<OpenIntent>> intents = ReadOpenIntents(kv_, 0);
  if (!intents.ok()) return intents.error();
  // Nobody was told of an intent in what was stored all the same, so nothing of it was sent.
  const auto was_not_sent = [&](uint64_t entry) {
    return entry >= state_.tree.size() ||
           std::any_of(not_sent_.begin(), not_sent_.end(),
                       [&](const OpenIntent& known) { return known.entry == entry; });
  };
  std::vector<OpenIntent> not_sent;
  for (const OpenIntent& intent : *intents) {
    if (was_not_sent(intent.entry)) not_sent.push_back(intent);
  }
  not_sent_ = std::move(not_sent);
  intents_.clear();
  for (const OpenIntent& intent : *intents) intents_[intent.entry] = intent.pseudonym;
  open_intents_ = intents_.size();
  sequences_.clear();
  state_ = std::move(*state);
  state_bytes_ = EncodeTreeState(state_);
  size_ = state_.tree.size();
  failed_ = false;
  next_recovery_ = 0;
  options_.committed(state_);
  LogInfo("ledger: recovered after a failed write, at " + std::to_string(state_.tree.size()) +
          " entries");
  return {};
}

}  // namespace verbatim::store
