// What the exchanges of one client share: connections kept alive, the places that max_connections
// allows, and the addresses behind the origin's (or its proxy's) name. On the client's executor.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "gateway/upstream/origin.h"
#include "gateway/upstream/upstream_connection.h"

namespace verbatim::gateway {

using SteadyClock = std::chrono::steady_clock;

// Somebody who waits: for a place, or for addresses.
class PoolWaiter {
 public:
  virtual ~PoolWaiter() = default;
  // A place is yours from now on; `connection` is null where none is open yet.
  virtual void OnPlace(std::shared_ptr<UpstreamConnection> connection) = 0;
  virtual void OnAddresses() = 0;
};

// A question to the resolver, shared by all who ask at the time.
struct NameLookup {
  bool done = false;
  boost::system::error_code error{};
  std::vector<boost::asio::ip::tcp::endpoint> endpoints{};
  SteadyClock::time_point expires{};
  std::vector<std::weak_ptr<PoolWaiter>> waiting{};
};

class ConnectionPool : public std::enable_shared_from_this<ConnectionPool> {
 public:
  ConnectionPool(boost::asio::any_io_executor executor, std::shared_ptr<const HttpOrigin> origin);

  const boost::asio::any_io_executor& executor() const { return executor_; }
  const HttpOrigin& origin() const { return *origin_; }
  size_t used() const { return used_; }
  size_t unused() const { return unused_.size(); }
  // For all exchanges to read into: what lies there lasts until the next suspension.
  std::span<char> scratch() { return scratch_; }

  // A place at once (true), with an open connection where there is a good one; or later by OnPlace.
  // `waiter` stays valid until it has its place or is taken back.
  bool Take(PoolWaiter& waiter, std::shared_ptr<UpstreamConnection>& connection);
  void TakeBack(PoolWaiter& waiter);
  // Gives a place back; a connection that may serve again comes along, else null.
  void Release(std::shared_ptr<UpstreamConnection> connection);

  // Done already, or `waiter` hears of it by OnAddresses.
  std::shared_ptr<const NameLookup> Resolve(const std::shared_ptr<PoolWaiter>& waiter);
  void ForgetAddresses() { lookup_.reset(); }

  void CloseUnused();
  void Shut();  // nothing is kept any more

 private:
  struct Unused {
    std::shared_ptr<UpstreamConnection> connection;
    SteadyClock::time_point expires;
  };
  void Drop(const UpstreamConnection* connection);
  void ArmExpiry();

  const boost::asio::any_io_executor executor_;
  const std::shared_ptr<const HttpOrigin> origin_;
  boost::asio::ip::tcp::resolver resolver_;
  boost::asio::steady_timer expiry_;
  std::vector<char> scratch_;
  bool expiry_armed_ = false;
  bool shut_ = false;
  size_t used_ = 0;
  std::deque<Unused> unused_;  // the one that expires first in front
  std::deque<PoolWaiter*> waiting_;
  std::shared_ptr<NameLookup> lookup_;
};

}  // namespace verbatim::gateway
