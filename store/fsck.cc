#include "store/fsck.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <map>
#include <set>
#include <thread>

#include "base/clock.h"
#include "base/crypto.h"
#include "store/checkpoint.h"
#include "store/control.h"
#include "store/data_folder.h"
#include "store/erasures.h"
#include "store/kv_rocksdb.h"

namespace verbatim::store {
namespace {

constexpr int64_t kServerWaitMicros = 10'000'000;
// Entries that are examined at the same time.
constexpr size_t kExamined = 512;
constexpr unsigned kMostThreads = 16;

// A finding quotes bytes of the database: what is no text, or would steer a terminal, as \xNN.
std::string Printable(std::string_view text) {
  const bool utf8 = IsUtf8(text);
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<uint8_t>(c);
    if (byte < 0x20 || byte == 0x7F || (byte >= 0x80 && !utf8)) {
      out += "\\x" + HexEncode(std::string_view(&c, 1));
    } else {
      out += c;
    }
  }
  return out;
}

// f(0) to f(n - 1), on as many threads as there are processors.
template <typename F>
void InParallel(size_t n, const F& f) {
  const size_t threads =
      std::min<size_t>({n, kMostThreads, std::max(1u, std::thread::hardware_concurrency())});
  std::atomic<size_t> next = 0;
  const auto work = [&] {
    for (size_t i = next++; i < n; i = next++) f(i);
  };
  std::vector<std::thread> others;
  for (size_t t = 1; t < threads; ++t) others.emplace_back(work);
  work();
  for (std::thread& other : others) other.join();
}

// What one entry says by itself, and of it the rows that belong to it.
struct Examined {
  uint64_t entry = 0;
  std::string bytes;
  Digest hash{};
  Result<Leaf> leaf = Error{};
  std::vector<Result<Digest>> nodes;  // that it completes, as the table holds them
  Status failed;                      // the disk does not read
  std::vector<FsckFinding> findings;
  bool without_keys = false;  // of a leaf that parses
  bool unindexed = false;     // it serves hits, and the index does not hold its fingerprint
  std::optional<uint64_t> overtaken_by;
  bool indexed = false;   // the index names it for its fingerprint
  bool received = false;  // the receipt of its request id names it
};

// Entries to which their own row of a table led. Where no more rows name them than there are of
// them, each is named by that row alone.
class Settled {
 public:
  void Set(uint64_t entry, bool settled) {
    if (!settled) return;
    if (entry >= entries_.size()) entries_.resize(entry + 1);
    entries_[entry] = true;
    ++count_;
  }
  void CountRow(std::optional<uint64_t> entry) { rows_ += Has(entry) ? 1 : 0; }
  bool IsSettled(std::optional<uint64_t> entry) const { return rows_ == count_ && Has(entry); }

 private:
  bool Has(std::optional<uint64_t> entry) const {
    return entry && *entry < entries_.size() && entries_[*entry];
  }
  std::vector<bool> entries_;
  uint64_t count_ = 0, rows_ = 0;
};

// One pass over the leaves, then one over each table that points back at them.
class Checker {
 public:
  Checker(const Reader& reader, const FsckOptions& options)
      : reader_(reader), kv_(reader.kv()), options_(options) {}

  Result<FsckReport> Run(const std::optional<std::string>& kept_checkpoint) {
    ReadCheckpoint(kept_checkpoint);
    if (Status status = CheckMeta(); !status.ok()) return status.error();
    if (Status status = CheckEntries(); !status.ok()) return status.error();
    TakeNewerErasures();
    for (const auto step :
         {&Checker::CheckTreeState, &Checker::CheckStrayRows, &Checker::CheckKeys,
          &Checker::CheckIndex, &Checker::CheckReceipts, &Checker::CheckTenants,
          &Checker::CheckHits, &Checker::CheckIntents, &Checker::CheckUnusedKeys}) {
      if (Status status = (this->*step)(); !status.ok()) return status.error();
    }
    CheckErasures();
    if (options_.deep) {
      const Status files = kv_.VerifyFiles();
      if (!files.ok()) Find("file", std::nullopt, files.error().message);
    }
    return std::move(report_);
  }

 private:
  void Find(const char* kind, std::optional<uint64_t> entry, const std::string& what) {
    if (report_.findings.size() < kMaxFindings) {
      report_.findings.push_back({kind, entry, Printable(what)});
    } else {
      ++report_.findings_omitted;
    }
  }

  // An error that stops the check (the disk does not read), or a finding.
  Status Note(const char* kind, std::optional<uint64_t> entry, const Error& error) {
    if (error.code == Code::kIo) return error;
    Find(kind, entry, error.message);
    return {};
  }

  void ReadCheckpoint(const std::optional<std::string>& note) {
    if (!note) return Find("checkpoint", std::nullopt, "the checkpoint file is missing");
    Result<std::vector<LogKey>> keys = reader_.LogKeys();
    if (!keys.ok()) return Find("meta", std::nullopt, keys.error().message);
    Result<TreeHead> head = OpenCheckpoint(*note, *keys);
    if (!head.ok()) {
      return Find("checkpoint", std::nullopt, "the checkpoint file: " + head.error().message);
    }
    head_ = std::move(*head);
    report_.checkpoint_size = head_->size;
  }

