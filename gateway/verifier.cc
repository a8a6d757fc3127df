#include "gateway/verifier.h"

#include <cmath>
#include <utility>

#include "base/crypto.h"
#include "base/log.h"
#include "gateway/metrics.h"
#include "gateway/reproducibility.h"
#include "gateway/wire/reply_convert.h"

namespace verbatim::gateway {

namespace {

// A background run as its backend reports it.
struct Execution {
  explicit Execution(uint32_t choices) : order(choices) {}
  std::mutex mutex;  // guards what follows
  std::condition_variable ended;
  TraceOrder order;
  Transcript transcript;
  std::optional<RunEnd> end;
};

RunObserver Observe(const std::shared_ptr<Execution>& execution) {
  return {
      .on_piece =
          [execution](TokenPiece piece) {
            std::lock_guard lock(execution->mutex);
            execution->order.Add(std::move(piece), execution->transcript.trace.events);
          },
      .on_choice_end =
          [execution](ChoiceEnd end) {
            std::lock_guard lock(execution->mutex);
            execution->order.Add(std::move(end), execution->transcript.trace.events);
          },
      .on_reply =
          [execution](ReplyHead head) {
            std::lock_guard lock(execution->mutex);
            execution->transcript.reply = std::move(head);
          },
      .on_body =
          [execution](std::vector<ReplyPiece> pieces) {
            std::lock_guard lock(execution->mutex);
            for (ReplyPiece& piece : pieces) {
              execution->transcript.body.Append(std::move(piece.bytes));
            }
          },
      .on_end =
          [execution](RunEnd end) {
            std::lock_guard lock(execution->mutex);
            execution->end = std::move(end);
            execution->ended.notify_all();
          },
  };
}

}  // namespace

Result<Verification> LoadRecorded(const store::Ledger& ledger, uint64_t entry,
                                  std::shared_ptr<const Call> call) {
  auto view = ledger.Entry(entry, true);
  if (!view.ok()) return view.error();
  const std::optional<AnswerForm> form = view->record ? FormOf(*view->record) : std::nullopt;
  if (!form || !view->record->output_digest) {
    return Error{Code::kFailedPrecondition, "the entry keeps no answer"};
  }
  Verification v;
  if (std::optional<ReplyHead> reply = ReplyOf(*view->record)) {
    v.recorded.reply = std::move(reply);
    v.recorded.body.Append(std::move(view->response));
  } else {
    auto trace = DecodeTrace(view->trace);
    if (!trace.ok()) return trace.error();
    v.recorded.trace = *std::move(trace);
  }
  v.entry = entry;
  v.head = call->head;
  v.head.created = view->record->created;
  v.form = *form;
  v.output_digest = *view->record->output_digest;
  v.call = std::move(call);
  return v;
}

Verifier::Verifier(store::Ledger* ledger, Metrics* metrics, size_t queue_limit, OnCompared compared)
    : ledger_(ledger),
      metrics_(metrics),
      queue_limit_(queue_limit),
      on_compared_(std::move(compared)),
      thread_([this] { Work(); }) {}

Verifier::~Verifier() { Stop(); }

bool Verifier::Draw(double rate) {
  if (rate <= 0) return false;
  const double draw = std::ldexp(static_cast<double>(ReadU64(RandomBytes(8)) >> 11), -53);
  return draw < rate;
}

void Verifier::Offer(Verification verification) {
  {
    std::lock_guard lock(mutex_);
    if (!stopping_ && queue_.size() < queue_limit_) {
      queue_.push_back(std::move(verification));
      changed_.notify_all();
      return;
    }
  }
  metrics_->CountVerification("dropped");
}

size_t Verifier::backlog() const {
  std::lock_guard lock(mutex_);
  return queue_.size() + (working_ ? 1 : 0);
}

void Verifier::Stop() {
  std::shared_ptr<Run> run;
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    run = run_;
    changed_.notify_all();
  }
  if (run) run->Cancel();
  if (thread_.joinable()) thread_.join();
}

void Verifier::Work() {
  for (;;) {
    Verification v;
    {
      std::unique_lock lock(mutex_);
      working_ = false;
      changed_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
      if (stopping_) return;
      v = std::move(queue_.front());
      queue_.pop_front();
      working_ = true;
    }
    if (v.again) {
      Compare(v, v.again->transcript, std::nullopt);
      continue;
    }
    std::optional<uint64_t> intent;
    if (!OpenIntent(v, intent)) continue;
    if (std::optional<Transcript> again = Execute(v, intent)) Compare(v, *again, intent);
  }
}

// An upstream learns nothing before the intent is in the ledger. False: it could not be put there.
bool Verifier::OpenIntent(const Verification& v, std::optional<uint64_t>& intent) {
  if (!v.call->prepared->external()) return true;
  store::AppendRequest entry = IntentEntry(*v.call);
  // No client waits for a receipt of this one.
  entry.record.extra = json::Value::MakeObject();
  entry.record.extra.Set("verifies", v.entry);
  entry.references.push_back({"verifies", v.entry});
  auto appended = ledger_->Append(std::move(entry));
  if (!appended.ok()) {
    LogError("entry " + std::to_string(v.entry) + " was not executed again: its intent could not " +
             "be recorded: " + appended.error().message);
    metrics_->CountVerification("failed");
    return false;
  }
  intent = appended->entry;
  return true;
}

