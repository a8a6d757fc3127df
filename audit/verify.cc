#include "audit/verify.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "audit/archive.h"
#include "audit/bundle.h"
#include "audit/erasure.h"
#include "audit/log_evidence.h"
#include "base/clock.h"
#include "base/crypto.h"
#include "store/merkle.h"
#include "store/rotation.h"
#include "store/rows.h"
#include "store/timestamp.h"
#include "store/tlog_proof.h"

namespace verbatim::audit {
namespace {

using store::Kind;

constexpr size_t kMaxNotes = 1000;  // of a check; what is beyond is counted
constexpr size_t kMaxQuoted = 200;
constexpr size_t kDigestHex = 32;  // of a token's logits digest in a trace

std::string Entry(uint64_t entry) { return "entry " + std::to_string(entry); }

// Text of the bundle in a message: what is no text, or would steer a terminal, as \xNN.
std::string Printable(std::string_view text) {
  const bool utf8 = IsUtf8(text);
  std::string out;
  for (const char c : text.substr(0, kMaxQuoted)) {
    const auto byte = static_cast<uint8_t>(c);
    if (byte < 0x20 || byte == 0x7F || byte == '\\' || (byte >= 0x80 && !utf8)) {
      out += "\\x" + HexEncode(std::string_view(&c, 1));
    } else {
      out += c;
    }
  }
  return out;
}

// One pass: each step takes what those before it could read.
class Checker {
 public:
  Checker(std::string_view archive, const VerifyOptions& options)
      : archive_(archive), options_(options) {}

  Verification Run() {
    if (OpenArchive() && OpenIndex()) {
      CheckFiles();
      if (OpenKey() && OpenCheckpoints()) {
        CheckWitnesses();
        CheckTimestamps();
        CheckConsistency();
        CheckInclusion();
        CheckLeaves();
        CheckRotations();
        CheckRecords();
        CheckErasures();
        CheckPayloads();
        CheckChains();
        CheckHits();
        CheckReferences();
        if (!index_.tenants) CheckRange();
        CheckSequences();
        CheckConfiguration();
        CheckProse();
        if (options_.execute) Execute();
      }
    }
    return std::move(result_);
  }

 private:
  // What the bundle says of one entry, as far as it holds.
  struct Seen {
    BundleEntry index;
    std::optional<std::string_view> leaf_bytes;  // the tree holds them
    std::optional<store::Leaf> leaf;
    std::optional<store::Record> record;
    // With the digests that the record holds.
    std::optional<std::string_view> request, response, trace;
    std::vector<store::HitRecord> hits;
  };

  Check& Begin(const char* name) {
    result_.checks.push_back({name, 0, {}, {}});
    return result_.checks.back();
  }
  static void Fail(Check& check, const std::string& subject, const std::string& what) {
    check.fails.push_back({Printable(subject), Printable(what)});
  }
  static void Unknown(Check& check, const std::string& subject, const std::string& what) {
    check.unknown.push_back({Printable(subject), what});
  }
  std::optional<std::string_view> Find(const std::string& name) const {
    const auto member = members_.find(name);
    return member == members_.end() ? std::nullopt : std::optional(member->second);
  }
  std::optional<std::string_view> Find(uint64_t entry, const char* file) const {
    return Find(EntryFile(entry, file));
  }
  bool IsSelected(const Seen& seen) const {
    const uint64_t entry = seen.index.entry;
    if (entry < index_.from || entry > index_.to) return false;
    return !index_.tenants || (seen.leaf && IsTenant(seen.leaf->tenant));
  }
  bool IsTenant(const std::string& pseudonym) const {
    return std::binary_search(index_.tenants->begin(), index_.tenants->end(), pseudonym);
  }

  bool OpenArchive() {
    Check& check = Begin("archive");
    Result<std::vector<Member>> members = ReadArchive(archive_);
    if (!members.ok()) {
      Fail(check, "bundle", members.error().message);
      return false;
    }
    for (const Member& member : *members) members_.emplace(member.name, member.bytes);
    check.holds = 1;
    return true;
  }

  bool OpenIndex() {
    Check& check = Begin("index");
    const auto bytes = Find(kIndexFile);
    Result<BundleIndex> index = bytes ? ParseIndex(*bytes) : Error{Code::kCorrupt, "it is missing"};
    if (!index.ok()) {
      Fail(check, kIndexFile, index.error().message);
      return false;
    }
    index_ = std::move(*index);
    for (const BundleEntry& entry : index_.entries) entries_.emplace_back().index = entry;
    result_.origin = Printable(index_.origin);
    result_.size = index_.size;
    result_.from = index_.from;
    result_.to = index_.to;
    check.holds = 1;
    return true;
  }

