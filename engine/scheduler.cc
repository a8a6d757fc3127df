#include "engine/scheduler.h"

#include <algorithm>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"
#include "base/clock.h"

namespace verbatim::engine {
namespace {

constexpr size_t kMaxStops = 64;
constexpr size_t kMaxStopBytes = 4096;
constexpr size_t kMaxChoices = 1024;  // of a request, over all its prompts
constexpr uint32_t kMaxLogprobs = 100;
constexpr size_t kQueueOfAll = 8;     // times the limit of one tenant
constexpr size_t kBegunKept = 64;     // for the pace of the queue
constexpr size_t kMaxLogitRows = 64;  // of prompts, in one step: their logits take memory

size_t PagesFor(size_t tokens) {
  return (tokens + KvCache::kPageTokens - 1) / KvCache::kPageTokens;
}

Error Invalid(const std::string& what) { return Error{Code::kInvalid, what}; }

Status CheckPrompt(const std::vector<int32_t>& prompt, uint32_t context, uint32_t vocab) {
  if (prompt.empty()) return Invalid("prompt: is empty; give at least one token");
  if (prompt.size() >= context) {
    return Invalid("prompt: has " + std::to_string(prompt.size()) + " tokens; the context of " +
                   std::to_string(context) + " must hold them and one more");
  }
  for (const int32_t id : prompt) {
    if (id < 0 || static_cast<uint32_t>(id) >= vocab) {
      return Invalid("prompt: token " + std::to_string(id) + " is not in the vocabulary of " +
                     std::to_string(vocab));
    }
  }
  return {};
}

std::pair<bool, std::string> TenantKey(const Request& r) {
  return {r.asked.low_priority, r.asked.tenant};
}

}  // namespace

Scheduler::Scheduler(const Model& model, const Tokenizer& tokenizer, const kernels::Ops& ops,
                     KvCache cache, WorkerPool& workers, const Limits& limits)
    : model_(model),
      tokenizer_(tokenizer),
      ops_(ops),
      cache_(std::move(cache)),
      pages_(cache_, limits.prefix_cache),
      workers_(workers),
      limits_(limits),
      forward_(model, ops, cache_, workers),
      scratch_(workers.size()) {
  CHECK(limits.context_length <= cache_.capacity_tokens());
  CHECK(limits.max_batch > 0 && limits.prefill_chunk > 0);
  for (Scratch& s : scratch_) s.sampling.Resize(model.config.vocab);
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
  if (request.prompts.empty()) return Invalid("prompt: is missing");
  for (const std::vector<int32_t>& prompt : request.prompts) {
    if (Status s = CheckPrompt(prompt, limits_.context_length, vocab); !s.ok()) return s;
  }
  if (request.choices == 0 || request.choices > kMaxChoices / request.prompts.size()) {
    return Invalid("n: a request may have " + std::to_string(kMaxChoices) +
                   " choices at most, over all its prompts");
  }
  if (request.logprobs.value_or(0) > kMaxLogprobs) {
    return Invalid("logprobs: at most " + std::to_string(kMaxLogprobs));
  }
  if (request.prompt_logprobs && !request.logprobs) {
    return Invalid("logprobs: is needed for those of the prompt");
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

Result<uint64_t> Scheduler::Submit(GenerateRequest asked, GenerateCallbacks callbacks) {
  if (Status s = Check(asked); !s.ok()) return s.error();
  const auto request = std::make_shared<Request>();
  std::vector<std::vector<int32_t>> prompts = std::exchange(asked.prompts, {});
  request->asked = std::move(asked);
  request->callbacks = std::move(callbacks);
  request->open_choices = prompts.size() * request->asked.choices;
  Submitted submitted{request, {}};
  for (std::vector<int32_t>& prompt : prompts) {
    const auto size = static_cast<uint32_t>(prompt.size());
    request->prompt_tokens += size;
    const uint32_t room = limits_.context_length - size;
    submitted.sequences.push_back(
        std::make_unique<Sequence>(request, static_cast<uint32_t>(submitted.sequences.size()),
                                   std::move(prompt), std::min(request->asked.max_tokens, room)));
  }
  {
    std::lock_guard lock(mutex_);
    if (stopping_) return Error{Code::kUnavailable, "the engine is stopping"};
    uint32_t& of_tenant = queued_of_[TenantKey(*request)];
    if (of_tenant >= limits_.queue_limit || queued_ >= limits_.queue_limit * kQueueOfAll) {
      return Error{Code::kUnavailable, "the engine's queue is full; try again later"};
    }
    if (queued_++ == 0) queue_since_micros_ = MonotonicMicros();
    ++of_tenant;
    request->id = next_id_++;
    submitted_.push_back(std::move(submitted));
  }
  wake_.notify_one();
  return request->id;
}

void Scheduler::Unqueue(const Request& request) {
  const auto of_tenant = queued_of_.find(TenantKey(request));
  if (--of_tenant->second == 0) queued_of_.erase(of_tenant);
  if (--queued_ == 0) began_micros_.clear();
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
  for (const Submitted& s : submitted_) stats.waiting += static_cast<uint32_t>(s.sequences.size());
  stats.queued = queued_;
  if (queued_ > 0) {
    const size_t begun = began_micros_.size();
    const double micros = static_cast<double>(MonotonicMicros() - queue_since_micros_);
    stats.queue_seconds = micros * 1e-6 / static_cast<double>(std::max<size_t>(begun, 1)) * queued_;
  }
  return stats;
}

void Scheduler::Loop() {
  while (AwaitWork()) {
    TakeSubmitted();
    Admit();
    Publish();
    PlanBatch();
    RunBatch();
    DropEnded();
    Publish();
  }
  TakeSubmitted();
  for (const SequencePtr& s : running_) EndRequest(*s->request, Finish::Outcome::kCancelled);
  queue_.ForEach([this](Sequence& s) { EndRequest(*s.request, Finish::Outcome::kCancelled); });
  DropEnded();
}

bool Scheduler::AwaitWork() {
  std::unique_lock lock(mutex_);
  wake_.wait(lock, [this] {
    return stopping_ || !submitted_.empty() || !cancelled_.empty() || !running_.empty() ||
           queue_.size() > 0;
  });
  return !stopping_;
}

void Scheduler::TakeSubmitted() {
  std::vector<Submitted> submitted;
  std::unordered_set<uint64_t> cancelled;
  {
    std::lock_guard lock(mutex_);
    submitted.swap(submitted_);
    cancelled.swap(cancelled_);
    for (const Submitted& s : submitted) {
      published_.waiting += static_cast<uint32_t>(s.sequences.size());
    }
  }
  for (Submitted& s : submitted) {
    const GenerateRequest& asked = s.request->asked;
    Tenant& tenant = queue_.Of(asked.tenant, asked.low_priority);
    const uint64_t scope = pages_.ScopeId(asked.tenant);
    for (SequencePtr& sequence : s.sequences) {
      sequence->tenant = &tenant;
      sequence->pages = PrefixCache::Pages(scope);
      queue_.Push(std::move(sequence));
    }
  }
  if (cancelled.empty()) return;
  const auto end_cancelled = [&](Sequence& s) {
    if (!cancelled.contains(s.request->id)) return;
    EndRequest(*s.request, Finish::Outcome::kCancelled);
  };
  for (const SequencePtr& s : running_) end_cancelled(*s);
  queue_.ForEach(end_cancelled);
  DropEnded();
}

void Scheduler::Admit() {
  while (Tenant* tenant = queue_.Next()) {
    const Sequence& next = *tenant->waiting.front();
    if (running_.size() < limits_.max_batch && HasRoomFor(next)) {
      Begin(queue_.Pop(*tenant));
    } else if (Sequence* other = MayGiveWayTo(next)) {
      Preempt(*other);
    } else {
      return;
    }
  }
}

// Whether what is left would hold the sequence's tokens, and one more page for each sequence that
// runs: so that none is preempted at once.
bool Scheduler::HasRoomFor(const Sequence& sequence) const {
  if (running_.empty()) return true;
  const PrefixCache::Found found =
      pages_.Find(sequence.pages.scope, sequence.tokens, sequence.reusable());
  size_t need = PagesFor(sequence.tokens.size() + 1) - found.pages_in_use;
  for (const SequencePtr& s : running_) {
    need += PagesFor(s->tokens.size()) + 1 - s->pages.bytes.size();
  }
  return need <= pages_.available();
}

void Scheduler::Begin(SequencePtr sequence) {
  Sequence& s = *sequence;
  Request& request = *s.request;
  ++s.tenant->running;
  s.running = true;
  running_.insert(std::find_if(running_.begin(), running_.end(),
                               [&s](const SequencePtr& other) { return Before(s, *other); }),
                  std::move(sequence));
  if (!request.begun) {
    request.begun = true;
    std::lock_guard lock(mutex_);
    began_micros_.push_back(MonotonicMicros());
    if (began_micros_.size() > kBegunKept) {
      queue_since_micros_ = began_micros_.front();
      began_micros_.pop_front();
    }
    Unqueue(request);
  }
  if (s.scores_only() && !s.scores()) return EndScored(s);
  if (s.tokens.size() == s.prompt_size) counts_.prompt_tokens += s.prompt_size;
  Reuse(s);
}

void Scheduler::Reuse(Sequence& s) {
  if (s.computed != s.pages.known * KvCache::kPageTokens) return;
  const size_t covered = pages_.Extend(s.pages, s.tokens, s.reusable());
  if (s.tokens.size() == s.prompt_size) counts_.prefix_hit_tokens += covered - s.computed;
  s.computed = covered;
}

Sequence* Scheduler::Largest() const {
  if (running_.empty()) return nullptr;
  if (running_.back()->tenant->low_priority) return running_.back().get();
  Sequence* largest = nullptr;
  for (auto s = running_.rbegin(); s != running_.rend(); ++s) {
    if (largest == nullptr || (*s)->tenant->running > largest->tenant->running) largest = s->get();
  }
  return largest;
}

// A normal request takes the place of one of low priority, and that of a tenant that has at least
// two more: no exchange makes another one necessary.
Sequence* Scheduler::MayGiveWayTo(const Sequence& next) const {
  Sequence* other = Largest();
  if (other == nullptr || next.tenant->low_priority) return nullptr;
  if (other->tenant->low_priority) return other;
  return other->tenant->running >= next.tenant->running + 2 ? other : nullptr;
}

void Scheduler::Preempt(Sequence& sequence) {
  const auto place = std::find_if(running_.begin(), running_.end(),
                                  [&](const SequencePtr& s) { return s.get() == &sequence; });
  CHECK(place != running_.end());
  std::erase_if(plan_, [&](const Planned& p) { return p.sequence == &sequence; });
  Leave(sequence);
  sequence.computed = 0;
  ++counts_.preempted;
  queue_.Push(std::move(*place));
  running_.erase(place);
}

void Scheduler::Leave(Sequence& sequence) {
  pages_.Release(sequence.pages);
  if (sequence.running) --sequence.tenant->running;
  sequence.running = false;
}

// Pages for that many of the sequence's tokens; where there are none left, others give way. False:
// it had to give way itself. The oldest one never does, and alone it fits.
bool Scheduler::MakeRoom(Sequence& sequence, size_t tokens) {
  while (!pages_.Grow(sequence.pages, tokens)) {
    Sequence* other = Largest();
    Preempt(*other);
    if (other == &sequence) return false;
  }
  return true;
}

void Scheduler::PlanBatch() {
  plan_.clear();
  std::vector<Sequence*> ready, prefill;
  for (const SequencePtr& s : running_) {
    if (s->ended) continue;
    (s->pending() == 1 && !s->scores() ? ready : prefill).push_back(s.get());
  }
  for (Sequence* s : ready) {
    if (!s->running || !MakeRoom(*s, s->computed + 1)) continue;
    plan_.push_back({s, 1});
    ++s->tenant->served;
  }
  // Tenants take turns at what is left.
  size_t budget = limits_.prefill_chunk, logit_budget = kMaxLogitRows;
  while (budget > 0 && !prefill.empty()) {
    const auto next =
        std::min_element(prefill.begin(), prefill.end(), [](const Sequence* a, const Sequence* b) {
          const auto turn = [](const Sequence& s) {
            return std::pair(s.tenant->low_priority, s.tenant->served);
          };
          return turn(*a) != turn(*b) ? turn(*a) < turn(*b) : Before(*a, *b);
        });
    Sequence& s = **next;
    prefill.erase(next);
    if (!s.running) continue;  // it gave way to another
    Reuse(s);
    const size_t rows = PrefillRows(s, budget, logit_budget);
    if (rows == 0 || !MakeRoom(s, s.computed + rows)) continue;
    plan_.push_back({&s, rows});
    s.tenant->served += rows;
    budget -= rows;
    if (s.scores()) logit_budget -= std::min(rows, logit_budget);
  }
  queue_.Prune();
}

// Chunks end at pages where they can, so that what was computed can be shared.
size_t Scheduler::PrefillRows(Sequence& s, size_t budget, size_t logit_budget) {
  size_t rows = std::min(s.pending(), budget);
  if (s.scores()) rows = std::min(rows, logit_budget + (s.scored - std::min(s.scored, s.computed)));
  if (rows == s.pending()) return rows;
  const size_t end = (s.computed + rows) / KvCache::kPageTokens * KvCache::kPageTokens;
  return end > s.computed ? end - s.computed : rows;
}

void Scheduler::Publish() {
  counts_.running = static_cast<uint32_t>(running_.size());
  counts_.waiting = static_cast<uint32_t>(queue_.size());
  counts_.kv_pages = static_cast<uint32_t>(cache_.page_count());
  counts_.kv_pages_used = static_cast<uint32_t>(cache_.page_count() - pages_.available());
  counts_.kv_pages_cached = static_cast<uint32_t>(pages_.remembered());
  std::lock_guard lock(mutex_);
  published_ = counts_;
}

}  // namespace verbatim::engine