// It did not come to an end: that says nothing about the entry that was to be verified.
void Verifier::Fail(const Verification& v, std::optional<uint64_t> intent, const std::string& cause,
                    const std::string& message) {
  metrics_->CountVerification("failed");
  LogWarning("entry " + std::to_string(v.entry) + " was not executed again: " + message);
  store::AppendRequest entry =
      UnansweredEntry(*v.call, store::Kind::kFailed, cause.empty() ? "failed" : cause, nullptr, 0);
  entry.record.request_id.clear();
  entry.request.clear();
  entry.references.push_back({"verifies", v.entry});
  entry.closes_intent = intent;
  auto appended = ledger_->Append(std::move(entry));
  if (!appended.ok()) LogError("that could not be recorded: " + appended.error().message);
}

std::optional<Transcript> Verifier::Execute(const Verification& v, std::optional<uint64_t> intent) {
  const PreparedRequest& prepared = *v.call->prepared;
  auto execution = std::make_shared<Execution>(prepared.choices());
  auto started =
      prepared.Start({.seed = v.call->seed, .background = true, .tenant = v.call->principal.tenant},
                     Observe(execution));
  if (auto* error = std::get_if<HttpError>(&started)) {
    Fail(v, intent, CauseOf(*error), error->message);
    return std::nullopt;
  }
  const std::shared_ptr<Run> run = std::get<std::unique_ptr<Run>>(std::move(started));
  bool cancel = false;
  {
    std::lock_guard lock(mutex_);
    run_ = run;
    cancel = stopping_;
  }
  if (cancel) run->Cancel();
  std::unique_lock lock(execution->mutex);
  execution->ended.wait(lock, [&] { return execution->end.has_value(); });
  {
    std::lock_guard own_lock(mutex_);
    run_ = nullptr;
  }
  const RunEnd& end = *execution->end;
  if (end.outcome == RunEnd::Outcome::kComplete) {
    execution->transcript.trace.choices = prepared.choices();
    execution->transcript.trace.prompt_tokens = prepared.prompt_tokens();
    return std::move(execution->transcript);
  }
  const bool cancelled = end.outcome == RunEnd::Outcome::kCancelled;
  const std::string cause = cancelled ? "cancelled" : end.cause;
  Fail(v, intent, cause, end.error.message.empty() ? cause : end.error.message);
  return std::nullopt;
}

// What differs first, and, of the engine's answers, where. `body`: the second answer's bytes.
std::optional<Divergence> FindDivergence(const Verification& v, const Transcript& again,
                                         std::string& body) {
  if (v.recorded.reply && again.reply) {
    body = again.body.Joined();
    const Endpoint endpoint = v.call->endpoint;
    const json::Value first =
        ComparableAnswer(endpoint, v.recorded.body.Joined(), v.recorded.reply->streamed);
    const json::Value second = ComparableAnswer(endpoint, body, again.reply->streamed);
    const std::string_view what = FirstDifference(first, second);
    if (what.empty()) return std::nullopt;
    return Divergence{std::string(what), 0, 0};
  }
  if (v.recorded.reply || again.reply) return Divergence{"backend", 0, 0};
  std::optional<Divergence> difference = FirstDivergence(v.recorded.trace, again.trace);
  body = Render(v.head, again.trace, v.form);
  if (!difference && Sha256(body) != v.output_digest) difference = Divergence{"bytes", 0, 0};
  return difference;
}

void Verifier::Compare(const Verification& v, const Transcript& again,
                       std::optional<uint64_t> intent) {
  std::string body;
  const std::optional<Divergence> difference = FindDivergence(v, again, body);
  const PreparedRequest& prepared = *v.call->prepared;

  store::AppendRequest entry;
  entry.kind = difference ? store::Kind::kDiverged : store::Kind::kVerified;
  entry.model = prepared.model_digest();
  entry.manifest = v.call->manifest;
  entry.numerics = prepared.numerics();
  entry.closes_intent = intent;
  entry.references.push_back({"verifies", v.entry});
  if (v.again) entry.references.push_back({"result", v.again->entry});
  entry.record.tenant = v.call->principal.tenant;
  entry.record.endpoint = EndpointPath(v.call->endpoint);
  entry.record.name_space = v.call->decision.name_space;
  entry.record.fingerprint = v.call->fingerprint;
  entry.record.seed = v.call->seed;
  if (!again.reply) entry.record.chain_heads = again.trace.Chains();
  const std::string upstream = UpstreamOf(prepared);
  SetOrigin(entry.detail, upstream, v.call->request.model);
  if (difference) {
    entry.outcome = difference->what;
    if (!again.reply) {
      entry.detail.Set("choice", static_cast<uint64_t>(difference->choice));
      entry.detail.Set("step", difference->step);
    }
    if (v.call->KeepsPayload()) {
      entry.request = v.call->body;
      entry.response = body;
      if (!again.reply) entry.trace = EncodeTrace(again.trace);
    }
    LogError("entry " + std::to_string(v.entry) +
             " DIVERGED when executed again: " + difference->what + " differs" +
             (again.reply ? ""
                          : " first at step " + std::to_string(difference->step) + " of choice " +
                                std::to_string(difference->choice)));
  }
  Redact(v.call->in_force->redactor, again.reply && again.reply->streamed, entry);
  auto appended = ledger_->Append(std::move(entry));
  if (!appended.ok()) {
    LogError("the verification of entry " + std::to_string(v.entry) +
             " could not be recorded: " + appended.error().message);
  }
  metrics_->CountVerification(difference ? "diverged" : "equal");
  if (on_compared_) on_compared_(upstream, v.call->request.model, !difference);
}

}  // namespace verbatim::gateway
