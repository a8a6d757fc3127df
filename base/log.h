// One line per event on stderr: time (UTC), level, message. Any thread may call it.
// Prompts, answers, keys and credentials are never passed to it.
#pragma once

#include <string_view>

namespace verbatim {

enum class LogLevel { kInfo, kWarning, kError };

void Log(LogLevel level, std::string_view message);
// Lines below this level are left out from now on. At first everything is written.
void SetLogLevel(LogLevel least);
inline void LogInfo(std::string_view message) { Log(LogLevel::kInfo, message); }
inline void LogWarning(std::string_view message) { Log(LogLevel::kWarning, message); }
inline void LogError(std::string_view message) { Log(LogLevel::kError, message); }

}  // namespace verbatim
