// One request and its reply: from a place in the pool to the last byte of the body. Lives on the
// client's executor, held by shared_ptr: by its coroutine, and by what may still call back.
//
// One timer watches over all of it. Whatever ends an exchange early (a time limit, Cancel, a bad
// byte) sets its fault once and closes the connection; each step of the coroutine looks at the
// fault after every wait.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/steady_timer.hpp>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "gateway/upstream/content_coding.h"
#include "gateway/upstream/http_client.h"
#include "gateway/upstream/pool.h"
#include "gateway/upstream/response_parser.h"

namespace verbatim::gateway {

class Exchange final : public PoolWaiter,
                       private ResponseEvents,
                       public std::enable_shared_from_this<Exchange> {
 public:
  Exchange(std::shared_ptr<ConnectionPool> pool, FetchRequest request, FetchSink& sink);
  ~Exchange() override;

  // The whole of it; once.
  boost::asio::awaitable<FetchEnd> Run();
  // From the executor, at any time.
  void Break(FetchFault fault, std::string message);
  // The sink may want more by now; from the executor, at any time.
  void Resume() { event_.cancel(); }
  // Gives everything back; after Run, or instead of its rest.
  void Finish();

  void OnPlace(std::shared_ptr<UpstreamConnection> connection) override;
  void OnAddresses() override;

 private:
  bool broken() const { return end_.fault != FetchFault::kNone; }
  const HttpOrigin::State& origin() const { return pool_->origin().state(); }
  std::string PeerName() const;  // "api.example.com:443", for messages

  // Time limits: the current step's, with what passing it means, and the total. kNone ends only one
  // attempt to connect.
  void Limit(SteadyClock::time_point until, FetchFault fault);
  void ArmTimer();
  void OnTimer();

  // Each step leaves broken() or has done what its name says (exchange_connect.cc, exchange.cc).
  boost::asio::awaitable<void> TakePlace();
  boost::asio::awaitable<void> Open();
  boost::asio::awaitable<std::shared_ptr<const NameLookup>> Resolve();
  boost::asio::awaitable<void> Connect(std::vector<boost::asio::ip::tcp::endpoint> endpoints);
  boost::asio::awaitable<void> OpenTunnel();
  boost::asio::awaitable<void> Secure();
  boost::asio::awaitable<void> WaitForEvent();

  Status CheckRequest() const;
  std::string RequestHead() const;
  void Send();
  void OnSent(const UpstreamConnection* connection, const boost::system::error_code& ec);
  // False where the kept-alive connection turned out stale: nothing came over it.
  boost::asio::awaitable<bool> ReadReply();
  boost::asio::awaitable<void> WaitUntilWanted();
  bool OnReadError(const boost::system::error_code& ec);
  void OnDone();

  bool OnHead(FetchHead head, int64_t length) override;
  bool OnBody(std::string_view bytes) override;
  bool Deliver(std::string_view bytes);

  const std::shared_ptr<ConnectionPool> pool_;
  FetchRequest request_;
  FetchSink& sink_;
  FetchEnd end_;

  const SteadyClock::time_point began_;
  SteadyClock::time_point total_limit_, connect_limit_, step_limit_, armed_for_;
  FetchFault step_fault_ = FetchFault::kNone;
  bool armed_ = false;
  bool finished_ = false;
  bool attempt_over_ = false;
  boost::asio::steady_timer timer_;
  boost::asio::steady_timer event_;  // cancelled where something happened that is waited for

  bool has_place_ = false, waits_ = false;
  std::shared_ptr<UpstreamConnection> connection_;
  bool writing_ = false;
  bool reusable_ = false;

  std::string rest_;  // of what was read: the beginning of a header
  std::optional<ResponseParser> parser_;
  std::unique_ptr<ContentDecoder> decoder_;
  bool is_open_ended_ = false;  // its length was not announced
  uint64_t delivered_ = 0;
};

}  // namespace verbatim::gateway
