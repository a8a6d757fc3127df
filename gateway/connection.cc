#include "gateway/connection.h"

#include <poll.h>
#include <sys/socket.h>
#include <time.h>

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/status.hpp>
#include <boost/beast/http/string_body.hpp>
#include <exception>
#include <optional>

#include "base/clock.h"
#include "base/crypto.h"
#include "base/log.h"
#include "gateway/http_head.h"

namespace verbatim::gateway {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
using asio::awaitable;
using boost::system::error_code;
using std::chrono::milliseconds;

constexpr size_t kReadSize = 4096;
constexpr milliseconds kHangUpInterval{200};
// After an answer that leaves unread request bytes behind, so that the client can read the answer
// (RFC 9112, section 9.6).
constexpr milliseconds kLingerTime{2'000};
constexpr size_t kLingerBytes = 32 << 20;

std::string HttpDate() {
  const time_t now = ::time(nullptr);
  tm parts{};
  ::gmtime_r(&now, &parts);
  char text[40];
  return {text, ::strftime(text, sizeof(text), "%a, %d %b %Y %H:%M:%S GMT", &parts)};
}

// Bytes that would end a header line become spaces, so that no value can add a header.
void AppendField(std::string& out, std::string_view name, std::string_view value) {
  out.append(name).append(": ");
  for (char c : value) {
    const bool control = static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
    out.push_back(control ? ' ' : c);
  }
  out.append("\r\n");
}

std::string StatusLine(int version, int status) {
  const auto reason = beast::http::obsolete_reason(static_cast<beast::http::status>(status));
  std::string line = version == 10 ? "HTTP/1.0 " : "HTTP/1.1 ";
  line += std::to_string(status) + ' ';
  line.append(reason.data(), reason.size()).append("\r\n");
  return line;
}

HttpError MakeError(int status, std::string message) {
  HttpError error;
  error.status = status;
  error.message = std::move(message);
  return error;
}

std::string LowerCase(std::string_view s) {
  std::string out(s);
  for (char& c : out) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return out;
}

// Bodies are JSON, and not compressed.
std::optional<HttpError> CheckContent(const RequestHead& head) {
  const std::string encoding = LowerCase(FindHeader(head.headers, "content-encoding"));
  if (!encoding.empty() && encoding != "identity") {
    return MakeError(415, "Content-Encoding is not supported here; send the body uncompressed.");
  }
  const std::string type = LowerCase(FindHeader(head.headers, "content-type"));
  const std::string_view media = std::string_view(type).substr(0, type.find_first_of("; \t"));
  if (!media.empty() && media != "application/json") {
    return MakeError(415, "Content-Type must be application/json.");
  }
  const size_t charset = type.find("charset=");
  if (charset != std::string::npos) {
    const std::string_view name = std::string_view(type).substr(charset + 8);
    if (!name.starts_with("utf-8") && !name.starts_with("\"utf-8\"")) {
      return MakeError(415, "The body's charset must be utf-8.");
    }
  }
  return std::nullopt;
}

}  // namespace

// Shared with the callbacks of its timers, which may still be queued when the coroutine has ended.
class Connection : public std::enable_shared_from_this<Connection>, public ResponseSink {
 public:
  Connection(asio::ip::tcp::socket socket, ServerState& state, Shard& shard)
      : state_(state),
        shard_(shard),
        socket_(std::move(socket)),
        deadline_(socket_.get_executor()),
        watch_(socket_.get_executor()),
        buffer_(state.limits.header_bytes + size_t{64} * 1024) {
    shard_.connections.insert(this);
  }
  ~Connection() override {
    shard_.connections.erase(this);
    --state_.connections;
  }

  awaitable<void> Run();
  void CloseIfIdle();
  void End();

  awaitable<Status> SendWhole(int status, Headers headers, std::string body) override;
  awaitable<Status> StartStream(int status, Headers headers) override;
  awaitable<Status> Write(std::string_view bytes) override;
  awaitable<Status> Finish() override;
  void Abort() override;
  bool ClientGone() const override { return gone_; }
  void OnClientGone(std::function<void()> callback) override;

