#include "gateway/headers.h"

namespace verbatim::gateway {

std::string_view FindHeader(const Headers& headers, std::string_view name) {
  for (const auto& [key, value] : headers) {
    if (key == name) return value;
  }
  return {};
}

}  // namespace verbatim::gateway