  Status CheckMeta() {
    const std::string& origin = reader_.keys().signer->key().name;
    for (const auto& [key, want] :
         {std::pair(kMetaFormat, std::string(kFormatVersion)), std::pair(kMetaOrigin, origin)}) {
      Result<std::optional<std::string>> row = kv_.Get(Table::kMeta, key);
      if (!row.ok()) return row.error();
      if (*row != want) {
        Find("meta", std::nullopt,
             std::string(key) + " is " + row->value_or("missing") + ", and should be " + want);
      }
    }
    const Status scanned =
        kv_.Scan(Table::kMeta, "", "", [&](std::string_view key, std::string_view) {
          if (const std::string_view erasing = kMetaErasing;
              key.starts_with(erasing) && key.size() == erasing.size() + 8) {
            ++unfinished_erasures_;
          } else if (const std::string_view hold = kMetaHold;
                     key.starts_with(hold) && key.size() == hold.size() + 8) {
            stored_holds_.insert(ReadU64(key.substr(hold.size())));
          } else if (key != kMetaFormat && key != kMetaOrigin && key != kMetaTree &&
                     key != kMetaInterval && key != kMetaKeys) {
            Find("meta", std::nullopt, "a row of an unknown name");
          }
          return true;
        });
    if (!scanned.ok()) return Note("meta", std::nullopt, scanned.error());
    Result<TreeState> state = reader_.ReadTreeState();
    if (state.ok()) {
      stored_ = std::move(*state);
    } else if (Status noted = Note("tree", std::nullopt, state.error()); !noted.ok()) {
      return noted;
    }
    if (head_ && stored_ && head_->size > stored_->tree.size()) {
      Find("checkpoint", stored_->tree.size(),
           "entries " + std::to_string(stored_->tree.size()) + " to " +
               std::to_string(head_->size - 1) +
               " are missing: a published checkpoint covers them, the database does not hold them");
    }
    return {};
  }

  Status CheckEntries() {
    Status problem;
    std::vector<Examined> some;
    const Status scanned =
        kv_.Scan(Table::kLeaf, "", "", [&](std::string_view key, std::string_view bytes) {
          if (key.size() != 8) {
            Find("leaf", std::nullopt, "a leaf's key has the wrong length");
            return true;
          }
          const uint64_t entry = ReadU64(key);
          if (stored_ && entry >= stored_->tree.size()) {
            Find("leaf", entry, "a leaf beyond the end of the log");
            return true;
          }
          some.emplace_back();
          some.back().entry = entry;
          some.back().bytes = bytes;
          if (some.size() == kExamined) {
            problem = CheckSome(some);
            some.clear();
          }
          return problem.ok() && report_.findings_omitted == 0;
        });
    if (problem.ok() && report_.findings_omitted == 0) problem = CheckSome(some);
    if (!scanned.ok()) return Note("leaf", std::nullopt, scanned.error());
    if (!problem.ok()) return problem;
    if (stored_ && tree_.size() < stored_->tree.size()) {
      Find("leaf", tree_.size(),
           "the log's tail is missing: the tree has " + std::to_string(stored_->tree.size()) +
               " entries, leaves end at " + std::to_string(tree_.size()));
    }
    report_.entries = tree_.size();
    report_.root = tree_.Root();
    return {};
  }

  // Consecutive leaves, but for those that are missing.
  Status CheckSome(std::vector<Examined>& some) {
    InParallel(some.size(), [&](size_t i) { Examine(some[i]); });
    for (Examined& one : some) {
      for (uint64_t missing = tree_.size(); missing < one.entry; ++missing) {
        Find("leaf", missing, "its leaf is missing");
        if (report_.findings_omitted > 0) return {};
        unreadable_.insert(missing);
        if (Status added = AppendLeafHash(MissingHash(missing), nullptr); !added.ok()) return added;
      }
      if (Status taken = Take(one); !taken.ok()) return taken;
      if (options_.progress) options_.progress(one.entry + 1, stored_ ? stored_->tree.size() : 0);
    }
    return {};
  }

  // Stands in for a leaf that is gone, so that the others keep their places.
  Digest MissingHash(uint64_t entry) {
    Result<Digest> stored = reader_.ReadNode(0, entry);
    return stored.ok() ? *stored : Digest{};
  }

  // read: the nodes that it completes, as the table holds them; null: not read yet.
  Status AppendLeafHash(const Digest& hash, const std::vector<Result<Digest>>* read) {
    std::vector<Node> completed;
    const uint64_t entry = tree_.size();
    tree_.Append(hash, &completed);
    for (size_t i = 0; i < completed.size(); ++i) {
      const Node& node = completed[i];
      const Result<Digest> stored = read ? (*read)[i] : reader_.ReadNode(node.level, node.index);
      if (!stored.ok()) {
        if (Status noted = Note("node", entry, stored.error()); !noted.ok()) return noted;
      } else if (*stored != node.hash && node.level == 0) {
        Find("leaf", entry, "its bytes are not those whose hash the tree holds");
      } else if (*stored != node.hash) {
        Find("node", entry,
             "tree node (level " + std::to_string(node.level) + ", index " +
                 std::to_string(node.index) + ") is not the hash of its leaves");
      }
    }
    nodes_ += completed.size();
    if (head_ && tree_.size() == head_->size && tree_.Root() != head_->root) {
      Find("checkpoint", std::nullopt,
           "the root of the first " + std::to_string(head_->size) +
               " entries is not the one in the signed checkpoint");
    }
    return {};
  }

  // What may be done in any order. Of `one` alone: other threads do others.
  void Examine(Examined& one) const {
    one.hash = LeafHash(one.bytes);
    for (unsigned level = 0; (one.entry + 1) % (uint64_t{1} << level) == 0; ++level) {
      one.nodes.push_back(reader_.ReadNode(level, ((one.entry + 1) >> level) - 1));
    }
    one.leaf = ParseLeaf(one.bytes);
    if (one.leaf.ok()) ExaminePrivateParts(one);
  }

  // An error that stops the check, or a finding.
  static void Note(Examined& one, const char* kind, const Error& error) {
    if (error.code == Code::kIo) {
      one.failed = error;
    } else {
      one.findings.push_back({kind, one.entry, error.message});
    }
  }

