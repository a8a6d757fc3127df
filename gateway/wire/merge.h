// How the fields of a stream's events come together. Each kind of merging is a small value that
// takes what the events hold, one after another, and writes the result into an object.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "base/json.h"

namespace verbatim::gateway {

// Text that comes in parts. Where only null came the result is null.
class MergedText {
 public:
  // False where `part` is neither text nor null.
  bool Add(const json::Value& part) {
    seen_ = true;
    if (part.is_null()) return true;
    if (!part.is_string()) return false;
    given_ = true;
    text_ += part.as_string();
    return true;
  }
  bool given() const { return given_; }
  const std::string& text() const { return text_; }
  void WriteTo(json::Value& object, std::string_view name) const {
    if (seen_) object.Set(std::string(name), given_ ? json::Value(text_) : json::Value());
  }

 private:
  bool seen_ = false, given_ = false;
  std::string text_;
};

// A value that is said once, or again and again. null and "" say nothing, unless nothing else
// comes.
class MergedOnce {
 public:
  // False where `value` says another thing than what came before.
  bool Add(const json::Value& value) {
    const bool says_nothing = IsEmpty(value);
    const bool had_nothing = !seen_ || IsEmpty(value_);
    seen_ = true;
    if (had_nothing) {
      if (!says_nothing || value_.is_null()) value_ = value;
      return true;
    }
    return says_nothing || value_ == value;
  }
  // What came last stands.
  void Replace(const json::Value& value) {
    if (!seen_ || !IsEmpty(value)) value_ = value;
    seen_ = true;
  }
  bool seen() const { return seen_; }
  const json::Value& value() const { return value_; }
  void WriteTo(json::Value& object, std::string_view name) const {
    if (seen_) object.Set(std::string(name), value_);
  }

 private:
  static bool IsEmpty(const json::Value& v) {
    return v.is_null() || (v.is_string() && v.as_string().empty());
  }

  bool seen_ = false;
  json::Value value_;
};

// A list whose parts follow each other.
class MergedList {
 public:
  // False where `part` is neither a list nor null. Takes the items out of it.
  bool Add(json::Value&& part) {
    seen_ = true;
    if (part.is_null()) return true;
    if (!part.is_array()) return false;
    given_ = true;
    for (json::Value& item : part.items()) items_.push_back(std::move(item));
    return true;
  }
  void WriteTo(json::Value& object, std::string_view name) {
    if (seen_)
      object.Set(std::string(name), given_ ? json::Value(std::move(items_)) : json::Value());
  }

 private:
  bool seen_ = false, given_ = false;
  json::Array items_;
};

}  // namespace verbatim::gateway
