#include "gateway/answerer.h"

#include <functional>
#include <optional>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "gateway/wakeup.h"

namespace verbatim::gateway {

namespace asio = boost::asio;
using policies::Mode;
using store::Kind;

namespace {

constexpr int64_t kLedgerRetryMicros = 5'000'000;
constexpr size_t kWriteBytes = size_t{64} << 10;

std::string MissName(const Call& call) {
  if (call.decision.mode == Mode::kObserve) return "observed";
  return call.decision.mode == Mode::kBypass ? "bypass" : "miss";
}

Headers AnswerHeaders(const Call& call, const std::string& cache, const std::string& manifest) {
  Headers headers;
  headers.emplace_back("Verbatim-Cache", cache);
  headers.emplace_back("Verbatim-Fingerprint", HexEncode(*call.fingerprint));
  headers.emplace_back("Verbatim-Manifest", manifest);
  if (std::string ignored = IgnoredHeader(call.request); !ignored.empty()) {
    headers.emplace_back("Verbatim-Ignored", std::move(ignored));
  }
  return headers;
}

void AddEntry(Headers& headers, uint64_t entry, const Digest& output_digest) {
  headers.emplace_back("Verbatim-Entry", std::to_string(entry));
  headers.emplace_back("Verbatim-Output-Digest", HexEncode(output_digest));
}

asio::awaitable<Status> Send(ResponseSink& sink, const AnswerForm& form, Headers headers,
                             std::string body) {
  if (!form.streamed) co_return co_await sink.SendWhole(200, std::move(headers), std::move(body));
  Status status = co_await sink.StartStream(200, std::move(headers));
  for (size_t at = 0; status.ok() && at < body.size(); at += kWriteBytes) {
    status = co_await sink.Write(std::string_view(body).substr(at, kWriteBytes));
  }
  if (status.ok()) status = co_await sink.Finish();
  co_return status;
}

}  // namespace

std::string CauseOf(const HttpError& error) {
  if (!error.code.empty()) return error.code;
  return error.type.empty() ? "http_" + std::to_string(error.status) : error.type;
}

HttpError RecordingFailed() {
  return {.status = 500,
          .message = "The answer could not be recorded in the ledger and is withheld; try again.",
          .type = "server_error",
          .code = "ledger_unavailable"};
}

HttpError StoreFailed(const Error& error) {
  LogError("the store failed: " + error.message);
  return {.status = 500,
          .message = "The store of recorded answers failed; the request was not run.",
          .type = "server_error",
          .code = "store_failed"};
}

asio::awaitable<void> Answerer::ServeHit(std::shared_ptr<Call> call, store::StoredResult hit,
                                         ResponseSink& sink, Outcome& outcome) {
  const AnswerForm form = FormOf(call->request);
  const bool converted = FormOf(hit.record) != form;
  std::string body = std::move(hit.response);
  std::optional<Verification> recorded;
  if (converted || call->decision.mode == Mode::kVerify) {
    auto loaded = LoadRecorded(ledger_, hit.entry, call);
    if (!loaded.ok()) {
      co_return co_await Refuse(*call, Kind::kFailed, StoreFailed(loaded.error()), sink, outcome);
    }
    recorded = *std::move(loaded);
    if (converted) body = Render(recorded->head, recorded->trace, form);
  }

  // The hit's own trace stands before its last byte leaves.
  store::HitRequest trace = HitEntry(*call, Kind::kHit, hit.entry, hit.record.output_digest);
  if (Status s = co_await RecordHit(std::move(trace)); !s.ok()) {
    co_return co_await Refuse(*call, Kind::kFailed, RecordingFailed(), sink, outcome);
  }
  outcome = {converted ? "hit; converted" : "hit", 200};
  Headers headers = AnswerHeaders(*call, outcome.cache, hit.leaf.manifest);
  if (hit.record.output_digest) AddEntry(headers, hit.entry, *hit.record.output_digest);
  Status sent = co_await Send(sink, form, std::move(headers), std::move(body));
  if (!sent.ok()) outcome.status = 499;
  if (call->decision.mode == Mode::kVerify) verifier_.Offer(*std::move(recorded));
}

asio::awaitable<void> Answerer::Follow(const Call& call, InFlight::Seat& seat, ResponseSink& sink,
                                       Outcome& outcome) {
  const Flight& flight = *seat.flight();
  const AnswerForm form = FormOf(call.request);
  outcome.cache = seat.leads() ? MissName(call) : "shared";
  if (form != flight.form()) outcome.cache += "; converted";
  Headers headers = AnswerHeaders(call, outcome.cache, call.manifest);
  sink.OnClientGone([wakeup = seat.wakeup()] { wakeup->Notify(); });

  bool recorded = seat.leads();  // the leader's entry is the run's
  bool started = false;
  std::optional<HttpError> error;
  Status status;
  for (size_t sent = 0;;) {
    Flight::Progress progress = flight.Read(form.streamed ? sent : SIZE_MAX);
    if (sink.ClientGone()) break;
    if (progress.settled && !progress.settled->committed) {
      error = progress.settled->error;
      break;
    }
    if (progress.settled && !recorded) {
      // Before the events that were held back: an answer completes with its trace or not at all.
      store::HitRequest trace =
          HitEntry(call, Kind::kJoined, progress.settled->entry, progress.settled->output_digest);
      status = co_await RecordHit(std::move(trace));
      if (!status.ok()) {
        error = RecordingFailed();
        break;
      }
      recorded = true;
    }
    if (!progress.events.empty()) {
      std::string bytes;
      if (!started) {
        metrics_.ObserveFirstToken(outcome.cache,
                                   static_cast<double>(NowMicros() - call.received_micros) * 1e-6);
        status = co_await sink.StartStream(200, headers);
        bytes = StreamBegin(flight.head(), flight.choices(), form.include_usage);
        started = true;
      }
      for (const TraceEvent& event : progress.events) {
        bytes += StreamEvent(flight.head(), event, form.include_usage);
      }
      if (status.ok()) status = co_await sink.Write(bytes);
      if (!status.ok()) break;
      sent += progress.events.size();
      continue;
    }
    if (progress.settled) break;
    co_await seat.Wait();
  }
  sink.OnClientGone({});

  outcome.status = error ? error->status : 200;
  if (sink.ClientGone()) {
    outcome.status = 499;
    if (!recorded) {
      (void)co_await Append(UnansweredEntry(call, Kind::kCancelled, "client_gone", nullptr, 0));
    }
  } else if (error && started) {
    if (!recorded) {
      (void)co_await Append(UnansweredEntry(call, Kind::kFailed, CauseOf(*error), &*error, 0));
    }
    status = co_await sink.Write(StreamError(*error));
    sink.Abort();
  } else if (error && seat.leads()) {
    status = co_await SendError(sink, *error);
  } else if (error) {
    co_await Refuse(call, Kind::kFailed, *error, sink, outcome);
  } else if (form.streamed) {
    status = co_await sink.Write(StreamEnd(flight.head(), flight.trace(), form.include_usage));
    if (status.ok()) status = co_await sink.Finish();
  } else {
    const Settled& settled = *flight.Read(SIZE_MAX).settled;
    AddEntry(headers, settled.entry, settled.output_digest);
    std::string body = Render(flight.head(), flight.trace(), form);
    status = co_await sink.SendWhole(200, std::move(headers), std::move(body));
  }
}

asio::awaitable<void> Answerer::Refuse(const Call& call, Kind kind, HttpError error,
                                       ResponseSink& sink, Outcome& outcome) {
  auto appended = co_await Append(UnansweredEntry(call, kind, CauseOf(error), &error, 0));
  if (!appended.ok()) {
    LogError("a refusal could not be recorded: " + appended.error().message);
    error = RecordingFailed();
  }
  outcome.status = error.status;
  (void)co_await SendError(sink, std::move(error));
}

bool Answerer::ledger_fails() const {
  const int64_t failed = failed_micros_;
  return failed != 0 && MonotonicMicros() - failed < kLedgerRetryMicros;
}

asio::awaitable<Result<store::Appended>> Answerer::Append(store::AppendRequest entry) {
  auto appended = co_await AwaitCallback<Result<store::Appended>>(
      [&](std::function<void(Result<store::Appended>)> done) {
        ledger_.AppendAsync(std::move(entry), std::move(done));
      });
  Note(appended.ok());
  if (!appended.ok()) LogError("the ledger took no entry: " + appended.error().message);
  co_return appended;
}

asio::awaitable<Status> Answerer::RecordHit(store::HitRequest hit) {
  Status status = co_await AwaitCallback<Status>([&](std::function<void(Status)> done) {
    ledger_.RecordHitAsync(std::move(hit), std::move(done));
  });
  Note(status.ok());
  if (!status.ok()) LogError("a hit could not be recorded: " + status.error().message);
  co_return status;
}

}  // namespace verbatim::gateway
