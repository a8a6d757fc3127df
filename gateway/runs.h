// How an answer comes to be, once somebody leads: a backend is asked, others stand in where it
// cannot answer, and what came of it is put into the ledger before it counts (pipeline.cc,
// Generate, steps 7 to 9). What somebody leads lives on the thread of whoever began it, so that an
// upstream's bytes reach that client without another thread, and goes on while anyone waits for it,
// whoever that is; but what is large is taken apart and hashed on the pool's threads. Thread-safe.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "gateway/backend.h"
#include "gateway/hit_cache.h"
#include "gateway/in_flight.h"
#include "gateway/recorder.h"
#include "store/ledger.h"

namespace boost::asio {
class thread_pool;
}

namespace verbatim::gateway {

class Answerer;
class Metrics;
class Verifier;
struct Leaders;

struct RunsOptions {  // all outlive the runs
  boost::asio::thread_pool* pool = nullptr;
  InFlight* in_flight = nullptr;
  store::Ledger* ledger = nullptr;
  Metrics* metrics = nullptr;
  HitCache* results = nullptr;
  Verifier* verifier = nullptr;
  Answerer* answerer = nullptr;
  Authenticator authenticator;  // whose credentials never go upstream
  bool generate_traceparent = false;
};

// How a run ended, after whatever stood in for the backend that was asked first.
struct Ended {
  RunEnd end;
  SharedResult stored{};           // a fallback's recorded answer, in the place of a run
  std::optional<uint64_t> intent;  // that stands in the ledger and has to be closed
  int64_t micros = 0;
};

// What those who wait get of a run that leaves no entry.
Settled SettledBy(const RunEnd& end);

class Runs {
 public:
  explicit Runs(RunsOptions options);

  // Whoever leads `flight` does `work`, on the caller's executor; what that settles is what
  // everyone hears who waits for the flight. Then comes `after`, for which nobody waits.
  using Work =
      std::function<boost::asio::awaitable<std::unique_ptr<Settled>>(std::shared_ptr<Flight>)>;
  using After = std::function<void(const Flight&, const Settled&)>;
  boost::asio::awaitable<void> Lead(std::string key, std::shared_ptr<Flight> flight, Work work,
                                    After after);

  // Blocks until nobody leads any more; after the flights are empty.
  void WaitUntilEmpty();

  // At the backend that the request names, or, where that cannot answer now, at those that may
  // stand in for it: with what they answered before, where hits may serve the request, else by
  // asking them. An upstream learns nothing before the intent is in the ledger. Frames last as long
  // as their run, so what is large is apart from them.
  boost::asio::awaitable<std::unique_ptr<Ended>> Run(std::shared_ptr<Flight> flight);

  // At the call's own backend, without an intent; done when the flight has an end.
  boost::asio::awaitable<void> RunOnce(const Call& call, std::shared_ptr<Flight> flight);

  // Record, leaf and tree state. `renews`: the entry whose place the answer takes.
  boost::asio::awaitable<std::unique_ptr<Settled>> Commit(const Flight& flight,
                                                          std::unique_ptr<Ended> ended,
                                                          std::optional<uint64_t> renews);

  // Draws whether the answer is executed again, and offers it; and to compare it with the entry
  // `compare_with`, for a client who asked for that.
  void Sample(const Flight& flight, const Settled& settled, std::optional<uint64_t> compare_with);

 private:
  // Its number; nothing where the ledger did not take it.
  boost::asio::awaitable<Result<uint64_t>> AppendIntent(const Call& call);
  // Who is asked next, or null where the flight's end is the run's, or ended.stored is. tried: what
  // came of the others.
  std::shared_ptr<const Call> Next(Flight& flight, size_t& next, json::Value& tried, Ended& ended);
  SharedResult FindStored(Call& call) const;
  boost::asio::awaitable<std::unique_ptr<Settled>> Record(const Flight& flight,
                                                          std::unique_ptr<Ended> ended,
                                                          std::optional<uint64_t> renews);

  const RunsOptions options_;
  const std::shared_ptr<Leaders> leaders_;
};

}  // namespace verbatim::gateway
