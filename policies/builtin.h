// The texts of default.yaml and strict.yaml, so that the program needs no file beside it.
// builtin.cc is made from the two files when the build is configured.
#pragma once

#include <string_view>

namespace verbatim::policies {

extern const std::string_view kDefaultPolicyYaml;
extern const std::string_view kStrictPolicyYaml;

}  // namespace verbatim::policies
