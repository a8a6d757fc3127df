// The secrets of a data folder, in keys/ (files of mode 0600): the log's signing key, the key that
// wraps the keyring's segments, and the keys of tenant pseudonyms and of the blinded result index.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/bytes.h"
#include "base/result.h"
#include "store/checkpoint.h"
#include "store/data_folder.h"
#include "store/keyring.h"

namespace verbatim::store {

struct Keys {
  std::unique_ptr<Signer> signer;  // its key's name is the log's origin
  std::unique_ptr<KeyWrapper> wrapper;
  std::string tenant_key, index_key;

  // 32 hex digits; "" for the empty name, which is the server itself.
  std::string Pseudonym(std::string_view tenant) const;
  // Key of the result index: HMAC-SHA-256 over the namespace's length, the namespace, the
  // fingerprint.
  std::string IndexKey(std::string_view name_space, const Digest& fingerprint) const;
};

// make: what is missing is made and synced (first start), the log key with this origin, or with
// "verbatim/<16 random hex>" where it is empty. Else kCorrupt names the missing file.
Result<Keys> LoadKeys(const DataFolder& folder, std::string_view origin, bool make);

}  // namespace verbatim::store