  // Names that must be there, and those that may.
  void ListNames(std::set<std::string>& required, std::set<std::string>& allowed) const {
    required = {kReadmeFile, kReportFile, kStatementFile, kKeyFile, kCheckpointFile};
    for (const uint64_t size : index_.checkpoints) {
      required.insert({OldCheckpointFile(size), ConsistencyFile(size)});
    }
    for (const uint64_t size : index_.timestamps) required.insert(TimestampFile(size));
    for (const BundleEntry& entry : index_.entries) {
      required.insert({EntryFile(entry.entry, kLeaf), EntryFile(entry.entry, kProof)});
      if (entry.record == RecordState::kIncluded) {
        required.insert(EntryFile(entry.entry, kRecord));
        for (const char* part : {kRequest, kResponse, kTrace}) {
          allowed.insert(EntryFile(entry.entry, part));
        }
      }
      if (entry.record != RecordState::kWithheld) allowed.insert(EntryFile(entry.entry, kHits));
    }
    allowed.insert(kKeysFile);
    allowed.insert(required.begin(), required.end());
    for (const auto& [name, digest] : index_.files) required.insert(name);
  }

  void CheckFiles() {
    Check& check = Begin("files");
    std::set<std::string> required, allowed;
    ListNames(required, allowed);
    for (const auto& [name, bytes] : members_) {
      if (name == kIndexFile) continue;
      const auto digest = index_.files.find(name);
      if (digest == index_.files.end()) {
        Fail(check, name, "bundle.json does not name it");
      } else if (!allowed.contains(name)) {
        Fail(check, name, "it is no file of a bundle with these entries");
      } else if (Sha256(bytes) != digest->second) {
        Fail(check, name, "its digest is not the one in bundle.json");
      } else {
        ++check.holds;
      }
    }
    for (const std::string& name : required) {
      if (!members_.contains(name)) Fail(check, name, "it is missing");
    }
  }

  bool OpenKey() {
    Check& check = Begin("key");
    const auto bytes = Find(kKeyFile);
    if (!bytes) {
      Fail(check, kKeyFile, "it is missing");
      return false;
    }
    Result<store::VerifierKey> key = Error{Code::kInvalid, "it is not one line"};
    if (bytes->ends_with('\n')) key = store::ParseVerifierKey(bytes->substr(0, bytes->size() - 1));
    if (key.ok() &&
        (store::FormatVerifierKey(*key) + "\n" != *bytes || key->name != index_.origin)) {
      key = Error{Code::kInvalid, "it is not the key of the log that bundle.json names"};
    }
    if (!key.ok()) {
      Fail(check, kKeyFile, key.error().message);
      return false;
    }
    keys_ = {{std::move(*key), 0}};
    if (const auto list = Find(kKeysFile)) {
      Result<std::vector<store::LogKey>> keys = ParseKeys(*list);
      if (!keys.ok() || keys->back().from > index_.size ||
          store::FormatVerifierKey(keys->back().key) + "\n" != *bytes) {
        Fail(check, kKeyFile, std::string(kKeysFile) + " does not lead to it");
        return false;
      }
      keys_ = std::move(*keys);
    }
    if (!options_.key) {
      Unknown(check, kKeyFile,
              "that this is the log's key is the bundle's own word: compare it with the one that "
              "the operator published, and give that with --key");
      return true;
    }
    for (size_t i = 0; i < keys_.size(); ++i) {
      if (store::FormatVerifierKey(keys_[i].key) == store::FormatVerifierKey(*options_.key)) {
        given_ = i;
      }
    }
    if (given_) {
      check.holds = 1;
    } else {
      Fail(check, kKeyFile, "the bundle is of another log, or signed by another key, than --key");
    }
    return true;
  }

  // The one that signs heads of this size.
  const store::VerifierKey& KeyOf(uint64_t size) const {
    size_t i = keys_.size() - 1;
    while (keys_[i].from > size) --i;
    return keys_[i].key;
  }

  bool OpenCheckpoints() {
    Check& check = Begin("checkpoint");
    const std::optional<store::TreeHead> head = OpenHead(check, kCheckpointFile, index_.size);
    for (const uint64_t size : index_.checkpoints) {
      const std::string name = OldCheckpointFile(size);
      if (const auto old = OpenHead(check, name, size)) old_roots_[size] = old->root;
    }
    if (!head) return false;
    root_ = head->root;
    result_.root = HexEncode(root_);
    return true;
  }

