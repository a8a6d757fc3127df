// Executes recorded answers again, in the background, behind whatever clients ask for, and puts the
// outcome into the ledger: `verified`, or `diverged` with the first step that differs. Both name
// the entry. An upstream is asked again, and the answers are compared as such: text, finish
// reasons, tool calls, and what it says of its model; ids, times and usage may differ. Before an
// upstream is asked again there is an intent; one that does not come to an end is a `failed` entry.
// One thread, one run at a time; the engine puts it into whatever batch runs by then, so the
// neighbours are others than the first time.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "gateway/recorder.h"
#include "gateway/transcript.h"

namespace verbatim::gateway {

class Metrics;

// An entry and what it recorded.
struct Verification {
  uint64_t entry = 0;
  std::shared_ptr<const Call> call{};  // a request of that fingerprint, prepared
  AnswerHead head{};
  AnswerForm form{};
  Digest output_digest{};
  Transcript recorded{};
  // Where the second execution is there already (a client asked for it): what it made, its entry.
  struct Again {
    Transcript transcript;
    uint64_t entry = 0;
  };
  std::optional<Again> again{};
};

// What the ledger keeps of an entry, for a `call` with its fingerprint. kFailedPrecondition where
// it keeps no answer of this form.
Result<Verification> LoadRecorded(const store::Ledger& ledger, uint64_t entry,
                                  std::shared_ptr<const Call> call);

class Verifier {
 public:
  // Where the answer came from ("" the embedded engine), its model, and how it came out.
  using OnCompared =
      std::function<void(std::string_view upstream, std::string_view model, bool equal)>;
  // Ledger and metrics outlive the verifier.
  Verifier(store::Ledger* ledger, Metrics* metrics, size_t queue_limit, OnCompared compared = {});
  ~Verifier();  // Stop
  Verifier(const Verifier&) = delete;
  Verifier& operator=(const Verifier&) = delete;

  // Any thread; returns at once. Beyond the queue's limit it is dropped, and counted.
  void Offer(Verification verification);
  // True for a share `rate` of calls, at random.
  static bool Draw(double rate);

  size_t backlog() const;  // waiting or being executed
  // Cancels the run of the moment, forgets the rest, and joins the thread. Idempotent.
  void Stop();

 private:
  void Work();
  bool OpenIntent(const Verification& v, std::optional<uint64_t>& intent);
  void Fail(const Verification& v, std::optional<uint64_t> intent, const std::string& cause,
            const std::string& message);
  std::optional<Transcript> Execute(const Verification& v, std::optional<uint64_t> intent);
  void Compare(const Verification& v, const Transcript& again, std::optional<uint64_t> intent);

  store::Ledger* const ledger_;
  Metrics* const metrics_;
  const size_t queue_limit_;
  const OnCompared on_compared_;
  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::deque<Verification> queue_;
  bool working_ = false;
  bool stopping_ = false;
  std::shared_ptr<Run> run_;  // of the moment
  std::thread thread_;
};

}  // namespace verbatim::gateway
