#include "base/log.h"

#include <unistd.h>

#include <string>

#include "base/clock.h"

namespace verbatim {

void Log(LogLevel level, std::string_view message) {
  static constexpr const char* kNames[] = {" info  ", " warn  ", " error "};
  std::string line = FormatTime(NowMicros());
  line += kNames[static_cast<int>(level)];
  for (char c : message) line += (c == '\n' || c == '\r') ? ' ' : c;
  line += '\n';
  // One write, so that lines of different threads do not mix.
  [[maybe_unused]] ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace verbatim
