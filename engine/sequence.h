// What the scheduler knows of a request and of its sequences: one for each choice of each prompt.
// The choices of a prompt are one sequence until its first tokens are drawn. Of the engine's thread
// alone.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "engine/engine.h"
#include "engine/fair_queue.h"
#include "engine/prefix_cache.h"
#include "engine/sampler.h"
#include "engine/text_stream.h"

namespace verbatim::engine {

struct Request {
  uint64_t id = 0;
  GenerateRequest asked;  // the prompts have moved on to the sequences
  GenerateCallbacks callbacks;
  uint32_t prompt_tokens = 0;
  uint32_t generated_tokens = 0;
  size_t open_choices = 0;
  bool begun = false;     // it had a place in the batch
  bool finished = false;  // on_finish was called: its sequences go
};

struct Sequence {
  // max_tokens: of asked, as far as the context goes.
  Sequence(std::shared_ptr<Request> of, uint32_t prompt_index, std::vector<int32_t> prompt_tokens,
           uint32_t max_tokens)
      : request(std::move(of)),
        prompt(prompt_index),
        tokens(std::move(prompt_tokens)),
        prompt_size(tokens.size()),
        end_size(tokens.size() + max_tokens),
        to_fork(request->asked.choices - 1),
        sampler(request->asked.sampling, tokens),
        text(request->asked.stop),
        chain(LogitsChainStart()) {}

  // Choice `number` of the same prompt, before its first token.
  SequencePtr Fork(uint32_t number) const {
    auto other = std::make_unique<Sequence>(
        request, prompt, std::vector(tokens.begin(), tokens.begin() + ptrdiff_t(prompt_size)),
        static_cast<uint32_t>(end_size - prompt_size));
    SamplingParams params = request->asked.sampling;
    params.stream += number;
    other->sampler = Sampler(params, other->tokens);
    other->choice = number;
    other->to_fork = 0;
    other->scored = prompt_size - 1;
    other->tenant = tenant;
    other->pages = PrefixCache::Pages(pages.scope);
    return other;
  }

  bool scores_only() const { return end_size == prompt_size; }
  // Logits of the prompt are wanted from row `scored` to the one before its last.
  bool scores() const { return request->asked.prompt_logprobs && scored + 1 < prompt_size; }
  // Rows to compute until a token is drawn or all is done.
  size_t goal() const { return scores_only() ? prompt_size - 1 : tokens.size(); }
  size_t pending() const { return goal() - computed; }
  // Rows that need not be computed if their keys and values are there already.
  size_t reusable() const { return scores() ? scored : goal() - 1; }
  // Its number within the request.
  uint32_t index() const { return prompt * request->asked.choices + choice; }

  std::shared_ptr<Request> request;
  uint32_t prompt;      // which of the request's
  uint32_t choice = 0;  // which of the prompt's
  Tenant* tenant = nullptr;
  std::vector<int32_t> tokens;  // the prompt and what was drawn
  size_t prompt_size;
  size_t end_size;   // tokens.size() at which max_tokens or the context ends it
  uint32_t to_fork;  // choices that begin where this one does
  Sampler sampler;
  TextStream text;
  Digest chain;
  PrefixCache::Pages pages;
  size_t computed = 0;   // of tokens: in the pages
  size_t scored = 0;     // of the prompt: tokens whose logprobs were given, but for the first
  bool running = false;  // has a place in the batch
  bool ended = false;    // its choice is complete
};

// The order in which sequences count.
inline bool Before(const Sequence& a, const Sequence& b) {
  const auto order = [](const Sequence& s) {
    return std::tuple(s.request->asked.low_priority, s.request->id, s.prompt, s.choice);
  };
  return order(a) < order(b);
}

}  // namespace verbatim::engine
