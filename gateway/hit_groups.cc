#include "gateway/hit_groups.h"

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/associated_executor.hpp>
#include <boost/asio/async_result.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/query.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <functional>
#include <tuple>
#include <utility>
#include <vector>

#include "gateway/wakeup.h"

namespace verbatim::gateway {

namespace asio = boost::asio;

namespace {

// So that nobody waits for a thousand others' encryption.
constexpr size_t kMaxGroup = 64;

}  // namespace

// Whoever waits for a hit's row.
struct Waiter {
  virtual ~Waiter() = default;
  virtual void Done(Status status) = 0;
};

struct HitGroups::Group {
  std::mutex mutex;     // guards what follows; one executor's coroutines may run on many threads
  bool closed = false;  // written, or being written: takes no more
  std::vector<store::HitRequest> hits;
  std::vector<std::unique_ptr<Waiter>> waiting;  // in the order of `hits`

  // Adds a hit and who waits for it; false where it takes no more.
  bool Add(store::HitRequest& hit, std::unique_ptr<Waiter>& done) {
    std::lock_guard lock(mutex);
    if (closed || hits.size() >= kMaxGroup) return false;
    hits.push_back(std::move(hit));
    waiting.push_back(std::move(done));
    return true;
  }
};

std::pair<std::shared_ptr<HitGroups::Group>, bool> HitGroups::Open(
    asio::execution_context& context, const std::shared_ptr<Group>& full) {
  std::lock_guard lock(mutex_);
  std::weak_ptr<Group>& open = open_[&context];
  std::shared_ptr<Group> group = open.lock();
  if (group && group != full) return {std::move(group), false};
  group = std::make_shared<Group>();
  open = group;
  return {std::move(group), true};
}

// Behind what the executor has to do already. While that makes the group grow, there is more.
void HitGroups::WriteSoon(const asio::any_io_executor& executor, std::shared_ptr<Group> group,
                          size_t size) {
  asio::post(executor, [this, executor, group = std::move(group), size]() mutable {
    std::unique_lock lock(group->mutex);
    if (group->hits.size() > size && group->hits.size() < kMaxGroup) {
      size = group->hits.size();
      lock.unlock();
      return WriteSoon(executor, std::move(group), size);
    }
    group->closed = true;
    lock.unlock();
    std::vector<Status> statuses = ledger_.RecordHits(group->hits);
    for (size_t i = 0; i < statuses.size(); ++i) group->waiting[i]->Done(std::move(statuses[i]));
  });
}

asio::awaitable<Status> HitGroups::Record(store::HitRequest hit) {
  if (hit.strict) {
    auto record = [&](std::function<void(Status)> done) {
      ledger_.RecordHitAsync(std::move(hit), std::move(done));
    };
    Status status = co_await AwaitCallback<Status>(std::move(record));
    co_return status;
  }
  auto start = [this, &hit](auto handler) {
    const asio::any_io_executor executor = asio::get_associated_executor(handler);
    // Called where the group is written: on the executor itself.
    struct Resumes : Waiter {
      explicit Resumes(decltype(handler) h) : waiting(std::move(h)) {}
      void Done(Status status) override { std::move(waiting)(std::move(status)); }
      decltype(handler) waiting;
    };
    std::unique_ptr<Waiter> done = std::make_unique<Resumes>(std::move(handler));
    asio::execution_context& context = asio::query(executor, asio::execution::context);
    auto [group, made] = Open(context, nullptr);
    while (!group->Add(hit, done)) std::tie(group, made) = Open(context, group);
    if (made) WriteSoon(executor, std::move(group), 1);
  };
  co_return co_await asio::async_initiate<const asio::use_awaitable_t<>&, void(Status)>(
      start, asio::use_awaitable);
}

}  // namespace verbatim::gateway
