#include "gateway/upstream/pool.h"

#include <algorithm>
#include <utility>

namespace verbatim::gateway {

namespace asio = boost::asio;
using asio::ip::tcp;
using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {

// Long enough that a burst of connections asks once, short enough to follow a change of addresses.
constexpr seconds kKeepAddresses{10};

constexpr size_t kReadBytes = size_t{16} << 10;

}  // namespace

ConnectionPool::ConnectionPool(asio::any_io_executor executor,
                               std::shared_ptr<const HttpOrigin> origin)
    : executor_(std::move(executor)),
      origin_(std::move(origin)),
      resolver_(executor_),
      expiry_(executor_),
      scratch_(kReadBytes) {}

bool ConnectionPool::Take(PoolWaiter& waiter, std::shared_ptr<UpstreamConnection>& connection) {
  while (!unused_.empty()) {
    std::shared_ptr<UpstreamConnection> last = std::move(unused_.back().connection);
    unused_.pop_back();
    if (last->EndWatch()) {
      connection = std::move(last);
      ++used_;
      return true;
    }
    last->Close();
  }
  if (used_ < origin_->options().max_connections) {
    ++used_;
    return true;
  }
  waiting_.push_back(&waiter);
  return false;
}

void ConnectionPool::TakeBack(PoolWaiter& waiter) { std::erase(waiting_, &waiter); }

void ConnectionPool::Release(std::shared_ptr<UpstreamConnection> connection) {
  if (!waiting_.empty()) {
    PoolWaiter* next = waiting_.front();
    waiting_.pop_front();
    next->OnPlace(std::move(connection));
    return;
  }
  CHECK(used_ > 0);
  --used_;
  if (!connection) return;
  if (shut_) return connection->Close();
  const UpstreamConnection* raw = connection.get();
  connection->Watch([weak = weak_from_this(), raw] {
    if (auto pool = weak.lock()) pool->Drop(raw);
  });
  unused_.push_back(
      {std::move(connection), SteadyClock::now() + milliseconds(origin_->options().keep_alive_ms)});
  ArmExpiry();
}

void ConnectionPool::Drop(const UpstreamConnection* connection) {
  for (auto it = unused_.begin(); it != unused_.end(); ++it) {
    if (it->connection.get() != connection) continue;
    it->connection->Close();
    unused_.erase(it);
    return;
  }
}

// One timer for all: it wakes at the oldest one's end, whatever became of that one.
void ConnectionPool::ArmExpiry() {
  if (expiry_armed_ || unused_.empty() || shut_) return;
  expiry_armed_ = true;
  expiry_.expires_at(unused_.front().expires);
  expiry_.async_wait([weak = weak_from_this()](const boost::system::error_code& ec) {
    auto pool = weak.lock();
    if (!pool) return;
    pool->expiry_armed_ = false;
    const auto now = SteadyClock::now();
    while (!ec && !pool->unused_.empty() && pool->unused_.front().expires <= now) {
      pool->unused_.front().connection->Close();
      pool->unused_.pop_front();
    }
    pool->ArmExpiry();
  });
}

std::shared_ptr<const NameLookup> ConnectionPool::Resolve(
    const std::shared_ptr<PoolWaiter>& waiter) {
  if (lookup_ && (!lookup_->done || SteadyClock::now() < lookup_->expires)) {
    if (!lookup_->done) lookup_->waiting.push_back(waiter);
    return lookup_;
  }
  lookup_ = std::make_shared<NameLookup>();
  lookup_->waiting.push_back(waiter);
  // The system's resolver cannot be interrupted: whoever gives up leaves its answer to the others.
  const HttpOrigin::State& state = origin_->state();
  resolver_.async_resolve(
      state.peer_host(), std::to_string(state.peer_port()), tcp::resolver::numeric_service,
      [lookup = lookup_](const boost::system::error_code& ec,
                         const tcp::resolver::results_type& found) {
        lookup->done = true;
        lookup->error = ec;
        for (const auto& entry : found) lookup->endpoints.push_back(entry.endpoint());
        // A failure is nobody's but those who wait for it.
        lookup->expires = ec ? SteadyClock::now() : SteadyClock::now() + kKeepAddresses;
        for (const auto& weak : std::exchange(lookup->waiting, {})) {
          if (auto one = weak.lock()) one->OnAddresses();
        }
      });
  return lookup_;
}

void ConnectionPool::CloseUnused() {
  for (const Unused& one : unused_) one.connection->Close();
  unused_.clear();
  expiry_.cancel();
}

void ConnectionPool::Shut() {
  shut_ = true;
  CloseUnused();
  resolver_.cancel();
}

}  // namespace verbatim::gateway
