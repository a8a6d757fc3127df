// HTTP/1.x replies from bytes cut anywhere: headers by Beast's parser, bodies by our own. 1xx
// replies are skipped, limits count everything, and whatever is ambiguous about the body's length
// is refused.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "gateway/upstream/http_client.h"

namespace verbatim::gateway {

// Each answers false to stop the parsing.
class ResponseEvents {
 public:
  virtual ~ResponseEvents() = default;
  // `length`: the announced one of the body, -1 where there is none.
  virtual bool OnHead(FetchHead head, int64_t length) = 0;
  virtual bool OnBody(std::string_view bytes) = 0;  // content-coded as it is
};

class ResponseParser {
 public:
  enum class State {
    kMore,
    kDone,       // the reply is whole
    kStopped,    // by the events
    kTooLarge,   // more header bytes, bytes of a line between chunks, or bytes at all, than allowed
    kMalformed,  // see why()
  };

  // For one exchange; `events` outlives it. `head`: the request was a HEAD, so no body follows.
  ResponseParser(ResponseEvents& events, size_t header_bytes, uint64_t total_bytes, bool head);
  ~ResponseParser();

  // Takes what it can of `bytes` and says how many; what is left of a header comes again, with more
  // behind it. Not called again after any state but kMore.
  size_t Put(std::string_view bytes, State& state);
  // The connection has ended: kDone where that ends the body, else kMalformed.
  State PutEnd();

  bool has_head() const;        // the final reply's header is there
  bool keep_alive() const;      // once done: the connection may be used again
  bool ended_by_close() const;  // once done: only the connection's end was the body's
  std::string_view why() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace verbatim::gateway
