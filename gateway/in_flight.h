// Runs in flight, and who waits for them. Identical requests at one time share one run: the first
// leads it, the others join and read what it makes from the first event on, live. A run that nobody
// waits for any more is cancelled, and its place is free at once. Any thread may call anything
// here.
//
// Readers pull, and they pull from the transcript itself, which is in memory once: a slow one holds
// nobody up, and nothing is queued or copied for it. Memory is bounded (ReplyBounds): an upstream's
// reply is read no further while it is too far ahead of the fastest of its readers, and all runs
// together hold no more than they may.
#pragma once

#include <atomic>
#include <boost/asio/awaitable.hpp>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "gateway/backend.h"
#include "gateway/transcript.h"
#include "gateway/wakeup.h"

namespace verbatim::store {
struct StoredResult;
}

namespace verbatim::gateway {

struct Call;  // gateway/recorder.h

// Of what is held of upstreams' replies while they are made, in bytes.
struct ReplyBounds {
  // Of one reply: what none of its readers has taken yet, beyond which the upstream waits. It reads
  // on when half of that was taken. What is held back until the commit does not count, nor does
  // anything where somebody waits for the whole.
  size_t unread = size_t{64} << 10;
  // Of all together. Beyond it, replies that have more than an equal share of it fail where they
  // grow (503, replies_full); from three quarters on there had better be no new ones
  // (InFlight::Full).
  uint64_t all = uint64_t{1} << 30;
};

// What flights hold, and how many do, until the last of their readers has gone.
struct RepliesHeld {
  std::atomic<uint64_t> bytes = 0, flights = 0;
};

// Where that leaves no room: 503, replies_full.
HttpError RepliesFull();

// What became of a run, once its entry is in the ledger (or could not be put there).
struct Settled {
  // In the ledger, so that all of it may leave: a complete answer, or what came of one.
  bool committed = false;
  bool complete = false;  // where committed
  bool broken = false;    // where committed and not complete: the transfer ends as a broken one
  bool redacted = false;  // where committed: what is kept is not what was answered
  // A fallback's recorded answer that is served in the place of a run; null: there was a run.
  std::shared_ptr<const store::StoredResult> stored;
  std::optional<uint64_t> entry;  // nothing where it is passed through without one
  uint64_t prompt_tokens = 0, output_tokens = 0;
  bool tokens_known = true;  // else an upstream took some and does not say how many
  Digest output_digest{};    // of the body as recorded
  // Where not committed: what those who wait get. Where not complete: what they get for whom there
  // is nothing else, if it has a message.
  HttpError error;
};

// One answer being made: for whom, what of it is there, and what became of it.
class Flight {
 public:
  // call: of whoever leads; its form is the one that the entry keeps.
  explicit Flight(std::shared_ptr<const Call> call);
  ~Flight();

  // The request as it is answered: a fallback's after Retry.
  std::shared_ptr<const Call> call() const;

  // What the run's backend reports to. Keeps the flight alive.
  static RunObserver Observe(std::shared_ptr<Flight> flight);
  // The run that Observe was given to; cancelled at once where everyone has left already.
  void Attach(std::shared_ptr<Run> run);
  // A run ended with `elsewhere`: the next one is another backend's, for `call`.
  void Retry(std::shared_ptr<const Call> call);
  // Ends the run for a reason of the gateway's own; what the run reports of its end is replaced.
  void Stop(RunEnd reason);
  // By whoever leads; then it has an end.
  boost::asio::awaitable<void> WaitForRun() { return run_ended_.Wait(); }
  RunEnd end() const;
  void Settle(Settled settled);  // once, after WaitForRun or instead of a run

  struct Progress {
    std::vector<TraceEvent> events;  // of the engine; at most 64
    // Of an upstream's body: at most 64 pieces, and at most 16 KiB or one. These bytes and what is
    // pointed to last as long as the flight.
    std::string_view bytes;
    std::vector<ReplyBody::Piece> pieces;  // those in `bytes`
    const ReplyHead* reply = nullptr;      // of an upstream, once there
    const Settled* settled = nullptr;      // once there
    bool any() const { return !events.empty() || !bytes.empty(); }
  };
  // The whole of it; after WaitForRun, where the end is complete or incomplete.
  const Transcript& transcript() const;
  // How many tokens of the engine's there are; at any time.
  uint64_t Generated() const;

