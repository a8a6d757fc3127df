#include "store/rows.h"

#include "base/clock.h"

namespace verbatim::store {
namespace {

constexpr uint64_t kMaxTime = 253402300799999999;  // the last microsecond of the year 9999

Error Damaged(const char* what) {
  return {Code::kCorrupt, std::string("a stored ") + what + " has the wrong form"};
}

}  // namespace

std::string EncodeTreeState(const TreeState& state) {
  std::string bytes;
  AppendU64(bytes, state.tree.size());
  AppendU64(bytes, static_cast<uint64_t>(state.time));
  for (const Digest& hash : state.tree.hashes()) bytes += AsBytes(hash);
  return bytes;
}

Result<TreeState> DecodeTreeState(std::string_view bytes) {
  if (bytes.size() < 16 || bytes.size() % 32 != 16) return Damaged("tree state");
  const uint64_t time = ReadU64(bytes.substr(8));
  if (time > kMaxTime) return Damaged("tree state");
  std::vector<Digest> hashes;
  for (size_t at = 16; at < bytes.size(); at += 32)
    hashes.push_back(ToDigest(bytes.substr(at, 32)));
  Result<CompactRange> tree = CompactRange::Restore(ReadU64(bytes), std::move(hashes));
  if (!tree.ok()) return tree.error();
  return TreeState{std::move(*tree), static_cast<int64_t>(time)};
}

std::string EncodeLogKeys(const std::vector<LogKey>& keys) {
  json::Value list = json::Value::MakeArray();
  for (const LogKey& key : keys) {
    list.Append(json::Object{{"from", key.from}, {"vkey", FormatVerifierKey(key.key)}});
  }
  return json::Canonical(list);
}

Result<std::vector<LogKey>> DecodeLogKeys(std::string_view bytes) {
  const Error damaged{Code::kCorrupt, "the list of the log's keys is damaged; run verbatim fsck"};
  Result<json::Value> list = json::Parse(bytes);
  if (!list.ok() || !list->is_array() || list->items().empty()) return damaged;
  std::vector<LogKey> keys;
  for (const json::Value& item : list->items()) {
    const json::Value* from = item.Find("from");
    const json::Value* vkey = item.Find("vkey");
    if (!from || !from->AsUint64() || !vkey || !vkey->is_string()) return damaged;
    Result<VerifierKey> key = ParseVerifierKey(vkey->as_string());
    if (!key.ok()) return damaged;
    const uint64_t size = *from->AsUint64();
    if (keys.empty() ? size != 0 : size <= keys.back().from) return damaged;
    if (!keys.empty() && key->name != keys[0].key.name) return damaged;
    keys.push_back({std::move(*key), size});
  }
  return keys;
}

std::string NodeKey(unsigned level, uint64_t index) {
  std::string key(1, static_cast<char>(level));
  AppendU64(key, index);
  return key;
}

std::string EncodeHitCounters(const HitCounters& counters) {
  std::string bytes;
  AppendU64(bytes, counters.interval);
  AppendU64(bytes, counters.slot);
  return bytes;
}

Result<HitCounters> DecodeHitCounters(std::string_view bytes) {
  if (bytes.size() != 16) return Damaged("counter of hits");
  const HitCounters counters{ReadU64(bytes), ReadU64(bytes.substr(8))};
  if (counters.interval > kMaxHitNumber || counters.slot > kMaxHitNumber) {
    return Damaged("counter of hits");
  }
  return counters;
}

std::string PseudonymBytes(std::string_view pseudonym) {
  if (pseudonym.empty()) return std::string(16, '\0');
  Result<std::string> bytes = HexDecode(pseudonym);
  CHECK(bytes.ok() && bytes->size() == 16);
  return *bytes;
}

std::string PseudonymText(std::string_view bytes) {
  if (bytes.find_first_not_of('\0') == std::string_view::npos) return {};
  return HexEncode(bytes);
}

std::string HitBatchKey(uint64_t interval, std::string_view pseudonym) {
  CHECK(pseudonym.size() == 16);
  std::string key;
  AppendU64(key, interval);
  key += pseudonym;
  return key;
}

std::string HitKey(uint64_t interval, std::string_view pseudonym, uint32_t number) {
  std::string key = HitBatchKey(interval, pseudonym);
  AppendU32(key, number);
  return key;
}

std::string EncodeHitRow(const HitRow& row) {
  std::string bytes;
  CHECK(!row.commitments.empty() && row.commitments.size() <= kMaxHitsOfRow);
  bytes.reserve(10 + row.commitments.size() * sizeof(Digest) + row.sealed.size());
  AppendU64(bytes, row.slot);
  AppendU16(bytes, static_cast<uint16_t>(row.commitments.size()));
  for (const Digest& commitment : row.commitments) bytes += AsBytes(commitment);
  bytes += row.sealed;
  return bytes;
}

Result<HitRow> DecodeHitRow(std::string_view bytes) {
  if (bytes.size() < 10) return Damaged("hit");
  HitRow row{.slot = ReadU64(bytes), .commitments = {}, .sealed = {}};
  const size_t count = ReadU16(bytes.substr(8));
  bytes.remove_prefix(10);
  if (count == 0 || count > kMaxHitsOfRow || bytes.size() < count * sizeof(Digest)) {
    return Damaged("hit");
  }
  row.commitments.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    row.commitments.push_back(ToDigest(bytes.substr(0, sizeof(Digest))));
    bytes.remove_prefix(sizeof(Digest));
  }
  row.sealed = std::string(bytes);
  return row;
}

