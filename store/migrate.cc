#include "store/migrate.h"

#include <string>
#include <utility>
#include <vector>

#include "store/rows.h"

namespace verbatim::store {
namespace {

// Format 1 had a row for each hit, and receipts that named hits:
//   hit:      key HitKey; slot u64 || commitment (32) || record sealed under the row's key
//   receipt:  "H" || pseudonym (16) || HitKey (28)
constexpr char kFormat1[] = "1", kFrom1To2[] = "1>2";
constexpr size_t kRow1Head = 8 + 32, kReceipt1Bytes = 1 + 16 + kHitKeyBytes;

using Row = std::pair<std::string, std::string>;

Error DamagedRow(const char* what) {
  return {Code::kCorrupt, std::string("the migration found a damaged row of ") + what +
                              "; restore a backup, or check it with the build that wrote it"};
}

// A row of one hit, sealed again in the form of format 2. Salt and commitment stay.
Result<std::string> HitFrom1(std::string_view key, std::string_view value, const Keyring& ring) {
  if (key.size() != kHitKeyBytes || value.size() < kRow1Head) return DamagedRow("hits");
  HitRow row;
  row.slot = ReadU64(value);
  row.commitments = {ToDigest(value.substr(8, 32))};
  const std::string_view sealed = value.substr(kRow1Head);
  Result<SlotKeys> slot = ring.Get(row.slot);
  if (!slot.ok() && slot.error().code != Code::kNotFound) return slot.error();
  if (!slot.ok()) {  // erased: nobody opens it any more
    row.sealed = std::string(sealed);
    return EncodeHitRow(row);
  }
  const std::string row_key = HitKeyDeriver(*slot).KeyOfRow(key);
  Result<std::string> record = OpenPart(row_key, ReadU64(key), Part::kHit, sealed);
  if (!record.ok()) return DamagedRow("hits");
  row.sealed = SealPart(row_key, ReadU64(key), Part::kHit, JoinHitRecords({*record}));
  return EncodeHitRow(row);
}

Result<std::string> ReceiptFrom1(std::string_view value) {
  const std::string_view hit_key = value.substr(1 + 16);
  if (hit_key.substr(8, 16) != value.substr(1, 16)) return DamagedRow("receipts");
  return EncodeReceiptRow({"", 0, std::string(hit_key), 0});
}

class From1To2 {
 public:
  From1To2(Kv& kv, const Keyring& ring, const MigrationOptions& options)
      : kv_(kv), ring_(ring), options_(options) {}

  Status Run() {
    if (Status rewritten = Rewrite(Table::kHit); !rewritten.ok()) return rewritten;
    if (Status rewritten = Rewrite(Table::kReceipt); !rewritten.ok()) return rewritten;
    Batch last;
    last.RequireEquals(Table::kMeta, kMetaFormat, kFrom1To2);
    last.Put(Table::kMeta, kMetaFormat, "2");
    last.Delete(Table::kMeta, kMetaMigration);
    return kv_.Commit(last, true);
  }

 private:
  // Where the last step ended: table and key of the last row that it looked at.
  Result<std::string> Bookmark() const {
    Result<std::optional<std::string>> row = kv_.Get(Table::kMeta, kMetaMigration);
    if (!row.ok()) return row.error();
    return row->value_or("");
  }

  // Hits come first, then receipts.
  Status Rewrite(Table table) {
    const std::string prefix = PrefixOf(table);
    for (;;) {
      Result<std::string> bookmark = Bookmark();
      if (!bookmark.ok()) return bookmark.error();
      if (table == Table::kHit && bookmark->starts_with(PrefixOf(Table::kReceipt))) return {};
      std::string begin;
      if (bookmark->starts_with(prefix)) begin = bookmark->substr(1) + std::string(1, '\0');
      std::vector<Row> rows;
      const Status scanned =
          kv_.Scan(table, begin, "", [&](std::string_view key, std::string_view value) {
            rows.emplace_back(key, value);
            return rows.size() < options_.rows_a_step;
          });
      if (!scanned.ok()) return scanned;
      if (rows.empty()) return {};
      if (Status stepped = Step(table, rows); !stepped.ok()) return stepped;
    }
  }

  static std::string PrefixOf(Table table) { return std::string(1, static_cast<char>(table)); }

  Status Step(Table table, const std::vector<Row>& rows) {
    Batch step;
    step.RequireEquals(Table::kMeta, kMetaFormat, kFrom1To2);
    for (const auto& [key, value] : rows) {
      if (table == Table::kReceipt && (value.size() != kReceipt1Bytes || value[0] != 'H')) continue;
      Result<std::string> next =
          table == Table::kHit ? HitFrom1(key, value, ring_) : ReceiptFrom1(value);
      if (!next.ok()) return next.error();
      step.Put(table, key, std::move(*next));
    }
    step.Put(Table::kMeta, kMetaMigration, PrefixOf(table) + rows.back().first);
    if (Status committed = kv_.Commit(step, true); !committed.ok()) return committed;
    rows_ += rows.size();
    if (options_.progress) options_.progress(rows_);
    return {};
  }

  Kv& kv_;
  const Keyring& ring_;
  const MigrationOptions& options_;
  uint64_t rows_ = 0;
};

}  // namespace

Status Migrate(Kv& kv, const Keyring& hits, const MigrationOptions& options) {
  Result<std::optional<std::string>> format = kv.Get(Table::kMeta, kMetaFormat);
  if (!format.ok()) return format.error();
  if (!*format || **format == kFormatVersion) return {};
  if (**format == kFormat1) {
    Batch first;
    first.RequireEquals(Table::kMeta, kMetaFormat, kFormat1);
    first.Put(Table::kMeta, kMetaFormat, kFrom1To2);
    if (Status begun = kv.Commit(first, true); !begun.ok()) return begun;
  } else if (**format != kFrom1To2) {
    return Error{Code::kFailedPrecondition,
                 "the database has format " + **format + "; this build reads format " +
                     std::string(kFormatVersion) +
                     " and migrates format 1: use the build that wrote it"};
  }
  return From1To2(kv, hits, options).Run();
}

}  // namespace verbatim::store
