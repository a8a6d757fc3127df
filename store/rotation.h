// Rotation of the log's key: what its leaf says, and how an interrupted one is settled. The
// database decides: the key is the log's from the commit of its leaf on (FORMAT.md, Rotation).
#pragma once

#include "base/json.h"
#include "base/result.h"
#include "store/keys.h"
#include "store/reader.h"

namespace verbatim::store {

// Puts the key that the database names into `keys`, from keys/log.key.next where the rotation did
// not come to its end, and removes a waiting key that never became the log's. kFailedPrecondition
// where the folder has not the key that the database names.
Status SettleRotation(const DataFolder& folder, const TokenConfig& token, const Reader& reader,
                      LogSigner& signer);

// Detail of the leaf: old and new verifier key, and the old one's signature over both. Without
// signature where the old key cannot sign any more.
json::Value RotationDetail(const Signer& old_key, const VerifierKey& new_key);
// What that signature is over.
std::string RotationText(const VerifierKey& old_key, const VerifierKey& new_key);

}  // namespace verbatim::store
