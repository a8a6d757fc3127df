// Reads a ledger's tables, and gives nothing out that does not fit its digests. Used by the open
// Ledger, and on snapshots by fsck and export.
//
// Threads: every method may be called from any thread. Borrows everything; owns nothing.
// Errors: kCorrupt names the entry and what does not fit; kNotFound; kIo.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "store/keyring.h"
#include "store/keys.h"
#include "store/kv.h"
#include "store/ledger.h"
#include "store/merkle.h"
#include "store/rows.h"
#include "store/tiles.h"

namespace verbatim::store {

// The keys that signed and sign the log's heads, the newest last. newest: where there was no
// rotation.
Result<std::vector<LogKey>> ReadLogKeys(const Kv& kv, const VerifierKey& newest);

// A hit's record, with what its commitment is made of.
struct OpenedHit {
  HitRecord record;
  std::string bytes, salt;
};

// The rows of one interval and tenant.
struct HitBatch {
  std::vector<Digest> hashes;  // RFC 6962 leaf hashes of the commitments, by number
  uint64_t slots_end = 0;      // one past the last slot that they use
};

class Reader {
 public:
  Reader(const Kv& kv, const Keys& keys, const Keyring& entries, const Keyring& hits);
  ~Reader();

  Result<TreeState> ReadTreeState() const;
  // Nodes of high levels, which most proofs share and which never change, are kept in memory
  // (some 15 MB at most).
  Result<Digest> ReadNode(unsigned level, uint64_t index) const;
  NodeReader nodes() const {
    return [this](unsigned level, uint64_t index) { return ReadNode(level, index); };
  }

  // The keys that signed and sign the log's heads, the newest last.
  Result<std::vector<LogKey>> LogKeys() const;

  // A tile's hashes or a bundle's entries (each with its length u16), as tlog-tiles serves them.
  // kNotFound where the tree of `size` leaves has it not.
  Result<std::string> Tile(const TilePath& tile, uint64_t size) const;

  Result<std::string> LeafBytes(uint64_t entry) const;
  Result<EntryView> Entry(uint64_t entry, bool private_parts) const;
  // The record, checked against the leaf's commitment. kNotFound where its keys were erased.
  Result<Record> OpenRecord(uint64_t entry, const Leaf& leaf, const SlotKeys& keys) const;
  // A payload, checked against the digest that the record holds for it; "" where it holds none.
  Result<std::string> OpenPayload(uint64_t entry, Part part, const std::optional<Digest>& digest,
                                  const SlotKeys& keys) const;
  Result<std::optional<uint64_t>> FindIndex(std::string_view name_space,
                                            const Digest& fingerprint) const;
  Result<std::optional<StoredResult>> Lookup(std::string_view name_space,
                                             const Digest& fingerprint) const;
  Result<Receipt> FindReceipt(std::string_view request_id) const;

  // A batch of hits. kCorrupt where numbers are missing.
  Result<HitBatch> ReadBatch(std::string_view batch_key) const;
  // A row's hits in order. row_key: of kHitKeyBytes.
  Result<std::vector<OpenedHit>> OpenHits(std::string_view row_key, const HitRow& row) const;

  const Keyring& entry_keys() const { return entries_; }
  const Keyring& hit_keys() const { return hits_; }
  const Keys& keys() const { return keys_; }
  const Kv& kv() const { return kv_; }

 private:
  Status FindHit(const ReceiptRow& row, Receipt& receipt) const;
  Status CheckReceiptEntry(const Receipt& receipt) const;

  struct HighNodes;
  const std::unique_ptr<HighNodes> high_nodes_;
  const Kv& kv_;
  const Keys& keys_;
  const Keyring& entries_;
  const Keyring& hits_;
};

}  // namespace verbatim::store
