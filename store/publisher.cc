#include "store/publisher.h"

#include <chrono>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "store/data_folder.h"

namespace verbatim::store {

Publisher::Publisher(const Signer& signer, std::string file, int64_t interval_micros,
                     std::string newest, uint64_t newest_size,
                     std::function<void(uint64_t size)> ahead)
    : signer_(signer),
      file_(std::move(file)),
      interval_(interval_micros),
      ahead_(std::move(ahead)),
      published_{std::move(newest), newest_size} {
  thread_ = std::thread([this] { Run(); });
}

Publisher::~Publisher() { CHECK(!thread_.joinable()); }

void Publisher::Notify(const TreeState& durable) {
  bool idle = false;
  {
    std::lock_guard lock(mutex_);
    if (durable.tree.size() > published_.size) {
      const int64_t now = MonotonicMicros();
      if (waiting_since_ == 0) waiting_since_ = now;
      if (later_since_ == 0) later_since_ = now;
    }
    durable_ = durable.tree;
    idle = std::exchange(idle_, false);
  }
  // Between two checkpoints there is nothing that it could do: whoever commits does not pay for
  // waking it.
  if (idle) changed_.notify_one();
}

Publisher::Published Publisher::newest() const {
  std::lock_guard lock(mutex_);
  return published_;
}

LedgerLag Publisher::lag() const {
  std::lock_guard lock(mutex_);
  if (durable_.size() <= published_.size) return {};
  return {durable_.size() - published_.size, MonotonicMicros() - waiting_since_};
}

void Publisher::Pause() {
  std::unique_lock lock(mutex_);
  CHECK(!paused_);
  paused_ = true;
  changed_.wait(lock, [&] { return !publishing_; });
}

void Publisher::Resume() {
  std::lock_guard lock(mutex_);
  CHECK(paused_);
  paused_ = false;
  changed_.notify_all();
}

Status Publisher::Stop() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  thread_.join();
  return last_status_;
}

void Publisher::Run() {
  std::unique_lock lock(mutex_);
  while (true) {
    while (!stopping_ && (paused_ || durable_.size() <= published_.size)) {
      idle_ = true;
      changed_.wait(lock);
    }
    idle_ = false;
    const bool last = stopping_;
    const CompactRange tree = durable_;
    later_since_ = 0;
    const int64_t begin = MonotonicMicros();
    if (tree.size() > published_.size && !paused_) {
      publishing_ = true;
      lock.unlock();
      const Status status = Publish(tree);
      ahead_(tree.size());
      lock.lock();
      publishing_ = false;
      if (paused_) changed_.notify_all();
      if (!status.ok() && last_status_.ok()) {
        LogError("ledger: no checkpoint published: " + status.error().message);
      }
      last_status_ = status;
    }
    if (last) return;
    const int64_t rest = interval_ - (MonotonicMicros() - begin);
    if (rest > 0)
      changed_.wait_for(lock, std::chrono::microseconds(rest), [&] { return stopping_; });
  }
}

Status Publisher::Publish(const CompactRange& tree) {
  const TreeHead head{signer_.key().name, tree.size(), tree.Root(), ""};
  Result<std::string> note = SignNote(FormatCheckpoint(head), signer_);
  if (!note.ok()) return note.error();
  if (Status kept = WriteFileDurably(file_, *note); !kept.ok()) return kept;
  std::lock_guard lock(mutex_);
  published_ = {std::move(*note), tree.size()};
  waiting_since_ = later_since_;
  return {};
}

}  // namespace verbatim::store
