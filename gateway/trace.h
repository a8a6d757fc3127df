// What a run produced, token by token: the one source of every form of an answer. Plain and
// streamed bodies are pure functions of it (wire/openai_answer.h), so it is what entries keep, what
// followers read and what verification compares. Plain values.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/result.h"
#include "gateway/backend.h"

namespace verbatim::gateway {

// One step of an answer: a token of a choice, or that choice's end.
struct TraceEvent {
  uint32_t choice = 0;
  bool end = false;
  int32_t token = 0;                 // of a token:
  std::array<uint8_t, 16> digest{};  // of its logits
  std::string text;                  // may be empty (backend.h, TokenPiece)
  std::string finish_reason;         // of an end:
  Digest chain{};                    // logits chain of the choice
  std::string stop{};                // the stop string that ended it, if one did
  friend bool operator==(const TraceEvent&, const TraceEvent&) = default;
};

struct Trace {
  uint32_t choices = 1;
  uint32_t prompt_tokens = 0;
  std::vector<TraceEvent> events;  // by position within the choice, then choice

  uint64_t Generated() const;  // tokens of all choices
  std::vector<Digest> Chains() const;
};

// Brings pieces that arrive in any order between choices into the order of a trace, each as soon as
// everything before it is known. Not thread-safe.
class TraceOrder {
 public:
  explicit TraceOrder(uint32_t choices) : waiting_(choices), ended_(choices, false) {}
  // Appends to `out` what has its place now.
  void Add(TokenPiece piece, std::vector<TraceEvent>& out);
  void Add(ChoiceEnd end, std::vector<TraceEvent>& out);
  bool complete() const { return open_ended_ == waiting_.size(); }  // all ends are in `out`

 private:
  void Advance(std::vector<TraceEvent>& out);
  struct Waiting {
    std::vector<TraceEvent> events;
    size_t first = 0;  // that still waits
  };
  std::vector<Waiting> waiting_;  // per choice
  std::vector<bool> ended_;       // its end went out
  size_t next_ = 0;               // the choice whose event comes next
  size_t open_ended_ = 0;         // how many of ended_
};

// The bytes that an entry keeps: canonical JSON (version 1 in "trace"). Decode checks everything;
// kCorrupt otherwise.
std::string EncodeTrace(const Trace& trace);
Result<Trace> DecodeTrace(std::string_view bytes);

// Where two traces of one request differ first, by step and then choice.
struct Divergence {
  std::string what;   // "token", "logits", "text", "length", "finish_reason"
  uint64_t step = 0;  // tokens of that choice before it
  uint32_t choice = 0;
};
std::optional<Divergence> FirstDivergence(const Trace& recorded, const Trace& again);

}  // namespace verbatim::gateway
