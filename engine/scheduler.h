// The batch and the one thread that owns it. Every step takes the running sequences, gives each the
// rows it can have (one for a sequence that generates, a chunk of its tokens for one that does not
// stand at its end yet), runs one forward pass, and samples where a sequence's last row was in it.
//
// Since a row's bits depend on its own sequence alone, every decision here is about speed and
// fairness only; a sequence whose pages are needed by others is simply computed again later, with
// equal results.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_set>
#include <vector>

#include "base/result.h"
#include "engine/engine.h"
#include "engine/forward.h"
#include "engine/kv_cache.h"
#include "engine/model.h"
#include "engine/text_stream.h"
#include "engine/tokenizer.h"
#include "engine/worker_pool.h"
#include "kernels/ops.h"
#include "kernels/sampling.h"

namespace verbatim::engine {

class Scheduler {
 public:
  struct Limits {
    uint32_t context_length = 0;  // at most the KV cache's tokens, so that a sequence alone fits
    uint32_t max_batch = 1;
    uint32_t prefill_chunk = 1;
    uint32_t queue_limit = 1;
  };

  // All borrowed but the cache; starts the thread, which from then on is the one that uses
  // `workers`.
  Scheduler(const Model& model, const Tokenizer& tokenizer, const kernels::Ops& ops, KvCache cache,
            WorkerPool& workers, const Limits& limits);
  // Ends every request with kCancelled, then the thread.
  ~Scheduler();

  // As Engine's (engine.h). Any thread.
  Result<uint64_t> Submit(GenerateRequest request, GenerateCallbacks callbacks);
  void Cancel(uint64_t id);
  EngineStats stats() const;

 private:
  // One request. `tokens` is the prompt and what was generated; the first `computed` of them are in
  // the KV cache.
  struct Sequence {
    Sequence(uint64_t id, GenerateRequest request, GenerateCallbacks callbacks);
    uint64_t id;
    GenerateCallbacks callbacks;
    std::vector<int32_t> tokens;
    size_t prompt_size;
    size_t end_size;  // tokens.size() at which max_tokens or the context ends it
    bool ignore_eos;
    bool low_priority;
    Sampler sampler;
    TextStream text;
    Digest chain;
    std::vector<uint8_t*> pages;
    size_t computed = 0;
    bool ended = false;  // on_finish was called; the step takes it out of running_
  };
  using SequencePtr = std::unique_ptr<Sequence>;

  Status Check(const GenerateRequest& request) const;

  // The thread, and its step.
  void Loop();
  bool AwaitWork();      // false: stop
  void TakeSubmitted();  // new requests and cancellations
  void Admit();
  void PlanBatch();
  void RunBatch();
  void Deliver(Sequence& sequence, int32_t token, const LogitsDigest& digest);

  bool HasRoomFor(const Sequence& sequence) const;
  void PreemptLast();  // the last of running_ waits again, without its pages
  void End(Sequence& sequence, FinishReason reason, Error error = {});
  void Publish();

  const Model& model_;
  const Tokenizer& tokenizer_;
  const kernels::Ops& ops_;
  KvCache cache_;
  WorkerPool& workers_;
  const Limits limits_;
  Forward forward_;
  std::vector<kernels::SamplingScratch> scratch_;  // per worker

  // The thread's own. Both in the order in which requests count: normal before low priority, older
  // before younger.
  std::vector<SequencePtr> running_;
  std::deque<SequencePtr> waiting_;
  struct Planned {
    Sequence* sequence;
    size_t rows;
  };
  std::vector<Planned> plan_;
  std::vector<Slice> slices_;
  EngineStats counts_;

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable wake_;
  std::vector<SequencePtr> submitted_;
  std::unordered_set<uint64_t> cancelled_;
  uint64_t next_id_ = 1;
  bool stopping_ = false;
  EngineStats published_;  // `waiting` counts waiting_; submitted_ comes on top

  std::thread thread_;  // last: it uses everything above
};

}  // namespace verbatim::engine