  std::optional<store::TreeHead> OpenHead(Check& check, const std::string& name, uint64_t size) {
    const auto note = Find(name);
    if (!note) {
      Fail(check, name, "it is missing");
      return std::nullopt;
    }
    Result<store::TreeHead> head = store::OpenCheckpoint(*note, KeyOf(size));
    if (head.ok() && head->size != size) {
      head = Error{Code::kCorrupt, "it is of another size than bundle.json says"};
    }
    if (!head.ok()) {
      Fail(check, name, head.error().message);
      return std::nullopt;
    }
    ++check.holds;
    notes_[size] = *note;
    return std::move(*head);
  }

  // What a witness cosigned contains all that was there before (consistency).
  void CheckWitnesses() {
    Check& check = Begin("witnesses");
    for (const store::CosignerKey& witness : options_.witnesses) {
      uint64_t seen = 0;  // entries of the largest tree that it cosigned
      Status wrong;
      for (const auto& [size, note] : notes_) {
        const auto found = store::OpenCosignatures(note, {&witness, 1});
        if (!found.ok()) {
          wrong = found.error();
        } else if (!found->empty()) {
          seen = size;
        }
      }
      if (!wrong.ok()) {
        Fail(check, witness.name, wrong.error().message);
      } else if (seen == 0) {
        Fail(check, witness.name, "it cosigned no checkpoint of the bundle");
      } else if (seen <= index_.to) {
        Unknown(check, Printable(witness.name),
                "it cosigned the tree of " + std::to_string(seen) +
                    " entries; whether it saw those behind them cannot be known");
      } else {
        ++check.holds;
      }
    }
    if (options_.witnesses.empty()) {
      size_t others = 0;
      for (const auto& [size, note] : notes_) {
        others += store::OpenNote(note, {&KeyOf(size), 1})->unverified.size();
      }
      Unknown(check, kCheckpointFile,
              "no --witness was given: whether the log shows everybody this same tree cannot be "
              "known from its own signature (" +
                  std::to_string(others) + " signatures of others were not checked)");
    }
  }

  void CheckTimestamps() {
    Check& check = Begin("timestamps");
    for (const uint64_t size : index_.timestamps) {
      const std::string name = TimestampFile(size);
      const auto note = notes_.find(size);
      if (note == notes_.end()) {
        Fail(check, name, "there is no checkpoint of that size");
        continue;
      }
      if (options_.timestamp_ca.empty()) {
        Unknown(check, name,
                "it was not checked: verbatim verify does, given the certificate of who issued the "
                "authority's with --timestamp-ca");
        continue;
      }
      Result<store::Timestamp> stamp = store::VerifyTimestamp(
          Find(name).value_or(""), StampedPart(note->second), options_.timestamp_ca);
      if (stamp.ok()) {
        ++check.holds;
        result_.dated.push_back({size, stamp->time, Printable(stamp->authority)});
      } else if (stamp.error().code == Code::kCorrupt) {
        Fail(check, name, stamp.error().message);
      } else {
        Unknown(check, name, Printable(stamp.error().message));
      }
    }
    if (index_.timestamps.empty()) {
      Unknown(check, kCheckpointFile,
              "there is no timestamp of another authority: the times in the entries are the word "
              "of the machine that wrote them");
    }
  }

  void CheckConsistency() {
    Check& check = Begin("consistency");
    for (const auto& [size, root] : old_roots_) {
      const std::string name = ConsistencyFile(size);
      const auto bytes = Find(name);
      Result<std::vector<Digest>> path =
          bytes ? ParseHashes(*bytes) : Error{Code::kCorrupt, "it is missing"};
      Status status = path.ok() ? store::VerifyConsistency(size, index_.size, *path, root, root_)
                                : Status(path.error());
      if (status.ok()) {
        ++check.holds;
      } else {
        Fail(check, name, status.error().message);
      }
    }
  }