  void ExaminePrivateParts(Examined& one) const {
    Result<SlotKeys> keys = reader_.entry_keys().Get(one.entry);
    if (!keys.ok()) {
      one.without_keys = keys.error().code == Code::kNotFound;
      if (!one.without_keys) Note(one, "keyring", keys.error());
      return;
    }
    Result<Record> record = reader_.OpenRecord(one.entry, *one.leaf, *keys);
    if (!record.ok()) return Note(one, "record", record.error());
    for (const auto& [part, digest] : {std::pair(Part::kRequest, &record->request_digest),
                                       std::pair(Part::kResponse, &record->output_digest),
                                       std::pair(Part::kTrace, &record->trace_digest)}) {
      ExaminePayload(one, part, *digest, *keys);
    }
    ExamineRecord(one, *record);
  }

  // In the order of the log.
  Status Take(Examined& one) {
    if (Status status = AppendLeafHash(one.hash, &one.nodes); !status.ok()) return status;
    const uint64_t entry = one.entry;
    if (!one.leaf.ok()) {
      unreadable_.insert(entry);
      return Note("leaf", entry, one.leaf.error());
    }
    CheckLeaf(entry, *one.leaf);
    if (one.without_keys) without_keys_.Add(entry);
    if (one.leaf->tenant.empty())
      (one.without_keys ? own_without_keys_ : own_with_keys_).Add(entry);
    for (FsckFinding& finding : one.findings) {
      Find(finding.kind.c_str(), finding.entry, finding.what);
    }
    if (one.unindexed) unindexed_.Add(entry);
    if (one.overtaken_by) overtaken_.emplace_back(entry, *one.overtaken_by);
    indexed_.Set(entry, one.indexed);
    received_.Set(entry, one.received);
    return one.failed;
  }

  void CheckLeaf(uint64_t entry, const Leaf& leaf) {
    if (leaf.origin != reader_.keys().signer->key().name) {
      Find("leaf", entry, "its origin is that of another log: " + leaf.origin);
    }
    if (leaf.time < last_time_) Find("leaf", entry, "its time is before the previous entry's");
    last_time_ = std::max(last_time_, leaf.time);
    if (leaf.tenant.empty() ? leaf.sequence != 0 : leaf.sequence != sequences_[leaf.tenant] + 1) {
      Find("leaf", entry,
           "its tenant sequence number is " + std::to_string(leaf.sequence) + ", and should be " +
               std::to_string(sequences_[leaf.tenant] + 1));
    }
    if (!leaf.tenant.empty()) sequences_[leaf.tenant] = leaf.sequence;
    for (const Reference& reference : leaf.references) {
      if (reference.entry >= entry) {
        Find("leaf", entry,
             "it refers to entry " + std::to_string(reference.entry) + ", which is not before it");
      }
      if (leaf.kind == Kind::kReleased && holds_.erase(reference.entry) == 0) {
        Find(
            "hold", entry,
            "it releases entry " + std::to_string(reference.entry) + ", which is no hold in force");
      }
    }
    CheckIntent(entry, leaf);
    if (leaf.kind == Kind::kHeld) holds_.insert(entry);
    CheckErasure(entry, leaf);
    if (leaf.kind == Kind::kKeyMade) {
      const json::Value* vkey = leaf.detail.Find("new");
      if (vkey && vkey->is_string()) made_keys_.emplace_back(vkey->as_string(), entry + 1);
    }
    if (leaf.kind == Kind::kHits) {
      const json::Value* hits = leaf.detail.Find("hits");
      const json::Value* count = hits ? hits->Find("count") : nullptr;
      const json::Value* root = hits ? hits->Find("root") : nullptr;
      if (!count || !count->AsUint64() || !root || !root->is_string()) {
        Find("leaf", entry, "it is a batch of hits without count and root");
      } else {
        batches_[entry] = {leaf.tenant, *count->AsUint64(), root->as_string(), false};
      }
    }
  }

  void CheckErasure(uint64_t entry, const Leaf& leaf) {
    if (leaf.outcome != "ok") return;
    if (leaf.kind == Kind::kErased || leaf.kind == Kind::kPruned) erasures_.push_back(entry);
    if (leaf.kind == Kind::kErased) {
      Result<Ranges> entries = Ranges::FromMember(leaf.detail, "entries");
      Result<Ranges> slots = Ranges::FromMember(leaf.detail, "slots");
      if (!entries.ok() || !slots.ok()) return Find("leaf", entry, "its list of what is erased");
      for (const auto& [first, last] : entries->ranges()) erased_.Add(first, last);
      for (const auto& [first, last] : slots->ranges()) erased_slots_.Add(first, last);
    } else if (leaf.kind == Kind::kPruned) {
      Result<Ranges> kept = Ranges::FromMember(leaf.detail, "kept");
      const json::Value* before = leaf.detail.Find("before");
      if (!kept.ok() || !before || !before->AsUint64() || *before->AsUint64() > entry) {
        return Find("leaf", entry, "it does not say up to where it pruned");
      }
      // Everything before, but for what it kept.
      uint64_t next = 0;
      for (const auto& [first, last] : kept->ranges()) {
        if (first > next) pruned_.Add(next, first - 1);
        next = last + 1;
      }
      if (*before->AsUint64() > next) pruned_.Add(next, *before->AsUint64() - 1);
      report_.pruned_before = std::max(report_.pruned_before, *before->AsUint64());
    }
  }

  // An intent is ended once, by a later entry of its tenant.
  void CheckIntent(uint64_t entry, const Leaf& leaf) {
    if (leaf.kind == Kind::kIntent) open_intents_[entry] = leaf.tenant;
    int ended = 0;
    for (const Reference& reference : leaf.references) {
      if (reference.relation != kIntentRelation) continue;
      ++ended;
      const auto intent = open_intents_.find(reference.entry);
      if (intent == open_intents_.end()) {
        if (unreadable_.contains(reference.entry)) continue;
        Find("intent", entry,
             "it ends entry " + std::to_string(reference.entry) + ", which is no open intent");
        continue;
      }
      if (intent->second != leaf.tenant) {
        Find("intent", entry,
             "it ends the intent " + std::to_string(reference.entry) + " of another tenant");
      }
      open_intents_.erase(intent);
    }
    if (leaf.kind == Kind::kInterrupted && ended != 1) {
      Find("intent", entry, "it is interrupted, and names no intent that was");
    }
  }

