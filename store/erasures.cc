#include "store/erasures.h"

#include "base/crypto.h"
#include "base/json.h"
#include "store/data_folder.h"

namespace verbatim::store {
namespace {

json::Value Statement(const Erasure& erasure) {
  return json::Object{{"entries", erasure.entries.ToJson()},
                      {"entry", erasure.entry},
                      {"origin", erasure.origin},
                      {"slots", erasure.slots.ToJson()}};
}

std::string SignedText(const Erasure& erasure) {
  return "verbatim-erasure-1\n" + json::Canonical(Statement(erasure));
}

Result<Erasure> ParseLine(std::string_view line, std::span<const LogKey> keys, bool& is_signed) {
  const Error damaged{Code::kCorrupt,
                      "the log of erasures has a damaged line; restore the file from a copy"};
  Result<json::Value> object = json::Parse(line);
  if (!object.ok()) return damaged;
  const json::Value* entry = object->Find("entry");
  const json::Value* origin = object->Find("origin");
  const json::Value* signature = object->Find("signature");
  if (!entry || !entry->AsUint64() || !origin || !origin->is_string() || !signature ||
      !signature->is_string()) {
    return damaged;
  }
  Erasure erasure{*entry->AsUint64(), origin->as_string(), {}, {}};
  Result<Ranges> entries = Ranges::FromMember(*object, "entries");
  Result<Ranges> slots = Ranges::FromMember(*object, "slots");
  if (!entries.ok() || !slots.ok()) return damaged;
  erasure.entries = std::move(*entries);
  erasure.slots = std::move(*slots);
  Result<std::string> bytes = HexDecode(signature->as_string());
  for (const LogKey& key : keys) {
    is_signed = is_signed || (bytes.ok() && bytes->size() == 64 &&
                              Ed25519Verify(key.key.public_key, SignedText(erasure), *bytes));
  }
  return erasure;
}

}  // namespace

Result<std::string> EncodeErasure(const Erasure& erasure, const Signer& signer) {
  Result<std::string> signature = signer.Sign(SignedText(erasure));
  if (!signature.ok()) return signature.error();
  json::Value line = Statement(erasure);
  line.Set("signature", HexEncode(*signature));
  return json::Canonical(line) + "\n";
}

Result<std::vector<Erasure>> ParseErasures(std::string_view file, std::string_view origin,
                                           std::span<const LogKey> keys) {
  std::vector<Erasure> erasures;
  while (!file.empty()) {
    const size_t end = file.find('\n');
    if (end == std::string_view::npos) break;
    bool is_signed = false;
    Result<Erasure> erasure = ParseLine(file.substr(0, end), keys, is_signed);
    if (!erasure.ok()) return erasure.error();
    const bool ours = erasure->origin == origin;
    if (ours && !keys.empty() && !is_signed) {
      return Error{Code::kFailedPrecondition,
                   "the log of erasures has a line for entry " + std::to_string(erasure->entry) +
                       " that no key of this log signed: it is forged, or the log got another key "
                       "after this backup was made; restore a newer backup, or correct the file"};
    }
    if (ours) erasures.push_back(std::move(*erasure));
    file.remove_prefix(end + 1);
  }
  return erasures;
}

Status AddErasure(const std::string& path, const Erasure& erasure, const Signer& signer) {
  Result<std::string> file = ReadFile(path);
  if (!file.ok() && file.error().code != Code::kNotFound) return file.error();
  std::string bytes = file.ok() ? std::move(*file) : std::string();
  Result<std::vector<Erasure>> known = ParseErasures(bytes, erasure.origin, {});
  if (!known.ok()) return known.error();
  for (const Erasure& other : *known) {
    // Written again: the sync that followed it the last time may have failed.
    if (other.entry == erasure.entry) return WriteFileDurably(path, bytes);
  }
  Result<std::string> line = EncodeErasure(erasure, signer);
  if (!line.ok()) return line.error();
  bytes.resize(bytes.rfind('\n') == std::string::npos ? 0 : bytes.rfind('\n') + 1);
  return WriteFileDurably(path, bytes + *line);
}

}  // namespace verbatim::store