  void CheckInclusion() {
    Check& check = Begin("inclusion");
    for (Seen& seen : entries_) {
      const uint64_t entry = seen.index.entry;
      const auto leaf = Find(entry, kLeaf);
      const auto bytes = Find(entry, kProof);
      Result<store::TlogProof> proof = Error{Code::kCorrupt, "its leaf or its proof is missing"};
      if (leaf && bytes) proof = store::ParseTlogProof(*bytes);
      Status status = proof.ok() ? Status() : Status(proof.error());
      if (proof.ok() && (proof->index != entry || proof->checkpoint != notes_.at(index_.size) ||
                         store::FormatTlogProof(*proof) != *bytes || !proof->extra.empty())) {
        status = Error{Code::kCorrupt, "its proof is of another entry or checkpoint"};
      }
      if (status.ok()) {
        status =
            store::VerifyInclusion(entry, index_.size, store::LeafHash(*leaf), proof->path, root_);
      }
      if (status.ok()) {
        ++check.holds;
        seen.leaf_bytes = *leaf;
      } else {
        Fail(check, Entry(entry), status.error().message);
      }
    }
  }

  // Only what the tree holds is looked into: the rest is anybody's text.
  void CheckLeaves() {
    Check& check = Begin("leaf");
    int64_t last = 0;
    for (Seen& seen : entries_) {
      if (!seen.leaf_bytes) continue;
      const std::string subject = Entry(seen.index.entry);
      Result<store::Leaf> leaf = store::ParseLeaf(*seen.leaf_bytes);
      if (leaf.ok() && leaf->origin != index_.origin) {
        leaf = Error{Code::kCorrupt, "it is of another log"};
      }
      if (!leaf.ok()) {
        Fail(check, subject, leaf.error().message);
        continue;
      }
      if (leaf->time < last) {
        Fail(check, subject, "its time is before that of an earlier entry");
      } else {
        ++check.holds;
      }
      last = std::max(last, leaf->time);
      seen.leaf = std::move(*leaf);
    }
  }

  // Each newer key is named by the entry before the first head that it signs. An old key that was
  // given vouches for a newer one only by its signature; a newer one vouches for what came before.
  void CheckRotations() {
    Check& check = Begin("rotation");
    for (size_t i = 1; i < keys_.size(); ++i) {
      const uint64_t entry = keys_[i].from - 1;
      const store::VerifierKey &old_key = keys_[i - 1].key, &new_key = keys_[i].key;
      const auto seen = std::find_if(entries_.begin(), entries_.end(), [&](const Seen& one) {
        return one.index.entry == entry && one.leaf;
      });
      const auto says = [&](const char* name, const std::string& text) {
        const json::Value* value = seen->leaf->detail.Find(name);
        return value && value->is_string() && value->as_string() == text;
      };
      if (seen == entries_.end() || seen->leaf->kind != Kind::kKeyMade ||
          !says("old", store::FormatVerifierKey(old_key)) ||
          !says("new", store::FormatVerifierKey(new_key))) {
        Fail(check, Entry(entry), "it should name the log's next key, and does not");
        continue;
      }
      const json::Value* signature = seen->leaf->detail.Find("signature");
      const Result<std::string> bytes = signature && signature->is_string()
                                            ? Base64Decode(signature->as_string())
                                            : Result<std::string>(std::string());
      if (!signature) {
        const char* const what =
            "the key before did not sign for the next one: ask the operator for the newest key, "
            "and give that with --key";
        if (given_ && *given_ < i) {
          Fail(check, Entry(entry), what);
        } else {
          Unknown(check, Entry(entry), what);
        }
      } else if (!bytes.ok() || !Ed25519Verify(old_key.public_key,
                                               store::RotationText(old_key, new_key), *bytes)) {
        Fail(check, Entry(entry), "the signature of the key before is wrong");
      } else {
        ++check.holds;
      }
    }
  }

  void CheckRecords() {
    Check& check = Begin("record");
    for (Seen& seen : entries_) {
      if (!seen.leaf) continue;
      const std::string subject = Entry(seen.index.entry);
      if (seen.index.record != RecordState::kIncluded) {
        if (!IsSelected(seen)) continue;
        Unknown(check, subject,
                seen.index.record == RecordState::kErased
                    ? "its keys and salt were destroyed: what it said cannot be known any more"
                    : "its record is withheld: what it says cannot be known from this bundle");
        continue;
      }
      const auto bytes = Find(seen.index.entry, kRecord);
      if (!bytes) {
        Fail(check, subject, "its record is missing");
        continue;
      }
      if (store::Commitment(seen.index.salt, Sha256(*bytes)) != seen.leaf->commitment) {
        Fail(check, subject, "record and salt are not those that its leaf commits to");
        continue;
      }
      Result<store::Record> record = store::ParseRecord(*bytes);
      if (!record.ok()) {
        Fail(check, subject, record.error().message);
        continue;
      }
      ++check.holds;
      seen.record = std::move(*record);
    }
  }

