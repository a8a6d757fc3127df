// What all keys and signatures of C2SP signed notes share: "<name>+<8 hex>+<base64(type, key)>".
// For the files that give the types a meaning (checkpoint.cc, cosignature.cc, signer.cc).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace verbatim::store {

struct NoteKey {
  std::string name;
  uint32_t id = 0;
  std::string data;  // type byte and key; not empty
};
// The first four bytes of SHA-256(name, newline, data).
uint32_t NoteKeyId(std::string_view name, std::string_view data);
// The parts alone. kInvalid names `what`: "verifier key".
Result<NoteKey> SplitNoteKey(std::string_view text, const char* what);
// The parts, where id is the one of name and data.
Result<NoteKey> ParseNoteKey(std::string_view text, const char* what);
std::string FormatNoteKey(const NoteKey& key);

// "<em dash> <name> <base64>\n"; bytes: key id and signature.
std::string SignatureLine(std::string_view name, std::string_view bytes);

}  // namespace verbatim::store
