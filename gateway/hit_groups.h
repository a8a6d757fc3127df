// Recording hits in groups: those that the connections of one executor serve in one turn of its
// loop go to the ledger in one write, on the executor's own thread, so that a hit costs no switch
// of threads and shares the write with its neighbours. Each is answered only once its own row is
// written. Any thread may call anything here.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/execution_context.hpp>
#include <cstddef>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "store/ledger.h"

namespace verbatim::gateway {

class HitGroups {
 public:
  // `ledger` outlives it, and it outlives the executors of those who wait.
  explicit HitGroups(store::Ledger& ledger) : ledger_(ledger) {}

  // Waits until the hit's row is in the ledger's log (not strict), or its entry is durable
  // (strict); errors as RecordHit's of store/ledger.h.
  boost::asio::awaitable<Status> Record(store::HitRequest hit);

 private:
  struct Group;
  // The context's open group, or a new one (true) where there is none or it is `full`.
  std::pair<std::shared_ptr<Group>, bool> Open(boost::asio::execution_context& context,
                                               const std::shared_ptr<Group>& full);
  void WriteSoon(const boost::asio::any_io_executor& executor, std::shared_ptr<Group> group,
                 size_t size);

  store::Ledger& ledger_;
  std::mutex mutex_;  // guards what follows
  // The group that still takes hits. Its owner is the executor's queue, which will write it.
  std::unordered_map<boost::asio::execution_context*, std::weak_ptr<Group>> open_;
};

}  // namespace verbatim::gateway