  // Of what was erased there is an entry that says so.
  void CheckErasures() {
    Check& check = Begin("erasure");
    std::vector<std::pair<uint64_t, Result<Erasure>>> erasures;
    for (const Seen& seen : entries_) {
      if (!seen.leaf || !IsErasure(*seen.leaf)) continue;
      erasures.emplace_back(seen.index.entry, ErasureOf(seen.index.entry, *seen.leaf));
    }
    for (const Seen& seen : entries_) {
      if (!seen.leaf || seen.index.record != RecordState::kErased) continue;
      const uint64_t entry = seen.index.entry;
      const auto says = std::find_if(erasures.begin(), erasures.end(), [&](const auto& one) {
        return one.first > entry && (!one.second.ok() || one.second->Covers(entry, *seen.leaf));
      });
      if (says == erasures.end()) {
        Unknown(check, Entry(entry),
                "no entry of the bundle says that it was erased: that is the exporter's word");
      } else if (!says->second.ok()) {
        Fail(check, Entry(entry), Entry(says->first) + ": " + says->second.error().message);
      } else {
        ++check.holds;
      }
    }
  }

  void CheckPayloads() {
    Check& check = Begin("payload");
    for (Seen& seen : entries_) {
      if (!seen.record) continue;
      const uint64_t entry = seen.index.entry;
      for (const auto& [file, digest, held] :
           {std::tuple(kRequest, &seen.record->request_digest, &seen.request),
            std::tuple(kResponse, &seen.record->output_digest, &seen.response),
            std::tuple(kTrace, &seen.record->trace_digest, &seen.trace)}) {
        const auto bytes = Find(entry, file);
        const std::string subject = EntryFile(entry, file);
        if (bytes && !*digest) {
          Fail(check, subject, "the entry's record names no such payload");
        } else if (bytes && Sha256(*bytes) != **digest) {
          Fail(check, subject, "it is not the payload whose digest the record holds");
        } else if (bytes) {
          ++check.holds;
          *held = *bytes;
        } else if (*digest && index_.payloads) {
          Fail(check, subject, "it is missing");
        } else if (*digest) {
          Unknown(check, subject, "withheld: its digest is known, its bytes are not in the bundle");
        }
      }
    }
  }

  // The logits chains that the record holds are those of the trace's digests.
  void CheckChains() {
    Check& check = Begin("chain");
    for (const Seen& seen : entries_) {
      if (!seen.trace || seen.record->chain_heads.empty()) continue;
      const std::string subject = Entry(seen.index.entry);
      Result<std::vector<Digest>> chains = ChainsOf(*seen.trace);
      if (!chains.ok()) {
        Fail(check, subject, chains.error().message);
      } else if (*chains != seen.record->chain_heads) {
        Fail(check, subject, "the logits chain is not that of the trace's digests");
      } else {
        ++check.holds;
      }
    }
  }

  static Result<std::vector<Digest>> ChainsOf(std::string_view trace) {
    const Error none{Code::kCorrupt, "its trace holds no logits digests"};
    Result<json::Value> value = json::Parse(trace);
    const json::Value* choices = value.ok() ? value->Find("choices") : nullptr;
    if (!choices || !choices->is_array()) return none;
    std::vector<Digest> chains;
    for (const json::Value& choice : choices->items()) {
      const json::Value* hex = choice.Find("digests");
      if (!hex || !hex->is_string() || hex->as_string().size() % kDigestHex != 0) return none;
      Digest chain = Sha256("verbatim-logits-1");
      for (size_t at = 0; at < hex->as_string().size(); at += kDigestHex) {
        Result<std::string> digest = HexDecode(hex->as_string().substr(at, kDigestHex));
        if (!digest.ok()) return none;
        chain = Sha256(std::string(AsBytes(chain)) + *digest);
      }
      chains.push_back(chain);
    }
    return chains;
  }

  void CheckHits() {
    Check& check = Begin("hits");
    for (Seen& seen : entries_) {
      const uint64_t entry = seen.index.entry;
      const auto bytes = Find(entry, kHits);
      if (!seen.leaf) continue;
      if (seen.leaf->kind != Kind::kHits) {
        if (bytes) Fail(check, Entry(entry), "it is no batch of hits");
        continue;
      }
      if (seen.index.record == RecordState::kWithheld) continue;
      if (!bytes) {
        Fail(check, Entry(entry), "its hits are missing");
        continue;
      }
      if (Status status = CheckBatch(check, seen, *bytes); !status.ok()) {
        Fail(check, Entry(entry), status.error().message);
      }
    }
  }

