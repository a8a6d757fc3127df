#include "store/note_key.h"

#include "base/bytes.h"
#include "base/crypto.h"
#include "store/checkpoint.h"

namespace verbatim::store {

uint32_t NoteKeyId(std::string_view name, std::string_view data) {
  std::string text(name);
  text += '\n';
  text += data;
  return ReadU32(AsBytes(Sha256(text)));
}

Result<NoteKey> SplitNoteKey(std::string_view text, const char* what) {
  const Error bad{Code::kInvalid,
                  std::string("malformed ") + what +
                      "; it is <name>+<8 hex digits>+<base64 of algorithm and key>"};
  const size_t first = text.find('+');
  if (first == std::string_view::npos) return bad;
  const size_t second = text.find('+', first + 1);
  if (second == std::string_view::npos || second - first != 9) return bad;
  const std::string_view name = text.substr(0, first);
  const std::string_view hex = text.substr(first + 1, 8);
  if (!IsKeyName(name)) return bad;
  Result<std::string> id = HexDecode(hex);
  if (!id.ok() || HexEncode(*id) != hex) return bad;
  Result<std::string> data = Base64Decode(text.substr(second + 1));
  if (!data.ok() || data->empty()) return bad;
  return NoteKey{std::string(name), ReadU32(*id), std::move(*data)};
}

Result<NoteKey> ParseNoteKey(std::string_view text, const char* what) {
  Result<NoteKey> key = SplitNoteKey(text, what);
  if (!key.ok()) return key.error();
  if (NoteKeyId(key->name, key->data) != key->id) {
    return Error{Code::kInvalid,
                 std::string(what) + " " + key->name + ": its hash is not that of the key"};
  }
  return key;
}

std::string FormatNoteKey(const NoteKey& key) {
  std::string id;
  AppendU32(id, key.id);
  return key.name + "+" + HexEncode(id) + "+" + Base64Encode(key.data);
}

std::string SignatureLine(std::string_view name, std::string_view bytes) {
  return "\xE2\x80\x94 " + std::string(name) + " " + Base64Encode(bytes) + "\n";
}

}  // namespace verbatim::store
