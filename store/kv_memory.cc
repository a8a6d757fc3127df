#include "store/kv_memory.h"

#include <algorithm>

namespace verbatim::store {

void KvMemory::FailCommit(int n, Fault fault) {
  std::lock_guard lock(mutex_);
  fail_in_ = n;
  fault_ = fault;
}

void KvMemory::FailRecover(int n) {
  std::lock_guard lock(mutex_);
  fail_recover_ = n;
}

void KvMemory::Write(Rows& rows, const std::vector<Batch::Write>& writes) {
  for (const Batch::Write& write : writes) {
    if (write.value) {
      rows[{write.table, write.key}] = *write.value;
    } else {
      rows.erase({write.table, write.key});
    }
  }
}

void KvMemory::Sync() {
  if (lose_syncs_) return;
  for (const auto& writes : unsynced_) Write(synced_, writes);
  unsynced_.clear();
}

std::unique_ptr<KvMemory> KvMemory::AfterPowerLoss(size_t unsynced) const {
  std::lock_guard lock(mutex_);
  auto left = std::make_unique<KvMemory>();
  left->rows_ = synced_;
  for (size_t i = 0; i < std::min(unsynced, unsynced_.size()); ++i)
    Write(left->rows_, unsynced_[i]);
  left->synced_ = left->rows_;
  return left;
}

size_t KvMemory::Unsynced() const {
  std::lock_guard lock(mutex_);
  return unsynced_.size();
}

void KvMemory::LoseSyncs() {
  std::lock_guard lock(mutex_);
  lose_syncs_ = true;
}

void KvMemory::Tamper(Table table, std::string_view key, std::optional<std::string> value) {
  std::lock_guard lock(mutex_);
  unsynced_.push_back({{table, std::string(key), std::move(value)}});
  Write(rows_, unsynced_.back());
  Sync();
}

std::unique_ptr<KvMemory> KvMemory::Clone() const {
  std::lock_guard lock(mutex_);
  auto copy = std::make_unique<KvMemory>();
  copy->rows_ = copy->synced_ = rows_;
  return copy;
}

Result<std::optional<std::string>> KvMemory::Get(Table table, std::string_view key) const {
  std::lock_guard lock(mutex_);
  const auto row = rows_.find(Key{table, std::string(key)});
  if (row == rows_.end()) return std::optional<std::string>();
  return std::optional<std::string>(row->second);
}

Status KvMemory::Scan(Table table, std::string_view begin, std::string_view end,
                      const Visitor& visit) const {
  std::map<Key, std::string, std::less<>> rows;
  {
    std::lock_guard lock(mutex_);
    for (auto row = rows_.lower_bound(Key{table, std::string(begin)});
         row != rows_.end() && row->first.first == table &&
         (end.empty() || row->first.second < end);
         ++row) {
      rows.insert(rows.end(), *row);
    }
  }
  for (const auto& [key, value] : rows) {
    if (!visit(key.second, value)) break;
  }
  return {};
}

Status KvMemory::Commit(const Batch& batch, bool durable) {
  std::lock_guard lock(mutex_);
  if (failed_) return Error{Code::kIo, "injected: the store waits for recovery"};
  for (const Batch::Precondition& wanted : batch.preconditions()) {
    const auto row = rows_.find(Key{wanted.table, wanted.key});
    const bool holds =
        wanted.value ? row != rows_.end() && row->second == *wanted.value : row == rows_.end();
    if (!holds) return Error{Code::kFailedPrecondition, "another writer changed the store"};
  }
  const bool fails = fail_in_ > 0 && --fail_in_ == 0;
  if (fails) failed_ = true;
  if (!fails || fault_ == Fault::kPersistedButReported) {
    Write(rows_, batch.writes());
    unsynced_.push_back(batch.writes());
    if (durable && !fails) Sync();
  }
  if (fails) return Error{Code::kIo, "injected: the write failed"};
  return {};
}

Status KvMemory::Recover() {
  std::lock_guard lock(mutex_);
  if (fail_recover_ > 0) {
    --fail_recover_;
    return Error{Code::kIo, "injected: recovery failed"};
  }
  failed_ = false;
  Sync();
  return {};
}

Status KvMemory::Snapshot(const std::string&) {
  return Error{Code::kUnsupported, "the store in memory has no files to copy"};
}

}  // namespace verbatim::store
