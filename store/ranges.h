// A set of numbers (entries, slots) as ranges, small where they are close together.
#pragma once

#include <cstdint>
#include <map>

#include "base/json.h"
#include "base/result.h"

namespace verbatim::store {

class Ranges {
 public:
  void Add(uint64_t number) { Add(number, number); }
  void Add(uint64_t first, uint64_t last);  // both included
  bool Contains(uint64_t number) const;
  bool Overlaps(uint64_t first, uint64_t last) const;
  bool empty() const { return ranges_.empty(); }
  uint64_t count() const;                                                 // of numbers
  const std::map<uint64_t, uint64_t>& ranges() const { return ranges_; }  // first -> last

  // Calls visit(number) in order until it returns false.
  template <typename Visit>
  void ForEach(const Visit& visit) const {
    for (const auto& [first, last] : ranges_) {
      for (uint64_t number = first; number <= last; ++number) {
        if (!visit(number)) return;
      }
    }
  }

  // [[first, last], ...], in order, apart from each other; and back (kInvalid for anything else).
  json::Value ToJson() const;
  static Result<Ranges> FromJson(const json::Value& value);
  // From a member of an object: empty where it is not there.
  static Result<Ranges> FromMember(const json::Value& object, std::string_view name);

 private:
  std::map<uint64_t, uint64_t> ranges_;  // first -> last, at least one number apart
};

// Entries and slots of the hits' keyring have numbers below this.
inline constexpr uint64_t kMaxRangeNumber = uint64_t{1} << 62;

}  // namespace verbatim::store
