// C2SP signed notes (c2sp.org/signed-note) and checkpoints (c2sp.org/tlog-checkpoint). Parsing is
// strict: what another implementation might read differently is refused. Values only; all functions
// may be called from any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/result.h"
#include "store/signer.h"

namespace verbatim::store {

struct NoteSignature {
  std::string name;
  uint32_t id = 0;
  std::string signature;
};
struct Note {
  std::string text;  // with its last newline, without the blank line
  std::vector<NoteSignature> verified, unverified;
};
// Text and signatures, none of them verified. kInvalid: malformed.
Result<Note> ParseNote(std::string_view note);
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

// A key of the log and the sizes of the heads that it signs: from `from` up to, and without, the
// next key's. A log's keys are held in this order; the first one's `from` is 0.
struct LogKey {
  VerifierKey key;
  uint64_t from = 0;
};
// A checkpoint signed by the one of these keys that signs heads of its size. kCorrupt where another
// of them signed it.
Result<TreeHead> OpenCheckpoint(std::string_view note, std::span<const LogKey> keys);

}  // namespace verbatim::store