std::string JoinHitRecords(const std::vector<std::string>& records) {
  size_t size = 0;
  for (const std::string& record : records) size += 4 + record.size();
  std::string bytes;
  bytes.reserve(size);
  for (const std::string& record : records) {
    AppendU32(bytes, static_cast<uint32_t>(record.size()));
    bytes += record;
  }
  return bytes;
}

Result<std::vector<std::string>> SplitHitRecords(std::string_view bytes, size_t count) {
  std::vector<std::string> records;
  for (size_t i = 0; i < count; ++i) {
    if (bytes.size() < 4 || bytes.size() - 4 < ReadU32(bytes)) return Damaged("hit");
    const size_t size = ReadU32(bytes);
    records.emplace_back(bytes.substr(4, size));
    bytes.remove_prefix(4 + size);
  }
  if (!bytes.empty()) return Damaged("hit");
  return records;
}

// Canonical JSON, its members in their order: written as text, since every hit waits for it.
std::string EncodeHitRecord(const HitText& hit) {
  std::string out;
  out.reserve(384);
  out += '{';
  if (!hit.extra.empty()) out.append("\"extra\":").append(hit.extra).append(",");
  out.append("\"key_id\":").append(json::Quote(hit.key_id));
  out.append(",\"kind\":").append(json::Quote(KindName(hit.kind)));
  out.append(",\"request_id\":").append(json::Quote(hit.request_id));
  out.append(",\"result\":").append(std::to_string(hit.result));
  out.append(",\"subject\":").append(json::Quote(hit.subject));
  out.append(",\"tenant\":").append(json::Quote(hit.tenant));
  out.append(",\"time\":").append(json::Quote(FormatTime(hit.time)));
  out.append(",\"version\":1}");
  return out;
}

Result<HitRecord> ParseHitRecord(std::string_view bytes) {
  Result<json::Value> object = json::Parse(bytes);
  if (!object.ok()) return Damaged("hit record");
  HitRecord record;
  std::string kind, time;
  for (const auto& [name, text] :
       {std::pair("kind", &kind), std::pair("tenant", &record.tenant),
        std::pair("subject", &record.subject), std::pair("key_id", &record.key_id),
        std::pair("request_id", &record.request_id), std::pair("time", &time)}) {
    const json::Value* value = object->Find(name);
    if (!value || !value->is_string()) return Damaged("hit record");
    *text = value->as_string();
  }
  const json::Value* version = object->Find("version");
  const json::Value* result = object->Find("result");
  if (!version || version->AsUint64() != 1 || !result || !result->AsUint64()) {
    return Damaged("hit record");
  }
  record.result = *result->AsUint64();
  Result<Kind> parsed_kind = ParseKind(kind);
  Result<int64_t> parsed_time = ParseTime(time);
  if (!parsed_kind.ok() || !parsed_time.ok()) return Damaged("hit record");
  record.kind = *parsed_kind;
  record.time = *parsed_time;
  if (const json::Value* extra = object->Find("extra")) record.extra = *extra;
  return record;
}

std::string HitKeyDeriver::KeyOfRow(std::string_view row_key) {
  std::string text("verbatim-hit-key-1");
  text += row_key;
  return std::string(AsBytes(key_.Of(text)));
}

std::string HitKeyDeriver::SaltOfHit(std::string_view hit_key) {
  std::string text("verbatim-hit-salt-1");
  text += hit_key;
  return std::string(AsBytes(salt_.Of(text)));
}

std::string EncodeReceiptRow(const ReceiptRow& row) {
  std::string bytes;
  if (row.row_key.empty()) {
    CHECK(row.pseudonym.size() == 16);
    bytes = "E" + row.pseudonym;
    AppendU64(bytes, row.entry);
  } else {
    CHECK(row.row_key.size() == kHitKeyBytes);
    bytes = "H" + row.row_key;
    AppendU16(bytes, row.place);
  }
  return bytes;
}

Result<ReceiptRow> DecodeReceiptRow(std::string_view bytes) {
  ReceiptRow row;
  if (bytes.size() == 1 + 16 + 8 && bytes[0] == 'E') {
    row.pseudonym = std::string(bytes.substr(1, 16));
    row.entry = ReadU64(bytes.substr(17));
  } else if (bytes.size() == 1 + kHitKeyBytes + 2 && bytes[0] == 'H') {
    row.row_key = std::string(bytes.substr(1, kHitKeyBytes));
    row.pseudonym = row.row_key.substr(8, 16);
    row.place = ReadU16(bytes.substr(1 + kHitKeyBytes));
  } else {
    return Damaged("receipt");
  }
  return row;
}

std::string EncodeU64(uint64_t value) {
  std::string bytes;
  AppendU64(bytes, value);
  return bytes;
}

Result<uint64_t> DecodeU64(std::string_view bytes) {
  if (bytes.size() != 8) return Damaged("number");
  return ReadU64(bytes);
}

}  // namespace verbatim::store
