// The secrets of a data folder, in keys/ (files of mode 0600): the log's signing key, the key that
// wraps the keyring's segments, and the keys of tenant pseudonyms and of the blinded result index.
// The first two may be on a PKCS#11 token; then the folder says which (FORMAT.md, The folder).
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/result.h"
#include "store/anchor_options.h"
#include "store/checkpoint.h"
#include "store/data_folder.h"
#include "store/keyring.h"
#include "store/signer.h"

namespace verbatim::store {

// Signs with the log's newest key, which a rotation replaces.
class LogSigner : public Signer {
 public:
  explicit LogSigner(std::shared_ptr<const Signer> signer);
  // The reference stays valid, also when the key has been replaced.
  const VerifierKey& key() const override;
  Result<std::string> Sign(std::string_view message) const override;
  Status Check() const override;
  void Replace(std::shared_ptr<const Signer> signer);

 private:
  std::shared_ptr<const Signer> current() const;
  mutable std::mutex mutex_;  // guards what follows
  std::shared_ptr<const Signer> signer_;
  std::vector<std::unique_ptr<const VerifierKey>> keys_;  // of all that there were
};

struct Keys {
  std::unique_ptr<LogSigner> signer;  // its key's name is the log's origin
  std::unique_ptr<KeyWrapper> wrapper;
  std::string tenant_key, index_key;

  // 32 hex digits; "" for the empty name, which is the server itself.
  std::string Pseudonym(std::string_view tenant) const;
  // Key of the result index: HMAC-SHA-256 over the namespace's length, the namespace, the
  // fingerprint.
  std::string IndexKey(std::string_view name_space, const Digest& fingerprint) const;
};

// make: what is missing is made and synced (first start), the log key with this origin, or with
// "verbatim/<16 random hex>" where it is empty; on the token where one is configured, which may
// have keys of these labels already. Else kCorrupt names the missing file. A folder whose keys are
// on a token names it itself; `token` then says where it is by now. The token is asked only when a
// key is used.
Result<Keys> LoadKeys(const DataFolder& folder, std::string_view origin, bool make,
                      const TokenConfig& token = {});

// Rotation. The next key waits in keys/log.key.next until the database says that it is the log's.
// Makes it, synced: in the file, or on the token under token.label.
Result<std::shared_ptr<const Signer>> MakeNextSigner(const DataFolder& folder,
                                                     std::string_view origin,
                                                     const TokenConfig& token);
// The waiting key; null where there is none.
Result<std::shared_ptr<const Signer>> LoadNextSigner(const DataFolder& folder,
                                                     const TokenConfig& token);
// Puts it in the place of the old one, or removes it; durable.
Status TakeNextSigner(const DataFolder& folder);
Status DropNextSigner(const DataFolder& folder);

}  // namespace verbatim::store
