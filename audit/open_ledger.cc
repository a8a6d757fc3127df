#include "audit/open_ledger.h"

#include <unistd.h>

#include <chrono>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "store/kv_rocksdb.h"
#include "store/rows.h"

namespace verbatim::audit {
namespace {

constexpr int64_t kServerWaitMicros = 10'000'000;
constexpr std::chrono::milliseconds kPoll{50};

}  // namespace

Status OpenLedger::Read(const store::DataFolder& tables, const store::DataFolder& secrets) {
  Result<store::Keys> keys = store::LoadKeys(secrets, "", false);
  if (!keys.ok()) return keys.error();
  keys_ = std::move(*keys);
  Result<std::unique_ptr<store::Kv>> kv =
      store::OpenRocksDb(tables.database(), store::KvAccess::kReadOnly);
  if (!kv.ok()) return kv.error();
  kv_ = std::move(*kv);
  Result<std::optional<std::string>> format = kv_->Get(store::Table::kMeta, store::kMetaFormat);
  if (!format.ok()) return format.error();
  if (*format != store::kFormatVersion) {
    return Error{Code::kFailedPrecondition,
                 "the ledger has format " + format->value_or("(none)") + ", and this build reads " +
                     std::string(store::kFormatVersion) +
                     "; use the build that wrote it, or start this one's server on it once"};
  }
  for (const auto& [name, ring] : {std::pair("entries", &entries_), std::pair("hits", &hits_)}) {
    Result<std::unique_ptr<store::Keyring>> opened =
        store::Keyring::Open(tables.keyring() + "/" + name, name, *keys_.wrapper, false);
    if (!opened.ok()) return opened.error();
    *ring = std::move(*opened);
  }
  Result<std::string> checkpoint = store::ReadFile(tables.checkpoint());
  if (!checkpoint.ok()) return checkpoint.error();
  checkpoint_ = std::move(*checkpoint);
  reader_ = std::make_unique<store::Reader>(*kv_, keys_, *entries_, *hits_);
  return {};
}

Result<std::unique_ptr<OpenLedger>> OpenLedger::Open(const std::string& path) {
  const store::DataFolder unlocked = store::DataFolder::Unlocked(path);
  if (::access(unlocked.keys().c_str(), F_OK) != 0) {
    return Error{Code::kNotFound,
                 "there is no ledger in " + path + "; name a data folder with --data"};
  }
  std::unique_ptr<OpenLedger> ledger(new OpenLedger);
  const int64_t give_up = MonotonicMicros() + kServerWaitMicros;
  for (;;) {
    Result<store::DataFolder> owned = store::DataFolder::Open(path);
    if (owned.ok()) {
      ledger->owned_.emplace(std::move(*owned));
      if (Status read = ledger->Read(*ledger->owned_, *ledger->owned_); !read.ok()) {
        return read.error();
      }
      return ledger;
    }
    if (owned.error().code != Code::kFailedPrecondition) return owned.error();
    Result<store::SnapshotLease> lease = store::SnapshotLease::Request(unlocked);
    if (lease.ok()) {
      ledger->lease_.emplace(std::move(*lease));
      const store::DataFolder tables = store::DataFolder::Unlocked(ledger->lease_->path());
      if (Status read = ledger->Read(tables, unlocked); !read.ok()) return read.error();
      return ledger;
    }
    if (MonotonicMicros() > give_up) {
      return lease.error().code == Code::kNotFound ? owned.error() : lease.error();
    }
    std::this_thread::sleep_for(kPoll);
  }
}

std::optional<store::DataFolder> OpenLedger::Close(std::unique_ptr<OpenLedger> ledger) {
  return std::exchange(ledger->owned_, std::nullopt);
}

}  // namespace verbatim::audit