  void ExaminePayload(Examined& one, Part part, const std::optional<Digest>& digest,
                      const SlotKeys& keys) const {
    if (digest) {
      Result<std::string> payload = reader_.OpenPayload(one.entry, part, digest, keys);
      if (!payload.ok()) Note(one, "payload", payload.error());
      return;
    }
    Result<std::optional<std::string>> stray =
        kv_.Get(Table::kPayload, PayloadKey(one.entry, part));
    if (!stray.ok()) return Note(one, "payload", stray.error());
    if (*stray) {
      one.findings.push_back(
          {"payload", one.entry, "it has a payload that its record does not name"});
    }
  }

  void ExamineRecord(Examined& one, const Record& record) const {
    const uint64_t entry = one.entry;
    const Leaf& leaf = *one.leaf;
    // The first makes its leaf without a record; so does the second where its intent's is erased.
    const bool without_tenant =
        leaf.kind == Kind::kHits || (leaf.kind == Kind::kInterrupted && record.tenant.empty());
    if (!without_tenant && reader_.keys().Pseudonym(record.tenant) != leaf.tenant) {
      one.findings.push_back({"record", entry, "its tenant is not the leaf's"});
    }
    if (record.serves_hits && record.fingerprint) {
      Result<std::optional<uint64_t>> first =
          reader_.FindIndex(record.name_space, *IndexedBy(record));
      if (!first.ok()) return Note(one, "index", first.error());
      // Where a first result was erased, the next one has taken its place, or none has yet.
      one.unindexed = !*first;
      one.indexed = *first == entry;
      if (*first && **first > entry && !Renews(**first)) one.overtaken_by = **first;
    }
    if (record.request_id.empty()) return;
    Result<std::optional<std::string>> row = kv_.Get(Table::kReceipt, record.request_id);
    if (!row.ok()) return Note(one, "receipt", row.error());
    if (!*row) {
      one.findings.push_back({"receipt", entry, "there is no receipt for its request id"});
      return;
    }
    Result<ReceiptRow> receipt = DecodeReceiptRow(**row);
    // A later entry or hit of the same request may have taken the receipt over, an earlier one not.
    if (!receipt.ok() || !receipt->row_key.empty()) return;  // CheckReceipts looks at them
    one.received = receipt->entry == entry && PseudonymBytes(leaf.tenant) == receipt->pseudonym;
    if (receipt->entry < entry) {
      one.findings.push_back(
          {"receipt", entry,
           "the receipt for its request id names entry " + std::to_string(receipt->entry)});
    }
  }

  static bool IsPayloadPart(char part) {
    return part == static_cast<char>(Part::kRequest) ||
           part == static_cast<char>(Part::kResponse) || part == static_cast<char>(Part::kTrace);
  }

  Status CheckTreeState() {
    if (!stored_ || stored_->tree.size() != tree_.size()) return {};
    if (stored_->tree.hashes() != tree_.hashes()) {
      Find("tree", std::nullopt, "the stored tree state is not that of the leaves");
    }
    if (stored_->time != last_time_) {
      Find("tree", std::nullopt, "the stored time of the last entry is not its leaf's");
    }
    return {};
  }

  Status CheckStrayRows() {
    for (const auto& [table, name, key_bytes] :
         {std::tuple(Table::kRecord, "record", size_t{8}),
          std::tuple(Table::kPayload, "payload", size_t{9})}) {
      const char* kind = name;
      const size_t want = key_bytes;
      const Status scanned = kv_.Scan(table, "", "", [&](std::string_view key, std::string_view) {
        if (key.size() != want) {
          Find(kind, std::nullopt, "a row whose key has the wrong length");
        } else if (ReadU64(key) >= tree_.size()) {
          Find(kind, ReadU64(key), "a row beyond the end of the log");
        } else if (want == 9 && !IsPayloadPart(key.back())) {
          Find(kind, ReadU64(key), "a payload of an unknown part");
        }
        return report_.findings_omitted == 0;
      });
      if (!scanned.ok()) return Note(kind, std::nullopt, scanned.error());
    }
    uint64_t nodes = 0;
    const Status scanned = kv_.Scan(Table::kNode, "", "", [&](std::string_view, std::string_view) {
      ++nodes;
      return true;
    });
    if (!scanned.ok()) return Note("node", std::nullopt, scanned.error());
    if (nodes > nodes_) {
      Find("node", std::nullopt, std::to_string(nodes - nodes_) + " tree nodes that no leaf makes");
    }
    return {};
  }

  // Every key of the log but its first has a leaf, and signs from behind it on.
  Status CheckKeys() {
    Result<std::vector<LogKey>> keys = reader_.LogKeys();
    if (!keys.ok()) return Note("meta", std::nullopt, keys.error());
    std::vector<std::pair<std::string, uint64_t>> listed;
    for (size_t i = 1; i < keys->size(); ++i) {
      listed.emplace_back(FormatVerifierKey((*keys)[i].key), (*keys)[i].from);
    }
    if (listed != made_keys_ && unreadable_.empty()) {
      Find("meta", std::nullopt,
           "the list of the log's keys is not that of its rotations' entries");
    }
    return {};
  }

