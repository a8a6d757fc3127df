// What a request handler sees of HTTP: the request, whole and checked, and a sink for the answer.
//
// A connection lives on one single-threaded executor. Its handler runs there as a coroutine, may
// co_await anything whose completion comes back to `co_await boost::asio::this_coro::executor`, and
// must never block it: other connections share the thread. Other threads (engine, ledger) reach the
// handler only by boost::asio::post to that executor.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "gateway/auth.h"
#include "gateway/endpoint.h"
#include "gateway/headers.h"

namespace verbatim::gateway {

struct AccessNotes;  // gateway/access_log.h

struct Request {
  std::string id;      // made by the server: "req_" + 32 hex; sent back as x-request-id
  std::string method;  // "GET", "POST", ...; a HEAD request reaches its GET handler as "GET"
  std::string path;    // percent-decoded, starts with '/', no query
  std::string query;   // as sent, without '?'
  // What the route's {} segments matched, in order, decoded; and what its {*} did, as sent.
  std::vector<std::string> params;
  Headers headers;
  std::string body;             // whole, de-chunked; at most ServerLimits::body_bytes
  std::string remote;           // "127.0.0.1:40312"
  int64_t received_micros = 0;  // base/clock.h NowMicros() when the header was complete
  Principal principal;

  std::string_view Header(std::string_view name) const { return FindHeader(headers, name); }
};

// Header fields rendered before (http_response.h), for answers that are given often.
struct RenderedFields {
  std::string text;                          // "name: value\r\n"...
  bool has_type = false, has_cache = false;  // content-type and cache-control are among them
};

// The answer to one request. Lives as long as the handler's coroutine; used on its executor only,
// one call at a time (the next after the last one's co_await). Either SendWhole, or StartStream,
// Write..., then Finish or Abort; anything else is a CHECK. A handler that returns (or throws)
// without an answer gets a 500, one that leaves a stream open gets it aborted.
//
// The server adds x-request-id, date, server, content-length or transfer-encoding and connection;
// those that a handler gives are left out. Control bytes in values become spaces.
//
// kCancelled from any call: the client is gone or too slow (write-stall limit); nothing further
// will reach it and every later call returns the same at once.
class ResponseSink {
 public:
  virtual ~ResponseSink() = default;

  // A complete answer. content-type is application/json unless `headers` has one.
  virtual boost::asio::awaitable<Status> SendWhole(int status, Headers headers,
                                                   std::string body) = 0;

  // Status line and headers of a chunked answer; they leave with its first bytes, or with its end,
  // so that they cost no write of their own: a handler has something to write then. content-type is
  // "text/event-stream; charset=utf-8" and cache-control "no-cache" unless `headers` has them.
  virtual boost::asio::awaitable<Status> StartStream(int status, Headers headers) = 0;

  // Bytes of a started stream, as one chunk, in the kernel's hands on return (so a slow reader
  // slows the handler). Empty input does nothing.
  virtual boost::asio::awaitable<Status> Write(std::string_view bytes) = 0;

  // Ends a stream well: the terminating chunk.
  virtual boost::asio::awaitable<Status> Finish() = 0;

  // Write and Finish, with as few writes as go.
  virtual boost::asio::awaitable<Status> FinishWith(std::string_view bytes);

  // A complete answer with fields rendered before and `more` of them: the same as SendWhole or,
  // where `stream`, StartStream, Write and Finish. Everything is the caller's until it is sent.
  virtual boost::asio::awaitable<Status> SendRendered(int status, const RenderedFields& fields,
                                                      const Headers& more, std::string_view body,
                                                      bool stream) = 0;

  // What the handler knows of the answer, for the access log; before it returns. Only where it
  // takes notes.
  virtual bool TakesNotes() const { return false; }
  virtual void Note(const AccessNotes&) {}

  // How this request's client expects errors, and the id that they carry there.
  virtual ErrorForm error_form() const { return ErrorForm::kOpenAi; }
  virtual std::string_view request_id() const { return {}; }

  // Closes the connection without the terminating chunk: the client sees a broken transfer (of a
  // stream of which nothing was written, a connection that closes).
  virtual void Abort() = 0;

  // True once the client hung up, stalled, or the server ended the connection (drain is over).
  virtual bool ClientGone() const = 0;

  // `callback` runs once, on the handler's executor, when ClientGone() becomes true: within half a
  // second of a hang-up even while the handler waits for something else. Where it is true already,
  // the callback is posted. One callback at a time; an empty function takes it back. Never called
  // after the handler has returned. Bytes of a next, pipelined request are no hang-up.
  virtual void OnClientGone(std::function<void()> callback) = 0;
};

// An error answer; ErrorJson makes its body.
struct HttpError {
  int status = 500;
  std::string message{};
  std::string type{};   // "" gives the usual one of the status ("invalid_request_error", ...)
  std::string param{};  // "" is null
  std::string code{};   // "" is null
  Headers headers{};    // further response headers, such as retry-after
  // Not empty: sent as it is instead of an error object (an upstream's own answer); its
  // content-type is among `headers`.
  std::string body{};
};

// The body: OpenAI's {"error":{"message","type","param","code"}}, or Anthropic's
// {"type":"error","error":{"type","message"},"request_id"}, whose type is the usual one of the
// status (and which has no place for param and code). The whole answer takes form and id from the
// sink.
std::string ErrorJson(const HttpError& error, ErrorForm form = ErrorForm::kOpenAi,
                      std::string_view request_id = {});
boost::asio::awaitable<Status> SendError(ResponseSink& sink, HttpError error);

using Handler = std::function<boost::asio::awaitable<void>(const Request&, ResponseSink&)>;

struct Route {
  // "GET", "POST", "PUT", "PATCH" or "DELETE"; HEAD and OPTIONS are answered from these.
  std::string method;
  std::string pattern;  // "/v1/models/{}"; a {} matches one non-empty segment, {*} the rest
  uint8_t roles = 0;    // bits of Role, any one of which is enough; 0: open to everyone, no key
  Handler handler;
  bool any_content = false;  // bodies need not be JSON: the handler judges them
};

// Which route a request takes. Immutable once the server runs; literal segments win over {}.
// Told of every request that the server answered by itself with an error, or that broke off before
// it was whole (status 499; nobody got that answer). Of the request it has what was known by then:
// path and method are empty where the head could not be read, the tenant where nobody was
// authenticated. Called on the connection's thread; must not block.
using RefusedCallback = std::function<void(const Request&, const HttpError&)>;

class Router {
 public:
  void Add(Route route);  // CHECKs the pattern's form and that it is new
  void OnRefused(RefusedCallback callback) { on_refused_ = std::move(callback); }

  struct Match {
    const Route* route = nullptr;     // null: see allow
    std::vector<std::string> params;  // as Request::params
    // Where route is null: methods of the path, "GET, HEAD, OPTIONS"; "": there is no such path.
    std::string allow;
  };
  // `raw_path`: as sent, still percent-encoded ({} matches segments before they are decoded, so an
  // encoded slash stays inside its segment) and already checked by the server.
  Match Find(std::string_view method, std::string_view raw_path) const;

  void ReportRefused(const Request& request, const HttpError& error) const {
    if (on_refused_) on_refused_(request, error);
  }

 private:
  std::vector<Route> routes_;  // literal patterns before those with a parameter before tails
  size_t literals_ = 0;
  RefusedCallback on_refused_;
};

}  // namespace verbatim::gateway
