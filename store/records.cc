#include "store/records.h"

#include <utility>

#include "base/clock.h"
#include "base/crypto.h"

namespace verbatim::store {
namespace {

constexpr int kVersion = 1;

constexpr std::pair<Kind, const char*> kKinds[] = {
    {Kind::kGenerated, "generated"},
    {Kind::kHit, "hit"},
    {Kind::kJoined, "joined"},
    {Kind::kHits, "hits"},
    {Kind::kReplayed, "replayed"},
    {Kind::kRefused, "refused"},
    {Kind::kFailed, "failed"},
    {Kind::kCancelled, "cancelled"},
    {Kind::kInterrupted, "interrupted"},
    {Kind::kIntent, "intent"},
    {Kind::kVerified, "verified"},
    {Kind::kDiverged, "diverged"},
    {Kind::kQuarantined, "quarantined"},
    {Kind::kErased, "erased"},
    {Kind::kHeld, "held"},
    {Kind::kReleased, "released"},
    {Kind::kViewed, "viewed"},
    {Kind::kExported, "exported"},
    {Kind::kKeyMade, "key_made"},
    {Kind::kKeyRevoked, "key_revoked"},
    {Kind::kConfiguration, "configuration_changed"},
    {Kind::kServerStarted, "server_started"},
    {Kind::kServerStopped, "server_stopped"},
    {Kind::kClockJumped, "clock_jumped"},
    {Kind::kPruned, "pruned"},
    {Kind::kUnrecorded, "unrecorded"},
    {Kind::kHeartbeat, "heartbeat"},
};

void SetText(json::Value& object, const char* name, const std::string& text) {
  if (!text.empty()) object.Set(name, text);
}

void SetDigest(json::Value& object, const char* name, const std::optional<Digest>& digest) {
  if (digest) object.Set(name, HexEncode(*digest));
}

void SetValue(json::Value& object, const char* name, const json::Value& value) {
  if (!value.is_null()) object.Set(name, value);
}

// Takes members of a parsed object by name and type, and remembers what went wrong first.
class Members {
 public:
  Members(json::Value& object, const char* what) : object_(object), what_(what) {
    if (!object.is_object()) Fail("it is no object");
  }

  std::string Text(const char* name, bool required = false) {
    const json::Value* value = Take(name, required);
    if (!value) return {};
    if (!value->is_string()) {
      Fail(std::string(name) + " is no string");
      return {};
    }
    return value->as_string();
  }
  std::optional<Digest> Hash(const char* name, bool required = false) {
    const json::Value* value = Take(name, required);
    return value ? ToHash(*value, name) : std::nullopt;
  }
  std::optional<uint64_t> Unsigned(const char* name, bool required = false) {
    const json::Value* value = Take(name, required);
    if (!value) return std::nullopt;
    const std::optional<uint64_t> number = value->AsUint64();
    if (!number) Fail(std::string(name) + " is no unsigned integer");
    return number;
  }
  bool Bool(const char* name) {
    const json::Value* value = Take(name, false);
    if (!value) return false;
    if (!value->is_bool()) Fail(std::string(name) + " is no boolean");
    return value->is_bool() && value->as_bool();
  }
  json::Value Any(const char* name) {
    const json::Value* value = Take(name, false);
    return value ? *value : json::Value();
  }
  const json::Value* List(const char* name) {
    const json::Value* value = Take(name, false);
    if (value && !value->is_array()) {
      Fail(std::string(name) + " is no array");
      return nullptr;
    }
    return value;
  }
  std::optional<Digest> ToHash(const json::Value& value, const char* name) {
    Result<Digest> digest = Error{};
    if (value.is_string()) digest = HexDecodeDigest(value.as_string());
    if (!digest.ok() || HexEncode(*digest) != value.as_string()) {
      Fail(std::string(name) + " is not 64 lower-case hexadecimal digits");
      return std::nullopt;
    }
    return *digest;
  }
  // A text of `digits` lower-case hexadecimal digits, or none.
  std::string Hex(const char* name, size_t digits) {
    std::string text = Text(name);
    const bool hex = text.find_first_not_of("0123456789abcdef") == std::string::npos;
    if (text.empty() || (hex && text.size() == digits)) return text;
    Fail(std::string(name) + " is not " + std::to_string(digits) +
         " lower-case hexadecimal digits");
    return {};
  }
  void Fail(const std::string& problem) {
    if (status_.ok()) status_ = Error{Code::kCorrupt, std::string(what_) + ": " + problem};
  }
  void CheckVersion() {
    const std::optional<uint64_t> version = Unsigned("version", true);
    if (status_.ok() && *version != kVersion) {
      status_ =
          Error{Code::kUnsupported, std::string(what_) + " has version " +
                                        std::to_string(*version) + "; this build reads version 1"};
    }
  }
  // Ok where every member was taken and had its type.
  Status Done() {
    if (status_.ok() && taken_ != object_.members().size()) Fail("it has an unknown member");
    return status_;
  }

