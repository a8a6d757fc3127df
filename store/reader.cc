#include "store/reader.h"

#include <algorithm>
#include <mutex>
#include <unordered_map>

#include "base/crypto.h"

namespace verbatim::store {
namespace {

Error Damaged(uint64_t entry, const std::string& what) {
  return {Code::kCorrupt, "entry " + std::to_string(entry) + ": " + what};
}

const char* PartName(Part part) {
  switch (part) {
    case Part::kRecord:
      return "record";
    case Part::kRequest:
      return "request";
    case Part::kResponse:
      return "response";
    case Part::kTrace:
      return "trace";
    case Part::kHit:
      return "hit";
  }
  CHECK(false);
}

}  // namespace

Result<TreeState> Reader::ReadTreeState() const {
  Result<std::optional<std::string>> row = kv_.Get(Table::kMeta, kMetaTree);
  if (!row.ok()) return row.error();
  if (!*row) return Error{Code::kCorrupt, "the tree state is missing"};
  return DecodeTreeState(**row);
}

// From this level up: a 16th of the tree's leaves, and half of that again for each further level.
constexpr unsigned kHighLevel = 4;
constexpr size_t kMostHighNodes = size_t{1} << 17;

struct Reader::HighNodes {
  std::mutex mutex;                                // guards what follows
  std::unordered_map<std::string, Digest> hashes;  // by the table's key
};

Reader::Reader(const Kv& kv, const Keys& keys, const Keyring& entries, const Keyring& hits)
    : high_nodes_(std::make_unique<HighNodes>()),
      kv_(kv),
      keys_(keys),
      entries_(entries),
      hits_(hits) {}

Reader::~Reader() = default;

Result<Digest> Reader::ReadNode(unsigned level, uint64_t index) const {
  const std::string key = NodeKey(level, index);
  if (level >= kHighLevel) {
    const std::lock_guard lock(high_nodes_->mutex);
    const auto known = high_nodes_->hashes.find(key);
    if (known != high_nodes_->hashes.end()) return known->second;
  }
  Result<std::optional<std::string>> row = kv_.Get(Table::kNode, key);
  if (!row.ok()) return row.error();
  if (!*row || (*row)->size() != 32) {
    return Error{Code::kCorrupt, "tree node (level " + std::to_string(level) + ", index " +
                                     std::to_string(index) + ") is missing or damaged"};
  }
  const Digest hash = ToDigest(**row);
  if (level >= kHighLevel) {
    const std::lock_guard lock(high_nodes_->mutex);
    if (high_nodes_->hashes.size() >= kMostHighNodes) high_nodes_->hashes.clear();
    high_nodes_->hashes.emplace(key, hash);
  }
  return hash;
}

Result<std::vector<LogKey>> ReadLogKeys(const Kv& kv, const VerifierKey& newest) {
  Result<std::optional<std::string>> row = kv.Get(Table::kMeta, kMetaKeys);
  if (!row.ok()) return row.error();
  if (!*row) return std::vector<LogKey>{{newest, 0}};
  return DecodeLogKeys(**row);
}

Result<std::vector<LogKey>> Reader::LogKeys() const {
  return ReadLogKeys(kv_, keys_.signer->key());
}

Result<std::string> Reader::Tile(const TilePath& tile, uint64_t size) const {
  if (!TreeHasTile(tile, size)) {
    return Error{Code::kNotFound, "the tree of " + std::to_string(size) + " entries has no tile/" +
                                      FormatTilePath(tile)};
  }
  const uint64_t begin = tile.index * kTileWidth, end = begin + tile.width;
  const Error damaged{Code::kCorrupt,
                      "tile/" + FormatTilePath(tile) + " is damaged; run verbatim fsck"};
  std::string bytes;
  uint64_t next = begin;
  Status problem;
  const auto add_hash = [&](std::string_view key, std::string_view hash) {
    const bool fits = key == NodeKey(8 * tile.level, next) && hash.size() == 32;
    if (!fits) problem = damaged;
    bytes += hash;
    ++next;
    return fits;
  };
  const auto add_entry = [&](std::string_view key, std::string_view leaf) {
    const bool fits = key == EntryKey(next) && leaf.size() <= kMaxLeafBytes;
    if (!fits) problem = damaged;
    AppendU16(bytes, static_cast<uint16_t>(leaf.size()));
    bytes += leaf;
    ++next;
    return fits;
  };
  Status scanned;
  if (tile.entries) {
    scanned = kv_.Scan(Table::kLeaf, EntryKey(begin), EntryKey(end), add_entry);
  } else {
    scanned = kv_.Scan(Table::kNode, NodeKey(8 * tile.level, begin), NodeKey(8 * tile.level, end),
                       add_hash);
  }
  if (!scanned.ok()) return scanned.error();
  if (!problem.ok()) return problem.error();
  if (next != end) return damaged;
  return bytes;
}

Result<std::string> Reader::LeafBytes(uint64_t entry) const {
  Result<std::optional<std::string>> row = kv_.Get(Table::kLeaf, EntryKey(entry));
  if (!row.ok()) return row.error();
  if (!*row) return Error{Code::kNotFound, "there is no entry " + std::to_string(entry)};
  return std::move(**row);
}

Result<Record> Reader::OpenRecord(uint64_t entry, const Leaf& leaf, const SlotKeys& keys) const {
  Result<std::optional<std::string>> sealed = kv_.Get(Table::kRecord, EntryKey(entry));
  if (!sealed.ok()) return sealed.error();
  if (!*sealed) return Damaged(entry, "its record is missing");
  Result<std::string> bytes = OpenPart(keys.key, entry, Part::kRecord, **sealed);
  if (!bytes.ok()) return Damaged(entry, "its record does not decrypt");
  if (Commitment(keys.salt, Sha256(*bytes)) != leaf.commitment) {
    return Damaged(entry, "its record is not the one that the leaf commits to");
  }
  Result<Record> record = ParseRecord(*bytes);
  if (!record.ok()) return Damaged(entry, record.error().message);
  return record;
}

Result<std::string> Reader::OpenPayload(uint64_t entry, Part part,
                                        const std::optional<Digest>& digest,
                                        const SlotKeys& keys) const {
  if (!digest) return std::string();
  Result<std::optional<std::string>> sealed = kv_.Get(Table::kPayload, PayloadKey(entry, part));
  if (!sealed.ok()) return sealed.error();
  const std::string name = std::string("its ") + PartName(part);
  if (!*sealed) return Damaged(entry, name + " is missing");
  Result<std::string> bytes = OpenPart(keys.key, entry, part, **sealed);
  if (!bytes.ok()) return Damaged(entry, name + " does not decrypt");
  if (Sha256(*bytes) != *digest) return Damaged(entry, name + " differs from its digest");
  return bytes;
}

Result<EntryView> Reader::Entry(uint64_t entry, bool private_parts) const {
  EntryView view;
  view.entry = entry;
  Result<std::string> bytes = LeafBytes(entry);
  if (!bytes.ok()) return bytes.error();
  view.leaf_bytes = std::move(*bytes);
  Result<Leaf> leaf = ParseLeaf(view.leaf_bytes);
  if (!leaf.ok()) return Damaged(entry, leaf.error().message);
  view.leaf = std::move(*leaf);
  if (!private_parts) return view;

  Result<SlotKeys> keys = entries_.Get(entry);
  if (!keys.ok() && keys.error().code == Code::kNotFound) return view;  // erased
  if (!keys.ok()) return keys.error();
  Result<Record> record = OpenRecord(entry, view.leaf, *keys);
  if (!record.ok()) return record.error();
  for (const auto& [part, digest, out] :
       {std::tuple(Part::kRequest, &record->request_digest, &view.request),
        std::tuple(Part::kResponse, &record->output_digest, &view.response),
        std::tuple(Part::kTrace, &record->trace_digest, &view.trace)}) {
    Result<std::string> payload = OpenPayload(entry, part, *digest, *keys);
    if (!payload.ok()) return payload.error();
    *out = std::move(*payload);
  }
  view.record = std::move(*record);
  view.salt = keys->salt;
  return view;
}

Result<std::optional<uint64_t>> Reader::FindIndex(std::string_view name_space,
                                                  const Digest& fingerprint) const {
  Result<std::optional<std::string>> row =
      kv_.Get(Table::kIndex, keys_.IndexKey(name_space, fingerprint));
  if (!row.ok()) return row.error();
  if (!*row) return std::optional<uint64_t>();
  Result<uint64_t> entry = DecodeU64(**row);
  if (!entry.ok()) return entry.error();
  return std::optional<uint64_t>(*entry);
}

Result<std::optional<StoredResult>> Reader::Lookup(std::string_view name_space,
                                                   const Digest& fingerprint) const {
  Result<std::optional<uint64_t>> found = FindIndex(name_space, fingerprint);
  if (!found.ok()) return found.error();
  if (!*found) return std::optional<StoredResult>();

  StoredResult result;
  result.entry = **found;
  Result<std::string> leaf_bytes = LeafBytes(result.entry);
  if (!leaf_bytes.ok()) return Damaged(result.entry, "the index names it, but its leaf is missing");
  Result<Leaf> leaf = ParseLeaf(*leaf_bytes);
  if (!leaf.ok()) return Damaged(result.entry, leaf.error().message);
  Result<SlotKeys> keys = entries_.Get(result.entry);
  if (!keys.ok() && keys.error().code == Code::kNotFound) return std::optional<StoredResult>();
  if (!keys.ok()) return keys.error();
  Result<Record> record = OpenRecord(result.entry, *leaf, *keys);
  if (!record.ok()) return record.error();
  if (!record->serves_hits || record->name_space != name_space ||
      IndexedBy(*record) != fingerprint || !record->output_digest) {
    return Damaged(result.entry, "the index names it for another request");
  }
  Result<std::string> response =
      OpenPayload(result.entry, Part::kResponse, record->output_digest, *keys);
  if (!response.ok()) return response.error();
  result.leaf = std::move(*leaf);
  result.record = std::move(*record);
  result.response = std::move(*response);
  return std::optional<StoredResult>(std::move(result));
}

Result<HitBatch> Reader::ReadBatch(std::string_view batch_key) const {
  HitBatch batch;
  Status problem;
  const Status scanned = kv_.Scan(
      Table::kHit, batch_key, PrefixEnd(batch_key),
      [&](std::string_view key, std::string_view value) {
        Result<HitRow> row = DecodeHitRow(value);
        if (key.size() != kHitKeyBytes || !row.ok() || row->slot >= hits_.End() ||
            ReadU32(key.substr(kHitBatchKeyBytes)) != batch.hashes.size()) {
          problem = Error{Code::kCorrupt, "hit " + std::to_string(batch.hashes.size()) +
                                              " of interval " + std::to_string(ReadU64(batch_key)) +
                                              " is missing or damaged; run verbatim fsck"};
          return false;
        }
        for (const Digest& commitment : row->commitments) {
          batch.hashes.push_back(LeafHash(AsBytes(commitment)));
        }
        batch.slots_end = std::max(batch.slots_end, row->slot + 1);
        return true;
      });
  if (!scanned.ok()) return scanned.error();
  if (!problem.ok()) return problem.error();
  return batch;
}

Result<std::vector<OpenedHit>> Reader::OpenHits(std::string_view row_key, const HitRow& row) const {
  const uint64_t interval = ReadU64(row_key);
  const uint32_t first = ReadU32(row_key.substr(kHitBatchKeyBytes));
  const auto damaged = [&](size_t place, const char* what) {
    return Error{Code::kCorrupt, "hit " + std::to_string(first + place) + " of interval " +
                                     std::to_string(interval) + " " + what};
  };
  Result<SlotKeys> slot = hits_.Get(row.slot);
  if (!slot.ok()) return slot.error();
  HitKeyDeriver keys(*slot);
  Result<std::string> joined = OpenPart(keys.KeyOfRow(row_key), interval, Part::kHit, row.sealed);
  if (!joined.ok()) return damaged(0, "does not decrypt, nor what follows it in its row");
  Result<std::vector<std::string>> records = SplitHitRecords(*joined, row.commitments.size());
  if (!records.ok()) return damaged(0, "is not of the form that its row says");

  std::vector<OpenedHit> hits;
  hits.reserve(records->size());
  const std::string_view pseudonym = row_key.substr(8, 16);
  for (size_t i = 0; i < records->size(); ++i) {
    std::string& bytes = (*records)[i];
    const auto number = static_cast<uint32_t>(first + i);
    std::string salt = keys.SaltOfHit(HitKey(interval, pseudonym, number));
    if (Commitment(salt, Sha256(bytes)) != row.commitments[i]) {
      return damaged(i, "differs from its commitment");
    }
    Result<HitRecord> record = ParseHitRecord(bytes);
    if (!record.ok()) return record.error();
    hits.push_back({std::move(*record), std::move(bytes), std::move(salt)});
  }
  return hits;
}

Result<Receipt> Reader::FindReceipt(std::string_view request_id) const {
  Result<std::optional<std::string>> bytes = kv_.Get(Table::kReceipt, request_id);
  if (!bytes.ok()) return bytes.error();
  if (!*bytes) {
    return Error{Code::kNotFound, "there is no receipt for request " + std::string(request_id)};
  }
  Result<ReceiptRow> row = DecodeReceiptRow(**bytes);
  if (!row.ok()) return row.error();
  Receipt receipt;
  receipt.request_id = std::string(request_id);
  receipt.tenant = PseudonymText(row->pseudonym);
  if (row->row_key.empty()) {
    receipt.entry = row->entry;
    if (Status own = CheckReceiptEntry(receipt); !own.ok()) return own.error();
    return receipt;
  }
  if (Status found = FindHit(*row, receipt); !found.ok()) return found.error();
  return receipt;
}

// Fills in the hit that the receipt's row names, and its batch's entry once there is one.
Status Reader::FindHit(const ReceiptRow& row, Receipt& receipt) const {
  const Error damaged{Code::kCorrupt, "the hit of this receipt is missing; run verbatim fsck"};
  Result<std::optional<std::string>> bytes = kv_.Get(Table::kHit, row.row_key);
  if (!bytes.ok()) return bytes.error();
  if (!*bytes) return damaged;
  Result<HitRow> hit_row = DecodeHitRow(**bytes);
  if (!hit_row.ok()) return hit_row.error();
  if (row.place >= hit_row->commitments.size()) return damaged;
  Result<std::vector<OpenedHit>> hits = OpenHits(row.row_key, *hit_row);
  const bool erased = !hits.ok() && hits.error().code == Code::kNotFound;
  if (!hits.ok() && !erased) return hits.error();
  if (!erased && ((*hits)[row.place].record.request_id != receipt.request_id ||
                  keys_.Pseudonym((*hits)[row.place].record.tenant) != receipt.tenant)) {
    return Error{Code::kCorrupt, "the receipt names another request's hit; run verbatim fsck"};
  }
  receipt.hit.emplace();
  receipt.hit->erased = erased;
  receipt.hit->number =
      ReadU32(std::string_view(row.row_key).substr(kHitBatchKeyBytes)) + row.place;
  if (!erased) {
    OpenedHit& hit = (*hits)[row.place];
    receipt.hit->result = hit.record.result;
    receipt.hit->record = std::move(hit.bytes);
    receipt.hit->salt = std::move(hit.salt);
  }
  receipt.hit->commitment = hit_row->commitments[row.place];

  const std::string batch_key = row.row_key.substr(0, kHitBatchKeyBytes);
  Result<std::optional<std::string>> leaf = kv_.Get(Table::kHitBatch, batch_key);
  if (!leaf.ok()) return leaf.error();
  if (!*leaf) return {};  // pending
  Result<uint64_t> entry = DecodeU64(**leaf);
  if (!entry.ok()) return entry.error();
  Result<HitBatch> batch = ReadBatch(batch_key);
  if (!batch.ok()) return batch.error();
  if (receipt.hit->number >= batch->hashes.size()) return damaged;
  receipt.entry = *entry;
  if (Status own = CheckReceiptEntry(receipt); !own.ok()) return own.error();
  receipt.hit->count = batch->hashes.size();
  receipt.hit->path = PathIn(batch->hashes, receipt.hit->number);
  return {};
}

// A receipt leads to an entry of its own tenant, never to another's.
Status Reader::CheckReceiptEntry(const Receipt& receipt) const {
  Result<EntryView> view = Entry(*receipt.entry, false);
  if (!view.ok() && view.error().code != Code::kNotFound) return view.error();
  const bool fits = view.ok() && view->leaf.tenant == receipt.tenant &&
                    (view->leaf.kind == Kind::kHits) == receipt.hit.has_value();
  if (fits) return {};
  return Damaged(*receipt.entry, "the receipt names it, but it is not this receipt's entry");
}

}  // namespace verbatim::store
