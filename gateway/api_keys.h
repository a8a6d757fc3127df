// API keys as they are kept: a JSON file that `verbatim keys` writes and servers read.
//
// A key is "vbk_" and 43 characters of base64url, 256 random bits, shown once. The file holds its
// SHA-256. No slow, salted hash is needed: those make up for secrets that people choose and that
// can be guessed; nobody finds 256 random bits by trying, at whatever speed, and a fast hash keeps
// a refused request as cheap as an admitted one.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "policies/tenants.h"

namespace verbatim::store {
class Ledger;
}

namespace verbatim::gateway {

struct StoredKey {
  std::string id;      // "key_" and 16 hex digits
  std::string sha256;  // of the key's text, 64 hex digits
  std::string tenant;
  std::string subject;
  std::vector<std::string> groups;
  std::vector<std::string> roles;   // "client", "operator", "auditor"
  std::vector<std::string> models;  // names and patterns; empty: all that the tenant has
  policies::RateLimits limits;
  policies::Budget budget;
  // base/clock.h NowMicros(); 0: never
  int64_t created = 0;
  int64_t expires = 0;
  int64_t revoked = 0;
};

// The file's text. Parsing is strict: an unknown member, a name, role or time that is none, or an
// id that stands there twice is kInvalid, with the key's number.
std::string FormatKeys(const std::vector<StoredKey>& keys);
Result<std::vector<StoredKey>> ParseKeys(std::string_view text);

// An empty list where the file is not there. Messages name the file.
Result<std::vector<StoredKey>> ReadKeys(const std::string& path);

// A new secret: its text goes to whoever asked, its digest and an id into `key`.
std::string MakeSecret(StoredKey& key);

// Reads the file, lets `change` change the keys, and writes it (mode 0600, replaced as a whole,
// synced), alone among all who use this function. An error of `change` writes nothing.
Status UpdateKeys(const std::string& path,
                  const std::function<Status(std::vector<StoredKey>&)>& change);

// Which keys' making and revoking are in the ledger of a data folder (its api-keys.recorded): made,
// or revoked too.
class RecordedKeys {
 public:
  explicit RecordedKeys(const std::string& data_folder)
      : path_(data_folder + "/api-keys.recorded") {}
  Status Load();
  bool IsMade(const std::string& id) const;

  // Appends key_made and key_revoked for what is not in the ledger yet; each names the key's id,
  // never the key. Blocks until the entries are durable. After a crash between an entry and this
  // list's own file an entry may be there twice, never not at all.
  Status Record(store::Ledger& ledger, const std::vector<StoredKey>& keys);

 private:
  std::string path_;
  std::vector<std::string> made_, revoked_;  // sorted
};

}  // namespace verbatim::gateway