 private:
  const json::Value* Take(const char* name, bool required) {
    const json::Value* value = object_.is_object() ? object_.Find(name) : nullptr;
    if (value) ++taken_;
    if (!value && required) Fail(std::string(name) + " is missing");
    return value;
  }

  const json::Value& object_;
  const char* what_;
  size_t taken_ = 0;
  Status status_;
};

Result<json::Value> ParseCanonical(std::string_view bytes, const char* what) {
  Result<json::Value> value = json::Parse(bytes);
  if (!value.ok()) return Error{Code::kCorrupt, std::string(what) + ": " + value.error().message};
  if (json::Canonical(*value) != bytes) {
    return Error{Code::kCorrupt, std::string(what) + ": it is not canonical JSON"};
  }
  return value;
}

std::string PartContext(uint64_t entry, Part part) {
  std::string context = "verbatim-part-1/";
  AppendU64(context, entry);
  context += static_cast<char>(part);
  return context;
}

}  // namespace

const char* KindName(Kind kind) {
  for (const auto& [known, name] : kKinds) {
    if (known == kind) return name;
  }
  CHECK(false);
}

Result<Kind> ParseKind(std::string_view name) {
  for (const auto& [kind, known] : kKinds) {
    if (known == name) return kind;
  }
  return Error{Code::kInvalid, "unknown kind of entry: " + std::string(name)};
}

Result<std::string> EncodeLeaf(const Leaf& leaf) {
  json::Value object = json::Value::MakeObject();
  object.Set("version", kVersion);
  object.Set("origin", leaf.origin);
  object.Set("kind", KindName(leaf.kind));
  object.Set("time", FormatTime(leaf.time));
  SetText(object, "tenant", leaf.tenant);
  if (leaf.sequence != 0) object.Set("sequence", leaf.sequence);
  SetText(object, "model", leaf.model);
  SetText(object, "manifest", leaf.manifest);
  SetText(object, "numerics", leaf.numerics);
  object.Set("outcome", leaf.outcome);
  if (!leaf.references.empty()) {
    json::Value references = json::Value::MakeArray();
    for (const Reference& reference : leaf.references) {
      json::Value item = json::Value::MakeObject();
      item.Set("relation", reference.relation);
      item.Set("entry", reference.entry);
      references.Append(std::move(item));
    }
    object.Set("references", std::move(references));
  }
  SetValue(object, "detail", leaf.detail);
  object.Set("commitment", HexEncode(leaf.commitment));
  std::string bytes = json::Canonical(object);
  if (bytes.size() > kMaxLeafBytes) {
    return Error{Code::kInvalid, "the entry's public part has " + std::to_string(bytes.size()) +
                                     " bytes; at most 65535 are allowed: give less detail"};
  }
  return bytes;
}

Result<Leaf> ParseLeaf(std::string_view bytes) {
  if (bytes.size() > kMaxLeafBytes) return Error{Code::kCorrupt, "leaf: over 65535 bytes"};
  Result<json::Value> object = ParseCanonical(bytes, "leaf");
  if (!object.ok()) return object.error();
  Members members(*object, "leaf");
  members.CheckVersion();
  Leaf leaf;
  leaf.origin = members.Text("origin", true);
  Result<Kind> kind = ParseKind(members.Text("kind", true));
  if (kind.ok()) {
    leaf.kind = *kind;
  } else {
    members.Fail(kind.error().message);
  }
  const std::string time_text = members.Text("time", true);
  Result<int64_t> time = ParseTime(time_text);
  if (!time.ok() || FormatTime(*time) != time_text) {
    members.Fail("its time is no RFC 3339 time in microseconds");
  } else {
    leaf.time = *time;
  }
  leaf.tenant = members.Hex("tenant", 32);
  leaf.sequence = members.Unsigned("sequence").value_or(0);
  leaf.model = members.Hex("model", 64);
  leaf.manifest = members.Hex("manifest", 64);
  leaf.numerics = members.Text("numerics");
  leaf.outcome = members.Text("outcome", true);
  if (const json::Value* references = members.List("references")) {
    for (json::Value item : references->items()) {
      Members reference(item, "leaf: reference");
      const std::string relation = reference.Text("relation", true);
      const uint64_t entry = reference.Unsigned("entry", true).value_or(0);
      leaf.references.push_back({relation, entry});
      if (Status done = reference.Done(); !done.ok()) members.Fail(done.error().message);
    }
  }
  leaf.detail = members.Any("detail");
  leaf.commitment = members.Hash("commitment", true).value_or(Digest{});
  if (Status done = members.Done(); !done.ok()) return done.error();
  return leaf;
}

Digest VariantOf(const Digest& fingerprint, std::string_view variant) {
  std::string text("verbatim-variant-1");
  text += AsBytes(fingerprint);
  text += variant;
  return Sha256(text);
}

std::optional<Digest> IndexedBy(const Record& record) {
  const json::Value* variant = record.extra.is_object() ? record.extra.Find("variant") : nullptr;
  if (!record.fingerprint || !variant || !variant->is_string()) return record.fingerprint;
  return VariantOf(*record.fingerprint, variant->as_string());
}

std::string EncodeRecord(const Record& record) {
  json::Value object = json::Value::MakeObject();
  object.Set("version", kVersion);
  SetText(object, "tenant", record.tenant);
  SetText(object, "subject", record.subject);
  SetText(object, "key_id", record.key_id);
  SetText(object, "request_id", record.request_id);
  SetText(object, "endpoint", record.endpoint);
  SetText(object, "namespace", record.name_space);
  SetDigest(object, "fingerprint", record.fingerprint);
  if (record.serves_hits) object.Set("serves_hits", true);
  if (record.seed) object.Set("seed", *record.seed);
  if (!record.chain_heads.empty()) {
    json::Value heads = json::Value::MakeArray();
    for (const Digest& head : record.chain_heads) heads.Append(HexEncode(head));
    object.Set("chain_heads", std::move(heads));
  }
  if (record.created != 0) object.Set("created", static_cast<uint64_t>(record.created));
  SetValue(object, "backend", record.backend);
  SetValue(object, "parameters", record.parameters);
  SetValue(object, "usage", record.usage);
  SetValue(object, "timings", record.timings);
  SetValue(object, "response", record.response);
  SetValue(object, "extra", record.extra);
  SetDigest(object, "request_digest", record.request_digest);
  SetDigest(object, "output_digest", record.output_digest);
  SetDigest(object, "trace_digest", record.trace_digest);
  return json::Canonical(object);
}

Result<Record> ParseRecord(std::string_view bytes) {
  Result<json::Value> object = ParseCanonical(bytes, "record");
  if (!object.ok()) return object.error();
  Members members(*object, "record");
  members.CheckVersion();
  Record record;
  record.tenant = members.Text("tenant");
  record.subject = members.Text("subject");
  record.key_id = members.Text("key_id");
  record.request_id = members.Text("request_id");
  record.endpoint = members.Text("endpoint");
  record.name_space = members.Text("namespace");
  record.fingerprint = members.Hash("fingerprint");
  record.serves_hits = members.Bool("serves_hits");
  record.seed = members.Unsigned("seed");
  if (const json::Value* heads = members.List("chain_heads")) {
    for (const json::Value& head : heads->items()) {
      record.chain_heads.push_back(members.ToHash(head, "chain_heads").value_or(Digest{}));
    }
  }
  record.created = static_cast<int64_t>(members.Unsigned("created").value_or(0));
  record.backend = members.Any("backend");
  record.parameters = members.Any("parameters");
  record.usage = members.Any("usage");
  record.timings = members.Any("timings");
  record.response = members.Any("response");
  record.extra = members.Any("extra");
  record.request_digest = members.Hash("request_digest");
  record.output_digest = members.Hash("output_digest");
  record.trace_digest = members.Hash("trace_digest");
  if (Status done = members.Done(); !done.ok()) return done.error();
  return record;
}

Digest Commitment(std::string_view salt, const Digest& record_digest) {
  CHECK(salt.size() == 32);
  std::string bytes(salt);
  bytes += AsBytes(record_digest);
  return Sha256(bytes);
}

std::string SealPart(std::string_view key, uint64_t entry, Part part, std::string_view plaintext) {
  // The nonce is random although each key is an entry's own: after a failed commit a place, and so
  // its key, can be used a second time.
  const std::string nonce = RandomBytes(kNonceBytes);
  std::string sealed = nonce;
  sealed += AesGcmSeal(key, nonce, PartContext(entry, part), plaintext);
  return sealed;
}

Result<std::string> OpenPart(std::string_view key, uint64_t entry, Part part,
                             std::string_view sealed) {
  if (sealed.size() < kNonceBytes + 16) {
    return Error{Code::kCorrupt, "the sealed bytes are too short"};
  }
  return AesGcmOpen(key, sealed.substr(0, kNonceBytes), PartContext(entry, part),
                    sealed.substr(kNonceBytes));
}

std::string EntryKey(uint64_t entry) {
  std::string key;
  AppendU64(key, entry);
  return key;
}

std::string PayloadKey(uint64_t entry, Part part) {
  std::string key = EntryKey(entry);
  key += static_cast<char>(part);
  return key;
}

}  // namespace verbatim::store
