// The ways in which a request is answered: from the store, from a run, or with an error. None of
// them ends before the ledger has its trace. Coroutines on the connection's executor (http.h).
#pragma once

#include <atomic>
#include <boost/asio/awaitable.hpp>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/clock.h"
#include "gateway/break_glass.h"
#include "gateway/hit_cache.h"
#include "gateway/hit_groups.h"
#include "gateway/http.h"
#include "gateway/in_flight.h"
#include "gateway/recorder.h"
#include "gateway/rendition.h"
#include "gateway/verifier.h"
#include "store/ledger.h"

namespace verbatim::gateway {

// What became of a request, for metrics and access log.
struct Outcome {
  std::string cache = "none";
  int status = 0;
  std::string error;                     // a short code, or ""
  std::shared_ptr<const Call> answered;  // the request as it was answered: a fallback's
  std::optional<uint64_t> entry;         // that recorded the result
  bool pending = false;                  // a hit or join whose own leaf is still to come
  double first_token_seconds = -1;       // below 0: not streamed
  uint64_t prompt_tokens = 0, output_tokens = 0;
};

// How a stored result answers one request and all that are equal to it, made once.
struct HitAnswer {
  int status = 200;
  bool streamed = false, converted = false;
  std::optional<std::string> body{};  // nothing: the recorded bytes as they are
  Headers headers{};                  // but for those of limits
  RenderedFields fields{};            // the same
  bool has_limits = false;            // an upstream's x-ratelimit-* are among them
  store::HitRequest trace{};          // but for the request's id

  uint64_t bytes() const;  // of memory, about
};

// What the client gets where the ledger or the store of results failed.
HttpError RecordingFailed();
HttpError StoreFailed(const Error& error);

// An upstream's stored answer in the form that `call` asks for; nothing where it cannot be had in
// it without loss, or is the engine's.
std::optional<Rendition> RenderStored(const Call& call, const store::StoredResult& result);

class Answerer {
 public:
  // Both outlive it. manifest: digest in hex.
  Answerer(store::Ledger& ledger, Verifier& verifier, std::string manifest)
      : ledger_(ledger),
        hit_groups_(ledger),
        verifier_(verifier),
        break_glass_(ledger, std::move(manifest)) {}

  // A stored result as an answer to `call`, rendered anew where it was recorded in another form.
  // Null where that cannot be had without loss: it is a miss.
  Result<std::shared_ptr<const HitAnswer>> AnswerOf(const std::shared_ptr<const Call>& call,
                                                    const store::StoredResult& hit) const;

  // Gives it to the request of that id; `call` is that request, or an equal one. Header fields of
  // limits are this one's. An error: nothing was sent, and the ledger has no trace.
  boost::asio::awaitable<std::optional<HttpError>> ServeHit(std::shared_ptr<const Call> call,
                                                            std::string_view request_id,
                                                            SharedResult result,
                                                            std::shared_ptr<const HitAnswer> answer,
                                                            Headers limits, ResponseSink& sink,
                                                            Outcome& outcome);

  // What the run in `seat` makes, as it makes it, whoever leads it. False, and nothing was sent,
  // where it cannot be had in this client's form without loss: it has to run by itself.
  boost::asio::awaitable<bool> Follow(const Call& call, InFlight::Seat& seat, ResponseSink& sink,
                                      Outcome& outcome);

  // An error. kind: kRefused or kFailed.
  boost::asio::awaitable<void> Refuse(const Call& call, store::Kind kind, const HttpError& error,
                                      ResponseSink& sink, Outcome& outcome);

  // Whether the ledger took nothing the last time that it was asked, and that was less than five
  // seconds ago: whoever asks later has to try.
  bool ledger_fails() const;

  // What is done where the ledger failed just now.
  BreakGlass& break_glass() { return break_glass_; }

  // Waits until the entry is durable, or is not.
  boost::asio::awaitable<Result<store::Appended>> Append(store::AppendRequest entry);

 private:
  // How following a flight ended; what a stream has to say at its end is made already. Apart from
  // Follow, whose frame lasts as long as its client's stream.
  struct Followed {
    bool recorded = false;
    bool began = false;  // a stream
    std::string rest{};  // of it
    const Settled* settled = nullptr;
    std::unique_ptr<Rendition> whole{};
    std::unique_ptr<HttpError> error{};
  };
  boost::asio::awaitable<bool> EndFollowing(const Call& call, InFlight::Seat& seat, Followed end,
                                            ResponseSink& sink, Outcome& outcome);
  boost::asio::awaitable<Status> RecordJoined(const Call& call, const Flight& flight,
                                              const Settled& settled);
  void Note(bool ok);
  boost::asio::awaitable<Status> RecordHit(store::HitRequest hit);

  store::Ledger& ledger_;
  HitGroups hit_groups_;
  Verifier& verifier_;
  BreakGlass break_glass_;
  std::atomic<int64_t> failed_micros_ = 0;  // when the ledger failed, if it did the last time
};

}  // namespace verbatim::gateway
