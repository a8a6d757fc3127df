// CHECK(x) states an invariant of the program and stays on in release builds: a false one prints
// the place and aborts. Bad input is never a CHECK; it is a Result.
#pragma once

namespace verbatim {

[[noreturn]] void CheckFailed(const char* file, int line, const char* expression);

}  // namespace verbatim

#define CHECK(x)                                       \
  do {                                                 \
    if (!(x)) [[unlikely]] {                           \
      ::verbatim::CheckFailed(__FILE__, __LINE__, #x); \
    }                                                  \
  } while (0)
