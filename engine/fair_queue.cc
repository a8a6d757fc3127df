#include "engine/fair_queue.h"

#include <algorithm>
#include <tuple>

#include "base/check.h"
#include "engine/sequence.h"

namespace verbatim::engine {

namespace {
bool IsIdle(const Tenant& t) { return t.waiting.empty() && t.running == 0; }
}  // namespace

FairQueue::~FairQueue() = default;

uint64_t FairQueue::LeastServed(bool low_priority) const {
  bool any = false;
  uint64_t least = 0;
  for (const auto& [key, tenant] : tenants_) {
    if (IsIdle(tenant) || tenant.low_priority != low_priority) continue;
    least = any ? std::min(least, tenant.served) : tenant.served;
    any = true;
  }
  return least;
}

Tenant& FairQueue::Of(const std::string& name, bool low_priority) {
  const uint64_t least = LeastServed(low_priority);
  Tenant& tenant = tenants_[{low_priority, name}];
  tenant.low_priority = low_priority;
  if (IsIdle(tenant)) tenant.served = std::max(tenant.served, least);
  return tenant;
}

void FairQueue::Push(SequencePtr sequence) {
  std::deque<SequencePtr>& waiting = sequence->tenant->waiting;
  // Mostly the youngest of all.
  auto place = waiting.end();
  while (place != waiting.begin() && Before(*sequence, **std::prev(place))) --place;
  waiting.insert(place, std::move(sequence));
  ++size_;
}

Tenant* FairQueue::Next() {
  Tenant* next = nullptr;
  const auto order = [](const Tenant& t) {
    return std::tuple(t.low_priority, t.running, t.served, t.waiting.front()->request->id);
  };
  for (auto& [key, tenant] : tenants_) {
    if (tenant.waiting.empty()) continue;
    if (next == nullptr || order(tenant) < order(*next)) next = &tenant;
  }
  return next;
}

SequencePtr FairQueue::Pop(Tenant& tenant) {
  CHECK(!tenant.waiting.empty());
  SequencePtr sequence = std::move(tenant.waiting.front());
  tenant.waiting.pop_front();
  --size_;
  return sequence;
}

void FairQueue::ForEach(const std::function<void(Sequence&)>& f) const {
  for (const auto& [key, tenant] : tenants_) {
    for (const SequencePtr& s : tenant.waiting) f(*s);
  }
}

void FairQueue::EraseIf(const std::function<bool(Sequence&)>& f) {
  for (auto& [key, tenant] : tenants_) {
    size_ -= std::erase_if(tenant.waiting, [&f](const SequencePtr& s) { return f(*s); });
  }
}

void FairQueue::Prune() {
  const uint64_t least[] = {LeastServed(false), LeastServed(true)};
  const bool nobody = std::all_of(tenants_.begin(), tenants_.end(),
                                  [](const auto& entry) { return IsIdle(entry.second); });
  std::erase_if(tenants_, [&](const auto& entry) {
    const Tenant& tenant = entry.second;
    return IsIdle(tenant) && (nobody || tenant.served <= least[tenant.low_priority]);
  });
}

}  // namespace verbatim::engine
