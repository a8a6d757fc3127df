// One run against an upstream: attempts, waits between them, and what comes of it. Internal to
// upstream_backend.cc.
//
// A run is a coroutine on one of the I/O threads, and everything of it happens there; only
// Cancel may be called from elsewhere.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gateway/backend.h"
#include "gateway/upstream/breaker.h"
#include "gateway/upstream/credentials.h"
#include "gateway/upstream/http_client.h"
#include "gateway/upstream/upstream_backend.h"
#include "policies/upstreams.h"

namespace verbatim::gateway {

// An upstream, as the backend, its prepared requests and its runs share it: it goes with the last
// of them.
struct Upstream {
  Upstream(std::string id_, const policies::UpstreamConfig& config_);
  ~Upstream();  // the clients go on their own executors

  const std::string id;
  const policies::UpstreamConfig config;
  std::vector<std::unique_ptr<HttpClient>> clients;  // one for each I/O thread
  std::function<size_t()> next_client;               // which one the next run takes
  CircuitBreaker breaker;
  std::string credential_header;           // lower-case
  std::unique_ptr<Credential> credential;  // null: none of the configuration
  std::vector<std::pair<std::string, std::unique_ptr<Credential>>> secret_headers;
  std::function<void(const AttemptReport&)> on_attempt;
};

// What goes upstream: the same at every attempt but for the configuration's secrets.
struct Outgoing {
  std::string method = "POST";
  std::string target;
  Headers headers;
  Headers client_credentials;               // as the client sent them, where they go upstream
  std::vector<std::string> target_secrets;  // of the client's, in any form that a reply may repeat
  std::shared_ptr<const std::string> body;
  // Whose answers are read and judged; else the reply passes as it comes and is complete when its
  // transfer is.
  bool judged = true;
  Endpoint endpoint = Endpoint::kChatCompletions;
  std::string model;  // as the client named it
  uint32_t choices = 1;
};

std::unique_ptr<Run> StartUpstreamRun(std::shared_ptr<Upstream> upstream,
                                      std::shared_ptr<const Outgoing> outgoing,
                                      const RunOptions& options, RunObserver observer);

}  // namespace verbatim::gateway
