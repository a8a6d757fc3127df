#include "store/intents.h"

#include "base/clock.h"
#include "base/log.h"
#include "store/rows.h"

namespace verbatim::store {

Result<std::vector<OpenIntent>> ReadOpenIntents(const Kv& kv, uint64_t first) {
  std::vector<OpenIntent> intents;
  bool damaged = false;
  const Status scanned = kv.Scan(Table::kIntent, EntryKey(first), "",
                                 [&](std::string_view key, std::string_view value) {
                                   damaged = key.size() != 8 || value.size() != 16;
                                   if (damaged) return false;
                                   intents.push_back({ReadU64(key), std::string(value)});
                                   return true;
                                 });
  if (!scanned.ok()) return scanned.error();
  if (damaged) {
    return Error{Code::kCorrupt,
                 "a row of open intents is damaged; run verbatim fsck and restore a backup of this "
                 "log"};
  }
  return intents;
}

namespace {

// The intent's leaf and record. Not kIo: what is erased or damaged stays empty.
Status ReadIntent(const Reader& reader, uint64_t entry, Leaf& leaf, Record& record) {
  Result<EntryView> view = reader.Entry(entry, false);
  if (!view.ok()) return view.error();
  leaf = std::move(view->leaf);
  Result<SlotKeys> keys = reader.entry_keys().Get(entry);
  if (!keys.ok()) return keys.error();
  Result<Record> opened = reader.OpenRecord(entry, leaf, *keys);
  if (!opened.ok()) return opened.error();
  record = std::move(*opened);
  return {};
}

}  // namespace

Result<PreparedAppend> InterruptedEntry(const Reader& reader, const OpenIntent& intent,
                                        const char* outcome, Ledger::AppendCallback done) {
  Leaf leaf;
  AppendRequest request;
  if (Status read = ReadIntent(reader, intent.entry, leaf, request.record); !read.ok()) {
    if (read.error().code == Code::kIo) return read.error();
    LogWarning("ledger: the record of the open intent " + std::to_string(intent.entry) +
               " is gone: " + read.error().message);
    request.record = {};
  }
  request.kind = Kind::kInterrupted;
  request.outcome = outcome;
  request.closes_intent = intent.entry;
  request.model = leaf.model;
  request.manifest = leaf.manifest;
  request.numerics = leaf.numerics;
  json::Value about = json::Value::MakeObject();
  about.Set("entry", intent.entry);
  if (leaf.time != 0) about.Set("time", FormatTime(leaf.time));
  if (request.record.request_digest) {
    about.Set("request_digest", HexEncode(*request.record.request_digest));
  }
  if (!request.record.extra.is_object()) request.record.extra = json::Value::MakeObject();
  request.record.extra.Set("intent", std::move(about));
  // An intent leaves the receipt to its end, and names the request beside its record's own id.
  const json::Value* id = request.record.extra.Find("request_id");
  if (request.record.request_id.empty() && id && id->is_string()) {
    request.record.request_id = id->as_string();
  }
  Result<PreparedAppend> prepared = PrepareAppend(std::move(request), std::move(done));
  if (prepared.ok()) prepared->pseudonym = PseudonymText(intent.pseudonym);
  return prepared;
}

}  // namespace verbatim::store
