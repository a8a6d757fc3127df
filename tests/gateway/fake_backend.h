// A backend that says what a test scripts, and waits where a test wants to look around.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "gateway/backend.h"
#include "gateway/wire/openai.h"

namespace verbatim::gateway {

// Shared by the backend, its runs and the test. All members under `mutex`.
struct Script {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::string> texts = {"Hello", ", ", "", "wörld"};  // one token each
  std::string finish_reason = "stop";
  std::string isa = "avx512";       // of the description, not of the identity
  size_t gate = SIZE_MAX;           // runs wait before this token until it is raised
  size_t fail_at = SIZE_MAX;        // runs fail before this token
  bool refuse = false;              // Start gives 429
  bool background_differs = false;  // the third token's digest, of background runs
  bool reads_clock = false;         // while requests are prepared
  int prepared = 0, started = 0, background = 0, cancelled = 0, ended = 0;

  void OpenGate() {
    std::lock_guard lock(mutex);
    gate = SIZE_MAX;
    changed.notify_all();
  }
  template <typename F>
  void WaitUntil(F condition) {
    std::unique_lock lock(mutex);
    changed.wait(lock, condition);
  }
};

class FakeBackend : public Backend {
 public:
  explicit FakeBackend(std::shared_ptr<Script> script) : script_(std::move(script)) {}
  Answered<GenerationRequest> Decode(Endpoint endpoint, const json::Value& body) const override {
    return gateway::Decode(endpoint, body);
  }
  Answered<std::shared_ptr<const PreparedRequest>> Prepare(
      const GenerationRequest& request, const PrepareOptions& options) const override;
  json::Value Describe() const override;

 private:
  std::shared_ptr<Script> script_;
};

}  // namespace verbatim::gateway
