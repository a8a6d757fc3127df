// A whole gateway in one process: data folder, engines, ledger, pipeline and HTTP server, put
// together from a configuration and taken apart in the right order.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/result.h"
#include "policies/config.h"

namespace verbatim::gateway {

class Gateway {
 public:
  // One line about what takes long: "loading smollm2-135m: weights, 40 %".
  using Progress = std::function<void(std::string_view line)>;

  // Takes the data folder's lock, opens the port (which answers 503 until all is ready), loads the
  // engines (each passes its self-test), opens the ledger, and serves. config.data must be set, and
  // its parent folders are made. Errors, each one line that says what to do: the folder is another
  // server's, the port is in use, no model or a bad one, a missing secret, a damaged ledger.
  static Result<std::unique_ptr<Gateway>> Start(const policies::Config& config,
                                                const Progress& progress);
  virtual ~Gateway() = default;

  virtual std::string url() const = 0;
  // "smollm2-135m (wba16, avx512)", comma-separated.
  virtual std::string models() const = 0;
  // Why nothing is generated although the server runs (the policy's software lock), or "".
  virtual std::string locked() const = 0;

  // Puts another configuration in force, for requests from now on, and the entry that says so comes
  // first: policy, tenants, access, upstreams, certificates, access log, log level. What a running
  // server cannot take over (policies/reload.h), and anything wrong in it, rejects it whole: the
  // old one stays, and an entry of kind `configuration_changed` with outcome `rejected` says why.
  // `next` may be the error that the file gave. Blocks; one thread at a time.
  virtual Status Reload(const Result<policies::Config>& next) = 0;

  // Stops accepting, lets running requests finish for at most `limit`, then closes the ledger.
  // Blocks. An error: the ledger could not be closed cleanly. Once only.
  virtual Status Drain(std::chrono::milliseconds limit, const Progress& progress) = 0;
};

}  // namespace verbatim::gateway
