// C2SP signed notes (c2sp.org/signed-note), checkpoints (c2sp.org/tlog-checkpoint) and their
// Ed25519 keys. Parsing is strict: what another implementation might read differently is refused.
// Values only; all functions may be called from any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/result.h"

namespace verbatim::store {

// A key's name: not empty, UTF-8 without white space, plus signs and control characters.
bool IsKeyName(std::string_view name);

// "<name>+<8 hex>+<base64(0x01 || public key)>", key id = SHA-256(name \n 0x01 public key)[:4].
struct VerifierKey {
  std::string name;
  uint32_t id = 0;
  std::string public_key;  // 32 bytes
};
// kInvalid for any other text, kUnsupported for an algorithm other than Ed25519.
Result<VerifierKey> ParseVerifierKey(std::string_view vkey);
std::string FormatVerifierKey(const VerifierKey& key);
VerifierKey MakeVerifierKey(std::string_view name, std::string_view public_key);

// Who signs. The file-based one is below; a token's comes later.
class Signer {
 public:
  virtual ~Signer() = default;
  virtual const VerifierKey& key() const = 0;
  virtual Result<std::string> Sign(std::string_view message) const = 0;  // 64 bytes
};
// From "PRIVATE+KEY+<name>+<8 hex>+<base64(0x01 || seed)>".
Result<std::unique_ptr<Signer>> SignerFromText(std::string_view skey);
std::string FormatSignerKey(std::string_view name, std::string_view seed);

struct NoteSignature {
  std::string name;
  uint32_t id = 0;
  std::string signature;
};
struct Note {
  std::string text;  // with its last newline, without the blank line
  std::vector<NoteSignature> verified, unverified;
};
// Text and signatures of a note. kInvalid: malformed. kCorrupt: a signature by one of `keys` is
// wrong. kNotFound: no signature by any of them.
Result<Note> OpenNote(std::string_view note, std::span<const VerifierKey> keys);
// kInvalid where text does not end with a newline, or has other control characters.
Result<std::string> SignNote(std::string_view text, const Signer& signer);

// What a checkpoint says.
struct TreeHead {
  std::string origin;
  uint64_t size = 0;
  Digest root{};
  std::string rest;  // extension lines
};
Result<TreeHead> ParseCheckpoint(std::string_view text);
std::string FormatCheckpoint(const TreeHead& checkpoint);
// A checkpoint of this origin, signed by this key.
Result<TreeHead> OpenCheckpoint(std::string_view note, const VerifierKey& key);

}  // namespace verbatim::store
