// C2SP tlog-proof files (c2sp.org/tlog-proof): an entry's place, its inclusion path and the signed
// checkpoint, in one text that is checked offline.
// Values only; all functions may be called from any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/result.h"
#include "store/checkpoint.h"
#include "store/cosignature.h"

namespace verbatim::store {

inline constexpr char kTlogProofSuffix[] = ".tlog-proof";

struct TlogProof {
  uint64_t index = 0;
  std::vector<Digest> path;  // from the leaf's sibling to the root's child
  std::string checkpoint;    // signed note, cosignatures included
  std::string extra;         // opaque bytes, signed by nobody
};

std::string FormatTlogProof(const TlogProof& proof);
// kInvalid for any other spelling. The checkpoint is not looked into.
Result<TlogProof> ParseTlogProof(std::string_view text);

// That the leaf's bytes are in the log at proof.index: the checkpoint is signed by one of the log's
// keys that may sign its size, and cosigned by as many of `witnesses` as `quorum` says. The head,
// else kCorrupt, kInvalid or kNotFound with what does not hold.
Result<TreeHead> VerifyTlogProof(const TlogProof& proof, std::string_view leaf,
                                 std::span<const LogKey> log_keys,
                                 std::span<const CosignerKey> witnesses, size_t quorum);

}  // namespace verbatim::store
