#include "gateway/break_glass.h"

#include <algorithm>
#include <utility>

#include "base/json.h"
#include "base/log.h"

namespace verbatim::gateway {

bool BreakGlass::Opens(const Error& error, uint64_t seconds) {
  if (error.code != Code::kIo) return false;  // what is wrong with the request stays wrong
  const int64_t now = std::max<int64_t>(monotonic_(), 1);
  std::lock_guard lock(mutex_);
  failing_ = true;
  if (failing_since_ == 0) failing_since_ = now;
  return static_cast<uint64_t>(now - failing_since_) < seconds * 1'000'000;
}

bool BreakGlass::Answers(const Error& error, uint64_t seconds) {
  if (!Opens(error, seconds)) return false;
  const int64_t now = NowMicros();
  std::lock_guard lock(mutex_);
  if (gap_.answers++ == 0) {
    gap_.from = now;
    LogError("the ledger fails, and answers go on without entries: policy breaks the glass");
  }
  gap_.to = now;
  return true;
}

void BreakGlass::Worked() {
  if (!failing_) return;  // every entry and hit comes here
  Gap gap;
  {
    std::lock_guard lock(mutex_);
    failing_ = false;
    failing_since_ = 0;
    gap = std::exchange(gap_, {});
  }
  if (gap.answers > 0) Log(gap);
}

void BreakGlass::Log(const Gap& gap) {
  store::AppendRequest entry;
  entry.kind = store::Kind::kUnrecorded;
  entry.outcome = "break_glass";
  entry.manifest = manifest_;
  entry.detail = json::Object{
      {"answers", gap.answers}, {"from", FormatTime(gap.from)}, {"to", FormatTime(gap.to)}};
  ledger_.AppendAsync(std::move(entry), [this, gap](Result<store::Appended> appended) {
    if (appended.ok()) return;
    // It failed again: the next entry says it.
    std::lock_guard lock(mutex_);
    failing_ = true;
    gap_.from = gap.from;
    gap_.to = std::max(gap.to, gap_.to);
    gap_.answers += gap.answers;
  });
}

uint64_t BreakGlass::unrecorded() const {
  std::lock_guard lock(mutex_);
  return gap_.answers;
}

}  // namespace verbatim::gateway
