// C2SP cosignatures (c2sp.org/tlog-cosignature), the Ed25519 kind: a witness's dated statement that
// a checkpoint is consistent with all that it saw of that log before.
// Values only; all functions may be called from any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace verbatim::store {

// "<name>+<8 hex>+<base64(0x04 || public key)>", key id = SHA-256(name \n 0x04 public key)[:4].
struct CosignerKey {
  std::string name;
  uint32_t id = 0;
  std::string public_key;  // 32 bytes
};
// kInvalid for any other text, kUnsupported for other algorithms (ML-DSA-44 among them).
Result<CosignerKey> ParseCosignerKey(std::string_view vkey);
std::string FormatCosignerKey(const CosignerKey& key);
CosignerKey MakeCosignerKey(std::string_view name, std::string_view public_key);

struct Cosignature {
  std::string name;    // of the witness
  uint64_t time = 0;   // seconds since 1970, by the witness's clock
  std::string line{};  // its signature line, with its newline
};

// The line that the witness with this seed adds to a note of this text.
std::string SignCosignature(const CosignerKey& key, std::string_view seed, std::string_view text,
                            uint64_t time);

// The cosignatures by `keys` in a note, one a key; others' are passed over. kCorrupt where one by a
// known key is wrong; kInvalid where the note is malformed, or a key is given twice.
Result<std::vector<Cosignature>> OpenCosignatures(std::string_view note,
                                                  std::span<const CosignerKey> keys);

}  // namespace verbatim::store
