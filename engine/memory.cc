#include "engine/memory.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <optional>
#include <string_view>

namespace verbatim::engine {
namespace {

std::optional<uint64_t> Number(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(" \t"), text.size()));
  uint64_t n = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
  if (error != std::errc() || end == text.data()) return std::nullopt;
  return n;
}

// The number behind `name` at the beginning of a line.
std::optional<uint64_t> NumberIn(const std::string& file, const std::string& name) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with(name)) return Number(std::string_view(line).substr(name.size()));
  }
  return std::nullopt;
}

// The group of version 2, "/" and below: of its line "0::/a/b".
std::string GroupOf(const std::string& file) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("0::/")) return line.substr(3);
  }
  return "/";
}

}  // namespace

uint64_t AvailableMemory(const std::string& meminfo, const std::string& cgroup,
                         const std::string& cgroups) {
  uint64_t available =
      static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  if (const auto kib = NumberIn(meminfo, "MemAvailable:")) {
    available = std::min(available, *kib << 10);
  }
  // Its own group and all above it.
  for (std::string group = GroupOf(cgroup);; group.resize(group.rfind('/'))) {
    while (group.ends_with('/')) group.pop_back();
    const std::string folder = cgroups + group;
    if (const auto most = NumberIn(folder + "/memory.max", "")) {  // "max": there is none
      const uint64_t used = NumberIn(folder + "/memory.stat", "anon ").value_or(0);
      available = std::min(available, *most - std::min(used, *most));
    }
    if (group.empty()) return available;
  }
}

}  // namespace verbatim::engine
