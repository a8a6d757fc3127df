// The manifest: what software and machine produced an answer. Recorded once at server start and
// named by its digest in every entry; by default no part of any fingerprint, since none of it can
// change an answer (policy can add components, and can pin them: the software lock).
#pragma once

#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/json.h"

namespace verbatim::gateway {

struct Manifest {
  // {"build":{...},"machine":{...},"libraries":{...},"backends":{NAME: Backend::Describe()}}
  json::Value value;
  std::string canonical;  // canonical JSON of value
  Digest digest{};        // its SHA-256
};

// Of this program on this machine, with what each backend says of itself.
Manifest MakeManifest(const std::vector<std::pair<std::string, json::Value>>& backends);

// A component by its path in the manifest ("build.version", "libraries.rocksdb", "machine.isa") as
// text; empty where there is none.
std::string Component(const Manifest& manifest, std::string_view path);

}  // namespace verbatim::gateway
