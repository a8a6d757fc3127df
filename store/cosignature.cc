#include "store/cosignature.h"

#include <algorithm>
#include <limits>

#include "base/bytes.h"
#include "base/crypto.h"
#include "store/checkpoint.h"
#include "store/note_key.h"

namespace verbatim::store {
namespace {

constexpr char kCosignatureV1 = 4;
constexpr size_t kTimeBytes = 8, kSignatureBytes = 64;

std::string SignedText(std::string_view text, uint64_t time) {
  return "cosignature/v1\ntime " + std::to_string(time) + "\n" + std::string(text);
}

}  // namespace

Result<CosignerKey> ParseCosignerKey(std::string_view vkey) {
  Result<NoteKey> key = ParseNoteKey(vkey, "witness key");
  if (!key.ok()) return key.error();
  if (key->data[0] != kCosignatureV1) {
    return Error{Code::kUnsupported,
                 "witness key " + key->name +
                     " is not for Ed25519 cosignatures (type 4 of c2sp.org/tlog-cosignature)"};
  }
  if (key->data.size() != 33) {
    return Error{Code::kInvalid, "witness key " + key->name + " has the wrong length"};
  }
  return CosignerKey{key->name, key->id, key->data.substr(1)};
}

std::string FormatCosignerKey(const CosignerKey& key) {
  return FormatNoteKey({key.name, key.id, kCosignatureV1 + key.public_key});
}

CosignerKey MakeCosignerKey(std::string_view name, std::string_view public_key) {
  CHECK(IsKeyName(name) && public_key.size() == 32);
  std::string key(public_key);
  return {std::string(name), NoteKeyId(name, kCosignatureV1 + key), std::move(key)};
}

std::string SignCosignature(const CosignerKey& key, std::string_view seed, std::string_view text,
                            uint64_t time) {
  std::string bytes;
  AppendU32(bytes, key.id);
  AppendU64(bytes, time);
  bytes += Ed25519Sign(seed, SignedText(text, time));
  return SignatureLine(key.name, bytes);
}

Result<std::vector<Cosignature>> OpenCosignatures(std::string_view note,
                                                  std::span<const CosignerKey> keys) {
  for (size_t i = 0; i < keys.size(); ++i) {
    const auto same = [&](const CosignerKey& other) {
      return other.name == keys[i].name && other.id == keys[i].id;
    };
    if (std::count_if(keys.begin(), keys.end(), same) > 1) {
      return Error{Code::kInvalid,
                   "ambiguous witness key " + keys[i].name + ": it is listed twice"};
    }
  }
  Result<Note> parsed = ParseNote(note);
  if (!parsed.ok()) return parsed.error();
  std::vector<Cosignature> found;
  std::vector<const CosignerKey*> seen;
  for (const NoteSignature& signature : parsed->unverified) {
    const auto key = std::find_if(keys.begin(), keys.end(), [&](const CosignerKey& k) {
      return k.name == signature.name && k.id == signature.id;
    });
    if (key == keys.end()) continue;
    if (std::find(seen.begin(), seen.end(), &*key) != seen.end()) continue;
    seen.push_back(&*key);
    const Error wrong{Code::kCorrupt, "invalid cosignature of witness " + key->name};
    if (signature.signature.size() != kTimeBytes + kSignatureBytes) return wrong;
    const uint64_t time = ReadU64(signature.signature);
    if (time == 0 || time > uint64_t{std::numeric_limits<int64_t>::max()}) return wrong;
    if (!Ed25519Verify(key->public_key, SignedText(parsed->text, time),
                       std::string_view(signature.signature).substr(kTimeBytes))) {
      return wrong;
    }
    std::string bytes;
    AppendU32(bytes, signature.id);
    bytes += signature.signature;
    found.push_back({key->name, time, SignatureLine(key->name, bytes)});
  }
  return found;
}

}  // namespace verbatim::store
