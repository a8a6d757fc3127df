// Reading JSON of others: what is absent or of another type reads as nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/json.h"

namespace verbatim::gateway {

// More of anything than an honest answer has: choices, tool calls, members of a small object. What
// is merged one by one stops here, so that no choice of input makes it slow or large.
constexpr size_t kMaxChoices = 4096;
constexpr size_t kMaxCalls = 4096;
constexpr size_t kMaxBlocks = 65536;
constexpr size_t kMaxDetails = 256;
constexpr size_t kMaxMembers = 256;

inline const json::Value* FindPresent(const json::Value& object, std::string_view key) {
  const json::Value* v = object.Find(key);
  return v == nullptr || v->is_null() ? nullptr : v;
}

inline std::string_view FindText(const json::Value& object, std::string_view key) {
  const json::Value* v = object.Find(key);
  return v != nullptr && v->is_string() ? std::string_view(v->as_string()) : std::string_view();
}

inline const json::Value* FindObject(const json::Value& object, std::string_view key) {
  const json::Value* v = object.Find(key);
  return v != nullptr && v->is_object() ? v : nullptr;
}

inline const json::Value* FindArray(const json::Value& object, std::string_view key) {
  const json::Value* v = object.Find(key);
  return v != nullptr && v->is_array() ? v : nullptr;
}

inline uint64_t FindCount(const json::Value& object, std::string_view key) {
  const json::Value* v = object.Find(key);
  return v == nullptr ? 0 : v->AsUint64().value_or(0);
}

}  // namespace verbatim::gateway