  // A table whose rows name entries: `names` gives the entry of a row's value, where it is one. An
  // entry that its own row led to needs no other look, so long as no other row names it, too.
  template <typename Names, typename Check>
  Status CheckRows(Table table, const char* kind, Settled& settled, const Names& names,
                   const Check& check) {
    Status scanned = kv_.Scan(table, "", "", [&](std::string_view, std::string_view value) {
      settled.CountRow(names(value));
      return true;
    });
    if (!scanned.ok()) return Note(kind, std::nullopt, scanned.error());
    Status problem;
    scanned = kv_.Scan(table, "", "", [&](std::string_view key, std::string_view value) {
      if (!settled.IsSettled(names(value))) problem = check(key, value);
      return problem.ok();
    });
    if (!scanned.ok()) return Note(kind, std::nullopt, scanned.error());
    return problem;
  }

  Status CheckIndex() {
    const auto names = [](std::string_view value) -> std::optional<uint64_t> {
      const Result<uint64_t> entry = DecodeU64(value);
      return entry.ok() ? std::optional(*entry) : std::nullopt;
    };
    return CheckRows(
        Table::kIndex, "index", indexed_, names,
        [this](std::string_view key, std::string_view value) { return CheckIndexRow(key, value); });
  }

  Status CheckIndexRow(std::string_view key, std::string_view value) {
    Result<uint64_t> entry = DecodeU64(value);
    if (!entry.ok()) return Note("index", std::nullopt, entry.error());
    if (key.size() != 32) {
      Find("index", *entry, "a row whose key has the wrong length");
      return {};
    }
    if (*entry >= tree_.size()) {
      Find("index", *entry, "the index names an entry that is not there");
      return {};
    }
    const std::optional<Record> record = RecordOf(*entry);
    if (!record) return {};
    if (!record->serves_hits || !record->fingerprint ||
        reader_.keys().IndexKey(record->name_space, *IndexedBy(*record)) != key) {
      Find("index", *entry, "the index names it for a fingerprint that is not its own");
    }
    return {};
  }

  // Whether the entry took the place of an earlier result that had grown too old.
  bool Renews(uint64_t entry) const {
    const std::optional<Record> record = RecordOf(entry);
    return record && record->extra.Find("renews") != nullptr;
  }

  // Nothing where it is erased, or damaged: CheckEntries names that.
  std::optional<Record> RecordOf(uint64_t entry) const {
    Result<EntryView> view = reader_.Entry(entry, false);
    if (!view.ok()) return std::nullopt;
    Result<SlotKeys> keys = reader_.entry_keys().Get(entry);
    if (!keys.ok()) return std::nullopt;
    Result<Record> record = reader_.OpenRecord(entry, view->leaf, *keys);
    if (!record.ok()) return std::nullopt;
    return std::move(*record);
  }

  Status CheckReceipts() {
    const auto names = [](std::string_view value) -> std::optional<uint64_t> {
      const Result<ReceiptRow> row = DecodeReceiptRow(value);
      return row.ok() && row->row_key.empty() ? std::optional(row->entry) : std::nullopt;
    };
    return CheckRows(Table::kReceipt, "receipt", received_, names,
                     [this](std::string_view id, std::string_view value) {
                       return CheckReceiptRow(std::string(id), value);
                     });
  }

  Status CheckReceiptRow(const std::string& id, std::string_view value) {
    Result<ReceiptRow> row = DecodeReceiptRow(value);
    if (!row.ok()) {
      Find("receipt", std::nullopt, "the receipt of request " + id + ": " + row.error().message);
      return {};
    }
    if (!row->row_key.empty()) return CheckHitReceipt(id, *row);
    if (row->entry >= tree_.size()) {
      Find("receipt", row->entry, "the receipt of request " + id + " names a missing entry");
      return {};
    }
    Result<EntryView> view = reader_.Entry(row->entry, false);
    if (!view.ok()) return {};
    const std::optional<Record> record = RecordOf(row->entry);
    if (PseudonymBytes(view->leaf.tenant) != row->pseudonym) {
      Find("receipt", row->entry, "the receipt of request " + id + " names another tenant's entry");
    } else if (record && record->request_id != id) {
      Find("receipt", row->entry,
           "the receipt of request " + id + " names another request's entry");
    }
    return {};
  }

  // Of one row after the other, mostly, since ids and rows are both in the order of time.
  Status CheckHitReceipt(const std::string& id, const ReceiptRow& row) {
    if (row.row_key != opened_.key) {
      opened_ = {row.row_key, {}};
      Result<std::optional<std::string>> bytes = kv_.Get(Table::kHit, row.row_key);
      if (!bytes.ok()) return Note("receipt", std::nullopt, bytes.error());
      if (*bytes) {
        Result<HitRow> hit_row = DecodeHitRow(**bytes);
        Result<std::vector<OpenedHit>> hits =
            hit_row.ok() ? reader_.OpenHits(row.row_key, *hit_row) : hit_row.error();
        opened_.damaged = !hits.ok();  // named by CheckHits
        if (hits.ok()) opened_.hits = std::move(*hits);
      }
    }
    if (opened_.damaged) return {};
    if (row.place >= opened_.hits.size()) {
      Find("receipt", std::nullopt, "the receipt of request " + id + " names a missing hit");
    } else if (opened_.hits[row.place].record.request_id != id) {
      Find("receipt", std::nullopt, "the receipt of request " + id + " names another one's hit");
    }
    return {};
  }

  Status CheckTenants() {
    std::map<std::string, uint64_t> rows;
    const Status scanned =
        kv_.Scan(Table::kTenant, "", "", [&](std::string_view key, std::string_view value) {
          Result<uint64_t> last = DecodeU64(value);
          if (key.size() != 16 || !last.ok()) {
            Find("tenant", std::nullopt, "a tenant's counter is damaged");
          } else {
            rows[PseudonymText(key)] = *last;
          }
          return true;
        });
    if (!scanned.ok()) return Note("tenant", std::nullopt, scanned.error());
    sequences_.erase("");
    for (const auto& [tenant, last] : sequences_) {
      if (rows[tenant] != last) {
        Find("tenant", std::nullopt,
             "tenant " + tenant + " has " + std::to_string(last) +
                 " entries, and its counter says " + std::to_string(rows[tenant]));
      }
      rows.erase(tenant);
    }
    for (const auto& [tenant, last] : rows) {
      Find("tenant", std::nullopt, "tenant " + tenant + " has a counter and no entries");
    }
    return {};
  }

