// Header fields of HTTP requests and answers.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace verbatim::gateway {

// Names are lower-case in requests and sent as given in answers; order and duplicates are kept.
using Headers = std::vector<std::pair<std::string, std::string>>;

// The first value of `name` (lower-case), or "" where there is none.
std::string_view FindHeader(const Headers& headers, std::string_view name);

}  // namespace verbatim::gateway
