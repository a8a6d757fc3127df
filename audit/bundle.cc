#include "audit/bundle.h"

#include <charconv>
#include <utility>

#include "base/json.h"

namespace verbatim::audit {
namespace {

constexpr int kVersion = 1;
constexpr size_t kMaxPath = 64;

constexpr std::pair<RecordState, const char*> kStates[] = {
    {RecordState::kIncluded, "included"},
    {RecordState::kWithheld, "withheld"},
    {RecordState::kErased, "erased"},
};

Error Broken(const std::string& what) { return {Code::kCorrupt, what}; }

std::string Text(const json::Value& object, const char* name) {
  const json::Value* value = object.Find(name);
  return value && value->is_string() ? value->as_string() : std::string();
}

std::optional<uint64_t> Number(const json::Value& object, const char* name) {
  const json::Value* value = object.Find(name);
  return value ? value->AsUint64() : std::nullopt;
}

std::optional<Digest> Hash(std::string_view hex) {
  Result<Digest> digest = HexDecodeDigest(hex);
  return digest.ok() ? std::optional(*digest) : std::nullopt;
}

json::Value Numbers(const std::vector<uint64_t>& numbers) {
  json::Value list = json::Value::MakeArray();
  for (const uint64_t number : numbers) list.Append(number);
  return list;
}

// Ascending, each below `end`; nothing where it is no such list.
std::optional<std::vector<uint64_t>> Ascending(const json::Value* list, uint64_t end) {
  std::vector<uint64_t> out;
  if (!list || !list->is_array()) return std::nullopt;
  for (const json::Value& item : list->items()) {
    const std::optional<uint64_t> number = item.AsUint64();
    if (!number || *number >= end || (!out.empty() && *number <= out.back())) return std::nullopt;
    out.push_back(*number);
  }
  return out;
}

Result<BundleEntry> ParseEntry(const json::Value& item) {
  BundleEntry entry;
  const std::optional<uint64_t> number = Number(item, "entry");
  if (!number) return Broken("an entry without its number");
  entry.entry = *number;
  const std::string state = Text(item, "record");
  bool known = false;
  for (const auto& [value, name] : kStates) {
    if (state != name) continue;
    entry.record = value;
    known = true;
  }
  if (!known) return Broken("an entry that does not say what became of its record");
  if (entry.record == RecordState::kIncluded) {
    const std::optional<Digest> salt = Hash(Text(item, "salt"));
    if (!salt) return Broken("a record without its salt");
    entry.salt = std::string(AsBytes(*salt));
  }
  return entry;
}

json::Value HashList(const std::vector<Digest>& hashes) {
  json::Value list = json::Value::MakeArray();
  for (const Digest& hash : hashes) list.Append(HexEncode(hash));
  return list;
}

// The line up to a newline, which is taken off `text`; nothing where there is none.
std::optional<std::string_view> TakeLine(std::string_view& text) {
  const size_t end = text.find('\n');
  if (end == std::string_view::npos) return std::nullopt;
  const std::string_view line = text.substr(0, end);
  text.remove_prefix(end + 1);
  return line;
}

Result<Digest> Base64Hash(std::string_view line) {
  Result<std::string> bytes = Base64Decode(line);
  if (!bytes.ok() || bytes->size() != 32) return Broken("a line is not the base64 of 32 bytes");
  return ToDigest(*bytes);
}

}  // namespace

std::string EntryFile(uint64_t entry, std::string_view file) {
  return "entries/" + std::to_string(entry) + "/" + std::string(file);
}
std::string OldCheckpointFile(uint64_t size) { return "log/checkpoints/" + std::to_string(size); }
std::string ConsistencyFile(uint64_t size) { return "log/consistency/" + std::to_string(size); }
std::string TimestampFile(uint64_t size) {
  return "log/timestamps/" + std::to_string(size) + ".tsr";
}

std::string EncodeIndex(const BundleIndex& index) {
  json::Value object = json::Value::MakeObject();
  object.Set("version", kVersion);
  object.Set("origin", index.origin);
  object.Set("size", index.size);
  object.Set("from", index.from);
  object.Set("to", index.to);
  if (index.tenants) {
    json::Value tenants = json::Value::MakeArray();
    for (const std::string& tenant : *index.tenants) tenants.Append(tenant);
    object.Set("tenants", std::move(tenants));
  }
  object.Set("payloads", index.payloads);
  object.Set("checkpoints", Numbers(index.checkpoints));
  object.Set("timestamps", Numbers(index.timestamps));
  json::Value entries = json::Value::MakeArray();
  for (const BundleEntry& entry : index.entries) {
    json::Value item = json::Value::MakeObject();
    item.Set("entry", entry.entry);
    for (const auto& [state, name] : kStates) {
      if (state == entry.record) item.Set("record", name);
    }
    if (entry.record == RecordState::kIncluded) item.Set("salt", HexEncode(entry.salt));
    entries.Append(std::move(item));
  }
  object.Set("entries", std::move(entries));
  json::Value files = json::Value::MakeObject();
  files.members().reserve(index.files.size());
  for (const auto& [name, digest] : index.files) {
    files.members().emplace_back(name, HexEncode(digest));  // the map's names are unique
  }
  object.Set("files", std::move(files));
  return json::Canonical(object);
}

Result<BundleIndex> ParseIndex(std::string_view bytes) {
  Result<json::Value> object = json::Parse(bytes);
  if (!object.ok()) return Broken(object.error().message);
  if (!object->is_object()) return Broken("it is no JSON object");
  const std::optional<uint64_t> version = Number(*object, "version");
  if (version && *version > kVersion) {
    return Broken("it has version " + std::to_string(*version) +
                  "; this program reads version 1: use a newer one");
  }
  BundleIndex index;
  index.origin = Text(*object, "origin");
  const auto size = Number(*object, "size"), from = Number(*object, "from");
  const auto to = Number(*object, "to");
  if (!size || !from || !to || *from > *to || *to >= *size) {
    return Broken("size, from and to do not name entries of a log");
  }
  index.size = *size;
  index.from = *from;
  index.to = *to;
  if (const json::Value* tenants = object->Find("tenants"); tenants && tenants->is_array()) {
    index.tenants.emplace();
    for (const json::Value& tenant : tenants->items()) {
      const std::string text = tenant.is_string() ? tenant.as_string() : "";
      Result<std::string> pseudonym = HexDecode(text);
      if (text.size() != 32 || !pseudonym.ok() || HexEncode(*pseudonym) != text ||
          (!index.tenants->empty() && text <= index.tenants->back())) {
        return Broken("tenants are not pseudonyms in ascending order");
      }
      index.tenants->push_back(text);
    }
    if (index.tenants->empty()) return Broken("tenants names nobody");
  }
  if (const json::Value* payloads = object->Find("payloads"); payloads && payloads->is_bool()) {
    index.payloads = payloads->as_bool();
  }
  auto checkpoints = Ascending(object->Find("checkpoints"), index.size);
  auto timestamps = Ascending(object->Find("timestamps"), index.size + 1);
  if (!checkpoints || !timestamps) return Broken("the sizes of checkpoints are not ascending");
  index.checkpoints = std::move(*checkpoints);
  index.timestamps = std::move(*timestamps);
  const json::Value* entries = object->Find("entries");
  if (!entries || !entries->is_array()) return Broken("there are no entries");
  for (const json::Value& item : entries->items()) {
    Result<BundleEntry> entry = ParseEntry(item);
    if (!entry.ok()) return entry.error();
    if (entry->entry >= index.size ||
        (!index.entries.empty() && entry->entry <= index.entries.back().entry)) {
      return Broken("the entries are not ascending numbers below size");
    }
    index.entries.push_back(std::move(*entry));
  }
  const json::Value* files = object->Find("files");
  if (!files || !files->is_object()) return Broken("there is no list of files");
  for (const auto& [name, digest] : files->members()) {
    const auto hash = digest.is_string() ? Hash(digest.as_string()) : std::nullopt;
    if (!hash) return Broken("the digest of a file is none");
    index.files[name] = *hash;
  }
  // Whatever was not read, or was read as something else, shows here.
  if (EncodeIndex(index) != bytes) return Broken("it is not as verbatim export writes it");
  return index;
}

std::string EncodeKeys(const std::vector<store::LogKey>& keys) {
  std::string out;
  for (const store::LogKey& key : keys) {
    out += std::to_string(key.from) + " " + store::FormatVerifierKey(key.key) + "\n";
  }
  return out;
}

Result<std::vector<store::LogKey>> ParseKeys(std::string_view bytes) {
  const Error none = Broken("it is not as verbatim export writes it");
  std::vector<store::LogKey> keys;
  std::string_view rest = bytes;
  while (const std::optional<std::string_view> line = TakeLine(rest)) {
    const size_t space = line->find(' ');
    if (space == std::string_view::npos) return none;
    store::LogKey key;
    const auto parsed = std::from_chars(line->data(), line->data() + space, key.from);
    Result<store::VerifierKey> vkey = store::ParseVerifierKey(line->substr(space + 1));
    if (parsed.ec != std::errc() || !vkey.ok()) return none;
    key.key = std::move(*vkey);
    if (keys.empty() ? key.from != 0 : key.from <= keys.back().from) return none;
    if (!keys.empty() && key.key.name != keys[0].key.name) return none;
    keys.push_back(std::move(key));
  }
  if (keys.size() < 2 || EncodeKeys(keys) != bytes) return none;
  return keys;
}

std::string EncodeHashes(const std::vector<Digest>& hashes) {
  std::string out;
  for (const Digest& hash : hashes) out += Base64Encode(AsBytes(hash)) + "\n";
  return out;
}

Result<std::vector<Digest>> ParseHashes(std::string_view bytes) {
  std::vector<Digest> hashes;
  while (!bytes.empty()) {
    const std::optional<std::string_view> line = TakeLine(bytes);
    if (!line) return Broken("its last line has no end");
    Result<Digest> hash = Base64Hash(*line);
    if (!hash.ok()) return hash.error();
    if (hashes.size() == 2 * kMaxPath) return Broken("it has too many hashes");
    hashes.push_back(*hash);
  }
  return hashes;
}

std::string EncodeHit(const HitLine& hit) {
  json::Value object = json::Value::MakeObject();
  object.Set("number", hit.number);
  object.Set("commitment", HexEncode(hit.commitment));
  object.Set("path", HashList(hit.path));
  if (hit.record) {
    object.Set("record", *hit.record);
    object.Set("salt", HexEncode(hit.salt));
  }
  return json::Canonical(object) + "\n";
}

Result<HitLine> ParseHit(std::string_view line) {
  Result<json::Value> object = json::Parse(line);
  if (!object.ok()) return Broken(object.error().message);
  HitLine hit;
  const std::optional<uint64_t> number = Number(*object, "number");
  const std::optional<Digest> commitment = Hash(Text(*object, "commitment"));
  const json::Value* path = object->Find("path");
  if (!number || !commitment || !path || !path->is_array()) {
    return Broken("number, commitment or path is missing");
  }
  hit.number = *number;
  hit.commitment = *commitment;
  for (const json::Value& item : path->items()) {
    const auto hash = item.is_string() ? Hash(item.as_string()) : std::nullopt;
    if (!hash || hit.path.size() == kMaxPath) return Broken("its path is none");
    hit.path.push_back(*hash);
  }
  if (const json::Value* record = object->Find("record"); record && record->is_string()) {
    const std::optional<Digest> salt = Hash(Text(*object, "salt"));
    if (!salt) return Broken("a record without its salt");
    hit.record = record->as_string();
    hit.salt = std::string(AsBytes(*salt));
  }
  if (EncodeHit(hit) != std::string(line) + "\n") {
    return Broken("it is not as verbatim export writes it");
  }
  return hit;
}

}  // namespace verbatim::audit