  Status CheckHits() {
    // Each batch against its leaf.
    Status problem;
    const Status batches =
        kv_.Scan(Table::kHitBatch, "", "", [&](std::string_view key, std::string_view value) {
          Result<uint64_t> entry = DecodeU64(value);
          if (key.size() != kHitBatchKeyBytes || !entry.ok() || !batches_.contains(*entry)) {
            Find("hit", std::nullopt, "a batch of hits names an entry that is none");
          } else {
            CheckBatch(key, *entry);
          }
          return true;
        });
    if (!batches.ok()) return Note("hit", std::nullopt, batches.error());
    for (const auto& [entry, batch] : batches_) {
      if (!batch.seen) Find("hit", entry, "its hits are missing");
    }
    if (Status checked = CheckHitCounters(); !checked.ok()) return checked;

    // Each row against its commitment.
    const Status scanned =
        kv_.Scan(Table::kHit, "", "", [&](std::string_view key, std::string_view value) {
          problem = CheckHitRow(key, value);
          return problem.ok();
        });
    if (!scanned.ok()) return Note("hit", std::nullopt, scanned.error());
    return problem;
  }

  // The table holds the intents that no entry ended, and no others.
  Status CheckIntents() {
    const Status scanned =
        kv_.Scan(Table::kIntent, "", "", [&](std::string_view key, std::string_view value) {
          if (key.size() != 8 || value.size() != 16) {
            Find("intent", std::nullopt, "a row of open intents is damaged");
            return true;
          }
          const uint64_t entry = ReadU64(key);
          const auto intent = open_intents_.find(entry);
          if (intent != open_intents_.end()) {
            if (PseudonymBytes(intent->second) != value) {
              Find("intent", entry, "the table of open intents names another tenant for it");
            }
            open_intents_.erase(intent);
          } else if (!unreadable_.contains(entry)) {
            Find("intent", entry, "the table of open intents names it, and it is none");
          }
          return report_.findings_omitted == 0;
        });
    if (!scanned.ok()) return Note("intent", std::nullopt, scanned.error());
    if (!unreadable_.empty()) return {};  // one of them may have ended what is left
    for (const auto& [entry, tenant] : open_intents_) {
      Find("intent", entry, "no entry ends this intent, and the table of open ones lacks it");
    }
    return {};
  }

  // They are those of the batches, so that no number of an interval or slot comes twice.
  Status CheckHitCounters() {
    Result<std::optional<std::string>> bytes = kv_.Get(Table::kMeta, kMetaInterval);
    if (!bytes.ok()) return Note("meta", std::nullopt, bytes.error());
    const std::string want = EncodeHitCounters(counters_);
    if (counters_.interval == 0 ? bytes->has_value() : *bytes != want) {
      Find("meta", std::nullopt, "interval is not that of the hits");
    }
    return {};
  }

  Status CheckHitRow(std::string_view key, std::string_view value) {
    Result<HitRow> row = DecodeHitRow(value);
    if (key.size() != kHitKeyBytes || !row.ok()) {
      Find("hit", std::nullopt, "a row of hits is damaged");
      return {};
    }
    report_.hits += row->commitments.size();
    if (ReadU64(key) < counters_.interval) {
      Result<std::optional<std::string>> batch =
          kv_.Get(Table::kHitBatch, key.substr(0, kHitBatchKeyBytes));
      if (!batch.ok()) return Note("hit", std::nullopt, batch.error());
      if (!*batch) Find("hit", std::nullopt, "a hit of a closed interval has no leaf");
    }
    Result<std::vector<OpenedHit>> hits = reader_.OpenHits(key, *row);
    if (!hits.ok() && hits.error().code == Code::kNotFound) {
      ++report_.erased_hits_rows;
      return CheckErasedHits(key, row->slot);
    }
    if (!hits.ok()) return Note("hit", std::nullopt, hits.error());
    if (unfinished_erasures_ == 0 && erased_slots_.Contains(row->slot)) {
      Find("keyring", std::nullopt,
           "slot " + std::to_string(row->slot) + " of the hits was erased, and its keys are there");
    }
    for (const OpenedHit& hit : *hits) {
      if (Status checked = CheckHit(key, hit.record); !checked.ok()) return checked;
    }
    return {};
  }

  // Its keys are gone: erased, or of a batch that was pruned.
  Status CheckErasedHits(std::string_view key, uint64_t slot) {
    if (erased_slots_.Contains(slot)) return {};
    Result<std::optional<std::string>> batch =
        kv_.Get(Table::kHitBatch, key.substr(0, kHitBatchKeyBytes));
    if (!batch.ok()) return Note("hit", std::nullopt, batch.error());
    if (*batch && (*batch)->size() == 8 && pruned_.Contains(ReadU64(**batch))) return {};
    Find("keyring", std::nullopt,
         "the keys of slot " + std::to_string(slot) +
             " of the hits are gone, and no entry says that they were erased");
    return {};
  }

  Status CheckHit(std::string_view row_key, const HitRecord& record) {
    if (record.result >= tree_.size()) {
      Find("hit", record.result, "a hit names an entry that is not there");
    }
    if (PseudonymBytes(reader_.keys().Pseudonym(record.tenant)) != row_key.substr(8, 16)) {
      Find("hit", std::nullopt, "a hit is another tenant's");
    }
    if (record.request_id.empty()) return {};
    Result<std::optional<std::string>> receipt = kv_.Get(Table::kReceipt, record.request_id);
    if (!receipt.ok()) return Note("receipt", std::nullopt, receipt.error());
    if (!*receipt) {
      Find("receipt", std::nullopt, "there is no receipt for the hit of " + record.request_id);
    }
    return {};
  }

