// Policies and the server's configuration from YAML, strictly: an unknown key, a wrong type, a
// value out of range, a key given twice, an anchor or alias, a tag, or a second document is an
// error. Every error is kInvalid (kNotFound, kIo for the file itself) and reads "FILE:LINE: KEY:
// what is wrong; allowed: ...", the first one found. Schemas are in schema.cc, one row per field.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "policies/config.h"
#include "policies/policy.h"

namespace verbatim::policies {

// A policy from a file, or from text (`name` stands for the file in errors).
Result<Policy> LoadPolicy(const std::string& path);
Result<Policy> ParsePolicy(std::string_view yaml, const std::string& name);

// The policies that come with the program: "default" and "strict" (policies/*.yaml, compiled in).
// kNotFound for another name.
Result<Policy> BuiltinPolicy(std::string_view name);
std::string_view BuiltinPolicyText(std::string_view name);  // "" for another name

// The configuration file. Relative file names in it are taken from the file's own folder. `policy`
// in it is an inline map, the name of a built-in policy, or a file name; the default policy if
// absent.
Result<Config> LoadConfig(const std::string& path);
Result<Config> ParseConfig(std::string_view yaml, const std::string& name,
                           const std::string& folder);

// The configuration of a server that was given none: the defaults of config.h with the built-in
// default policy.
Config DefaultConfig();

// The value that `env:NAME` or `file:PATH` refers to (a file's one trailing newline is not part of
// it). kNotFound says which is missing; kInvalid: no such reference, empty or over 64 KiB.
Result<std::string> ResolveSecret(const std::string& reference);

}  // namespace verbatim::policies
