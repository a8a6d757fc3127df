// APIs of others as backends: OpenAI-compatible, Azure, Anthropic. A request goes there with the
// client's own bytes of every value that policy did not change, is repeated where that can help,
// and its reply comes back as it came (backend.h, reply.h). Credentials never reach a fingerprint,
// a record, a report, a log or an error.
//
// A backend is immutable and for any thread, like every Backend. Runs live on the I/O threads
// (on the caller's, where it is one); they may outlive the backend, which must not outlive those.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/result.h"
#include "gateway/backend.h"
#include "policies/upstreams.h"

namespace verbatim::gateway {

class IoThreads;

// One try of a run, as it ended. Borrowed for the call.
struct AttemptReport {
  std::string_view upstream;  // its id
  std::string_view model;     // as the client named it; "" of what passes through
  std::string_view endpoint;  // likewise
  // The reply's status ("200"), or why there was none ("connect_failed", "circuit_open",
  // "credentials", "cancelled").
  std::string_view outcome;
  double seconds = 0;  // to the end of the reply, or until it failed
  bool retry = false;  // not the run's first
};

struct UpstreamOptions {
  IoThreads* io = nullptr;                                 // every upstream has one client on each
  std::function<void(const AttemptReport&)> on_attempt{};  // of every one, from any thread, at once
};

// Prepare answers 404 (model_not_found) where the configuration has no name for the request's
// model, and 404 (unsupported_endpoint) where the kind has no such path.
//
// A run's RunEnd::cause is one of: upstream_STATUS ("upstream_429": any reply without status 2xx),
// upstream_timeout (504), upstream_unreachable, upstream_broken (502), upstream_unavailable (503:
// the circuit is open), upstream_credentials (502: this server's own cannot be read); and of
// incomplete replies what ReplySummary::why_not says, or upstream_timeout or upstream_broken.
// Its report: {"upstream":ID,"attempts":[{"status":429,"micros":N} or {"cause":"connect_failed",
// "micros":N}, ...],"request_id":"..."}.
class UpstreamBackend : public Backend {
 public:
  // A request of any other kind, as it is passed through: `path` is what follows /v1 in it, as sent
  // ("/files/file-1"), the body the client's, with its content-type. The reply reaches the observer
  // as it comes, unjudged: it is complete where its transfer was. 404 where the path has "." or
  // ".." in it: it would leave what the URL names.
  virtual Answered<std::shared_ptr<const PreparedRequest>> PreparePassThrough(
      std::string_view method, std::string_view path, const PrepareOptions& options) const = 0;

  // Of the circuit breaker, for metrics: 0 closed, 1 half open, 2 open.
  virtual int breaker_state() const = 0;
};

// Errors, each naming the upstream: a secret that is not there, a bad certificate file, a bad URL.
Result<std::unique_ptr<UpstreamBackend>> MakeUpstream(const std::string& id,
                                                      const policies::UpstreamConfig& config,
                                                      UpstreamOptions options);

}  // namespace verbatim::gateway
