// How much memory this process may still take.
#pragma once

#include <cstdint>
#include <string>

namespace verbatim::engine {

// Bytes: what the machine has available, or what the process's control groups (v2) leave it beside
// what they hold in anonymous pages; the least of these. The arguments are files of Linux's.
uint64_t AvailableMemory(const std::string& meminfo = "/proc/meminfo",
                         const std::string& cgroup = "/proc/self/cgroup",
                         const std::string& cgroups = "/sys/fs/cgroup");

}  // namespace verbatim::engine
