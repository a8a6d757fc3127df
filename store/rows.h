// The bytes of the tables' rows that are not leaves or sealed blobs (store/FORMAT.md). Values only.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/crypto.h"
#include "base/json.h"
#include "base/result.h"
#include "store/checkpoint.h"
#include "store/keyring.h"
#include "store/merkle.h"
#include "store/records.h"

namespace verbatim::store {

inline constexpr std::string_view kFormatVersion = "2";

// Keys of Table::kMeta.
inline constexpr char kMetaFormat[] = "format";        // kFormatVersion
inline constexpr char kMetaOrigin[] = "origin";        // text
inline constexpr char kMetaTree[] = "tree";            // TreeState
inline constexpr char kMetaInterval[] = "interval";    // HitCounters
inline constexpr char kMetaMigration[] = "migration";  // table u8 || key: the last row migrated

// Followed by an entry: an erasure whose keys are not destroyed yet, a hold that is not released.
inline constexpr char kMetaErasing[] = "erasing/";  // empty
inline constexpr char kMetaHold[] = "hold/";        // the `held` leaf's detail
inline constexpr char kMetaKeys[] = "keys";         // LogKeys; absent before the first rotation

struct TreeState {
  CompactRange tree;
  int64_t time = 0;  // of the last leaf
};
std::string EncodeTreeState(const TreeState& state);
Result<TreeState> DecodeTreeState(std::string_view bytes);

// The log's keys, oldest first: canonical JSON [{"from": size, "vkey": text}, ...].
std::string EncodeLogKeys(const std::vector<LogKey>& keys);
// Refuses (kCorrupt) keys of several names, and sizes that do not ascend from 0.
Result<std::vector<LogKey>> DecodeLogKeys(std::string_view bytes);

std::string NodeKey(unsigned level, uint64_t index);

// One past the last interval whose hits have their leaves, and one past the last slot they use.
struct HitCounters {
  uint64_t interval = 0, slot = 0;
};
inline constexpr uint64_t kMaxHitNumber = uint64_t{1} << 62;  // of intervals and slots
std::string EncodeHitCounters(const HitCounters& counters);
Result<HitCounters> DecodeHitCounters(std::string_view bytes);

// A leaf's tenant pseudonym as 16 bytes; zeros for the server itself.
std::string PseudonymBytes(std::string_view pseudonym);
std::string PseudonymText(std::string_view bytes);

// (interval, pseudonym) is a batch of hits; with a number it is one hit, and the row of those that
// begin with it.
std::string HitBatchKey(uint64_t interval, std::string_view pseudonym);
std::string HitKey(uint64_t interval, std::string_view pseudonym, uint32_t number);
inline constexpr size_t kHitBatchKeyBytes = 8 + 16, kHitKeyBytes = kHitBatchKeyBytes + 4;

// Hits of one batch and subject that were recorded together, numbered from the row's key on.
struct HitRow {
  uint64_t slot = 0;  // of the hits' keyring: one per interval, tenant and subject
  std::vector<Digest> commitments;
  std::string sealed;  // JoinHitRecords
};
inline constexpr size_t kMaxHitsOfRow = 256;
std::string EncodeHitRow(const HitRow& row);
Result<HitRow> DecodeHitRow(std::string_view bytes);  // has at least one

// The records of a row's hits, in order, as what is sealed; and back, with exactly `count` of them.
std::string JoinHitRecords(const std::vector<std::string>& records);
Result<std::vector<std::string>> SplitHitRecords(std::string_view bytes, size_t count);

// What a hit's trace says, private.
struct HitRecord {
  Kind kind = Kind::kHit;
  std::string tenant, subject, key_id, request_id;
  uint64_t result = 0;
  int64_t time = 0;
  json::Value extra;
};
// The same, as a caller has it; `extra` is the canonical JSON of an object, or empty.
struct HitText {
  Kind kind = Kind::kHit;
  std::string_view tenant, subject, key_id, request_id;
  uint64_t result = 0;
  int64_t time = 0;
  std::string_view extra;
};
std::string EncodeHitRecord(const HitText& hit);
Result<HitRecord> ParseHitRecord(std::string_view bytes);

// Derives from a slot's key and salt those of its rows and hits. Not thread-safe.
class HitKeyDeriver {
 public:
  explicit HitKeyDeriver(const SlotKeys& slot) : key_(slot.key), salt_(slot.salt) {}
  std::string KeyOfRow(std::string_view row_key);
  std::string SaltOfHit(std::string_view hit_key);

 private:
  HmacSha256Key key_, salt_;
};

// A receipt's row: an entry, or a hit of a batch.
struct ReceiptRow {
  std::string pseudonym;  // 16 bytes
  uint64_t entry = 0;     // where row_key is empty
  std::string row_key{};  // of the hit's row, of the same pseudonym
  uint16_t place = 0;     // in that row
};
std::string EncodeReceiptRow(const ReceiptRow& row);
Result<ReceiptRow> DecodeReceiptRow(std::string_view bytes);

std::string EncodeU64(uint64_t value);
Result<uint64_t> DecodeU64(std::string_view bytes);

}  // namespace verbatim::store
