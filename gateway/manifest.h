// The manifest: what software and machine produced an answer. Recorded once at server start and
// named by its digest in every entry; by default no part of any fingerprint, since none of it can
// change an answer (policy can add components, and can pin them: the software lock).
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/json.h"

namespace verbatim::gateway {

struct Manifest {
  // {"build":{...},"libraries":{...},"machine":{...},"backends":{NAME: Backend::Describe()}}. Every
  // component is a text; policies name it by its path ("libraries.rocksdb").
  json::Value value;
  std::string canonical;  // its canonical JSON, what a client hashes to check the digest
  Digest digest{};        // SHA-256 of that
};

// Of this program on this machine, with what each backend says of itself (Backend::Describe).
Manifest MakeManifest(const std::vector<std::pair<std::string, json::Value>>& backends);

}  // namespace verbatim::gateway
