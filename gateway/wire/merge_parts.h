// The parts of a chat message that have rules of their own: content that is a list, tool calls,
// reasoning details. As merge.h's; Add is false where the rules do not say what becomes of it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "gateway/wire/merge.h"

namespace verbatim::gateway {

// Text, or a list of parts of type text, thinking (Mistral) and reference. Text goes on over the
// boundary of two deltas; parts of one delta stay apart.
class MergedContent {
 public:
  bool Add(json::Value&& part);
  void WriteTo(json::Value& message);

 private:
  enum class Open { kNone, kText, kThinking };

  void GoOn(Open kind, std::string_view text, bool may_join);
  void Close();

  bool seen_ = false, given_text_ = false, given_list_ = false;
  Open open_ = Open::kNone;
  std::string text_;  // of the part that is open
  json::Array parts_;
};

// {"name", "arguments"} or {"name", "input"}.
class MergedCall {
 public:
  bool Add(const json::Value& part);
  void WriteTo(json::Value& object, std::string_view name) const;

 private:
  bool seen_ = false, given_ = false;
  MergedOnce name_;
  MergedText arguments_, input_;
};

// By their integer index; one without an index is whole.
class MergedToolCalls {
 public:
  bool Add(const json::Value& list);
  void WriteTo(json::Value& message) const;

 private:
  struct Call {
    MergedOnce id, type, extra_content, thought_signature;
    MergedCall function, custom;
  };
  static bool AddTo(Call& call, const json::Value& part);

  bool seen_ = false, given_ = false;
  std::map<uint64_t, Call> calls_;
};

// OpenRouter's: by index and type; without an index, text goes on while its type stays.
class MergedReasoning {
 public:
  bool Add(const json::Value& list);
  void WriteTo(json::Value& message) const;

 private:
  struct Detail {
    MergedOnce type, index, id, format, signature, data;
    MergedText text, summary;
  };
  static bool AddTo(Detail& detail, const json::Value& part);

  bool seen_ = false, given_ = false;
  std::vector<Detail> details_;
};

// The delta that says all of `message`.
json::Value DeltaOf(const json::Value& message);

}  // namespace verbatim::gateway