  Status CheckBatch(Check& check, Seen& seen, std::string_view bytes) {
    const auto bad = [](uint64_t number, const std::string& what) {
      return Error{Code::kCorrupt, "hit " + std::to_string(number) + ": " + what};
    };
    const json::Value* hits = seen.leaf->detail.Find("hits");
    const json::Value* count = hits ? hits->Find("count") : nullptr;
    const json::Value* root_text = hits ? hits->Find("root") : nullptr;
    Result<Digest> root = Error{};
    if (root_text && root_text->is_string()) root = HexDecodeDigest(root_text->as_string());
    if (!count || !count->AsUint64() || !root.ok()) {
      return Error{Code::kCorrupt, "its leaf gives no count and root of hits"};
    }
    std::vector<Digest> hashes;
    std::vector<store::HitRecord> records;
    uint64_t erased = 0;
    while (!bytes.empty()) {
      const uint64_t number = hashes.size();
      const size_t end = bytes.find('\n');
      if (end == std::string_view::npos) return bad(number, "its line has no end");
      Result<HitLine> hit = ParseHit(bytes.substr(0, end));
      bytes.remove_prefix(end + 1);
      if (!hit.ok()) return bad(number, hit.error().message);
      if (hit->number != number) return bad(number, "it is missing");
      hashes.push_back(store::LeafHash(AsBytes(hit->commitment)));
      Status path =
          store::VerifyInclusion(number, *count->AsUint64(), hashes.back(), hit->path, *root);
      if (!path.ok()) return bad(number, path.error().message);
      if (!hit->record) {
        ++erased;
        continue;
      }
      if (store::Commitment(hit->salt, Sha256(*hit->record)) != hit->commitment) {
        return bad(number, "record and salt are not those of its commitment");
      }
      Result<store::HitRecord> record = store::ParseHitRecord(*hit->record);
      if (!record.ok()) return bad(number, record.error().message);
      records.push_back(std::move(*record));
    }
    if (hashes.size() != *count->AsUint64()) {
      return Error{Code::kCorrupt, "its leaf counts " + std::to_string(*count->AsUint64()) +
                                       " hits, and there are " + std::to_string(hashes.size())};
    }
    if (erased > 0) {
      Unknown(check, Entry(seen.index.entry),
              "the records of " + std::to_string(erased) +
                  " hits are not there (erased, or not for this requester)");
    }
    check.holds += hashes.size();
    seen.hits = std::move(records);
    return {};
  }

  // Whatever an opened entry refers to is in the bundle too, so that it is checked as well.
  void CheckReferences() {
    Check& check = Begin("references");
    std::set<uint64_t> included;
    for (const Seen& seen : entries_) {
      if (seen.leaf) included.insert(seen.index.entry);
    }
    for (const Seen& seen : entries_) {
      if (!seen.leaf || seen.index.record == RecordState::kWithheld) continue;
      std::set<uint64_t> named;
      for (const store::Reference& reference : seen.leaf->references) named.insert(reference.entry);
      for (const store::HitRecord& hit : seen.hits) named.insert(hit.result);
      for (const uint64_t entry : named) {
        if (entry >= seen.index.entry) {
          Fail(check, Entry(seen.index.entry),
               "it refers to entry " + std::to_string(entry) + ", which is not before it");
        } else if (included.contains(entry)) {
          ++check.holds;
        } else {
          Unknown(check, Entry(seen.index.entry),
                  "it refers to entry " + std::to_string(entry) + ", which is not in the bundle");
        }
      }
    }
  }

  void CheckRange() {
    Check& check = Begin("range");
    uint64_t next = index_.from;
    const auto gap = [&](uint64_t end) {
      if (next < end) {
        Fail(check, "entries " + std::to_string(next) + " to " + std::to_string(end - 1),
             "the range was asked for, and they are not in the bundle");
      }
    };
    for (const Seen& seen : entries_) {
      const uint64_t entry = seen.index.entry;
      if (entry < index_.from || entry > index_.to || !seen.leaf) continue;
      gap(entry);
      next = entry + 1;
      ++check.holds;
    }
    gap(index_.to + 1);
  }

