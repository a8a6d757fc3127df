#include "gateway/in_flight.h"

#include <algorithm>

#include "base/check.h"

namespace verbatim::gateway {

namespace {

constexpr size_t kEventsPerRead = 64;  // bounds how long a late reader holds the flight's mutex
constexpr size_t kEndedKept = 4096;

}  // namespace

Flight::Flight(AnswerHead head, AnswerForm form, uint32_t choices, uint32_t prompt_tokens)
    : head_(std::move(head)), form_(form), choices_(choices), order_(choices) {
  trace_.choices = choices;
  trace_.prompt_tokens = prompt_tokens;
}

RunObserver Flight::Observe(std::shared_ptr<Flight> flight) {
  return {
      .on_piece =
          [flight](TokenPiece piece) {
            flight->Add([&](auto& out) { flight->order_.Add(std::move(piece), out); });
          },
      .on_choice_end =
          [flight](ChoiceEnd end) {
            flight->Add([&](auto& out) { flight->order_.Add(std::move(end), out); });
          },
      .on_end = [flight](RunEnd end) { flight->End(std::move(end)); },
  };
}

void Flight::Add(const std::function<void(std::vector<TraceEvent>&)>& add) {
  {
    std::lock_guard lock(mutex_);
    add(trace_.events);
  }
  NotifyReaders();
}

void Flight::End(RunEnd end) {
  {
    std::lock_guard lock(mutex_);
    CHECK(!end_);
    CHECK(end.outcome != RunEnd::Outcome::kComplete || order_.complete());
    end_ = stopped_ && end.outcome != RunEnd::Outcome::kComplete ? *stopped_ : std::move(end);
  }
  run_ended_.Notify();
}

void Flight::Attach(std::shared_ptr<Run> run) {
  bool cancel = false;
  {
    std::lock_guard lock(mutex_);
    run_ = run;
    cancel = abandoned_ || stopped_;
  }
  if (cancel) run->Cancel();
}

void Flight::Stop(RunEnd reason) {
  std::shared_ptr<Run> run;
  {
    std::lock_guard lock(mutex_);
    if (!stopped_) stopped_ = std::move(reason);
    run = run_;
  }
  if (run) run->Cancel();
}

void Flight::Abandon() {
  std::shared_ptr<Run> run;
  {
    std::lock_guard lock(mutex_);
    abandoned_ = true;
    run = run_;
  }
  if (run) run->Cancel();
}

boost::asio::awaitable<RunEnd> Flight::WaitForRun() {
  co_await run_ended_.Wait();
  std::lock_guard lock(mutex_);
  co_return *end_;
}

void Flight::Settle(Settled settled) {
  std::shared_ptr<Run> run;  // goes without the mutex: it may call into its backend
  {
    std::lock_guard lock(mutex_);
    CHECK(!settled_);
    settled_ = std::move(settled);
    run = std::move(run_);
  }
  NotifyReaders();
}

Flight::Progress Flight::Read(size_t from) const {
  std::lock_guard lock(mutex_);
  size_t end = trace_.events.size();
  if (order_.complete() && !(settled_ && settled_->committed)) --end;
  Progress progress;
  if (from < end) {
    const auto begin = trace_.events.begin() + static_cast<std::ptrdiff_t>(from);
    const size_t count = std::min(end - from, kEventsPerRead);
    progress.events.assign(begin, begin + static_cast<std::ptrdiff_t>(count));
  }
  if (settled_) progress.settled = &*settled_;
  return progress;
}

const Trace& Flight::trace() const {
  std::lock_guard lock(mutex_);
  CHECK(order_.complete());  // nothing is added any more
  return trace_;
}

uint64_t Flight::Generated() const {
  std::lock_guard lock(mutex_);
  return trace_.Generated();
}

void Flight::NotifyReaders() {
  std::vector<std::shared_ptr<Wakeup>> readers;
  {
    std::lock_guard lock(mutex_);
    readers = readers_;
  }
  for (const auto& reader : readers) reader->Notify();
}

InFlight::Seat::Seat(InFlight* owner, std::string key, std::shared_ptr<Flight> flight, bool leads)
    : owner_(owner),
      key_(std::move(key)),
      flight_(std::move(flight)),
      leads_(leads),
      wakeup_(std::make_shared<Wakeup>()) {}

InFlight::Seat::Seat(Seat&& other) noexcept
    : owner_(std::exchange(other.owner_, nullptr)),
      key_(std::move(other.key_)),
      flight_(std::move(other.flight_)),
      leads_(other.leads_),
      wakeup_(std::move(other.wakeup_)) {}

InFlight::Seat::~Seat() {
  if (owner_) owner_->Leave(key_, flight_, wakeup_);
}

uint64_t InFlight::Epoch() const {
  std::lock_guard lock(mutex_);
  return epoch_;
}

std::optional<InFlight::Seat> InFlight::JoinOrLead(
    const std::string& key, uint64_t epoch, const std::function<std::shared_ptr<Flight>()>& make) {
  std::lock_guard lock(mutex_);
  std::shared_ptr<Flight> flight;
  bool leads = false;
  if (auto found = by_key_.find(key); found != by_key_.end()) {
    flight = flights_.at(found->second).flight;
  } else {
    if (!key.empty()) {
      const bool forgotten = ended_.size() == kEndedKept && ended_.front().first > epoch;
      if (forgotten) return std::nullopt;
      for (auto it = ended_.rbegin(); it != ended_.rend() && it->first > epoch; ++it) {
        if (it->second == key) return std::nullopt;
      }
    }
    flight = make();
    leads = true;
    flights_[flight.get()] = Place{flight, key, 0};
    if (!key.empty()) by_key_[key] = flight.get();
  }
  ++flights_.at(flight.get()).waiting;
  Seat seat(this, key, flight, leads);
  std::lock_guard flight_lock(flight->mutex_);
  flight->readers_.push_back(seat.wakeup_);
  return seat;
}

void InFlight::Leave(const std::string& key, const std::shared_ptr<Flight>& flight,
                     const std::shared_ptr<Wakeup>& wakeup) {
  bool last = false;
  {
    std::lock_guard lock(mutex_);
    if (auto place = flights_.find(flight.get()); place != flights_.end()) {
      last = --place->second.waiting == 0;
      // Its run is about to be cancelled: whoever comes now begins anew.
      if (auto found = by_key_.find(key);
          last && found != by_key_.end() && found->second == flight.get()) {
        by_key_.erase(found);
      }
    }
    std::lock_guard flight_lock(flight->mutex_);
    std::erase(flight->readers_, wakeup);
  }
  if (last) flight->Abandon();
}

void InFlight::Finish(const std::string& key, const std::shared_ptr<Flight>& flight,
                      Settled settled) {
  {
    std::lock_guard lock(mutex_);
    flights_.erase(flight.get());
    ++epoch_;
    if (!key.empty()) {
      if (auto found = by_key_.find(key); found != by_key_.end() && found->second == flight.get()) {
        by_key_.erase(found);
      }
      ended_.emplace_back(epoch_, key);
      if (ended_.size() > kEndedKept) ended_.pop_front();
    }
    if (flights_.empty()) emptied_.notify_all();
  }
  flight->Settle(std::move(settled));
}

size_t InFlight::size() const {
  std::lock_guard lock(mutex_);
  return flights_.size();
}

void InFlight::CancelAll() {
  std::vector<std::shared_ptr<Flight>> flights;
  {
    std::lock_guard lock(mutex_);
    for (const auto& [flight, place] : flights_) flights.push_back(place.flight);
  }
  const HttpError error{.status = 503, .message = "The server is stopping; try again later."};
  for (const auto& flight : flights) {
    flight->Stop({RunEnd::Outcome::kFailed, error, "server_stopping"});
  }
}

void InFlight::WaitUntilEmpty() {
  std::unique_lock lock(mutex_);
  emptied_.wait(lock, [this] { return flights_.empty(); });
}

}  // namespace verbatim::gateway
