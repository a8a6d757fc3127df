#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace verbatim {

void CheckFailed(const char* file, int line, const char* expression) {
  std::fprintf(stderr, "verbatim: internal error at %s:%d: CHECK(%s) does not hold\n", file, line,
               expression);
  std::abort();
}

}  // namespace verbatim