  // A tenant numbers its entries from 1: the numbers of the last one before the range, those in it
  // and the first one behind it follow each other where nothing was left out.
  void CheckSequences() {
    Check& check = Begin("sequence");
    std::set<std::string> tenants;
    if (index_.tenants) tenants.insert(index_.tenants->begin(), index_.tenants->end());
    for (const Seen& seen : entries_) {
      if (!index_.tenants && IsSelected(seen) && seen.leaf && !seen.leaf->tenant.empty()) {
        tenants.insert(seen.leaf->tenant);
      }
    }
    for (const std::string& tenant : tenants) CheckSequence(check, tenant);
  }

  void CheckSequence(Check& check, const std::string& tenant) {
    std::optional<uint64_t> last;  // sequence number of the entry before
    if (index_.tenants) last = 0;
    bool whole = true, closed = false;
    const std::string subject = "tenant " + tenant;
    for (const Seen& seen : entries_) {
      if (!seen.leaf || seen.leaf->tenant != tenant) continue;
      const uint64_t entry = seen.index.entry, number = seen.leaf->sequence;
      if (entry < index_.from) {
        if (index_.tenants) last = number;
        continue;
      }
      if (entry > index_.to && (!index_.tenants || closed)) break;
      if (last && number != *last + 1) {
        whole = false;
        Fail(check, subject,
             "entry " + std::to_string(entry) + " is its number " + std::to_string(number) +
                 ", and number " + std::to_string(*last + 1) + " should come before or here");
      }
      last = number;
      closed = entry > index_.to;
    }
    if (whole) ++check.holds;
    if (index_.tenants && !closed) {
      Unknown(check, subject,
              "the bundle has no entry of it behind the range: whether there are more after its "
              "number " +
                  std::to_string(*last) + " cannot be known");
    }
  }

  // Policy and manifest in force stand whole in the entries that say so.
  void CheckConfiguration() {
    Check& check = Begin("configuration");
    std::set<std::string> manifests, policies;
    for (const Seen& seen : entries_) {
      const std::optional<std::string_view>& bytes = seen.response;
      if (!bytes || seen.leaf->kind != Kind::kConfiguration) continue;
      Result<json::Value> value = json::Parse(*bytes);
      const json::Value* manifest = value.ok() ? value->Find("manifest") : nullptr;
      const json::Value* policy = value.ok() ? value->Find("policy") : nullptr;
      const json::Value* named = seen.leaf->detail.Find("policy");
      const std::string manifest_digest = manifest ? DigestOf(*manifest, *bytes) : "";
      const std::string policy_digest = policy ? DigestOf(*policy, *bytes) : "";
      if (!manifest || !policy || manifest_digest != seen.leaf->manifest || !named ||
          !named->is_string() || named->as_string() != policy_digest) {
        Fail(check, Entry(seen.index.entry),
             "its policy or manifest is not the one whose digest its leaf holds");
        continue;
      }
      ++check.holds;
      manifests.insert(manifest_digest);
      policies.insert(policy_digest);
    }
    std::set<std::pair<std::string, std::string>> named;
    for (const Seen& seen : entries_) {
      if (!seen.record || !IsSelected(seen)) continue;
      if (!seen.leaf->manifest.empty()) named.insert({"manifest", seen.leaf->manifest});
      const json::Value* policy = seen.record->extra.Find("policy");
      if (policy && policy->is_string()) named.insert({"policy", policy->as_string()});
    }
    for (const auto& [what, digest] : named) {
      if ((what == "manifest" ? manifests : policies).contains(digest)) {
        ++check.holds;
      } else {
        Unknown(check, what + " " + digest,
                "entries name this " + what + ", and no entry of the bundle holds it");
      }
    }
  }

  // The bytes of a member of canonical JSON are themselves canonical.
  static std::string DigestOf(const json::Value& value, std::string_view text) {
    return HexEncode(
        Sha256(text.substr(value.text_begin(), value.text_end() - value.text_begin())));
  }

  void CheckProse() {
    Check& check = Begin("prose");
    for (const char* file : {kReportFile, kStatementFile}) {
      Unknown(check, file, "it is written by whoever exported: rely on the lines above instead");
    }
  }

  void Execute() {
    Check& check = Begin("reexecution");
    for (const Seen& seen : entries_) {
      if (!seen.record || seen.leaf->kind != Kind::kGenerated) continue;
      const std::string subject = Entry(seen.index.entry);
      if (seen.leaf->numerics.empty()) {
        Unknown(check, subject, "an upstream answered it: it cannot be executed from a file");
        continue;
      }
      if (!seen.request || !seen.response) {
        Unknown(check, subject, "its request or answer is not in the bundle");
        continue;
      }
      const Status same = options_.execute(
          {seen.index.entry, *seen.leaf, *seen.record, *seen.request, *seen.response});
      if (same.ok()) {
        ++check.holds;
      } else if (same.error().code == Code::kUnsupported) {
        Unknown(check, subject, Printable(same.error().message));
      } else {
        Fail(check, subject, same.error().message);
      }
    }
  }