 private:
  friend class InFlight;
  void Add(const std::function<void(std::vector<TraceEvent>&)>& add);
  void AddReply(ReplyHead head);
  void AddBody(std::vector<ReplyPiece> pieces);
  void End(RunEnd end);
  void Abandon();
  void NotifyReaders();
  Progress Read(const Wakeup* reader, bool live);
  bool WantsMore(size_t held_by_run);
  void StopFull();

  struct Reader {
    std::shared_ptr<Wakeup> wakeup;
    size_t event = 0;  // how many it took
    ReplyBody::Place place{};
    bool live = true;  // else it waits for the whole
  };
  bool Account(size_t held_by_run);  // false: it is too much; with mutex_
  size_t Unread() const;             // of what readers could take; with mutex_

  Wakeup run_ended_;
  mutable std::mutex mutex_;  // guards what follows
  std::shared_ptr<const Call> call_;
  TraceOrder order_;
  Transcript transcript_;
  size_t held_from_ = SIZE_MAX;  // the first piece of an upstream's to be held back
  ReplyBounds bounds_;
  std::shared_ptr<RepliesHeld> all_held_;  // of all flights; null until it has a place
  uint64_t held_ = 0;                      // of that
  bool waits_for_readers_ = false;         // the run reads no further
  std::shared_ptr<Run> run_;
  bool abandoned_ = false;
  // Apart, since they are large and come late.
  std::unique_ptr<const RunEnd> stopped_;  // by Stop
  std::unique_ptr<const RunEnd> end_;
  std::unique_ptr<const Settled> settled_;
  std::vector<Reader> readers_;
};

class InFlight {
 public:
  explicit InFlight(ReplyBounds bounds = {}) : bounds_(bounds) {}

  // A place among those who wait for a flight; given back when destroyed.
  class Seat {
   public:
    Seat(Seat&& other) noexcept;
    Seat& operator=(Seat&&) = delete;
    ~Seat();
    const std::shared_ptr<Flight>& flight() const { return flight_; }
    bool leads() const { return leads_; }
    // What is new since the last time, as much of it as one takes at once, as far as it may leave:
    // what completes the answer, and all after it, is held back until the run is settled and
    // committed. What was given before counts as sent. Not live: nothing of the answer, for whoever
    // waits for the whole.
    Flight::Progress Read(bool live) { return flight_->Read(wakeup_.get(), live); }
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
  // key has ended since `epoch` (its result may be in the store by now, look again), or where
  // `make` gives null. An empty key is never joined.
  std::optional<Seat> JoinOrLead(const std::string& key, uint64_t epoch,
                                 const std::function<std::shared_ptr<Flight>()>& make);

  // Of whoever leads, in the end: nobody joins any more, and everyone who waits hears of it.
  void Finish(const std::string& key, const std::shared_ptr<Flight>& flight, Settled settled);

  size_t size() const;  // flights that are not finished
  // Bytes held of upstreams' replies, and whether that leaves no room for another one.
  uint64_t held() const { return held_->bytes; }
  bool Full() const { return held_->bytes > bounds_.all / 4 * 3; }
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
  const ReplyBounds bounds_;
  const std::shared_ptr<RepliesHeld> held_ = std::make_shared<RepliesHeld>();
  mutable std::mutex mutex_;  // guards what follows; taken before a flight's own
  std::condition_variable emptied_;
  std::unordered_map<std::string, Flight*> by_key_;     // those that can be joined
  std::unordered_map<Flight*, Place> flights_;          // all that are not finished
  uint64_t epoch_ = 0;                                  // how many have finished
  std::deque<std::pair<uint64_t, std::string>> ended_;  // the newest of them
};

}  // namespace verbatim::gateway