  void CheckBatch(std::string_view key, uint64_t entry) {
    HitsLeaf& leaf = batches_[entry];
    leaf.seen = true;
    Result<HitBatch> batch = reader_.ReadBatch(key);
    if (!batch.ok()) return Find("hit", entry, batch.error().message);
    counters_.interval = std::max(counters_.interval, ReadU64(key) + 1);
    counters_.slot = std::max(counters_.slot, batch->slots_end);
    if (PseudonymText(key.substr(8)) != leaf.tenant) {
      Find("hit", entry, "its hits are another tenant's");
    }
    if (batch->hashes.size() != leaf.count) {
      Find("hit", entry,
           "its leaf counts " + std::to_string(leaf.count) + " hits, there are " +
               std::to_string(batch->hashes.size()));
    } else if (HexEncode(RootOf(batch->hashes)) != leaf.root) {
      Find("hit", entry, "the root of its hits is not the one in its leaf");
    }
  }

  bool AnyErasure() const { return !erased_.empty() || !pruned_.empty(); }

  // What the folder's log of erasures says of a log that went on after this database.
  void TakeNewerErasures() {
    Result<std::vector<LogKey>> keys = reader_.LogKeys();
    if (!keys.ok()) return Find("meta", std::nullopt, keys.error().message);
    if (!options_.erasures) return;
    Result<std::vector<Erasure>> newer =
        ParseErasures(*options_.erasures, keys->back().key.name, *keys);
    if (!newer.ok()) return Find("erasures", std::nullopt, newer.error().message);
    std::set<uint64_t> named;
    for (const Erasure& erasure : *newer) named.insert(erasure.entry);
    for (const uint64_t entry : erasures_) {
      if (named.contains(entry) || unfinished_erasures_ > 0) continue;
      Find("erasures", entry,
           "it destroyed keys, and the log of erasures does not name it: a restored backup would "
           "have them again; restore the file `erasures` from a copy");
    }
    for (const Erasure& erasure : *newer) {
      if (erasure.entry < tree_.size()) continue;
      for (const auto& [first, last] : erasure.entries.ranges()) erased_.Add(first, last);
      for (const auto& [first, last] : erasure.slots.ranges()) erased_slots_.Add(first, last);
    }
  }

  void CheckErasures() {
    without_keys_.ForEach([&](uint64_t entry) {
      const bool pruned = pruned_.Contains(entry) && !own_without_keys_.Contains(entry);
      if (!pruned && !erased_.Contains(entry)) {
        Find("keyring", entry, "its keys are gone, and no entry says that they were erased");
      }
      return report_.findings_omitted == 0;
    });
    report_.erased = without_keys_.count();
    const auto check_gone = [&](const Ranges& gone, bool own_too) {
      gone.ForEach([&](uint64_t entry) {
        if (entry >= tree_.size()) return false;
        if (without_keys_.Contains(entry) || (!own_too && own_with_keys_.Contains(entry)) ||
            unreadable_.contains(entry)) {
          return true;
        }
        Find("keyring", entry,
             "it was erased, and its keys are still there; start the server once");
        return report_.findings_omitted == 0;
      });
    };
    if (unfinished_erasures_ == 0) {
      check_gone(erased_, true);
      check_gone(pruned_, false);
    }
    if (!AnyErasure()) {
      unindexed_.ForEach([&](uint64_t entry) {
        Find("index", entry, "it serves hits, but the index does not hold its fingerprint");
        return report_.findings_omitted == 0;
      });
      for (const auto& [entry, first] : overtaken_) {
        Find("index", entry,
             "the index names entry " + std::to_string(first) +
                 " for its fingerprint, and this one was first");
      }
    }
    if (unreadable_.empty() && stored_holds_ != holds_) {
      Find("hold", std::nullopt, "the holds in force are not those that the entries say");
    }
  }

  // The rows that entries and hits did not use yet: a damaged one would stop the log when its turn
  // comes.
  Status CheckUnusedKeys() {
    if (!options_.unused_keys) return {};
    if (Status s = CheckUnusedKeys(reader_.entry_keys(), "entries", tree_.size()); !s.ok()) {
      return s;
    }
    return CheckUnusedKeys(reader_.hit_keys(), "hits", 0);
  }

  // One finding a segment: where its own key is damaged, none of its rows can be read.
  Status CheckUnusedKeys(const Keyring& ring, const char* name, uint64_t first) {
    for (uint64_t slot = first; slot < ring.End(); ++slot) {
      Result<SlotKeys> keys = ring.Get(slot);
      if (keys.ok() || keys.error().code == Code::kNotFound) continue;  // sound, or erased
      if (keys.error().code == Code::kIo) return keys.error();
      const uint64_t segment = slot / Keyring::kSlotsPerSegment;
      Find("keyring", std::nullopt,
           "the keyring \"" + std::string(name) + "\", slot " + std::to_string(slot) +
               ", is damaged; restore " + ring.SegmentPath(segment) + " from a backup");
      slot = (segment + 1) * Keyring::kSlotsPerSegment - 1;
    }
    return {};
  }

  struct HitsLeaf {
    std::string tenant;
    uint64_t count = 0;
    std::string root;
    bool seen = false;
  };

