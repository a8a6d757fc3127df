// Runs in flight, and who waits for them. Identical requests at one time share one run: the first
// leads it, the others join and read its trace from the first event on, live. Readers pull, so that
// a slow one holds nobody up and nothing is queued for it: the trace is in memory once, bounded by
// the tokens of the run. A run that nobody waits for any more is cancelled, and its place is free
// at once. Any thread may call anything here.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "gateway/trace.h"
#include "gateway/wakeup.h"
#include "gateway/wire/openai_answer.h"

namespace verbatim::gateway {

// What became of a run, once its entry is in the ledger (or could not be put there).
struct Settled {
  bool committed = false;  // complete, and in the ledger: the rest may leave
  uint64_t entry = 0;
  Digest output_digest{};  // of the answer in the flight's form
  HttpError error;         // where not committed: what those who wait get
};

// One run: its head, its trace as far as it has come, and what became of it.
class Flight {
 public:
  // form: the one that whoever leads asked for, and that the entry keeps.
  Flight(AnswerHead head, AnswerForm form, uint32_t choices, uint32_t prompt_tokens);
  const AnswerHead& head() const { return head_; }
  const AnswerForm& form() const { return form_; }
  uint32_t choices() const { return choices_; }

  // What the run's backend reports to. Keeps the flight alive.
  static RunObserver Observe(std::shared_ptr<Flight> flight);
  // The run that Observe was given to; cancelled at once where everyone has left already.
  void Attach(std::shared_ptr<Run> run);
  // Ends the run for a reason of the gateway's own; what the run reports of its end is replaced.
  void Stop(RunEnd reason);
  boost::asio::awaitable<RunEnd> WaitForRun();  // by whoever leads
  void Settle(Settled settled);                 // once, after WaitForRun or instead of a run

  struct Progress {
    std::vector<TraceEvent> events;    // from `from` on; at most 64
    const Settled* settled = nullptr;  // valid as long as the flight
  };
  // The event that completes the answer is held back until the run is settled and committed.
  Progress Read(size_t from) const;
  // The whole trace; after WaitForRun said that it is complete.
  const Trace& trace() const;
  // How far it came; at any time.
  uint64_t Generated() const;

 private:
  friend class InFlight;
  void Add(const std::function<void(std::vector<TraceEvent>&)>& add);
  void End(RunEnd end);
  void Abandon();
  void NotifyReaders();

  const AnswerHead head_;
  const AnswerForm form_;
  const uint32_t choices_;
  Wakeup run_ended_;
  mutable std::mutex mutex_;  // guards what follows
  TraceOrder order_;
  Trace trace_;
  std::shared_ptr<Run> run_;
  bool abandoned_ = false;
  std::optional<RunEnd> stopped_;  // by Stop
  std::optional<RunEnd> end_;
  std::optional<Settled> settled_;
  std::vector<std::shared_ptr<Wakeup>> readers_;
};

class InFlight {
 public:
  // A place among those who wait for a flight; given back when destroyed.
  class Seat {
   public:
    Seat(Seat&& other) noexcept;
    Seat& operator=(Seat&&) = delete;
    ~Seat();
    const std::shared_ptr<Flight>& flight() const { return flight_; }
    bool leads() const { return leads_; }
    boost::asio::awaitable<void> Wait() { return wakeup_->Wait(); }  // for news of the flight
    std::shared_ptr<Wakeup> wakeup() const { return wakeup_; }       // ends a Wait from outside

   private:
    friend class InFlight;
    Seat(InFlight* owner, std::string key, std::shared_ptr<Flight> flight, bool leads);
    InFlight* owner_;
    std::string key_;
    std::shared_ptr<Flight> flight_;
    bool leads_;
    std::shared_ptr<Wakeup> wakeup_;
  };

  // To be read before the store is looked into: see JoinOrLead.
  uint64_t Epoch() const;

  // Joins the flight under `key`, or leads a new one made by `make`. Nothing where one under this
  // key has ended since `epoch`: its result may be in the store by now, look again. An empty key is
  // never joined.
  std::optional<Seat> JoinOrLead(const std::string& key, uint64_t epoch,
                                 const std::function<std::shared_ptr<Flight>()>& make);

  // Of whoever leads, in the end: nobody joins any more, and everyone who waits hears of it.
  void Finish(const std::string& key, const std::shared_ptr<Flight>& flight, Settled settled);

  size_t size() const;    // flights that are not finished
  void CancelAll();       // ends the runs; their leaders settle them
  void WaitUntilEmpty();  // blocks

 private:
  void Leave(const std::string& key, const std::shared_ptr<Flight>& flight,
             const std::shared_ptr<Wakeup>& wakeup);

  struct Place {
    std::shared_ptr<Flight> flight;
    std::string key;
    size_t waiting = 0;
  };
  mutable std::mutex mutex_;  // guards what follows; taken before a flight's own
  std::condition_variable emptied_;
  std::unordered_map<std::string, Flight*> by_key_;     // those that can be joined
  std::unordered_map<Flight*, Place> flights_;          // all that are not finished
  uint64_t epoch_ = 0;                                  // how many have finished
  std::deque<std::pair<uint64_t, std::string>> ended_;  // the newest of them
};

}  // namespace verbatim::gateway
