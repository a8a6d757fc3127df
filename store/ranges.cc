#include "store/ranges.h"

#include <algorithm>
#include <iterator>
#include <optional>

namespace verbatim::store {

void Ranges::Add(uint64_t first, uint64_t last) {
  auto at = ranges_.upper_bound(first);
  if (at != ranges_.begin() && std::prev(at)->second + 1 >= first) --at;
  while (at != ranges_.end() && at->first <= last + 1) {
    first = std::min(first, at->first);
    last = std::max(last, at->second);
    at = ranges_.erase(at);
  }
  ranges_.emplace_hint(at, first, last);
}

bool Ranges::Contains(uint64_t number) const { return Overlaps(number, number); }

bool Ranges::Overlaps(uint64_t first, uint64_t last) const {
  const auto after = ranges_.upper_bound(last);
  return after != ranges_.begin() && std::prev(after)->second >= first;
}

uint64_t Ranges::count() const {
  uint64_t count = 0;
  for (const auto& [first, last] : ranges_) count += last - first + 1;
  return count;
}

json::Value Ranges::ToJson() const {
  json::Value list = json::Value::MakeArray();
  for (const auto& [first, last] : ranges_) {
    list.Append(json::Array{json::Value(first), json::Value(last)});
  }
  return list;
}

Result<Ranges> Ranges::FromJson(const json::Value& value) {
  const Error invalid{Code::kInvalid, "a list of ranges is malformed"};
  if (!value.is_array()) return invalid;
  Ranges ranges;
  std::optional<uint64_t> before;
  for (const json::Value& pair : value.items()) {
    if (!pair.is_array() || pair.items().size() != 2) return invalid;
    const auto first = pair.items()[0].AsUint64(), last = pair.items()[1].AsUint64();
    if (!first || !last || *first > *last || *last >= kMaxRangeNumber) return invalid;
    if (before && *first <= *before + 1) return invalid;
    before = *last;
    ranges.ranges_.emplace_hint(ranges.ranges_.end(), *first, *last);
  }
  return ranges;
}

Result<Ranges> Ranges::FromMember(const json::Value& object, std::string_view name) {
  const json::Value* value = object.Find(name);
  return value ? FromJson(*value) : Ranges();
}

}  // namespace verbatim::store
