#include "gateway/api_keys.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <set>
#include <utility>

#include "base/clock.h"
#include "base/crypto.h"
#include "base/json.h"
#include "gateway/auth.h"
#include "store/data_folder.h"
#include "store/ledger.h"

namespace verbatim::gateway {
namespace {

constexpr size_t kSecretBytes = 32;
constexpr size_t kIdBytes = 8;
constexpr size_t kMaxNames = 1'000'000;

Error Wrong(std::string what) { return {Code::kInvalid, std::move(what)}; }

json::Value List(const std::vector<std::string>& names) {
  json::Value out = json::Value::MakeArray();
  for (const std::string& name : names) out.Append(name);
  return out;
}

json::Value Limits(const policies::RateLimits& limits) {
  return json::Object{{"requests_per_minute", limits.requests_per_minute},
                      {"tokens_per_minute", limits.tokens_per_minute},
                      {"concurrent", limits.concurrent}};
}

json::Value ToJson(const StoredKey& key) {
  json::Value v = json::Object{{"id", key.id},
                               {"sha256", key.sha256},
                               {"tenant", key.tenant},
                               {"subject", key.subject},
                               {"groups", List(key.groups)},
                               {"roles", List(key.roles)},
                               {"models", List(key.models)},
                               {"limits", Limits(key.limits)},
                               {"created", FormatTime(key.created)}};
  if (key.budget.tokens != 0) {
    v.Set("budget",
          json::Object{{"tokens", key.budget.tokens}, {"per", policies::NameOf(key.budget.per)}});
  }
  if (key.expires != 0) v.Set("expires", FormatTime(key.expires));
  if (key.revoked != 0) v.Set("revoked", FormatTime(key.revoked));
  return v;
}

bool IsName(const std::string& text) { return policies::IsPrincipalName(text); }
bool IsRole(const std::string& text) { return RoleBit(text) != 0; }
bool IsModel(const std::string& text) { return !text.empty() && text.size() <= 200; }

bool ReadName(const json::Value& v, std::string& out) {
  if (!v.is_string() || !IsName(v.as_string())) return false;
  out = v.as_string();
  return true;
}

bool ReadList(const json::Value& v, std::vector<std::string>& out, bool (*ok)(const std::string&)) {
  if (!v.is_array() || v.items().size() > kMaxNames) return false;
  for (const json::Value& item : v.items()) {
    if (!item.is_string() || !ok(item.as_string())) return false;
    out.push_back(item.as_string());
  }
  return true;
}

bool ReadTime(const json::Value& v, int64_t& out) {
  if (!v.is_string()) return false;
  const auto time = ParseTime(v.as_string());
  if (time) out = *time;
  return time.ok() && out > 0;
}

bool ReadLimits(const json::Value& v, policies::RateLimits& out) {
  if (!v.is_object()) return false;
  for (const auto& [name, value] : v.members()) {
    const auto n = value.AsUint64();
    if (!n) return false;
    if (name == "requests_per_minute") {
      out.requests_per_minute = *n;
    } else if (name == "tokens_per_minute") {
      out.tokens_per_minute = *n;
    } else if (name == "concurrent") {
      out.concurrent = *n;
    } else {
      return false;
    }
  }
  return true;
}

bool ReadBudget(const json::Value& v, policies::Budget& out) {
  const json::Value* tokens = v.Find("tokens");
  const json::Value* per = v.Find("per");
  if (!v.is_object() || v.members().size() != 2 || !tokens || !per || !per->is_string()) {
    return false;
  }
  const auto n = tokens->AsUint64();
  const auto& names = policies::kPeriodNames;
  const auto period = std::find(names.begin(), names.end(), per->as_string());
  if (!n || *n > policies::kMaxBudget || period == names.end()) return false;
  out = {*n, static_cast<policies::Period>(period - names.begin())};
  return true;
}

bool ReadMember(const std::string& name, const json::Value& v, StoredKey& key) {
  if (name == "id") return ReadName(v, key.id);
  if (name == "tenant") return ReadName(v, key.tenant);
  if (name == "subject") return ReadName(v, key.subject);
  if (name == "groups") return ReadList(v, key.groups, IsName);
  if (name == "roles") return ReadList(v, key.roles, IsRole);
  if (name == "models") return ReadList(v, key.models, IsModel);
  if (name == "limits") return ReadLimits(v, key.limits);
  if (name == "budget") return ReadBudget(v, key.budget);
  if (name == "created") return ReadTime(v, key.created);
  if (name == "expires") return ReadTime(v, key.expires);
  if (name == "revoked") return ReadTime(v, key.revoked);
  if (name != "sha256" || !v.is_string() || !HexDecodeDigest(v.as_string())) return false;
  key.sha256 = v.as_string();
  return true;
}

Result<StoredKey> FromJson(const json::Value& v) {
  if (!v.is_object()) return Wrong("is no object");
  StoredKey key;
  for (const auto& [name, value] : v.members()) {
    if (!ReadMember(name, value, key)) return Wrong("has a wrong member " + name.substr(0, 40));
  }
  if (key.id.empty() || key.sha256.empty() || key.tenant.empty() || key.subject.empty()) {
    return Wrong("lacks id, sha256, tenant or subject");
  }
  std::sort(key.groups.begin(), key.groups.end());
  key.groups.erase(std::unique(key.groups.begin(), key.groups.end()), key.groups.end());
  return key;
}

class FileLock {
 public:
  explicit FileLock(const std::string& path)
      : fd_(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600)) {
    while (fd_ >= 0 && ::flock(fd_, LOCK_EX) != 0) {
      if (errno == EINTR) continue;
      ::close(fd_);
      fd_ = -1;
    }
  }
  ~FileLock() {
    if (fd_ >= 0) ::close(fd_);
  }
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;
  bool held() const { return fd_ >= 0; }