  const Reader& reader_;
  const Kv& kv_;
  const FsckOptions& options_;
  FsckReport report_;
  std::optional<TreeHead> head_;
  std::optional<TreeState> stored_;
  CompactRange tree_;  // recomputed
  uint64_t nodes_ = 0;
  int64_t last_time_ = 0;
  std::map<std::string, uint64_t> sequences_;
  std::map<uint64_t, HitsLeaf> batches_;
  std::vector<std::pair<std::string, uint64_t>> made_keys_;  // by rotations, and from which size
  HitCounters counters_;                                     // of the batches
  struct {
    std::string key;
    std::vector<OpenedHit> hits;  // empty where the row is missing
    bool damaged = false;
  } opened_;                                      // the row of hits that a receipt named last
  std::map<uint64_t, std::string> open_intents_;  // entry -> tenant
  Ranges without_keys_, own_without_keys_, own_with_keys_;  // own: the server's
  Ranges erased_, pruned_, erased_slots_;                   // as entries say
  Settled indexed_, received_;
  std::vector<uint64_t> erasures_;  // entries that say that keys were destroyed
  Ranges unindexed_;                // serve hits, and are not in the index
  std::vector<std::pair<uint64_t, uint64_t>> overtaken_;  // a later one is
  std::set<uint64_t> holds_, stored_holds_;  // in force: as entries say, as the database does
  uint64_t unfinished_erasures_ = 0;
  std::set<uint64_t> unreadable_;  // leaves that are missing or damaged
};

// A ledger of which nothing can be read: damage, not a failure to check.
FsckReport Unreadable(const char* kind, const std::string& what) {
  FsckReport report;
  report.findings.push_back({kind, std::nullopt, what});
  return report;
}

}  // namespace

Result<FsckReport> CheckLedger(const Reader& reader,
                               const std::optional<std::string>& kept_checkpoint,
                               const FsckOptions& options) {
  return Checker(reader, options).Run(kept_checkpoint);
}

Result<FsckReport> CheckFolder(const DataFolder& tables, const DataFolder& rings,
                               const DataFolder& secrets, FsckOptions options) {
  Result<Keys> keys = LoadKeys(secrets, "", false);
  if (!keys.ok()) return keys.error();
  if (::access((tables.database() + "/CURRENT").c_str(), F_OK) != 0 && errno == ENOENT) {
    return Unreadable("database", tables.database() + "/CURRENT is missing");
  }
  Result<std::unique_ptr<Kv>> kv = OpenRocksDb(tables.database(), KvAccess::kReadOnly);
  if (!kv.ok() && kv.error().code == Code::kCorrupt) {
    return Unreadable("database", kv.error().message);
  }
  if (!kv.ok()) return kv.error();
  Result<std::unique_ptr<Keyring>> entries =
      Keyring::Open(rings.keyring() + "/entries", "entries", *keys->wrapper, false);
  if (!entries.ok()) return entries.error();
  Result<std::unique_ptr<Keyring>> hits =
      Keyring::Open(rings.keyring() + "/hits", "hits", *keys->wrapper, false);
  if (!hits.ok()) return hits.error();
  Result<std::string> erasures = ReadFile(rings.erasures());
  if (erasures.ok()) {
    options.erasures = std::move(*erasures);
  } else if (erasures.error().code == Code::kNotFound && rings.path() == secrets.path()) {
    options.erasures = "";
  }
  Result<std::string> checkpoint = ReadFile(tables.checkpoint());
  if (!checkpoint.ok() && checkpoint.error().code != Code::kNotFound) return checkpoint.error();
  Result<std::optional<std::string>> format = (*kv)->Get(Table::kMeta, kMetaFormat);
  if (!format.ok()) return format.error();
  if (*format && **format != kFormatVersion) {
    return Error{
        Code::kFailedPrecondition,
        "the database has format " + **format + ", and this build checks format " +
            std::string(kFormatVersion) +
            ": start its server once, which migrates format 1, or use the build that wrote it"};
  }
  const Reader reader(**kv, *keys, **entries, **hits);
  return CheckLedger(
      reader, checkpoint.ok() ? std::optional<std::string>(*checkpoint) : std::nullopt, options);
}

Result<FsckReport> Fsck(const std::string& path, const FsckOptions& options) {
  const DataFolder unlocked = DataFolder::Unlocked(path);
  if (::access(unlocked.keys().c_str(), F_OK) != 0) {
    return Error{Code::kNotFound,
                 "there is no ledger in " + path + "; name a data folder with --data"};
  }
  // A server that starts or stops has the folder, but answers at its socket not yet or no more.
  const int64_t give_up = MonotonicMicros() + kServerWaitMicros;
  for (;;) {
    Result<DataFolder> owned = DataFolder::Open(path);
    if (owned.ok()) return CheckFolder(*owned, *owned, *owned, options);
    if (owned.error().code != Code::kFailedPrecondition) return owned.error();
    Result<SnapshotLease> lease = SnapshotLease::Request(unlocked);
    if (lease.ok()) {
      const DataFolder snapshot = DataFolder::Unlocked(lease->path());
      Result<FsckReport> report = CheckFolder(snapshot, snapshot, unlocked, options);
      if (report.ok()) report->snapshot = true;
      return report;
    }
    if (MonotonicMicros() > give_up) {
      return lease.error().code == Code::kNotFound ? owned.error() : lease.error();
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

json::Value ToJson(const FsckReport& report) {
  json::Value findings = json::Value::MakeArray();
  for (const FsckFinding& finding : report.findings) {
    json::Value item = json::Value::MakeObject();
    item.Set("kind", finding.kind);
    item.Set("entry", finding.entry ? json::Value(*finding.entry) : json::Value());
    item.Set("what", finding.what);
    findings.Append(std::move(item));
  }
  json::Value object = json::Value::MakeObject();
  object.Set("clean", report.clean());
  object.Set("entries", report.entries);
  object.Set("hits", report.hits);
  object.Set("root", HexEncode(report.root));
  object.Set("erased", report.erased);
  object.Set("pruned_before", report.pruned_before);
  object.Set("checkpoint_size", report.checkpoint_size);
  object.Set("snapshot", report.snapshot);
  object.Set("findings", std::move(findings));
  object.Set("findings_omitted", report.findings_omitted);
  return object;
}

}  // namespace verbatim::store
