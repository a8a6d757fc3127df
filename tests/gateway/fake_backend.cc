#include "fake_backend.h"

#include <atomic>

#include "base/crypto.h"
#include "gateway/wire/openai.h"

namespace verbatim::gateway {

namespace {

class FakeRun : public Run {
 public:
  FakeRun(std::shared_ptr<Script> script, bool background, RunObserver observer)
      : script_(std::move(script)),
        stop_(std::make_shared<std::atomic<bool>>(false)),
        thread_([script = script_, stop = stop_, background, observer = std::move(observer)] {
          Work(*script, *stop, background, observer);
        }) {}
  ~FakeRun() override {
    Cancel();
    // The last reference may go on the run's own thread, in on_end.
    thread_.get_id() == std::this_thread::get_id() ? thread_.detach() : thread_.join();
  }
  void Cancel() override {
    std::lock_guard lock(script_->mutex);
    *stop_ = true;
    script_->changed.notify_all();
  }

 private:
  static void Work(Script& script, const std::atomic<bool>& stop, bool background,
                   const RunObserver& observer) {
    RunEnd end;
    size_t count = 0;
    for (size_t i = 0;; ++i) {
      TokenPiece piece;
      {
        std::unique_lock lock(script.mutex);
        script.changed.wait(lock, [&] { return stop || i < script.gate; });
        if (stop) {
          ++script.cancelled;
          end = {.outcome = RunEnd::Outcome::kCancelled, .cause = "cancelled"};
          break;
        }
        if (i == script.fail_at) {
          end = {RunEnd::Outcome::kFailed,
                 {.status = 500, .message = "a numeric fault", .code = "numeric_fault"},
                 "numeric_fault"};
          break;
        }
        if (i == script.texts.size()) break;
        piece.token = static_cast<int32_t>(100 + i);
        piece.digest.fill(static_cast<uint8_t>(i + 1));
        if (background && script.background_differs && i == 2) piece.digest.fill(0xee);
        piece.text = script.texts[i];
        count = i + 1;
      }
      observer.on_piece(std::move(piece));
    }
    if (end.outcome == RunEnd::Outcome::kComplete) {
      std::string reason;
      {
        std::lock_guard lock(script.mutex);
        reason = script.finish_reason;
      }
      observer.on_choice_end({0, reason, Sha256(std::to_string(count))});
    }
    observer.on_end(std::move(end));
    std::lock_guard lock(script.mutex);
    ++script.ended;
    script.changed.notify_all();
  }

  std::shared_ptr<Script> script_;
  std::shared_ptr<std::atomic<bool>> stop_;
  std::thread thread_;
};

class FakePrepared : public PreparedRequest {
 public:
  FakePrepared(std::shared_ptr<Script> script, bool timeless)
      : script_(std::move(script)), timeless_(timeless) {
    identity_ = json::Value::MakeObject();
    identity_.Set("engine", "fake");
  }
  bool timeless() const override { return timeless_; }
  const json::Value& identity() const override { return identity_; }
  std::string system_fingerprint() const override { return "fp_fake"; }
  uint32_t choices() const override { return 1; }
  uint32_t prompt_tokens() const override { return 7; }
  json::Value parameters() const override { return json::Value::MakeObject(); }
  json::Value description() const override {
    std::lock_guard lock(script_->mutex);
    json::Value v = json::Value::MakeObject();
    v.Set("isa", script_->isa);
    return v;
  }
  std::string model_digest() const override { return std::string(64, 'a'); }
  std::string numerics() const override { return "1"; }
  Answered<std::unique_ptr<Run>> Start(const RunOptions& options,
                                       RunObserver observer) const override {
    {
      std::lock_guard lock(script_->mutex);
      if (script_->refuse) {
        return HttpError{.status = 429, .message = "The queue is full.", .code = "queue_full"};
      }
      ++(options.background ? script_->background : script_->started);
      script_->changed.notify_all();
    }
    return std::unique_ptr<Run>(
        std::make_unique<FakeRun>(script_, options.background, std::move(observer)));
  }

 private:
  std::shared_ptr<Script> script_;
  const bool timeless_;
  json::Value identity_;
};

}  // namespace

Answered<std::shared_ptr<const PreparedRequest>> FakeBackend::Prepare(
    const GenerationRequest& request, const PrepareOptions&) const {
  if (request.prompt == "too long") {
    return HttpError{.status = 400,
                     .message = "Too long.",
                     .param = "prompt",
                     .code = "context_length_exceeded"};
  }
  std::lock_guard lock(script_->mutex);
  ++script_->prepared;
  return std::shared_ptr<const PreparedRequest>(
      std::make_shared<FakePrepared>(script_, !script_->reads_clock));
}

json::Value FakeBackend::Describe() const {
  std::lock_guard lock(script_->mutex);
  json::Value v = json::Value::MakeObject();
  v.Set("isa", script_->isa);
  return v;
}

}  // namespace verbatim::gateway