 private:
  int fd_;
};

store::AppendRequest Entry(store::Kind kind, const StoredKey& key) {
  store::AppendRequest entry;
  entry.kind = kind;
  entry.detail = json::Object{{"key", key.id}, {"key_type", "api"}};
  entry.record.tenant = key.tenant;
  entry.record.subject = key.subject;
  entry.record.key_id = key.id;
  json::Value made = ToJson(key);
  made.Erase("sha256");  // a digest of a secret is of no use there
  entry.record.extra = json::Object{{"api_key", std::move(made)}};
  return entry;
}

bool Has(const std::vector<std::string>& sorted, const std::string& id) {
  return std::binary_search(sorted.begin(), sorted.end(), id);
}

void Insert(std::vector<std::string>& sorted, const std::string& id) {
  sorted.insert(std::lower_bound(sorted.begin(), sorted.end(), id), id);
}

}  // namespace

std::string FormatKeys(const std::vector<StoredKey>& keys) {
  // One key a line, so that people can read it.
  std::string out = "{\"version\":1,\"keys\":[";
  for (size_t i = 0; i < keys.size(); ++i) {
    out += (i == 0 ? "\n" : ",\n") + json::Serialize(ToJson(keys[i]));
  }
  return out + "\n]}\n";
}

Result<std::vector<StoredKey>> ParseKeys(std::string_view text) {
  const auto value = json::Parse(text);
  if (!value) return value.error();
  const json::Value* version = value->Find("version");
  const json::Value* list = value->Find("keys");
  if (!version || !list || !list->is_array() || value->members().size() != 2) {
    return Wrong("no list of API keys");
  }
  if (version->AsUint64() != 1) return Error{Code::kUnsupported, "of another version than 1"};
  std::vector<StoredKey> keys;
  std::set<std::string> ids;
  for (const json::Value& item : list->items()) {
    const std::string number = "key " + std::to_string(keys.size() + 1) + " ";
    auto key = FromJson(item);
    if (!key) return Wrong(number + key.error().message);
    if (!ids.insert(key->id).second) return Wrong(number + "has the id of another");
    keys.push_back(*std::move(key));
  }
  return keys;
}

