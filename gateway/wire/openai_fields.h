// Every field that is known of OpenAI's two generation endpoints and of the servers that extend
// them (vLLM, llama.cpp): its type, its range, and what the embedded engine does with it. One row
// per field; openai.cc reads the table. A field with no row is unknown: kept, counted, and ignored.
#pragma once

#include <span>
#include <string_view>

namespace verbatim::gateway {

enum class FieldKind { kAny, kBool, kInteger, kNumber, kString, kArray, kObject };

enum class Effect {
  kHonoured,  // decides the answer, or how it travels
  kInert,     // nothing here reads it: named in Verbatim-Ignored
  kRefused,  // would change the answer and cannot be honoured: a 400, unless it has a neutral value
};

struct Field {
  std::string_view name;
  int endpoints;  // kChat | kCompletions
  FieldKind kind;
  Effect effect;
  double min = 0, max = 0;        // of integers and numbers, where max > min
  std::string_view neutral = {};  // kRefused: canonical JSON of values that ask for nothing, by '|'
};

inline constexpr int kChat = 1, kCompletions = 2, kBoth = 3;

std::span<const Field> KnownFields();
// Null where the endpoint (kChat or kCompletions) does not know the field.
const Field* FindField(std::string_view name, int endpoint);

}  // namespace verbatim::gateway
