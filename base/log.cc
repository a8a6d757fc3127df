#include "base/log.h"

#include <unistd.h>

#include <atomic>
#include <string>

#include "base/clock.h"

namespace verbatim {
namespace {

std::atomic<LogLevel> least_level = LogLevel::kInfo;

}  // namespace

void SetLogLevel(LogLevel least) { least_level.store(least, std::memory_order_relaxed); }

void Log(LogLevel level, std::string_view message) {
  if (level < least_level.load(std::memory_order_relaxed)) return;
  static constexpr const char* kNames[] = {" info  ", " warn  ", " error "};
  std::string line = FormatTime(NowMicros());
  line += kNames[static_cast<int>(level)];
  for (char c : message) line += (c == '\n' || c == '\r') ? ' ' : c;
  line += '\n';
  // One write, so that lines of different threads do not mix.
  [[maybe_unused]] ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace verbatim
