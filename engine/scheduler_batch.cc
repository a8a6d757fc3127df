// One step of the scheduler: the forward pass over what was planned, the draws, and what its
// requests hear of it.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "engine/scheduler.h"

namespace verbatim::engine {
namespace {

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

// What is made of one row of logits: the next token of a choice, or the logprob of the one that the
// prompt has there.
struct Scheduler::Draw {
  size_t slice = 0;
  Sequence* choice = nullptr;  // null: of the prompt
  SequencePtr fork{};          // owns `choice` where it begins here
  int32_t prompt_token = 0;
  std::span<float> logits{};
  bool shared = false;  // others are made of the same row
  // Results.
  Result<int32_t> token = -1;
  std::optional<TokenLogprobs> logprobs{};
};

void Scheduler::RunBatch() {
  if (plan_.empty()) return;
  const size_t vocab = model_.config.vocab;
  slices_.clear();
  std::vector<Draw> draws;
  for (const Planned& p : plan_) {
    Sequence& s = *p.sequence;
    const size_t end = s.computed + p.rows, slice_index = slices_.size();
    const size_t first_scored = s.scores() ? std::min(std::max(s.computed, s.scored), end) : end;
    Slice& slice = slices_.emplace_back();
    slice.tokens = std::span(s.tokens).subspan(s.computed, p.rows);
    slice.start = s.computed;
    slice.pages = s.pages.bytes;
    slice.logit_rows = end - first_scored;
    for (size_t row = first_scored; row < std::min(end, s.prompt_size - 1); ++row) {
      Draw& draw = draws.emplace_back();
      draw.slice = slice_index;
      draw.prompt_token = s.tokens[row + 1];
    }
    if (end == s.tokens.size()) {
      slice.logit_rows = std::max<size_t>(slice.logit_rows, 1);
      for (uint32_t i = 0; i <= s.to_fork; ++i) {
        Draw& draw = draws.emplace_back();
        draw.slice = slice_index;
        if (i > 0) draw.fork = s.Fork(i);
        draw.choice = i > 0 ? draw.fork.get() : &s;
        draw.shared = s.to_fork > 0;
      }
    }
    counts_.rows += p.rows;
    if (s.tokens.size() == s.prompt_size) counts_.prompt_rows += p.rows;
  }
  forward_.Run(slices_);
  ++counts_.steps;
  if (plan_.size() > 1) ++counts_.shared_steps;

  // A slice's draws are of its rows in order, but that choices share the last one.
  for (size_t i = 0; i < draws.size();) {
    const Slice& slice = slices_[draws[i].slice];
    for (size_t row = 0; i < draws.size() && &slices_[draws[i].slice] == &slice; ++i) {
      if (!slice.fault) draws[i].logits = slice.logits.subspan(row * vocab, vocab);
      row += row + 1 < slice.logit_rows;
    }
  }
  workers_.Run([&](uint32_t worker) {
    const Range part = PartOf(draws.size(), 1, worker, workers_.size());
    for (size_t i = part.begin; i < part.end; ++i) {
      if (draws[i].logits.empty()) continue;
      Compute(draws[i], scratch_[worker].sampling, scratch_[worker].logits);
    }
  });

  for (size_t slice = 0, first = 0; slice < plan_.size(); ++slice) {
    size_t last = first;
    while (last < draws.size() && draws[last].slice == slice) ++last;
    Deliver(slice, std::span(draws).subspan(first, last - first));
    first = last;
  }
  for (SequencePtr& fork : forks_) {
    Sequence& s = *fork;
    const auto place = std::find_if(running_.begin(), running_.end(),
                                    [&s](const SequencePtr& o) { return Before(s, *o); });
    running_.insert(place, std::move(fork));
  }
  forks_.clear();
  forks_given_ = 0;
}

void Scheduler::Compute(Draw& draw, kernels::SamplingScratch& scratch, std::vector<float>& copy) {
  std::span<float> logits = draw.logits;
  if (draw.choice == nullptr) {
    const Sequence& s = *plan_[draw.slice].sequence;
    draw.logprobs = LogprobsOf(ops_, logits, draw.prompt_token, *s.request->asked.logprobs);
    return;
  }
  Sequence& s = *draw.choice;
  if (draw.shared) {  // penalties and bias change it
    copy.assign(logits.begin(), logits.end());
    logits = copy;
  }
  draw.token = s.sampler.Next(ops_, logits, s.tokens.size(), scratch);
  if (draw.token && s.request->asked.logprobs) {
    draw.logprobs = LogprobsOf(ops_, logits, *draw.token, *s.request->asked.logprobs);
  }
}

void Scheduler::Deliver(size_t slice, std::span<Draw> draws) {
  Sequence& s = *plan_[slice].sequence;
  Request& request = *s.request;
  const Slice& result = slices_[slice];
  s.computed += plan_[slice].rows;
  if (request.finished) return;  // by another of its sequences
  if (result.fault) {
    Error error{Code::kNumericFault, "a value left the range of the arithmetic (" +
                                         engine::Describe(result.fault) + ")"};
    return EndRequest(request, Finish::Outcome::kFault, std::move(error));
  }
  for (const Draw& draw : draws) {
    if (draw.choice == nullptr || draw.token) continue;
    return EndRequest(request, Finish::Outcome::kFault, draw.token.error());
  }
  pages_.Remember(s.pages, s.tokens, s.computed);
  // Pages first: a choice that is complete gives its own back.
  for (Draw& draw : draws) {
    if (draw.fork) draw.fork->running = GivePlace(s, *draw.fork);
  }
  s.to_fork = draws.empty() || draws.back().choice == nullptr ? s.to_fork : 0;
  for (Draw& draw : draws) {
    if (draw.choice == nullptr) {
      DeliverPrompt(s, *std::move(draw.logprobs));
    } else {
      DeliverToken(*draw.choice, draw, result.digest);
    }
  }
  if (s.scores_only() && s.computed == s.goal()) EndScored(s);
  for (Draw& draw : draws) {
    if (!draw.fork || draw.fork->ended) continue;
    if (draw.fork->running) {
      forks_.push_back(std::move(draw.fork));
    } else {
      queue_.Push(std::move(draw.fork));
    }
  }
}

// In the batch, with what `from` has computed.
bool Scheduler::GivePlace(const Sequence& from, Sequence& fork) {
  if (running_.size() + forks_given_ >= limits_.max_batch) return false;
  if (!pages_.Fork(from.pages, from.computed, fork.pages)) return false;
  fork.computed = from.computed;
  ++fork.tenant->running;
  ++forks_given_;
  return true;
}

void Scheduler::DeliverPrompt(Sequence& s, TokenLogprobs logprobs) {
  ++s.scored;
  if (!s.request->callbacks.on_prompt_token) return;
  s.request->callbacks.on_prompt_token(
      {s.prompt, static_cast<uint32_t>(s.scored), std::move(logprobs)});
}

void Scheduler::DeliverToken(Sequence& s, const Draw& draw, const LogitsDigest& digest) {
  Request& request = *s.request;
  const int32_t token = *draw.token;
  s.tokens.push_back(token);
  s.chain = LogitsChainNext(s.chain, digest);
  ++request.generated_tokens;
  ++counts_.sampled_tokens;
  TokenEvent event{s.index(), token, digest, s.text.Push(TextOf(tokenizer_, token)), draw.logprobs};
  const bool ended = !request.asked.ignore_eos && tokenizer_.IsEnd(token);
  const bool last = ended || s.tokens.size() >= s.end_size;
  if (last) event.text += s.text.Finish();
  if (request.callbacks.on_token) request.callbacks.on_token(event);
  if (ended || s.text.stopped()) {
    EndChoice(s, FinishReason::kStop);
  } else if (last) {
    EndChoice(s, FinishReason::kLength);
  }
}

void Scheduler::EndChoice(Sequence& s, FinishReason reason) {
  s.ended = true;
  any_finished_ = true;
  Leave(s);
  Request& request = *s.request;
  if (request.callbacks.on_choice_finish) {
    ChoiceFinish finish{s.index(), reason, static_cast<uint32_t>(s.tokens.size() - s.prompt_size)};
    if (s.text.stopped()) finish.stop = s.text.stop();
    finish.logits_chain = s.chain;
    request.callbacks.on_choice_finish(finish);
  }
  if (--request.open_choices == 0) EndRequest(request, Finish::Outcome::kComplete);
}

// A prompt whose choices have no tokens.
void Scheduler::EndScored(Sequence& s) {
  for (; s.choice < s.request->asked.choices; ++s.choice) EndChoice(s, FinishReason::kLength);
}

void Scheduler::EndRequest(Request& request, Finish::Outcome outcome, Error error) {
  if (request.finished) return;
  request.finished = true;
  any_finished_ = true;
  if (!request.begun) {
    std::lock_guard lock(mutex_);
    Unqueue(request);
  }
  if (!request.callbacks.on_finish) return;
  request.callbacks.on_finish(
      {outcome, std::move(error), request.prompt_tokens, request.generated_tokens});
}

void Scheduler::DropEnded() {
  if (!std::exchange(any_finished_, false)) return;
  const auto is_over = [this](Sequence& s) {
    if (!s.ended && !s.request->finished) return false;
    Leave(s);
    return true;
  };
  std::erase_if(running_, [&](const SequencePtr& s) { return is_over(*s); });
  queue_.EraseIf(is_over);
}

}  // namespace verbatim::engine
