#include "gateway/answerer.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "gateway/http_response.h"
#include "gateway/rendition.h"
#include "gateway/wakeup.h"
#include "gateway/wire/reply_convert.h"

namespace verbatim::gateway {

namespace asio = boost::asio;
using policies::Mode;
using store::Kind;

namespace {

constexpr int64_t kLedgerRetryMicros = 5'000'000;
constexpr size_t kHeldForEnd = size_t{64} << 10;  // of a stream's last bytes, to leave with its end

std::string MissName(const Call& call) {
  if (call.decision.mode == Mode::kObserve) return "observed";
  return call.decision.mode == Mode::kBypass ? "bypass" : "miss";
}

bool HasLimits(const Headers& headers) {
  return std::any_of(headers.begin(), headers.end(),
                     [](const auto& header) { return header.first.starts_with("x-ratelimit-"); });
}

// An upstream's own limits say nothing to a client that has limits here.
void AddAll(Headers& headers, const Headers& more) {
  const bool limited = HasLimits(headers);
  for (const auto& header : more) {
    if (!limited || !header.first.starts_with("x-ratelimit-")) headers.push_back(header);
  }
}

// An error with this server's limits in the place of an upstream's.
HttpError WithLimits(HttpError error, const Headers& limits) {
  if (limits.empty()) return error;
  std::erase_if(error.headers,
                [](const auto& header) { return header.first.starts_with("x-ratelimit-"); });
  error.headers.insert(error.headers.end(), limits.begin(), limits.end());
  return error;
}

// `answered`: the request as it was answered, a fallback's where one stood in. limits: the
// caller's.
Headers AnswerHeaders(const Call& call, const Call& answered, const std::string& cache,
                      const std::string& manifest, const Headers& limits) {
  Headers headers;
  headers.emplace_back("Verbatim-Cache", cache);
  if (answered.fingerprint) {
    headers.emplace_back("Verbatim-Fingerprint", HexEncode(*answered.fingerprint));
  }
  headers.emplace_back("Verbatim-Manifest", manifest);
  if (std::string upstream = UpstreamOf(*answered.prepared); !upstream.empty()) {
    headers.emplace_back("Verbatim-Upstream", std::move(upstream));
  }
  AddAll(headers, limits);
  if (std::string ignored = IgnoredHeader(call.request); !ignored.empty()) {
    headers.emplace_back("Verbatim-Ignored", std::move(ignored));
  }
  return headers;
}

void AddEntry(Headers& headers, uint64_t entry, const Digest& output_digest) {
  headers.emplace_back("Verbatim-Entry", std::to_string(entry));
  headers.emplace_back("Verbatim-Output-Digest", HexEncode(output_digest));
}

asio::awaitable<Status> Send(ResponseSink& sink, Rendition answer, Headers headers) {
  AddAll(headers, answer.headers);
  const RenderedFields none;
  co_return co_await sink.SendRendered(answer.status, none, headers, answer.body, answer.streamed);
}

// A flight's answer as one client reads it while it is made.
class LiveStream {
 public:
  LiveStream(const Call& client, const Flight& flight, const Flight::Progress& progress)
      : answered_(flight.call()), form_(FormOf(client.request)), flight_(flight) {
    if (progress.reply) {
      const bool usage = answered_->request.include_usage || answered_->prepared->requests_usage();
      strips_usage_ = StripsUsage(client.endpoint, usage, form_);
    } else {
      writer_ = NewStreamWriter(answered_->head, form_, answered_->prepared->choices(),
                                answered_->prepared->prompt_tokens());
    }
  }

  std::string Begin() const { return writer_ ? writer_->Begin() : ""; }

