// An HTTP/1.1 client for one origin: TLS with certificate checks, proxies, a pool of kept-alive
// connections, time limits, and replies whose bodies arrive content-decoded, as they come.
//
// HttpOrigin is a checked configuration: immutable, shared by the clients of several executors.
// HttpClient lives on one single-threaded executor: it is made anywhere, and everything else
// happens on that executor. It must outlive its fetches, and so must a fetch's sink. FetchCanceller
// is for any thread.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/result.h"
#include "gateway/http.h"

namespace verbatim::gateway {

struct HttpClientOptions {
  std::string url;      // "https://api.example.com[:port]": no path, no credentials
  std::string ca_file;  // PEM bundle that alone is trusted; "" is the system's
  std::string client_certificate_file{}, client_key_file{};  // PEM; both or neither
  // "http://[user:password@]host:port", "none", or "" for HTTPS_PROXY, HTTP_PROXY and NO_PROXY of
  // the environment.
  std::string proxy{};

  // Each at least 1 and at most a day.
  int64_t connect_ms = 10'000;      // waiting for a place in the pool, name, TCP, proxy, TLS
  int64_t first_byte_ms = 120'000;  // from the request's last byte to the end of the reply's header
  int64_t idle_ms = 60'000;         // between two bytes of the body
  int64_t total_ms = 600'000;       // from Fetch to its end
  int64_t keep_alive_ms = 60'000;   // an unused connection is closed after this

  uint32_t max_connections = 1'024;  // of one client, used and unused ones
  size_t header_bytes = 64 << 10;    // of a reply: status line and headers, trailers
  uint64_t body_bytes = 64 << 20;    // of a reply, after decoding
};

// A configuration that was checked: URL parsed, certificates and keys read, proxy chosen.
class HttpOrigin {
 public:
  // Errors: kInvalid (kNotFound for files) with what to correct.
  static Result<std::shared_ptr<const HttpOrigin>> Make(const HttpClientOptions& options);
  ~HttpOrigin();

  const HttpClientOptions& options() const;

  struct State;
  const State& state() const { return *state_; }

 private:
  explicit HttpOrigin(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

struct FetchRequest {
  std::string method = "POST";
  std::string target;  // "/v1/chat/completions?api-version=..."
  // Sent in this order, after host. host, content-length, transfer-encoding, connection, expect,
  // te, trailer, upgrade, keep-alive and proxy-* are the client's own business and left out.
  // accept-encoding is sent only where it is here: gzip, deflate, br and zstd are understood.
  Headers headers;
  std::shared_ptr<const std::string> body;  // null: no body and no content-length
};

// The header of the final reply; 1xx ones are skipped.
struct FetchHead {
  int status = 0;
  Headers
      headers;  // in order, duplicates kept, names lower-case; as sent, content-encoding included
};

// Called on the client's executor from within Fetch, in this order: OnHead at most once, then
// OnBody any number of times with content-decoded bytes (never empty), cut anywhere. They must not
// block.
class FetchSink {
 public:
  virtual ~FetchSink() = default;
  virtual void OnHead(FetchHead head) = 0;
  virtual void OnBody(std::string_view bytes) = 0;
  // Asked before more of a body is read. False: nothing is, and no time limit but the total one
  // runs, until FetchCanceller::Resume.
  virtual bool WantsMore() { return true; }
};

enum class FetchFault {
  kNone,
  kInvalidRequest,    // a target or header that cannot be sent
  kDnsFailed,         // the name is not known
  kConnectFailed,     // no TCP connection, or the proxy refuses
  kTlsFailed,         // no handshake, or a certificate that is not accepted
  kConnectTimeout,    // no connection within connect_ms, waiting for a place included
  kFirstByteTimeout,  // no header of a reply within first_byte_ms
  kIdleTimeout,
  kTotalTimeout,
  kReset,        // the connection broke before the reply's header was complete
  kTruncated,    // the connection or the coded body ended before its end
  kTooLarge,     // header or decoded body over its limit
  kBadEncoding,  // an unknown content-encoding, or bytes that are not in it
  kMalformed,    // not HTTP/1.x, or ambiguous about the body's length
  kCancelled,
};
// "connect_failed": the fault's name in snake_case, for ledger and metrics.
const char* FetchFaultName(FetchFault fault);

enum class FetchOutcome {
  kWhole,         // a body of the announced length, or the last chunk
  kEndedByClose,  // no length was announced; only the protocol inside can tell whether it is whole
  kBroken,        // see fault; some of the body may have come
};

struct FetchEnd {
  FetchOutcome outcome = FetchOutcome::kBroken;
  FetchFault fault = FetchFault::kNone;
  std::string message{};       // where broken: one line without secrets
  bool request_sent = false;   // some of the request went out: the upstream may have acted on it
  bool reply_began = false;    // some byte of a reply came
  bool reused = false;         // it went over a kept-alive connection
  bool reconnected = false;    // sent again on a fresh one, since the kept-alive one had gone stale
  int64_t connect_micros = 0;  // from Fetch to the connection's use: about 0 where reused
  int64_t first_byte_micros = -1;  // from Fetch to the first byte of the reply; -1: none came
};

// Ends a fetch from any thread, at any time: before, during or after. Copies are the same one; each
// is for one fetch.
class FetchCanceller {
 public:
  FetchCanceller();
  void Cancel() const;
  void Resume() const;  // FetchSink::WantsMore is asked again, where it said no

  struct State;
  const std::shared_ptr<State>& state() const { return state_; }

 private:
  std::shared_ptr<State> state_;
};

class HttpClient {
 public:
  // `executor`: of an io_context that one thread runs.
  HttpClient(boost::asio::any_io_executor executor, std::shared_ptr<const HttpOrigin> origin);
  ~HttpClient();  // on the executor, or when nothing runs there any more
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  // One request and its reply; awaited by a coroutine of the client's executor. A request that got
  // no byte of a reply over a kept-alive connection that then turned out closed is sent once more,
  // over a fresh one. Every other repetition is the caller's.
  boost::asio::awaitable<FetchEnd> Fetch(FetchRequest request, FetchSink& sink,
                                         FetchCanceller canceller = {});

  // Closes the connections that nobody uses. On the executor.
  void CloseUnused();

  const boost::asio::any_io_executor& executor() const;
  const HttpOrigin& origin() const;
  // Connections in use, and kept alive unused. On the executor.
  size_t used() const;
  size_t unused() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace verbatim::gateway
