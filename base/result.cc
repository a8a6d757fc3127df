#include "base/result.h"

namespace verbatim {

const char* CodeName(Code code) {
  switch (code) {
    case Code::kInvalid:
      return "invalid";
    case Code::kNotFound:
      return "not_found";
    case Code::kAlreadyExists:
      return "already_exists";
    case Code::kFailedPrecondition:
      return "failed_precondition";
    case Code::kCorrupt:
      return "corrupt";
    case Code::kUnavailable:
      return "unavailable";
    case Code::kCancelled:
      return "cancelled";
    case Code::kNumericFault:
      return "numeric_fault";
    case Code::kIo:
      return "io";
    case Code::kUnsupported:
      return "unsupported";
  }
  return "unknown";
}

}  // namespace verbatim