 private:
  enum class Answer { kNone, kStreaming, kDone };
  using BodyParser = beast::http::request_parser<beast::http::string_body>;

  awaitable<void> ServeOne();
  awaitable<bool> ReadHead(std::string* bytes);
  awaitable<bool> ReadBody(BodyParser& parser);
  std::optional<HttpError> Admit(const RequestHead& head, Router::Match& match);
  awaitable<void> RunHandler(const Route& route);
  void Report(const HttpError& error);
  awaitable<void> Refuse(HttpError error);
  awaitable<void> Linger();
  awaitable<Status> WriteAll(std::string_view bytes);
  std::string ResponseHead(int status, const Headers& headers, bool stream,
                           std::string_view default_type, size_t length) const;

  void Arm(milliseconds limit);
  void Disarm();
  void WatchForHangUp();
  void MarkGone();
  void CallGoneCallback();
  Status GoneStatus() const { return Error{Code::kCancelled, "the client is gone"}; }

  ServerState& state_;
  Shard& shard_;
  asio::ip::tcp::socket socket_;
  asio::steady_timer deadline_;  // of the read or write in progress
  asio::steady_timer watch_;     // for hang-ups while a handler runs
  uint64_t deadline_number_ = 0;
  bool timed_out_ = false;
  bool first_ = true;  // no request was read yet
  bool idle_ = false;  // between requests, nothing of the next one received
  bool gone_ = false;  // the client is, or the server ended the connection
  bool in_handler_ = false;
  bool close_ = false;         // after this answer
  bool linger_ = false;        // unread request bytes remain
  beast::flat_buffer buffer_;  // bytes received and not yet used: the next pipelined request

