// The batch and the one thread that owns it. Every step takes the running sequences, gives each the
// rows it can have (first one for each sequence that generates, then chunks of their tokens to
// those that do not stand at their end yet), runs one forward pass, and samples where a sequence's
// last row was in it.
//
// Since a row's bits depend on its own sequence alone, every decision here is about speed and
// fairness only; a sequence whose pages are needed by others is simply computed again later, with
// equal results, or with what the prefix cache still has of it.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/result.h"
#include "engine/engine.h"
#include "engine/fair_queue.h"
#include "engine/forward.h"
#include "engine/kv_cache.h"
#include "engine/model.h"
#include "engine/prefix_cache.h"
#include "engine/sequence.h"
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
    bool prefix_cache = true;
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
  Status Check(const GenerateRequest& request) const;

  // The thread, and its step.
  void Loop();
  bool AwaitWork();      // false: stop
  void TakeSubmitted();  // new requests and cancellations
  void Admit();
  void PlanBatch();
  void RunBatch();

  // Places in the batch.
  bool HasRoomFor(const Sequence& sequence) const;
  void Begin(SequencePtr sequence);
  Sequence* Largest() const;  // of the tenant that runs most, the youngest; of low priority first
  Sequence* MayGiveWayTo(const Sequence& next) const;
  void Preempt(Sequence& sequence);  // it waits again, without its pages
  bool MakeRoom(Sequence& sequence, size_t tokens);
  void Reuse(Sequence& sequence);  // of what others computed
  size_t PrefillRows(Sequence& sequence, size_t budget, size_t logit_budget);

  // What follows a forward pass.
  struct Draw;
  void Compute(Draw& draw, kernels::SamplingScratch& scratch, std::vector<float>& copy);
  void Deliver(size_t slice, std::span<Draw> draws);
  void DeliverPrompt(Sequence& sequence, TokenLogprobs logprobs);
  void DeliverToken(Sequence& sequence, const Draw& draw, const LogitsDigest& digest);
  bool GivePlace(const Sequence& from, Sequence& fork);

  // Ends.
  void EndChoice(Sequence& sequence, FinishReason reason);
  void EndScored(Sequence& sequence);
  void EndRequest(Request& request, Finish::Outcome outcome, Error error = {});
  void Leave(Sequence& sequence);
  void DropEnded();
  void Unqueue(const Request& request);  // with mutex_
  void Publish();

  const Model& model_;
  const Tokenizer& tokenizer_;
  const kernels::Ops& ops_;
  KvCache cache_;
  PrefixCache pages_;
  WorkerPool& workers_;
  const Limits limits_;
  Forward forward_;
  struct Scratch {
    kernels::SamplingScratch sampling;
    std::vector<float> logits;
  };
  std::vector<Scratch> scratch_;  // per worker

  // The thread's own.
  std::vector<SequencePtr> running_;  // in the order in which they count
  FairQueue queue_;
  struct Planned {
    Sequence* sequence;
    size_t rows;
  };
  std::vector<Planned> plan_;
  std::vector<Slice> slices_;
  std::vector<SequencePtr> forks_;  // that begin in this step, with a place
  size_t forks_given_ = 0;          // places that they and those that ended at once were given
  bool any_finished_ = false;       // since DropEnded
  EngineStats counts_;

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable wake_;
  struct Submitted {
    std::shared_ptr<Request> request;
    std::vector<SequencePtr> sequences;
  };
  std::vector<Submitted> submitted_;
  std::unordered_set<uint64_t> cancelled_;
  std::map<std::pair<bool, std::string>, uint32_t> queued_of_;  // per tenant, as queued_
  uint32_t queued_ = 0;                                         // requests that have not begun
  // Requests that began since a time at which some wait, at most 64.
  std::deque<int64_t> began_micros_;
  int64_t queue_since_micros_ = 0;
  uint64_t next_id_ = 1;
  bool stopping_ = false;
  EngineStats published_;

  std::thread thread_;  // last: it uses everything above
};

}  // namespace verbatim::engine