Result<std::vector<StoredKey>> ReadKeys(const std::string& path) {
  const auto text = store::ReadFile(path);
  if (!text) {
    if (text.error().code == Code::kNotFound) return std::vector<StoredKey>();
    return text.error();
  }
  auto keys = ParseKeys(*text);
  if (keys) return keys;
  return Error{keys.error().code,
               path + ": " + keys.error().message + "; restore it, or mend it by hand"};
}

std::string MakeSecret(StoredKey& key) {
  std::string secret = "vbk_";
  for (const char c : Base64Encode(RandomBytes(kSecretBytes))) {
    if (c == '=') continue;
    secret += c == '+' ? '-' : c == '/' ? '_' : c;
  }
  key.id = "key_" + HexEncode(RandomBytes(kIdBytes));
  key.sha256 = HexEncode(Sha256(secret));
  return secret;
}

Status UpdateKeys(const std::string& path,
                  const std::function<Status(std::vector<StoredKey>&)>& change) {
  const FileLock lock(path + ".lock");
  if (!lock.held()) {
    return Error{Code::kIo, "cannot lock " + path + ".lock: " + std::strerror(errno) +
                                "; check that its folder exists and is writable by this user"};
  }
  auto keys = ReadKeys(path);
  if (!keys) return keys.error();
  if (Status changed = change(*keys); !changed.ok()) return changed;
  return store::WriteFileDurably(path, FormatKeys(*keys));
}

Status RecordedKeys::Load() {
  made_.clear();
  revoked_.clear();
  const auto text = store::ReadFile(path_);
  if (!text) return text.error().code == Code::kNotFound ? Status() : Status(text.error());
  const auto value = json::Parse(*text);
  const json::Value* made = value ? value->Find("made") : nullptr;
  const json::Value* revoked = value ? value->Find("revoked") : nullptr;
  std::vector<std::string> a, b;
  if (!made || !revoked || !ReadList(*made, a, IsName) || !ReadList(*revoked, b, IsName)) {
    return Error{Code::kCorrupt, path_ + " is no list of recorded keys; delete it to have the " +
                                     "making and revoking of all keys recorded once more"};
  }
  std::sort(a.begin(), a.end());
  std::sort(b.begin(), b.end());
  made_ = std::move(a);
  revoked_ = std::move(b);
  return {};
}

bool RecordedKeys::IsMade(const std::string& id) const { return Has(made_, id); }

Status RecordedKeys::Record(store::Ledger& ledger, const std::vector<StoredKey>& keys) {
  bool changed = false;
  Status failed;
  for (const StoredKey& key : keys) {
    const bool make = !Has(made_, key.id);
    const bool revoke = key.revoked != 0 && !Has(revoked_, key.id);
    if (make) {
      StoredKey as_made = key;
      as_made.revoked = 0;
      auto appended = ledger.Append(Entry(store::Kind::kKeyMade, as_made));
      if (!appended) failed = appended.error();
      if (!failed.ok()) break;
      Insert(made_, key.id);
    }
    if (revoke) {
      auto appended = ledger.Append(Entry(store::Kind::kKeyRevoked, key));
      if (!appended) failed = appended.error();
      if (!failed.ok()) break;
      Insert(revoked_, key.id);
    }
    changed |= make || revoke;
  }
  if (changed || !failed.ok()) {
    const json::Value whole = json::Object{{"made", List(made_)}, {"revoked", List(revoked_)}};
    if (Status s = store::WriteFileDurably(path_, json::Serialize(whole) + "\n"); !s.ok()) return s;
  }
  return failed;
}

}  // namespace verbatim::gateway
