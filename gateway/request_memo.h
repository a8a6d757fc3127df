// What a request that was a hit came to, remembered by the request's own bytes, so that an equal
// request need not be parsed, rendered, tokenised and canonicalised again to find its fingerprint,
// nor its answer be put together again.
//
// Equal means: the same endpoint, principal, path, query, body, and headers but for those that
// never count, under the same configuration and grant (in_force.h, auth.h). What read the clock is
// not remembered (PreparedRequest::timeless); what depends on time (the age of a hit, limits, the
// store) is decided anew for each request. A memo holds no prompt: fingerprints, names, and how the
// answer is to be sent; of the answer itself only what is not the recorded bytes. Bounded by bytes;
// the least recently used go first. Any thread may call anything here.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "base/bytes.h"
#include "gateway/hit_cache.h"
#include "gateway/http.h"
#include "gateway/recorder.h"

namespace verbatim::gateway {

struct HitAnswer;  // gateway/answerer.h

class RequestMemo {
 public:
  struct Known {
    std::shared_ptr<const Call> call;  // can serve a hit, and cannot run
    // What it was given, and how. The store decides whether that is still what it gets.
    std::weak_ptr<const store::StoredResult> result;
    std::shared_ptr<const HitAnswer> answer;

    bool WasGiven(const SharedResult& given) const {
      return !result.owner_before(given) && !given.owner_before(result);
    }
  };

  // bytes: of memory; 0: remembers nothing.
  explicit RequestMemo(uint64_t bytes) : limit_(bytes) {}

  // SHA-256 over everything of `http` that preparing it may depend on.
  static Digest KeyOf(Endpoint endpoint, const Request& http);

  // What an equal request came to under the same configuration and grant, or null.
  std::shared_ptr<const Known> Find(const Digest& key, const InForce& in_force,
                                    const Principal& principal);

  // Remembers what `call` came to: a hit, given `result` as `answer`. What cannot be remembered is
  // not.
  void Remember(const Digest& key, const Call& call, const SharedResult& result,
                std::shared_ptr<const HitAnswer> answer);

 private:
  struct Held {
    Digest key{};
    std::shared_ptr<const Known> known;
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
