// The HTTP/1.1 server: listens, enforces limits, and gives whole requests to the router's handlers.
//
// A connection stays on the I/O thread that it was accepted to (io_threads.h, http.h). What is
// refused before a handler sees it: malformed or ambiguous framing (400, then close), header or
// body beyond their limits (431, 413), unknown paths and methods (404, 405), missing or unfit
// credentials (401, 403), bodies that are not identity-encoded JSON (415), and, without keys, what
// a web page of another site can make a browser send (403).
//
// Hang-ups. TCP does not tell a client that is gone from one that only sends no more: both are a
// FIN. Like nginx, Go's net/http and uvicorn the server takes it for a hang-up, since clients
// cancel a generation by closing, and a run that nobody reads must end. Answers that are there
// within 100 ms reach a half-closed client all the same. With `half_close` a FIN is only the end of
// requests: the answer is written, and a client that is really gone is noticed by its reset, at the
// next write or two.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/result.h"
#include "gateway/auth.h"
#include "gateway/http.h"
#include "gateway/server_tls.h"

namespace verbatim::gateway {

class AccessLog;
class IoThreads;

struct ServerLimits {
  size_t header_bytes = 64 << 10;  // request line and header fields together
  size_t header_count = 100;
  size_t body_bytes = 8 << 20;
  size_t connections = 8192;                      // beyond it: 503 and close
  std::chrono::milliseconds header_time{10'000};  // from a request's first byte to its empty line
  std::chrono::milliseconds body_time{60'000};
  std::chrono::milliseconds write_stall{30'000};  // without one byte of progress
  std::chrono::milliseconds keep_alive_idle{75'000};
};

struct ServerOptions {
  std::string listen = "127.0.0.1:8080";  // HOST:PORT; an IP literal ([::1]:8080) or localhost
  int threads = 1;                        // I/O threads, where it makes its own
  IoThreads* io = nullptr;                // those that it serves on; they outlive it
  ServerLimits limits;
  TlsOptions tls;           // where it has a certificate: TLS for everyone
  bool half_close = false;  // see Hang-ups
  // Routes that clients have no role on need a client certificate beside the key (403).
  bool operator_certificates = false;
  AccessLog* access_log = nullptr;  // outlives the server; null: none
};

class Server {
 public:
  // Binds, listens and serves; the port is open on return. kInvalid: `listen` is malformed, or not
  // a loopback address although `auth` has no keys; a TLS file is bad, or certificates are demanded
  // that no client can show. kFailedPrecondition: the port is in use, or the process may not open
  // as many files as `connections` needs (two each, its upstream's included); its soft limit is
  // raised to the hard one first.
  static Result<std::unique_ptr<Server>> Start(ServerOptions options, Router router,
                                               Authenticator auth);

  // Ends at once whatever still runs (clients see broken transfers), and waits for the handlers to
  // return: on threads of its own for up to five seconds, before it joins them. What handlers wait
  // for must outlive the server.
  virtual ~Server() = default;

  // The bound address as a URL, "http://127.0.0.1:8080" ("https://" with TLS), and its port (chosen
  // when 0 was asked).
  virtual std::string url() const = 0;
  virtual uint16_t port() const = 0;

  // Replaces the routes, for requests that arrive from now on; any thread. So a port can be open,
  // and say that models are being loaded, before there is anything else to serve.
  virtual void SetRouter(Router router) = 0;

  // Reads certificate, key and client_ca again, for connections from now on; any thread. An error,
  // as of Start, changes nothing. Without TLS it does nothing.
  virtual Status ReloadTls() = 0;

  // How many requests are in their handlers, and how many connections are open.
  virtual size_t running() const = 0;
  virtual size_t open_connections() const = 0;

  // Stops accepting, closes idle connections, lets running requests finish (they answer with
  // connection: close) for at most `limit`, then ends the rest. Blocks; returns whether all
  // finished. `progress` is called about once a second with the number still running. Once only.
  virtual bool Drain(std::chrono::milliseconds limit,
                     const std::function<void(size_t running)>& progress) = 0;
};

}  // namespace verbatim::gateway
