// Puts the configuration's sections `access` and `tenants` in force, and keeps up with the files
// that they name.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/result.h"
#include "gateway/auth.h"
#include "gateway/http.h"
#include "policies/config.h"

namespace verbatim::store {
class Ledger;
}

namespace verbatim::gateway {

// The API keys' file: access.keys_file, or api-keys.json in the data folder.
std::string KeysFile(const policies::Config& config);

// Reads keys file, issuers' keys and secrets. A keys file that is not there holds no keys; any
// other fault is an error that names the file and says what to do.
Result<AccessRules> LoadAccess(const policies::Config& config);

// Whether policy lets this caller use the model: its tenant's list, and within it its key's.
bool MayUseModel(const policies::Tenants& tenants, const Principal& principal,
                 std::string_view model);
// Whether anything but all models: a list of its tenant's, or of its key's.
bool HasModelList(const policies::Tenants& tenants, const Principal& principal);
// 404 model_not_found: the same for a model that is not there and one that the caller may not use,
// so that the answer does not say which models there are.
HttpError NoSuchModel(std::string_view model);

// A thread that looks at the keys file and the issuers' files each second. A key that is made or
// revoked becomes an entry (key_made, key_revoked; the key's id, never the key): one that is made
// counts once its entry is durable, one that is revoked stops counting at once. Files that are
// broken change nothing until they are mended, and are logged.
class AccessWatch {
 public:
  // `rules` came of LoadAccess(config) and are in force in `authenticator`. The ledger outlives it.
  AccessWatch(policies::Config config, Authenticator authenticator, store::Ledger& ledger);
  ~AccessWatch();
  AccessWatch(const AccessWatch&) = delete;
  AccessWatch& operator=(const AccessWatch&) = delete;

  // Another configuration, which LoadAccess takes: in force on return. An error changes nothing.
  Status Replace(policies::Config config);

  // Looks now, for tests and for SIGHUP. An error changes nothing but revocations.
  Status Check();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace verbatim::gateway
