#include "engine/scheduler.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"

namespace verbatim::engine {
namespace {

constexpr size_t kMaxStops = 64;
constexpr size_t kMaxStopBytes = 4096;

size_t PagesFor(size_t tokens) {
  return (tokens + KvCache::kPageTokens - 1) / KvCache::kPageTokens;
}

Error Invalid(const std::string& what) { return Error{Code::kInvalid, what}; }

// The bytes of a token in an answer: control tokens have none.
std::string_view TextOf(const Tokenizer& tokenizer, int32_t token) {
  switch (tokenizer.type(token)) {
    case TokenType::kNormal:
    case TokenType::kUserDefined:
    case TokenType::kByte:
      return tokenizer.IsEnd(token) ? std::string_view() : tokenizer.Bytes(token);
    case TokenType::kUnknown:
    case TokenType::kControl:
    case TokenType::kUnused:
      return {};
  }
  return {};
}

}  // namespace

Scheduler::Sequence::Sequence(uint64_t the_id, GenerateRequest request,
                              GenerateCallbacks the_callbacks)
    : id(the_id),
      callbacks(std::move(the_callbacks)),
      tokens(std::move(request.prompt)),
      prompt_size(tokens.size()),
      end_size(tokens.size() + request.max_tokens),
      ignore_eos(request.ignore_eos),
      low_priority(request.low_priority),
      sampler(request.sampling, tokens),
      text(std::move(request.stop)),
      chain(LogitsChainStart()) {}

Scheduler::Scheduler(const Model& model, const Tokenizer& tokenizer, const kernels::Ops& ops,
                     KvCache cache, WorkerPool& workers, const Limits& limits)
    : model_(model),
      tokenizer_(tokenizer),
      ops_(ops),
      cache_(std::move(cache)),
      workers_(workers),
      limits_(limits),
      forward_(model, ops, cache_, workers),
      scratch_(workers.size()) {
  CHECK(limits.context_length <= cache_.capacity_tokens());
  CHECK(limits.max_batch > 0 && limits.prefill_chunk > 0);
  for (kernels::SamplingScratch& s : scratch_) s.Resize(model.config.vocab);
  thread_ = std::thread([this] { Loop(); });
}

Scheduler::~Scheduler() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

Status Scheduler::Check(const GenerateRequest& request) const {
  const uint32_t vocab = model_.config.vocab;
  if (request.prompt.empty()) return Invalid("prompt: is empty; give at least one token");
  if (request.prompt.size() >= limits_.context_length) {
    return Invalid("prompt: has " + std::to_string(request.prompt.size()) +
                   " tokens; the context of " + std::to_string(limits_.context_length) +
                   " must hold them and one more");
  }
  for (const int32_t id : request.prompt) {
    if (id < 0 || static_cast<uint32_t>(id) >= vocab) {
      return Invalid("prompt: token " + std::to_string(id) + " is not in the vocabulary of " +
                     std::to_string(vocab));
    }
  }
  if (request.stop.size() > kMaxStops) {
    return Invalid("stop: at most " + std::to_string(kMaxStops) + " strings are allowed");
  }
  for (const std::string& s : request.stop) {
    if (s.empty() || s.size() > kMaxStopBytes || !IsUtf8(s)) {
      return Invalid("stop: each string must be UTF-8 of 1 to " + std::to_string(kMaxStopBytes) +
                     " bytes");
    }
  }
  return CheckSamplingParams(request.sampling, vocab);
}

Result<uint64_t> Scheduler::Submit(GenerateRequest request, GenerateCallbacks callbacks) {
  if (Status s = Check(request); !s.ok()) return s.error();
  const auto room = static_cast<uint32_t>(limits_.context_length - request.prompt.size());
  request.max_tokens = request.max_tokens == 0 ? room : std::min(request.max_tokens, room);
  auto sequence = std::make_unique<Sequence>(0, std::move(request), std::move(callbacks));
  uint64_t id = 0;
  {
    std::lock_guard lock(mutex_);
    if (stopping_) return Error{Code::kUnavailable, "the engine is stopping"};
    if (published_.waiting + submitted_.size() >= limits_.queue_limit) {
      return Error{Code::kUnavailable, "the engine's queue is full; try again later"};
    }
    id = sequence->id = next_id_++;
    submitted_.push_back(std::move(sequence));
  }
  wake_.notify_one();
  return id;
}

void Scheduler::Cancel(uint64_t id) {
  {
    std::lock_guard lock(mutex_);
    cancelled_.insert(id);
  }
  wake_.notify_one();
}

EngineStats Scheduler::stats() const {
  std::lock_guard lock(mutex_);
  EngineStats stats = published_;
  stats.waiting += static_cast<uint32_t>(submitted_.size());
  return stats;
}

void Scheduler::Loop() {
  while (AwaitWork()) {
    TakeSubmitted();
    Admit();
    Publish();
    PlanBatch();
    RunBatch();
    std::erase_if(running_, [](const SequencePtr& s) { return s->ended; });
    Publish();
  }
  TakeSubmitted();
  for (const SequencePtr& s : running_) End(*s, FinishReason::kCancelled);
  for (const SequencePtr& s : waiting_) End(*s, FinishReason::kCancelled);
}

bool Scheduler::AwaitWork() {
  std::unique_lock lock(mutex_);
  wake_.wait(lock, [this] {
    return stopping_ || !submitted_.empty() || !cancelled_.empty() || !running_.empty() ||
           !waiting_.empty();
  });
  return !stopping_;
}

void Scheduler::TakeSubmitted() {
  std::vector<SequencePtr> submitted;
  std::unordered_set<uint64_t> cancelled;
  {
    std::lock_guard lock(mutex_);
    submitted.swap(submitted_);
    cancelled.swap(cancelled_);
    published_.waiting += static_cast<uint32_t>(submitted.size());
  }
  for (SequencePtr& s : submitted) {
    const auto low = std::find_if(waiting_.begin(), waiting_.end(),
                                  [](const SequencePtr& w) { return w->low_priority; });
    waiting_.insert(s->low_priority ? waiting_.end() : low, std::move(s));
  }
  if (cancelled.empty()) return;
  const auto end_cancelled = [&](const SequencePtr& s) {
    if (!cancelled.contains(s->id)) return false;
    End(*s, FinishReason::kCancelled);
    return true;
  };
  std::erase_if(running_, end_cancelled);
  std::erase_if(waiting_, end_cancelled);
}

void Scheduler::Admit() {
  while (!waiting_.empty()) {
    const Sequence& next = *waiting_.front();
    if (running_.size() >= limits_.max_batch || !HasRoomFor(next)) {
      // A normal request takes the place of one of low priority; else it waits for its turn.
      if (next.low_priority || running_.empty() || !running_.back()->low_priority) return;
      PreemptLast();
      continue;
    }
    const auto place =
        std::find_if(running_.begin(), running_.end(), [&next](const SequencePtr& s) {
          return std::tuple(next.low_priority, next.id) < std::tuple(s->low_priority, s->id);
        });
    running_.insert(place, std::move(waiting_.front()));
    waiting_.pop_front();
  }
}

// Whether the free pages would hold the sequence's tokens, and one more page for each sequence that
// runs: so that it is not preempted at once.
bool Scheduler::HasRoomFor(const Sequence& sequence) const {
  if (running_.empty()) return true;
  size_t need = PagesFor(sequence.tokens.size() + 1);
  for (const SequencePtr& s : running_) need += PagesFor(s->tokens.size()) + 1 - s->pages.size();
  return need <= cache_.free_pages();
}

void Scheduler::PreemptLast() {
  SequencePtr sequence = std::move(running_.back());
  running_.pop_back();
  cache_.Release(sequence->pages);
  sequence->computed = 0;
  ++counts_.preempted;
  const auto place = std::find_if(waiting_.begin(), waiting_.end(), [&](const SequencePtr& s) {
    return std::tuple(sequence->low_priority, sequence->id) < std::tuple(s->low_priority, s->id);
  });
  waiting_.insert(place, std::move(sequence));
}

// Rows for each running sequence: one that stands at its end gets its one row; the others share
// prefill_chunk rows in their order. Where pages run out, the last of running_ gives up its own.
void Scheduler::PlanBatch() {
  plan_.clear();
  size_t budget = limits_.prefill_chunk;
  for (size_t i = 0; i < running_.size(); ++i) {
    Sequence& s = *running_[i];
    const size_t pending = s.tokens.size() - s.computed;
    const size_t rows = pending == 1 ? 1 : std::min(pending, budget);
    if (rows == 0) continue;
    while (i < running_.size() && !cache_.Grow(s.pages, s.computed + rows)) PreemptLast();
    if (i == running_.size()) break;  // it was the last itself
    if (pending > 1) budget -= rows;
    plan_.push_back({&s, rows});
  }
}

void Scheduler::RunBatch() {
  if (plan_.empty()) return;
  slices_.clear();
  std::vector<size_t> sampled;  // indices of the slices to sample from
  for (const Planned& p : plan_) {
    const Sequence& s = *p.sequence;
    const bool at_end = s.computed + p.rows == s.tokens.size();
    if (at_end) sampled.push_back(slices_.size());
    Slice& slice = slices_.emplace_back();
    slice.tokens = std::span(s.tokens).subspan(s.computed, p.rows);
    slice.start = s.computed;
    slice.pages = s.pages;
    slice.logit_rows = at_end ? 1 : 0;
    if (s.tokens.size() == s.prompt_size) counts_.prompt_rows += p.rows;
  }
  forward_.Run(slices_);
  ++counts_.steps;
  if (plan_.size() > 1) ++counts_.shared_steps;

  std::vector<Result<int32_t>> tokens(slices_.size(), Result<int32_t>(-1));
  workers_.Run([&](uint32_t worker) {
    const Range part = PartOf(sampled.size(), 1, worker, workers_.size());
    for (size_t j = part.begin; j < part.end; ++j) {
      const size_t i = sampled[j];
      if (slices_[i].fault) continue;
      Sequence& s = *plan_[i].sequence;
      tokens[i] = s.sampler.Next(ops_, slices_[i].logits, s.tokens.size(), scratch_[worker]);
    }
  });

  for (size_t i = 0; i < plan_.size(); ++i) {
    Sequence& s = *plan_[i].sequence;
    s.computed += plan_[i].rows;
    if (slices_[i].fault) {
      End(s, FinishReason::kFault,
          Error{Code::kNumericFault,
                "a value left the range of the arithmetic (" + Describe(slices_[i].fault) + ")"});
    } else if (!tokens[i]) {
      End(s, FinishReason::kFault, tokens[i].error());
    } else if (slices_[i].logit_rows > 0) {
      Deliver(s, *tokens[i], slices_[i].digest);
    }
  }
}

void Scheduler::Deliver(Sequence& s, int32_t token, const LogitsDigest& digest) {
  s.tokens.push_back(token);
  s.chain = LogitsChainNext(s.chain, digest);
  ++counts_.sampled_tokens;
  TokenEvent event{token, digest, s.text.Push(TextOf(tokenizer_, token))};
  const bool ended = !s.ignore_eos && tokenizer_.IsEnd(token);
  const bool last = ended || s.tokens.size() >= s.end_size;
  if (last) event.text += s.text.Finish();
  if (s.callbacks.on_token) s.callbacks.on_token(event);
  if (ended || s.text.stopped()) {
    End(s, FinishReason::kStop);
  } else if (last) {
    End(s, FinishReason::kLength);
  }
}

void Scheduler::End(Sequence& s, FinishReason reason, Error error) {
  cache_.Release(s.pages);
  s.ended = true;
  if (!s.callbacks.on_finish) return;
  Finish finish;
  finish.reason = reason;
  finish.error = std::move(error);
  finish.prompt_tokens = static_cast<uint32_t>(s.prompt_size);
  finish.generated_tokens = static_cast<uint32_t>(s.tokens.size() - s.prompt_size);
  if (s.text.stopped()) finish.stop = s.text.stop();
  finish.logits_chain = s.chain;
  s.callbacks.on_finish(finish);
}

void Scheduler::Publish() {
  counts_.running = static_cast<uint32_t>(running_.size());
  counts_.waiting = static_cast<uint32_t>(waiting_.size());
  counts_.kv_pages = static_cast<uint32_t>(cache_.page_count());
  counts_.kv_pages_used = static_cast<uint32_t>(cache_.page_count() - cache_.free_pages());
  std::lock_guard lock(mutex_);
  published_ = counts_;
}

}  // namespace verbatim::engine
