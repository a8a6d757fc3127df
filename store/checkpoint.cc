#include "store/checkpoint.h"

#include <algorithm>
#include <charconv>
#include <set>

#include "base/crypto.h"

namespace verbatim::store {
namespace {

constexpr char kEd25519 = 1;
constexpr size_t kMaxSignatures = 100;
constexpr size_t kMaxNoteBytes = size_t{1} << 20;
constexpr std::string_view kSignatureStart = "\xE2\x80\x94 ";  // em dash, space

Error Malformed(const std::string& what) { return {Code::kInvalid, "malformed note: " + what}; }

uint32_t KeyId(std::string_view name, std::string_view algorithm_and_key) {
  std::string text(name);
  text += '\n';
  text += algorithm_and_key;
  return ReadU32(AsBytes(Sha256(text)));
}

std::string HexId(uint32_t id) {
  std::string bytes;
  AppendU32(bytes, id);
  return HexEncode(bytes);
}

// "<name>+<8 lower-case hex>+<base64>".
struct KeyText {
  std::string name;
  uint32_t id;
  std::string data;  // algorithm byte and key
};
Result<KeyText> SplitKey(std::string_view text, const char* what) {
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
  return KeyText{std::string(name), ReadU32(*id), std::move(*data)};
}

class FileSigner : public Signer {
 public:
  FileSigner(VerifierKey key, std::string seed) : key_(std::move(key)), seed_(std::move(seed)) {}
  ~FileSigner() override { Wipe(seed_); }
  const VerifierKey& key() const override { return key_; }
  Result<std::string> Sign(std::string_view message) const override {
    return Ed25519Sign(seed_, message);
  }