  const std::string_view archive_;
  const VerifyOptions& options_;
  Verification result_;
  std::map<std::string, std::string_view> members_;
  BundleIndex index_;
  std::vector<Seen> entries_;
  std::vector<store::LogKey> keys_;             // of the log, as the bundle says
  std::optional<size_t> given_;                 // the one of them that was given from elsewhere
  std::map<uint64_t, std::string_view> notes_;  // checkpoints that hold, by size
  Digest root_{};
  std::map<uint64_t, Digest> old_roots_;
};

json::Value NotesJson(const std::vector<Note>& notes) {
  json::Value list = json::Value::MakeArray();
  for (size_t i = 0; i < std::min(notes.size(), kMaxNotes); ++i) {
    json::Value item = json::Value::MakeObject();
    item.Set("subject", notes[i].subject);
    item.Set("what", notes[i].what);
    list.Append(std::move(item));
  }
  return list;
}

void AddNotes(std::string& out, const char* word, const std::vector<Note>& notes) {
  for (size_t i = 0; i < std::min(notes.size(), kMaxNotes); ++i) {
    out += std::string("    ") + word + notes[i].subject + ": " + notes[i].what + "\n";
  }
  if (notes.size() > kMaxNotes) {
    out += "    and " + std::to_string(notes.size() - kMaxNotes) + " more\n";
  }
}

}  // namespace

bool Verification::holds() const {
  return std::all_of(checks.begin(), checks.end(),
                     [](const Check& check) { return check.fails.empty(); });
}

Verification VerifyBundle(std::string_view archive, const VerifyOptions& options) {
  return Checker(archive, options).Run();
}

json::Value ToJson(const Verification& verification) {
  json::Value object = json::Value::MakeObject();
  object.Set("holds", verification.holds());
  object.Set("origin", verification.origin);
  object.Set("size", verification.size);
  object.Set("root", verification.root);
  object.Set("from", verification.from);
  object.Set("to", verification.to);
  json::Value dated = json::Value::MakeArray();
  for (const Dated& one : verification.dated) {
    dated.Append(json::Object{
        {"size", one.size}, {"time", FormatTime(one.time)}, {"authority", one.authority}});
  }
  object.Set("dated", std::move(dated));
  json::Value checks = json::Value::MakeArray();
  for (const Check& check : verification.checks) {
    json::Value item = json::Value::MakeObject();
    item.Set("check", check.name);
    item.Set("holds", check.holds);
    item.Set("fails", NotesJson(check.fails));
    item.Set("unknown", NotesJson(check.unknown));
    item.Set("omitted", static_cast<uint64_t>(
                            check.fails.size() - std::min(check.fails.size(), kMaxNotes) +
                            check.unknown.size() - std::min(check.unknown.size(), kMaxNotes)));
    checks.Append(std::move(item));
  }
  object.Set("checks", std::move(checks));
  return object;
}

std::string ToText(const Verification& verification) {
  std::string out;
  if (!verification.root.empty()) {
    out += "log " + verification.origin + ", entries " + std::to_string(verification.from) +
           " to " + std::to_string(verification.to) + " of a tree of " +
           std::to_string(verification.size) + "\nroot " + verification.root + "\n";
  }
  for (const Check& check : verification.checks) {
    std::string line = check.name;
    line.resize(std::max<size_t>(14, line.size() + 1), ' ');
    if (!check.fails.empty()) line += std::to_string(check.fails.size()) + " FAIL, ";
    if (!check.unknown.empty()) line += std::to_string(check.unknown.size()) + " cannot be known, ";
    out += line + std::to_string(check.holds) + " hold\n";
    AddNotes(out, "FAILS ", check.fails);
    AddNotes(out, "unknown ", check.unknown);
    if (check.name != "timestamps") continue;
    for (const Dated& one : verification.dated) {
      out += "    the first " + std::to_string(one.size) + " entries existed by " +
             FormatTime(one.time) + ", says " + one.authority + "\n";
    }
  }
  out += verification.holds() ? "Nothing in the bundle is wrong.\n"
                              : "THE BUNDLE DOES NOT HOLD: see FAILS above.\n";
  return out;
}

}  // namespace verbatim::audit
