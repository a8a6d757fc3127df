#include "gateway/in_flight.h"

#include <algorithm>

#include "base/check.h"
#include "gateway/recorder.h"

namespace verbatim::gateway {

namespace {

// Bound how long a late reader holds the flight's mutex, and what is copied for it.
constexpr size_t kEventsPerRead = 64;
constexpr size_t kPiecesPerRead = 64, kBytesPerRead = size_t{16} << 10;
constexpr size_t kEndedKept = 4096;

}  // namespace

HttpError RepliesFull() {
  return {.status = 503,
          .message =
              "The server holds as much as it may of answers that are being made; try again "
              "later.",
          .code = "replies_full",
          .headers = {{"retry-after", "1"}}};
}

Flight::Flight(std::shared_ptr<const Call> call)
    : call_(std::move(call)), order_(call_->prepared->choices()) {
  transcript_.trace.choices = call_->prepared->choices();
  transcript_.trace.prompt_tokens = call_->prepared->prompt_tokens();
}

Flight::~Flight() {
  if (!all_held_) return;
  all_held_->bytes -= held_;
  --all_held_->flights;
}

std::shared_ptr<const Call> Flight::call() const {
  std::lock_guard lock(mutex_);
  return call_;
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
      .on_reply = [flight](ReplyHead head) { flight->AddReply(std::move(head)); },
      .on_body = [flight](std::vector<ReplyPiece> body) { flight->AddBody(std::move(body)); },
      .wants_more = [flight](size_t held) { return flight->WantsMore(held); },
      .on_end = [flight](RunEnd end) { flight->End(std::move(end)); },
  };
}

void Flight::Add(const std::function<void(std::vector<TraceEvent>&)>& add) {
  {
    std::lock_guard lock(mutex_);
    add(transcript_.trace.events);
  }
  NotifyReaders();
}

void Flight::AddReply(ReplyHead head) {
  {
    std::lock_guard lock(mutex_);
    CHECK(!transcript_.reply);
    transcript_.reply = std::move(head);
  }
  NotifyReaders();
}

void Flight::AddBody(std::vector<ReplyPiece> pieces) {
  bool fits = true;
  {
    std::lock_guard lock(mutex_);
    CHECK(transcript_.reply);
    // A plain body is held whole: it has no end of its own that could be held back.
    if (!transcript_.reply->streamed) held_from_ = 0;
    for (ReplyPiece& piece : pieces) {
      if (piece.completes) held_from_ = std::min(held_from_, transcript_.body.pieces());
      transcript_.body.Append(std::move(piece.bytes), piece.usage);
    }
    fits = Account(0);
  }
  NotifyReaders();
  if (!fits) StopFull();
}

void Flight::StopFull() {
  RunEnd full{.outcome = RunEnd::Outcome::kFailed, .error = RepliesFull()};
  full.cause = full.error.code;
  Stop(std::move(full));
}

bool Flight::Account(size_t held_by_run) {
  if (!all_held_) return true;
  const uint64_t now = transcript_.body.held() + held_by_run;
  const bool grows = now > held_;
  const uint64_t all = all_held_->bytes += now - held_;  // modulo 2^64, where it is less
  held_ = now;
  return all <= bounds_.all || !grows || held_ <= bounds_.all / all_held_->flights;
}

size_t Flight::Unread() const {
  const size_t end = std::min(transcript_.body.pieces(), held_from_);
  size_t unread = SIZE_MAX;
  for (const Reader& reader : readers_) {
    if (!reader.live) return 0;
    unread = std::min(unread, transcript_.body.Behind(reader.place, end));
  }
  return readers_.empty() ? 0 : unread;
}

void Flight::End(RunEnd end) {
  {
    std::lock_guard lock(mutex_);
    CHECK(!end_);
    CHECK(end.outcome != RunEnd::Outcome::kComplete || transcript_.reply || order_.complete());
    CHECK(end.outcome != RunEnd::Outcome::kIncomplete || transcript_.reply);
    const bool whole = end.outcome == RunEnd::Outcome::kComplete;
    if (stopped_ && !whole) end = *stopped_;
    end_ = std::make_unique<RunEnd>(std::move(end));
  }
  run_ended_.Notify();
}