  // The bytes come as they are: nothing is made of them.
  bool passes() const { return !writer_ && !strips_usage_; }
  std::string Take(const Flight::Progress& progress) {
    std::string bytes;
    for (const TraceEvent& event : progress.events) bytes += writer_->Event(event);
    bytes.reserve(bytes.size() + progress.bytes.size());
    std::string_view rest = progress.bytes;
    for (const ReplyBody::Piece& piece : progress.pieces) {
      bytes += rest.substr(0, piece.usage.begin);
      const size_t end = piece.usage.begin + piece.usage.size;
      bytes += rest.substr(end, piece.size - end);
      rest.remove_prefix(piece.size);
    }
    return bytes;
  }

  std::string End() const { return writer_ ? writer_->End(flight_.transcript().trace) : ""; }

  std::string Error(const HttpError& error, std::string_view request_id) const {
    if (writer_) return writer_->Error(error, request_id);
    return StreamError(error, answered_->endpoint, request_id);
  }

 private:
  const std::shared_ptr<const Call> answered_;
  const AnswerForm form_;
  const Flight& flight_;
  bool strips_usage_ = false;
  std::unique_ptr<StreamWriter> writer_;  // the engine's
};

// The whole of a flight's answer for a client who did not read it live; null where it cannot be
// had in that form. Whoever leads gets an upstream's reply as it came.
std::unique_ptr<Rendition> WholeAnswer(const Call& client, const Flight& flight, bool leads) {
  const Transcript& transcript = flight.transcript();
  const std::shared_ptr<const Call> answered = flight.call();
  AnswerForm form = FormOf(client.request);
  if (!transcript.reply) {
    auto rendition = std::make_unique<Rendition>();
    rendition->body = Render(answered->head, transcript.trace, form);
    rendition->streamed = form.streamed;
    rendition->converted = form != FormOf(answered->request);
    return rendition;
  }
  const bool usage = answered->request.include_usage || answered->prepared->requests_usage();
  if (leads && form.streamed != transcript.reply->streamed) {
    form = {transcript.reply->streamed, transcript.reply->streamed && usage};
  }
  auto rendered =
      RenderReply(client.endpoint, *transcript.reply, transcript.body.Joined(), usage, form);
  return rendered ? std::make_unique<Rendition>(*std::move(rendered)) : nullptr;
}

// A fallback's recorded answer, likewise.
std::unique_ptr<Rendition> WholeStored(const Call& client, const store::StoredResult& stored) {
  auto rendered = RenderStored(client, stored);
  return rendered ? std::make_unique<Rendition>(*std::move(rendered)) : nullptr;
}

// In the place of an upstream's answer that was not complete.
HttpError IncompleteAnswer(const Settled& settled, const char* otherwise) {
  if (!settled.error.message.empty()) return settled.error;
  return {
      .status = 502, .message = otherwise, .type = "server_error", .code = "upstream_incomplete"};
}

// What a settled flight gives instead of an answer to one who waited for it.
std::unique_ptr<HttpError> ErrorOf(const Settled& settled, bool leads) {
  if (!settled.committed) return std::make_unique<HttpError>(settled.error);
  if (settled.complete || leads) return nullptr;
  return std::make_unique<HttpError>(
      IncompleteAnswer(settled, "The upstream's answer was not complete; try again."));
}

// Status line and headers of a stream, which leave once something of it is there.
asio::awaitable<Status> BeginStream(const Call& call, const Flight& flight, const ReplyHead* reply,
                                    ResponseSink& sink, Outcome& outcome) {
  const std::shared_ptr<const Call> answered = flight.call();
  outcome.first_token_seconds = static_cast<double>(NowMicros() - call.received_micros) * 1e-6;
  if (!reply && FormOf(call.request) != FormOf(answered->request)) outcome.cache += "; converted";
  Headers headers =
      AnswerHeaders(call, *answered, outcome.cache, call.manifest, call.limit_headers);
  if (reply) AddAll(headers, ReplyHeaders(*reply));
  const int status = reply ? reply->status : 200;
  Status sent = co_await sink.StartStream(status, std::move(headers));
  co_return sent;
}

}  // namespace

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

std::optional<Rendition> RenderStored(const Call& call, const store::StoredResult& result) {
  const std::optional<ReplyHead> reply = ReplyOf(result.record);
  if (!reply) return std::nullopt;
  const bool usage = FormOf(result.record)->include_usage;
  return RenderReply(call.endpoint, *reply, result.response, usage, FormOf(call.request));
}

uint64_t HitAnswer::bytes() const {
  uint64_t bytes = sizeof(*this) + fields.text.size() * 2 + trace.extra.size();
  for (const auto& header : headers) bytes += sizeof(header);
  if (body) bytes += body->size();
  return bytes;
}

Result<std::shared_ptr<const HitAnswer>> Answerer::AnswerOf(const std::shared_ptr<const Call>& call,
                                                            const store::StoredResult& hit) const {
  const AnswerForm form = FormOf(call->request);
  auto answer = std::make_shared<HitAnswer>();
  answer->streamed = form.streamed;
  if (ReplyOf(hit.record)) {
    auto rendered = RenderStored(*call, hit);
    if (!rendered) return std::shared_ptr<const HitAnswer>();
    answer->status = rendered->status;
    answer->converted = rendered->converted;
    answer->headers = std::move(rendered->headers);
    if (rendered->body != hit.response) answer->body = std::move(rendered->body);
  } else if (FormOf(hit.record) != form) {
    auto loaded = LoadRecorded(ledger_, hit.entry, call);
    if (!loaded.ok()) return loaded.error();
    answer->converted = true;
    answer->body = Render(loaded->head, loaded->recorded.trace, form);
  }
  const std::string cache = answer->converted ? "hit; converted" : "hit";
  answer->has_limits = HasLimits(answer->headers);
  Headers headers = AnswerHeaders(*call, *call, cache, hit.leaf.manifest, {});
  if (hit.record.output_digest) AddEntry(headers, hit.entry, *hit.record.output_digest);
  AddAll(headers, answer->headers);
  answer->headers = std::move(headers);
  const bool anthropic = ErrorFormOf(call->endpoint) == ErrorForm::kAnthropic;
  answer->fields = RenderFields(answer->headers, anthropic);
  answer->trace = HitEntry(*call, *call, Kind::kHit, hit.entry, hit.record.output_digest);
  return std::shared_ptr<const HitAnswer>(std::move(answer));
}

asio::awaitable<std::optional<HttpError>> Answerer::ServeHit(
    std::shared_ptr<const Call> call, std::string_view request_id, SharedResult result,
    std::shared_ptr<const HitAnswer> answer, Headers limits, ResponseSink& sink, Outcome& outcome) {
  outcome.answered = call;
  std::optional<Verification> recorded;
  if (call->decision.mode == Mode::kVerify) {
    auto loaded = LoadRecorded(ledger_, result->entry, call);
    if (!loaded.ok()) co_return StoreFailed(loaded.error());
    recorded = *std::move(loaded);
  }
  // The hit's own trace stands before its last byte leaves.
  store::HitRequest trace = answer->trace;
  trace.request_id = request_id;
  const Status traced = co_await RecordHit(std::move(trace));
  if (!traced.ok() && !break_glass_.Answers(traced.error(), call->decision.break_glass_seconds)) {
    co_return RecordingFailed();
  }
  outcome.entry = result->entry;
  outcome.pending = !call->decision.strict_hits;
  outcome.cache = answer->converted ? "hit; converted" : "hit";
  outcome.status = answer->status;
  const std::string_view body = answer->body ? *answer->body : result->response;
  const RenderedFields none;
  const bool replaces_limits = answer->has_limits && !limits.empty();
  if (replaces_limits) AddAll(limits, answer->headers);
  const RenderedFields& fields = replaces_limits ? none : answer->fields;
  Status sent = co_await sink.SendRendered(answer->status, fields, limits, body, answer->streamed);
  if (!sent.ok()) outcome.status = 499;
  if (recorded) verifier_.Offer(*std::move(recorded));
  co_return std::nullopt;
}

asio::awaitable<bool> Answerer::Follow(const Call& call, InFlight::Seat& seat, ResponseSink& sink,
                                       Outcome& outcome) {
  const Flight& flight = *seat.flight();
  const bool streamed = call.request.stream;
  const bool leads = seat.leads();
  outcome.cache = leads ? MissName(call) : "shared";
  sink.OnClientGone([wakeup = seat.wakeup()] { wakeup->Notify(); });

  Followed end{.recorded = leads};  // the leader's entry is the run's
  std::optional<LiveStream> live;
  Status status;
  for (;;) {
    const Flight::Progress progress = seat.Read(streamed || leads);
    if (sink.ClientGone()) break;
    end.settled = progress.settled;
    if (end.settled) end.error = ErrorOf(*end.settled, leads);
    if (end.error) break;
    const bool has_whole = end.settled && (!streamed || progress.reply || end.settled->stored);
    if (has_whole && !live && !end.whole) {
      end.whole = end.settled->stored ? WholeStored(call, *end.settled->stored)
                                      : WholeAnswer(call, flight, leads);
      if (!end.whole) break;  // of a follower: nothing was sent yet
    }
    if (end.settled && !end.recorded) {
      // Before the rest that was held back: an answer completes with its trace or not at all.
      status = co_await RecordJoined(call, flight, *end.settled);
      if (!status.ok()) {
        end.error = std::make_unique<HttpError>(RecordingFailed());
        break;
      }
      end.recorded = true;
    }
    const bool can_be_live = progress.reply ? progress.reply->streamed : streamed;
    if (!end.whole && can_be_live && progress.any()) {
      std::string made;
      if (!live) {
        live.emplace(call, flight, progress);
        status = co_await BeginStream(call, flight, progress.reply, sink, outcome);
        made = live->Begin();
      }
      // From where they lie: a reader that stalls holds no copy of them.
      std::string_view bytes = progress.bytes;
      if (!live->passes()) {
        made += live->Take(progress);
        bytes = made;
      }
      if (status.ok() && !end.rest.empty()) status = co_await sink.Write(end.rest);
      end.rest.clear();
      if (end.settled && bytes.size() <= kHeldForEnd) {
        end.rest = bytes;  // perhaps the last: it leaves with the stream's end
      } else if (status.ok()) {
        status = co_await sink.Write(bytes);
      }
      if (!status.ok()) break;
      continue;
    }
    if (end.settled) break;
    co_await seat.Wait();
  }
  sink.OnClientGone({});
  if (live) {
    end.began = true;
    if (end.error) end.rest += live->Error(*end.error, call.id);
    if (!end.error && end.settled && !end.settled->broken) end.rest += live->End();
    const bool says_why = end.settled && end.settled->broken && !end.settled->error.message.empty();
    if (!end.error && says_why) end.rest += live->Error(end.settled->error, call.id);
  }
  const bool answered = co_await EndFollowing(call, seat, std::move(end), sink, outcome);
  co_return answered;
}

asio::awaitable<Status> Answerer::RecordJoined(const Call& call, const Flight& flight,
                                               const Settled& settled) {
  // The leader's answer has no entry that this one could name.
  const uint64_t seconds = call.decision.break_glass_seconds;
  const Error unrecorded{Code::kIo, "the answer has no entry"};
  if (!settled.entry && break_glass_.Answers(unrecorded, seconds)) co_return Status();
  const std::shared_ptr<const Call> answered = flight.call();
  store::HitRequest trace =
      HitEntry(call, *answered, Kind::kJoined, settled.entry.value_or(0), settled.output_digest);
  Status status = co_await RecordHit(std::move(trace));
  if (!status.ok() && break_glass_.Answers(status.error(), seconds)) co_return Status();
  co_return status;
}

asio::awaitable<bool> Answerer::EndFollowing(const Call& call, InFlight::Seat& seat, Followed end,
                                             ResponseSink& sink, Outcome& outcome) {
  const Flight& flight = *seat.flight();
  const Settled* settled = end.settled;
  const std::unique_ptr<HttpError>& error = end.error;
  Status status;
  outcome.status = error ? error->status : 200;
  if (error) outcome.error = CauseOf(*error);
  outcome.answered = flight.call();
  if (settled && settled->committed) {
    if (settled->complete) outcome.entry = settled->entry;
    outcome.pending = !seat.leads() && !call.decision.strict_hits;
    outcome.prompt_tokens = settled->prompt_tokens;
    outcome.output_tokens = settled->output_tokens;
    if (!settled->complete) outcome.error = "incomplete";
  }
  if (sink.ClientGone()) {
    outcome.status = 499;
    if (!end.recorded) {
      (void)co_await Append(UnansweredEntry(call, Kind::kCancelled, "client_gone", nullptr, 0));
    }
  } else if (error && end.began) {
    if (!end.recorded) {
      (void)co_await Append(UnansweredEntry(call, Kind::kFailed, CauseOf(*error), &*error, 0));
    }
    status = co_await sink.Write(end.rest);
    sink.Abort();
  } else if (error && seat.leads()) {
    HttpError sent = WithLimits(*error, call.limit_headers);
    status = co_await SendError(sink, std::move(sent));
  } else if (error) {
    co_await Refuse(call, Kind::kFailed, *error, sink, outcome);
  } else if (end.began && settled->broken) {
    if (!end.rest.empty()) status = co_await sink.Write(end.rest);
    sink.Abort();
  } else if (end.began) {
    status = co_await sink.FinishWith(end.rest);
  } else if (!end.whole) {
    outcome.cache = "none";
    co_return false;
  } else if (settled->broken || end.whole->body.empty()) {
    HttpError none = IncompleteAnswer(
        *settled, "The upstream's answer broke off before it was whole; try again.");
    outcome.status = none.status;
    status = co_await SendError(sink, std::move(none));
  } else {
    if (settled->stored && seat.leads()) outcome.cache = "hit";
    if (end.whole->converted) outcome.cache += "; converted";
    const std::string& manifest = settled->stored ? settled->stored->leaf.manifest : call.manifest;
    Headers headers =
        AnswerHeaders(call, *flight.call(), outcome.cache, manifest, call.limit_headers);
    if (settled->complete && settled->entry) {
      AddEntry(headers, *settled->entry, settled->output_digest);
      // Of what is kept, which is not what this client gets.
      if (settled->redacted) headers.pop_back();
    }
    outcome.status = end.whole->status;
    status = co_await Send(sink, std::move(*end.whole), std::move(headers));
  }
  co_return true;
}

asio::awaitable<void> Answerer::Refuse(const Call& call, Kind kind, const HttpError& error,
                                       ResponseSink& sink, Outcome& outcome) {
  auto appended = co_await Append(UnansweredEntry(call, kind, CauseOf(error), &error, 0));
  HttpError answer;
  if (appended.ok()) {
    answer = WithLimits(error, call.limit_headers);
  } else {
    LogError("a refusal could not be recorded: " + appended.error().message);
    answer = RecordingFailed();
  }
  outcome.status = answer.status;
  outcome.error = CauseOf(answer);
  (void)co_await SendError(sink, std::move(answer));
}

void Answerer::Note(bool ok) {
  failed_micros_ = ok ? 0 : MonotonicMicros();
  if (ok) break_glass_.Worked();
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
  Status status = co_await hit_groups_.Record(std::move(hit));
  Note(status.ok());
  if (!status.ok()) LogError("a hit could not be recorded: " + status.error().message);
  co_return status;
}

}  // namespace verbatim::gateway
