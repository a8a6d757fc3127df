// Who waits for a place in the batch, and whose turn it is. Tenants take turns: first whoever runs
// least at the moment, among those whoever had the fewest rows computed, so that a thousand
// requests of one tenant are no longer a queue for another one's than one of them is. Within a
// tenant the order is that of submission. Requests of low priority have their turn where no other
// waits, and are as tenants of their own.
//
// Of the engine's thread alone.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

namespace verbatim::engine {

struct Sequence;  // engine/sequence.h
using SequencePtr = std::unique_ptr<Sequence>;

struct Tenant {
  bool low_priority = false;
  std::deque<SequencePtr> waiting;
  size_t running = 0;   // sequences
  uint64_t served = 0;  // rows; one that comes anew begins with the least of the others
};

class FairQueue {
 public:
  ~FairQueue();

  // Lives as long as a sequence of it waits or runs.
  Tenant& Of(const std::string& name, bool low_priority);

  // Into its tenant's queue (Sequence::tenant), by its place in the order.
  void Push(SequencePtr sequence);
  // The tenant whose first one is next; null where nobody waits.
  Tenant* Next();
  SequencePtr Pop(Tenant& tenant);

  void ForEach(const std::function<void(Sequence&)>& f) const;
  // Takes out those of which f is true; f may release what they have.
  void EraseIf(const std::function<bool(Sequence&)>& f);
  // Forgets tenants with nothing here whom the others have caught up with.
  void Prune();

  size_t size() const { return size_; }

 private:
  uint64_t LeastServed(bool low_priority) const;  // of those with something here; 0: none has

  std::map<std::pair<bool, std::string>, Tenant> tenants_;
  size_t size_ = 0;
};

}  // namespace verbatim::engine