 private:
  VerifierKey key_;
  std::string seed_;
};

// Valid UTF-8 without control characters below U+0020 but newlines.
bool IsNoteText(std::string_view text) {
  return IsUtf8(text) && std::none_of(text.begin(), text.end(), [](char c) {
           return static_cast<uint8_t>(c) < 0x20 && c != '\n';
         });
}

Result<NoteSignature> ParseSignatureLine(std::string_view line) {
  if (!line.starts_with(kSignatureStart)) return Malformed("a signature line starts otherwise");
  line.remove_prefix(kSignatureStart.size());
  const size_t space = line.find(' ');
  if (space == std::string_view::npos) return Malformed("a signature line without signature");
  const std::string_view name = line.substr(0, space);
  Result<std::string> bytes = Base64Decode(line.substr(space + 1));
  if (!IsKeyName(name) || !bytes.ok() || bytes->size() < 5) {
    return Malformed("a signature line with a wrong name or base64");
  }
  return NoteSignature{std::string(name), ReadU32(*bytes), bytes->substr(4)};
}

}  // namespace

bool IsKeyName(std::string_view name) {
  if (name.empty() || !IsUtf8(name)) return false;
  for (const char c : name) {
    if (static_cast<uint8_t>(c) <= 0x20 || c == '+' || c == 0x7F) return false;
  }
  for (std::string_view space : {"\xC2\x85", "\xC2\xA0", "\xE1\x9A\x80", "\xE2\x80\xA8",
                                 "\xE2\x80\xA9", "\xE2\x80\xAF", "\xE2\x81\x9F", "\xE3\x80\x80"}) {
    if (name.find(space) != std::string_view::npos) return false;
  }
  for (char last = '\x80'; last <= '\x8A'; ++last) {  // U+2000 to U+200A
    const char space[] = {'\xE2', '\x80', last};
    if (name.find(std::string_view(space, 3)) != std::string_view::npos) return false;
  }
  return true;
}

Result<VerifierKey> ParseVerifierKey(std::string_view vkey) {
  Result<KeyText> key = SplitKey(vkey, "verifier key");
  if (!key.ok()) return key.error();
  if (KeyId(key->name, key->data) != key->id) {
    return Error{Code::kInvalid, "verifier key " + key->name + ": its hash is not that of the key"};
  }
  if (key->data[0] != kEd25519) {
    return Error{Code::kUnsupported, "verifier key " + key->name + " is not an Ed25519 key"};
  }
  if (key->data.size() != 33) {
    return Error{Code::kInvalid, "verifier key " + key->name + " has the wrong length"};
  }
  return VerifierKey{key->name, key->id, key->data.substr(1)};
}

std::string FormatVerifierKey(const VerifierKey& key) {
  return key.name + "+" + HexId(key.id) + "+" + Base64Encode(kEd25519 + key.public_key);
}

VerifierKey MakeVerifierKey(std::string_view name, std::string_view public_key) {
  CHECK(IsKeyName(name) && public_key.size() == 32);
  std::string key(public_key);
  return {std::string(name), KeyId(name, kEd25519 + key), std::move(key)};
}

Result<std::unique_ptr<Signer>> SignerFromText(std::string_view skey) {
  constexpr std::string_view kPrefix = "PRIVATE+KEY+";
  if (!skey.starts_with(kPrefix)) {
    return Error{Code::kInvalid, "a signing key starts with " + std::string(kPrefix)};
  }
  Result<KeyText> key = SplitKey(skey.substr(kPrefix.size()), "signing key");
  if (!key.ok()) return key.error();
  if (key->data.size() != 33 || key->data[0] != kEd25519) {
    return Error{Code::kUnsupported, "signing key " + key->name + " is not an Ed25519 key"};
  }
  std::string seed = key->data.substr(1);
  VerifierKey verifier = MakeVerifierKey(key->name, Ed25519PublicKey(seed));
  if (verifier.id != key->id) {
    return Error{Code::kInvalid, "signing key " + key->name + ": its hash is not that of the key"};
  }
  Wipe(key->data);
  return std::unique_ptr<Signer>(
      std::make_unique<FileSigner>(std::move(verifier), std::move(seed)));
}

std::string FormatSignerKey(std::string_view name, std::string_view seed) {
  const VerifierKey key = MakeVerifierKey(name, Ed25519PublicKey(seed));
  return "PRIVATE+KEY+" + key.name + "+" + HexId(key.id) + "+" +
         Base64Encode(kEd25519 + std::string(seed));
}

Result<Note> OpenNote(std::string_view bytes, std::span<const VerifierKey> keys) {
  if (bytes.size() > kMaxNoteBytes) return Malformed("over a megabyte");
  if (!IsNoteText(bytes)) return Malformed("not UTF-8, or with control characters");
  const size_t split = bytes.rfind("\n\n");
  if (split == std::string_view::npos) return Malformed("no blank line before the signatures");
  Note note;
  note.text = std::string(bytes.substr(0, split + 1));
  std::string_view lines = bytes.substr(split + 2);
  if (lines.empty() || lines.back() != '\n') return Malformed("the last line has no end");

  std::set<std::pair<std::string, uint32_t>> seen;
  for (size_t count = 1; !lines.empty(); ++count) {
    if (count > kMaxSignatures) return Malformed("over 100 signatures");
    const size_t end = lines.find('\n');
    Result<NoteSignature> signature = ParseSignatureLine(lines.substr(0, end));
    if (!signature.ok()) return signature.error();
    lines.remove_prefix(end + 1);

    const VerifierKey* match = nullptr;
    for (const VerifierKey& key : keys) {
      if (key.name != signature->name || key.id != signature->id) continue;
      if (match) return Error{Code::kInvalid, "ambiguous key " + key.name + ": it is listed twice"};
      match = &key;
    }
    if (!match) {
      note.unverified.push_back(std::move(*signature));
      continue;
    }
    if (!seen.insert({signature->name, signature->id}).second) continue;
    if (!Ed25519Verify(match->public_key, note.text, signature->signature)) {
      return Error{Code::kCorrupt, "invalid signature of key " + match->name};
    }
    note.verified.push_back(std::move(*signature));
  }
  if (note.verified.empty()) return Error{Code::kNotFound, "no signature by a known key"};
  return note;
}

Result<std::string> SignNote(std::string_view text, const Signer& signer) {
  if (text.empty() || text.back() != '\n' || !IsNoteText(text)) {
    return Error{Code::kInvalid,
                 "a note's text is UTF-8 without control characters and ends with "
                 "a newline"};
  }
  Result<std::string> signature = signer.Sign(text);
  if (!signature.ok()) return signature.error();
  std::string bytes;
  AppendU32(bytes, signer.key().id);
  bytes += *signature;
  std::string note(text);
  note += '\n';
  note += kSignatureStart;
  note += signer.key().name + " " + Base64Encode(bytes) + "\n";
  return note;
}

Result<TreeHead> ParseCheckpoint(std::string_view text) {
  const auto bad = [](const char* what) {
    return Error{Code::kInvalid, std::string("malformed checkpoint: ") + what};
  };
  if (!IsNoteText(text)) return bad("not UTF-8, or with control characters");
  std::string_view lines[3];
  for (std::string_view& line : lines) {
    const size_t end = text.find('\n');
    if (end == std::string_view::npos) return bad("it has under three lines");
    line = text.substr(0, end);
    text.remove_prefix(end + 1);
  }
  TreeHead checkpoint;
  checkpoint.origin = std::string(lines[0]);
  if (checkpoint.origin.empty()) return bad("no origin");
  const char* end = lines[1].data() + lines[1].size();
  const auto parsed = std::from_chars(lines[1].data(), end, checkpoint.size);
  if (parsed.ec != std::errc() || parsed.ptr != end) return bad("the size is no decimal number");
  if (lines[1].size() > 1 && lines[1][0] == '0') return bad("the size has a leading zero");
  Result<std::string> root = Base64Decode(lines[2]);
  if (!root.ok() || root->size() != 32) return bad("the root is not the base64 of 32 bytes");
  checkpoint.root = ToDigest(*root);
  if (!text.empty() && text.back() != '\n') return bad("the last line has no end");
  checkpoint.rest = std::string(text);
  return checkpoint;
}

std::string FormatCheckpoint(const TreeHead& checkpoint) {
  return checkpoint.origin + "\n" + std::to_string(checkpoint.size) + "\n" +
         Base64Encode(AsBytes(checkpoint.root)) + "\n" + checkpoint.rest;
}

Result<TreeHead> OpenCheckpoint(std::string_view note, const VerifierKey& key) {
  Result<Note> opened = OpenNote(note, {&key, 1});
  if (!opened.ok()) return opened.error();
  Result<TreeHead> checkpoint = ParseCheckpoint(opened->text);
  if (!checkpoint.ok()) return checkpoint.error();
  if (checkpoint->origin != key.name) {
    return Error{Code::kCorrupt, "the checkpoint is of another log: " + checkpoint->origin};
  }
  return checkpoint;
}

}  // namespace verbatim::store
