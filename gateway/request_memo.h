// What preparing a request came to, remembered by the request's own bytes, so that an equal request
// need not be parsed, rendered, tokenised and canonicalised again to find its fingerprint.
//
// Equal means: the same endpoint, principal, path, query, body, and headers but for those that
// never count, under the same configuration and grant (in_force.h, auth.h). What read the clock is
// not remembered (PreparedRequest::timeless); what depends on time (the age of a hit, limits, the
// store) is decided anew for each request. A memo holds no prompt and no answer: fingerprints,
// names, and how the answer is to be sent. Bounded by bytes; the least recently used go first. Any
// thread may call anything here.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "base/bytes.h"
#include "gateway/http.h"
#include "gateway/recorder.h"

namespace verbatim::gateway {

class RequestMemo {
 public:
  // bytes: of memory; 0: remembers nothing.
  explicit RequestMemo(uint64_t bytes) : limit_(bytes) {}

  // SHA-256 over everything of `http` that preparing it may depend on.
  static Digest KeyOf(Endpoint endpoint, const Request& http);

  // What an equal request came to, under the configuration and grant that `call`, just accepted,
  // has too; or null. It can serve a hit, and cannot run.
  std::shared_ptr<const Call> Find(const Digest& key, const Call& call);

  // Remembers what `call`, a hit, came to. What cannot be remembered is not.
  void Remember(const Digest& key, const Call& call);

  // Makes `call`, just accepted, what `known` was once it had its fingerprint.
  static void Resume(const Call& known, Call& call);

 private:
  struct Held {
    Digest key{};
    std::shared_ptr<const Call> call;
    uint64_t bytes = 0;
  };
  struct Hash {
    size_t operator()(const Digest& key) const { return ReadU64(AsBytes(key)); }
  };

  void Drop(std::list<Held>::iterator held);

  const uint64_t limit_;
  std::mutex mutex_;      // guards what follows
  std::list<Held> held_;  // newest use first
  std::unordered_map<Digest, std::list<Held>::iterator, Hash> by_key_;
  uint64_t bytes_ = 0;
};

}  // namespace verbatim::gateway