  // The request being answered.
  Request request_;
  std::shared_ptr<const Router> router_;  // those whose routes it found
  int version_ = 11;
  bool head_only_ = false;  // HEAD: the answer has no body
  Answer answer_ = Answer::kNone;
  std::function<void()> gone_callback_;
  std::string frame_;
};

std::shared_ptr<const Router> ServerState::router() const {
  const std::lock_guard lock(mutex_);
  return router_;
}

void ServerState::set_router(Router router) {
  auto fresh = std::make_shared<const Router>(std::move(router));
  const std::lock_guard lock(mutex_);
  router_ = std::move(fresh);
}

// ---- deadlines and hang-ups ----

void Connection::Arm(milliseconds limit) {
  timed_out_ = false;
  const uint64_t number = ++deadline_number_;
  deadline_.expires_after(limit);
  deadline_.async_wait([self = shared_from_this(), number](const error_code& ec) {
    if (ec || number != self->deadline_number_) return;
    self->timed_out_ = true;
    error_code ignored;
    self->socket_.cancel(ignored);
  });
}

void Connection::Disarm() {
  ++deadline_number_;
  deadline_.cancel();
}

// A FIN or reset is seen by poll although unread bytes of a pipelined request stand before it.
void Connection::WatchForHangUp() {
  watch_.expires_after(kHangUpInterval);
  watch_.async_wait([self = shared_from_this()](const error_code& ec) {
    if (ec || !self->in_handler_ || self->gone_) return;
    pollfd entry{self->socket_.native_handle(), POLLRDHUP, 0};
    if (::poll(&entry, 1, 0) > 0) {
      self->MarkGone();
    } else {
      self->WatchForHangUp();
    }
  });
}

void Connection::MarkGone() {
  gone_ = close_ = true;
  error_code ignored;
  socket_.cancel(ignored);
  CallGoneCallback();
}

void Connection::CallGoneCallback() {
  const std::function<void()> callback = std::move(gone_callback_);
  gone_callback_ = nullptr;
  if (callback && in_handler_) callback();
}

void Connection::OnClientGone(std::function<void()> callback) {
  gone_callback_ = std::move(callback);
  if (gone_ && gone_callback_) {
    asio::post(socket_.get_executor(), [self = shared_from_this()] { self->CallGoneCallback(); });
  }
}

void Connection::CloseIfIdle() {
  if (!idle_) return;
  close_ = true;
  error_code ignored;
  socket_.cancel(ignored);
}

void Connection::End() { MarkGone(); }

// ---- reading ----

// False: the connection is over (closed, timed out, or refused here).
awaitable<bool> Connection::ReadHead(std::string* bytes) {
  size_t position = 0;
  bool begun = buffer_.size() > 0;
  Arm(begun || first_ ? state_.limits.header_time : state_.limits.keep_alive_idle);
  first_ = false;
  for (;;) {
    // Empty lines before a request are skipped (RFC 9112, section 2.2).
    while (position == 0 && buffer_.size() >= 2) {
      const char* data = static_cast<const char*>(buffer_.data().data());
      if (data[0] != '\r' || data[1] != '\n') break;
      buffer_.consume(2);
    }
    const std::string_view received{static_cast<const char*>(buffer_.data().data()),
                                    buffer_.size()};
    const HeadScan scan = ScanHead(received, &position);
    if (scan == HeadScan::kEnd && position <= state_.limits.header_bytes) {
      Disarm();
      bytes->assign(received.substr(0, position));
      co_return true;
    }
    if (received.starts_with("\x16\x03")) {
      co_await Refuse(MakeError(400, "This port speaks plain HTTP; use http://, not https://."));
      co_return false;
    }
    if (scan == HeadScan::kBareNewline) {
      co_await Refuse(MakeError(400, "Lines of a request head must end with CRLF."));
      co_return false;
    }
    if (received.size() >= state_.limits.header_bytes) {
      co_await Refuse(MakeError(431, "The request line and headers are larger than " +
                                         std::to_string(state_.limits.header_bytes) + " bytes."));
      co_return false;
    }
    idle_ = !begun;
    if (gone_ || close_ || (idle_ && state_.draining)) co_return false;
    error_code ec;
    const size_t n = co_await socket_.async_read_some(
        buffer_.prepare(kReadSize), asio::redirect_error(asio::use_awaitable, ec));
    idle_ = false;
    buffer_.commit(n);
    if (n > 0 && !begun) {
      begun = true;
      Arm(state_.limits.header_time);
    }
    if (ec) {
      if (begun && timed_out_) {
        co_await Refuse(MakeError(408, "The request's headers took too long to arrive."));
      }
      co_return false;
    }
  }
}

// Reads the body that the parser's header announced. False: refused, or the connection is over.
awaitable<bool> Connection::ReadBody(BodyParser& parser) {
  if (parser.is_done()) co_return true;
  const std::string expect = LowerCase(request_.Header("expect"));
  if (!expect.empty() && version_ == 11 && buffer_.size() == 0) {
    const Status sent = co_await WriteAll("HTTP/1.1 100 Continue\r\n\r\n");
    if (!sent.ok()) co_return false;
  }
  error_code ec;
  Arm(state_.limits.body_time);
  co_await beast::http::async_read(socket_, buffer_, parser,
                                   asio::redirect_error(asio::use_awaitable, ec));
  Disarm();
  if (!ec) co_return true;
  using beast::http::error;
  if (timed_out_) {
    co_await Refuse(MakeError(408, "The request's body took too long to arrive."));
  } else if (ec == error::body_limit) {
    co_await Refuse(MakeError(413, "The request body is larger than " +
                                       std::to_string(state_.limits.body_bytes) + " bytes."));
  } else if (ec.category() == make_error_code(error::body_limit).category() &&
             ec != error::end_of_stream && ec != error::partial_message) {
    co_await Refuse(MakeError(400, "The request body's chunks are malformed."));
  } else {
    Report(MakeError(499, "The client hung up before its request was whole."));
  }
  co_return false;
}

// ---- one request ----

// Everything that is decided on the head alone. An error is the answer.
std::optional<HttpError> Connection::Admit(const RequestHead& head, Router::Match& match) {
  if (!state_.auth.has_keys()) {
    if (auto error = CheckBrowserOrigin(head)) return error;
  }
  match = router_->Find(head.method, head.raw_path);
  if (head.method == "OPTIONS" && (!match.allow.empty() || head.raw_path == "*")) {
    return std::nullopt;
  }
  if (match.allow.empty()) {
    HttpError error = MakeError(404, "Unknown request URL: " + head.method + " " + head.path +
                                         ". Please check the URL for typos.");
    error.code = "unknown_url";
    return error;
  }
  if (match.route == nullptr) {
    HttpError error = MakeError(405, "Not allowed to " + head.method + " on " + head.path + ".");
    error.headers.emplace_back("allow", match.allow);
    error.code = "method_not_allowed";
    return error;
  }
  if (match.route->roles != 0) {
    error_code ignored;
    const std::string remote_ip = socket_.remote_endpoint(ignored).address().to_string();
    Result<Principal> principal = state_.auth.Authenticate(head.headers, remote_ip);
    if (!principal.ok()) {
      HttpError error = MakeError(401, principal.error().message);
      error.headers.emplace_back("www-authenticate", "Bearer");
      error.code = "invalid_api_key";
      return error;
    }
    if ((principal->roles & match.route->roles) == 0) {
      request_.principal = std::move(principal).value();
      return MakeError(403, "This API key's roles do not allow " + head.path + ".");
    }
    request_.principal = std::move(principal).value();
  }
  const std::string expect = LowerCase(FindHeader(head.headers, "expect"));
  if (!expect.empty() && expect != "100-continue") {
    return MakeError(417, "The only expectation understood is 100-continue.");
  }
  if (match.route->method == "POST") return CheckContent(head);
  return std::nullopt;
}

awaitable<void> Connection::ServeOne() {
  request_ = Request{};
  if (state_.auth.has_keys()) request_.principal = {"", "", "", 0};  // until it is authenticated
  version_ = 11;
  head_only_ = false;
  answer_ = Answer::kNone;
  std::string head_bytes;
  const bool got_head = co_await ReadHead(&head_bytes);
  if (!got_head) {
    close_ = true;
    co_return;
  }
  request_.id = "req_" + HexEncode(RandomBytes(16));
  request_.received_micros = NowMicros();
  RequestHead head;
  auto malformed = ParseHead(head_bytes, state_.limits.header_count, &head);
  request_.method = head.method;
  request_.path = head.path;
  if (malformed) {
    co_await Refuse(std::move(*malformed));
    co_return;
  }
  version_ = head.version;
  head_only_ = head.method == "HEAD";

  BodyParser parser;
  parser.header_limit(static_cast<uint32_t>(state_.limits.header_bytes + 1));
  parser.body_limit(state_.limits.body_bytes);
  error_code ec;
  buffer_.consume(parser.put(buffer_.data(), ec));
  if (ec == beast::http::error::body_limit) {
    co_await Refuse(MakeError(413, "The request body is larger than " +
                                       std::to_string(state_.limits.body_bytes) + " bytes."));
    co_return;
  }
  if (ec || !parser.is_header_done()) {
    co_await Refuse(MakeError(400, "The request is malformed: " + ec.message() + "."));
    co_return;
  }
  if (!parser.keep_alive()) close_ = true;
  router_ = state_.router();
  Router::Match match;
  if (auto error = Admit(head, match)) {
    if (head.has_body) {
      co_await Refuse(std::move(*error));
    } else {
      Report(*error);
      (void)co_await SendError(*this, std::move(*error));
    }
    co_return;
  }
  error_code ignored;
  const auto remote = socket_.remote_endpoint(ignored);
  request_.remote = remote.address().to_string(ignored) + ":" + std::to_string(remote.port());
  if (head_only_) request_.method = "GET";
  request_.query = std::move(head.query);
  request_.params = std::move(match.params);
  request_.headers = std::move(head.headers);
  const bool got_body = co_await ReadBody(parser);
  if (!got_body) {
    close_ = true;
    co_return;
  }
  request_.body = std::move(parser.get().body());
  if (match.route == nullptr) {  // OPTIONS
    Headers headers;
    headers.emplace_back("allow", match.allow.empty() ? "GET, HEAD, POST, OPTIONS" : match.allow);
    (void)co_await SendWhole(204, std::move(headers), "");
    co_return;
  }
  if (buffer_.size() == 0) buffer_.shrink_to_fit();
  co_await RunHandler(*match.route);
}

awaitable<void> Connection::RunHandler(const Route& route) {
  ++state_.running;
  in_handler_ = true;
  WatchForHangUp();
  bool failed = false;
  try {
    co_await route.handler(request_, *this);
  } catch (const std::exception& e) {
    failed = true;
    LogError(request_.id + " " + request_.path + ": " + e.what());
  }
  in_handler_ = false;
  gone_callback_ = nullptr;
  watch_.cancel();
  if (answer_ == Answer::kStreaming) Abort();
  if (answer_ == Answer::kNone && !gone_) {
    if (!failed) LogError(request_.id + " " + request_.path + ": the handler gave no answer");
    (void)co_await SendError(*this, MakeError(500, "The server failed to answer this request."));
  }
  --state_.running;
}

void Connection::Report(const HttpError& error) {
  if (request_.id.empty()) request_.id = "req_" + HexEncode(RandomBytes(16));
  if (request_.received_micros == 0) request_.received_micros = NowMicros();
  state_.router()->ReportRefused(request_, error);
}

// An answer to a request whose rest will not be read.
awaitable<void> Connection::Refuse(HttpError error) {
  Disarm();
  Report(error);
  close_ = linger_ = true;
  (void)co_await SendError(*this, std::move(error));
}

awaitable<void> Connection::Linger() {
  error_code ec;
  socket_.shutdown(asio::socket_base::shutdown_send, ec);
  Arm(kLingerTime);
  std::string sink(kReadSize * 4, '\0');
  for (size_t total = 0; !ec && total < kLingerBytes && !gone_ && !timed_out_;) {
    total += co_await socket_.async_read_some(asio::buffer(sink),
                                              asio::redirect_error(asio::use_awaitable, ec));
  }
  Disarm();
}

awaitable<void> Connection::Run() {
  error_code ec;
  socket_.set_option(asio::ip::tcp::no_delay(true), ec);
  socket_.non_blocking(true, ec);
  while (!close_ && !gone_) co_await ServeOne();
  if (linger_ && !gone_) co_await Linger();
  Disarm();
  socket_.shutdown(asio::socket_base::shutdown_both, ec);
  socket_.close(ec);
}

// ---- answering ----

std::string Connection::ResponseHead(int status, const Headers& headers, bool stream,
                                     std::string_view default_type, size_t length) const {
  std::string out = StatusLine(version_, status);
  AppendField(out, "date", HttpDate());
  AppendField(out, "server", "verbatim");
  AppendField(out, "x-request-id", request_.id);
  if (FindHeader(headers, "content-type").empty() && status != 204) {
    AppendField(out, "content-type", default_type);
  }
  if (stream && FindHeader(headers, "cache-control").empty()) {
    AppendField(out, "cache-control", "no-cache");
  }
  for (const auto& [name, value] : headers) AppendField(out, name, value);
  if (stream) {
    if (version_ == 11) AppendField(out, "transfer-encoding", "chunked");
  } else if (status != 204) {
    AppendField(out, "content-length", std::to_string(length));
  }
  if (close_) {
    AppendField(out, "connection", "close");
  } else if (version_ == 10) {
    AppendField(out, "connection", "keep-alive");
  }
  return out + "\r\n";
}

awaitable<Status> Connection::WriteAll(std::string_view bytes) {
  while (!bytes.empty()) {
    if (gone_) co_return GoneStatus();
    error_code ec;
    bytes.remove_prefix(socket_.write_some(asio::buffer(bytes.data(), bytes.size()), ec));
    if (ec == asio::error::would_block) {
      Arm(state_.limits.write_stall);
      co_await socket_.async_wait(asio::socket_base::wait_write,
                                  asio::redirect_error(asio::use_awaitable, ec));
      Disarm();
    }
    if (ec) {
      MarkGone();
      co_return GoneStatus();
    }
  }
  co_return Status();
}

awaitable<Status> Connection::SendWhole(int status, Headers headers, std::string body) {
  CHECK(answer_ == Answer::kNone);
  answer_ = Answer::kDone;
  if (state_.draining) close_ = true;
  std::string bytes = ResponseHead(status, headers, false, "application/json", body.size());
  if (!head_only_) bytes += body;
  co_return co_await WriteAll(bytes);
}

awaitable<Status> Connection::StartStream(int status, Headers headers) {
  CHECK(answer_ == Answer::kNone);
  answer_ = Answer::kStreaming;
  if (state_.draining || version_ == 10) close_ = true;
  const std::string bytes =
      ResponseHead(status, headers, true, "text/event-stream; charset=utf-8", 0);
  co_return co_await WriteAll(bytes);
}

awaitable<Status> Connection::Write(std::string_view bytes) {
  if (gone_) co_return GoneStatus();
  CHECK(answer_ == Answer::kStreaming);
  if (bytes.empty() || head_only_) co_return Status();
  if (version_ == 10) co_return co_await WriteAll(bytes);
  char size[20];
  frame_.assign(size,
                static_cast<size_t>(std::snprintf(size, sizeof(size), "%zx\r\n", bytes.size())));
  frame_.append(bytes).append("\r\n");
  co_return co_await WriteAll(frame_);
}

awaitable<Status> Connection::Finish() {
  if (gone_) co_return GoneStatus();
  CHECK(answer_ == Answer::kStreaming);
  answer_ = Answer::kDone;
  if (version_ == 10 || head_only_) co_return Status();
  co_return co_await WriteAll("0\r\n\r\n");
}

// Over HTTP/1.1 the missing last chunk tells; over 1.0 only a reset does.
void Connection::Abort() {
  if (gone_) return;
  CHECK(answer_ != Answer::kDone);
  answer_ = Answer::kDone;
  close_ = true;
  if (version_ == 11) {
    linger_ = true;
    return;
  }
  error_code ignored;
  socket_.set_option(asio::socket_base::linger(true, 0), ignored);
  gone_ = true;
}

// ---- the server's entry points ----

awaitable<void> ServeConnection(asio::ip::tcp::socket socket, ServerState& state, Shard& shard) {
  const auto connection = std::make_shared<Connection>(std::move(socket), state, shard);
  co_await connection->Run();
}

awaitable<void> RefuseConnection(asio::ip::tcp::socket socket, ServerState& state) {
  const HttpError error = MakeError(503, "Too many connections; try again later.");
  const std::string body = ErrorJson(error);
  std::string bytes = StatusLine(11, 503);
  AppendField(bytes, "content-type", "application/json");
  AppendField(bytes, "content-length", std::to_string(body.size()));
  AppendField(bytes, "retry-after", "1");
  AppendField(bytes, "connection", "close");
  bytes += "\r\n" + body;
  error_code ec;
  socket.non_blocking(true, ec);
  socket.write_some(asio::buffer(bytes), ec);
  socket.shutdown(asio::socket_base::shutdown_send, ec);
  // Until the client has read it: closing over unread request bytes would reset the connection.
  asio::steady_timer timer(socket.get_executor());
  for (int i = 0; i < 20 && !ec; ++i) {
    std::string sink(kReadSize, '\0');
    while (!ec) {
      socket.read_some(asio::buffer(sink), ec);
    }
    if (ec != asio::error::would_block) break;
    timer.expires_after(milliseconds(50));
    co_await timer.async_wait(asio::redirect_error(asio::use_awaitable, ec));
  }
  --state.connections;
}

void CloseIdle(Shard& shard) {
  for (Connection* connection : shard.connections) connection->CloseIfIdle();
}

void CloseAll(Shard& shard) {
  const std::unordered_set<Connection*> all = shard.connections;
  for (Connection* connection : all) connection->End();
}

}  // namespace verbatim::gateway
