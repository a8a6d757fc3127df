// Every field that is known of the generation endpoints and of the servers that extend them (vLLM,
// llama.cpp): its type, its range, and what the embedded engine does with it. One row per field;
// the decoders read the table. A field with no row is unknown: kept, counted, and ignored.
#pragma once

#include <span>
#include <string_view>

#include "gateway/endpoint.h"

namespace verbatim::gateway {

enum class FieldKind { kAny, kBool, kInteger, kNumber, kString, kArray, kObject };

enum class Effect {
  kHonoured,  // decides the answer, or how it travels
  kInert,     // nothing here reads it: named in Verbatim-Ignored
  kRefused,  // would change the answer and cannot be honoured: a 400, unless it has a neutral value
};

struct Field {
  std::string_view name;  // "text.format": the member of a field that is an object
  int endpoints;          // bits, below
  FieldKind kind;
  Effect effect;
  double min = 0, max = 0;        // of integers and numbers, where max > min
  std::string_view neutral = {};  // kRefused: canonical JSON of values that ask for nothing, by '|'
};

inline constexpr int kChat = 1, kCompletions = 2, kResponses = 4, kMessages = 8, kCountTokens = 16;
inline constexpr int kBoth = kChat | kCompletions;
inline constexpr int kOpenAi = kBoth | kResponses;
inline constexpr int kGenerates = kOpenAi | kMessages;
inline constexpr int kAnthropic = kMessages | kCountTokens;
inline constexpr int kAllFields = kGenerates | kCountTokens;

// The endpoint's bit; 0 where the engine has none of it (embeddings).
int FieldsOf(Endpoint endpoint);

std::span<const Field> KnownFields();
// Null where none of these endpoints knows the field.
const Field* FindField(std::string_view name, int endpoints);
// Of a member of the object that is the field `name`. A field whose members have no row here at all
// keeps them to itself: HasMembers says so.
const Field* FindMember(std::string_view name, std::string_view member, int endpoints);
bool HasMembers(std::string_view name, int endpoints);

}  // namespace verbatim::gateway
