#include "store/checkpoint.h"

#include <algorithm>
#include <charconv>
#include <set>

#include "base/crypto.h"
#include "store/note_key.h"

namespace verbatim::store {
namespace {

constexpr size_t kMaxSignatures = 100;
constexpr size_t kMaxNoteBytes = size_t{1} << 20;
constexpr std::string_view kSignatureStart = "\xE2\x80\x94 ";  // em dash, space

Error Malformed(const std::string& what) { return {Code::kInvalid, "malformed note: " + what}; }

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

Result<Note> ParseNote(std::string_view bytes) {
  if (bytes.size() > kMaxNoteBytes) return Malformed("over a megabyte");
  if (!IsNoteText(bytes)) return Malformed("not UTF-8, or with control characters");
  const size_t split = bytes.rfind("\n\n");
  if (split == std::string_view::npos) return Malformed("no blank line before the signatures");
  Note note;
  note.text = std::string(bytes.substr(0, split + 1));
  std::string_view lines = bytes.substr(split + 2);
  if (lines.empty() || lines.back() != '\n') return Malformed("the last line has no end");
  while (!lines.empty()) {
    if (note.unverified.size() == kMaxSignatures) return Malformed("over 100 signatures");
    const size_t end = lines.find('\n');
    Result<NoteSignature> signature = ParseSignatureLine(lines.substr(0, end));
    if (!signature.ok()) return signature.error();
    lines.remove_prefix(end + 1);
    note.unverified.push_back(std::move(*signature));
  }
  return note;
}

Result<Note> OpenNote(std::string_view bytes, std::span<const VerifierKey> keys) {
  Result<Note> note = ParseNote(bytes);
  if (!note.ok()) return note.error();
  std::set<std::pair<std::string, uint32_t>> seen;
  std::vector<NoteSignature> signatures;
  signatures.swap(note->unverified);
  for (NoteSignature& signature : signatures) {
    const VerifierKey* match = nullptr;
    for (const VerifierKey& key : keys) {
      if (key.name != signature.name || key.id != signature.id) continue;
      if (match) return Error{Code::kInvalid, "ambiguous key " + key.name + ": it is listed twice"};
      match = &key;
    }
    if (!match) {
      note->unverified.push_back(std::move(signature));
      continue;
    }
    if (!seen.insert({signature.name, signature.id}).second) continue;
    if (!Ed25519Verify(match->public_key, note->text, signature.signature)) {
      return Error{Code::kCorrupt, "invalid signature of key " + match->name};
    }
    note->verified.push_back(std::move(signature));
  }
  if (note->verified.empty()) return Error{Code::kNotFound, "no signature by a known key"};
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
  return std::string(text) + "\n" + SignatureLine(signer.key().name, bytes);
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

Result<TreeHead> OpenCheckpoint(std::string_view note, std::span<const LogKey> keys) {
  std::vector<VerifierKey> all;
  for (const LogKey& key : keys) all.push_back(key.key);
  Result<Note> opened = OpenNote(note, all);
  if (!opened.ok()) return opened.error();
  Result<TreeHead> head = ParseCheckpoint(opened->text);
  if (!head.ok()) return head.error();
  const LogKey* signs = nullptr;
  for (const LogKey& key : keys) {
    if (key.from <= head->size) signs = &key;
  }
  if (!signs || head->origin != signs->key.name) {
    return Error{Code::kCorrupt, "the checkpoint is of another log: " + head->origin};
  }
  for (const NoteSignature& signature : opened->verified) {
    if (signature.id == signs->key.id) return head;
  }
  return Error{Code::kCorrupt, "the checkpoint of size " + std::to_string(head->size) +
                                   " is signed by a key of the log that does not sign that size"};
}

}  // namespace verbatim::store