void Flight::Retry(std::shared_ptr<const Call> call) {
  std::shared_ptr<Run> run;  // goes without the mutex: it may call into its backend
  std::lock_guard lock(mutex_);
  CHECK(end_ && !transcript_.reply && transcript_.trace.events.empty());
  call_ = std::move(call);
  end_.reset();
  run = std::move(run_);
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
    if (!stopped_) stopped_ = std::make_unique<RunEnd>(std::move(reason));
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

RunEnd Flight::end() const {
  std::lock_guard lock(mutex_);
  return *end_;
}

void Flight::Settle(Settled settled) {
  std::shared_ptr<Run> run;  // goes without the mutex: it may call into its backend
  {
    std::lock_guard lock(mutex_);
    CHECK(!settled_);
    settled_ = std::make_unique<Settled>(std::move(settled));
    run = std::move(run_);
  }
  NotifyReaders();
}

Flight::Progress Flight::Read(const Wakeup* who, bool live) {
  Progress progress;
  std::shared_ptr<Run> resumed;
  {
    std::lock_guard lock(mutex_);
    const bool released = settled_ && settled_->committed;
    progress.settled = settled_.get();
    if (transcript_.reply) progress.reply = &*transcript_.reply;
    const auto reader = std::find_if(readers_.begin(), readers_.end(),
                                     [who](const Reader& r) { return r.wakeup.get() == who; });
    CHECK(reader != readers_.end());
    reader->live = live;
    if (live) {
      const std::vector<TraceEvent>& events = transcript_.trace.events;
      size_t end = events.size();
      if (!events.empty() && order_.complete() && !released) --end;
      const size_t count = std::min(end - std::min(end, reader->event), kEventsPerRead);
      const auto begin = events.begin() + static_cast<std::ptrdiff_t>(reader->event);
      progress.events.assign(begin, begin + static_cast<std::ptrdiff_t>(count));
      reader->event += count;
      progress.bytes = transcript_.body.Read(reader->place, released ? SIZE_MAX : held_from_,
                                             kPiecesPerRead, kBytesPerRead, &progress.pieces);
    }
    if (waits_for_readers_ && Unread() <= bounds_.unread / 2) {
      waits_for_readers_ = false;
      resumed = run_;
    }
  }
  if (resumed) resumed->Resume();
  return progress;
}

// Asked by the run before it reads on.
bool Flight::WantsMore(size_t held_by_run) {
  bool fits = true;
  {
    std::lock_guard lock(mutex_);
    fits = Account(held_by_run);
    if (fits && held_from_ == SIZE_MAX && Unread() > bounds_.unread) waits_for_readers_ = true;
    if (fits) return !waits_for_readers_;
  }
  StopFull();
  return false;
}

const Transcript& Flight::transcript() const {
  std::lock_guard lock(mutex_);
  CHECK(end_);  // nothing is added any more
  return transcript_;
}

uint64_t Flight::Generated() const {
  std::lock_guard lock(mutex_);
  return transcript_.trace.Generated();
}

void Flight::NotifyReaders() {
  std::vector<std::shared_ptr<Wakeup>> readers;
  {
    std::lock_guard lock(mutex_);
    for (const Reader& reader : readers_) readers.push_back(reader.wakeup);
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
    if (!flight) return std::nullopt;
    flight->bounds_ = bounds_;
    flight->all_held_ = held_;
    ++held_->flights;
    leads = true;
    flights_[flight.get()] = Place{flight, key, 0};
    if (!key.empty()) by_key_[key] = flight.get();
  }
  ++flights_.at(flight.get()).waiting;
  Seat seat(this, key, flight, leads);
  std::lock_guard flight_lock(flight->mutex_);
  flight->readers_.push_back({.wakeup = seat.wakeup_});
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
    std::erase_if(flight->readers_, [&](const auto& reader) { return reader.wakeup == wakeup; });
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
