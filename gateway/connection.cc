#include "gateway/connection.h"

#include <array>
#include <boost/asio/post.hpp>
#include <charconv>
#include <cstdio>
#include <exception>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "gateway/access_log.h"
#include "gateway/connection_admission.h"
#include "gateway/connection_io.h"
#include "gateway/http_head.h"
#include "gateway/http_response.h"
#include "gateway/request_reader.h"
#include "gateway/traceparent.h"

namespace verbatim::gateway {

namespace asio = boost::asio;
using asio::awaitable;

namespace {

HttpError MakeError(int status, std::string message) {
  HttpError error;
  error.status = status;
  error.message = std::move(message);
  return error;
}

constexpr int kClientHungUp = 499;  // in the access log: nobody got an answer

Status GoneStatus() { return Error{Code::kCancelled, "the client is gone"}; }

// The size line of a chunk.
class ChunkSize {
 public:
  explicit ChunkSize(size_t size)
      : length_(static_cast<size_t>(std::snprintf(text_, sizeof(text_), "%zx\r\n", size))) {}
  std::string_view text() const { return {text_, length_}; }

 private:
  char text_[20];
  size_t length_;
};

}  // namespace

// Shared with a posted callback, which may still be queued when the coroutine has ended.
class Connection : public std::enable_shared_from_this<Connection>, public ResponseSink {
 public:
  Connection(asio::ip::tcp::socket socket, ServerState& state, Shard& shard)
      : state_(state), io_(std::move(socket), shard) {}
  ~Connection() override { --state_.connections; }

  awaitable<void> Run();

  awaitable<Status> SendWhole(int status, Headers headers, std::string body) override;
  awaitable<Status> StartStream(int status, Headers headers) override;
  awaitable<Status> Write(std::string_view bytes) override;
  awaitable<Status> Finish() override { return FinishWith({}); }
  awaitable<Status> FinishWith(std::string_view bytes) override;
  awaitable<Status> SendRendered(int status, const RenderedFields& fields, const Headers& more,
                                 std::string_view body, bool stream) override;
  ErrorForm error_form() const override { return ErrorFormOfPath(request_.path); }
  std::string_view request_id() const override { return request_.id; }
  bool TakesNotes() const override { return Logs(); }
  void Note(const AccessNotes& notes) override {
    if (Logs()) access_.notes = notes;
  }
  void Abort() override;
  bool ClientGone() const override { return gone_ || io_.broken(); }
  void OnClientGone(std::function<void()> callback) override;

 private:
  enum class Answer { kNone, kStreaming, kDone };
  using Parts = std::array<std::string_view, ConnectionIo::kMaxParts>;

  awaitable<bool> Open();
  awaitable<void> ServeOne();
  awaitable<bool> ReadRequest(Admission* admission);
  bool TakeHead(size_t length, RequestHead* head, std::optional<HttpError>* error);
  awaitable<void> RunHandler(const Route& route);
  void Report(const HttpError& error);
  awaitable<void> Refuse(HttpError error);
  awaitable<Status> Send(const Parts& parts);
  std::string Head(int status, const RenderedFields& fields, const Headers& headers, bool stream,
                   size_t length);
  awaitable<Status> SendAll(std::string_view head, std::string_view body, bool stream);
  bool Logs() const {
    const AccessLog* log = state_.options.access_log;
    return log != nullptr && log->enabled();
  }
  void NoteAnswer(const Headers& headers);
  void LogAccess();
  bool HasNoBody(int status) const { return head_only_ || status == 204 || status == 304; }
  void CallGoneCallback();

  ServerState& state_;
  ConnectionIo io_;
  std::optional<PeerCertificate> certificate_;
  bool first_ = true;  // no request was read yet
  bool gone_ = false;  // aborted: nothing more is written, whatever the socket would take
  bool in_handler_ = false;
  bool close_ = false;   // after this answer
  bool linger_ = false;  // unread request bytes remain

  // The request being answered.
  Request request_;
  std::shared_ptr<const Router> router_;  // those whose routes it found
  int version_ = 11;
  bool head_only_ = false;  // HEAD: the answer has no body
  std::string head_;        // of a stream of which nothing left yet
  Answer answer_ = Answer::kNone;
  std::function<void()> gone_callback_;
  struct Access {
    int status = 0;
    int64_t begin = 0, first_byte = 0;  // monotonic
    uint64_t bytes_out = 0;
    AccessNotes notes;    // of the handler
    AccessNotes answers;  // of the answer's header fields, where the handler says nothing
  };
  Access access_;  // for the access log
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

std::shared_ptr<const TlsContext> ServerState::tls() const {
  const std::lock_guard lock(mutex_);
  return tls_;
}

void ServerState::set_tls(std::shared_ptr<const TlsContext> context) {
  const std::lock_guard lock(mutex_);
  tls_ = std::move(context);
}

// ---- hang-ups ----

void Connection::CallGoneCallback() {
  const std::function<void()> callback = std::exchange(gone_callback_, nullptr);
  if (callback && in_handler_) callback();
}

void Connection::OnClientGone(std::function<void()> callback) {
  gone_callback_ = std::move(callback);
  if (gone_callback_ && ClientGone()) {
    asio::post(io_.shard().context(), [self = shared_from_this()] { self->CallGoneCallback(); });
  }
}

// ---- one request ----

// Parses the head that lies at the front of what was received, and drops it there. False: `error`
// is the answer.
bool Connection::TakeHead(size_t length, RequestHead* head, std::optional<HttpError>* error) {
  request_.id = io_.shard().NewRequestId();
  request_.received_micros = NowMicros();
  if (Logs()) access_.begin = MonotonicMicros();
  const ServerLimits& limits = state_.options.limits;
  *error = ParseHead(io_.kept().substr(0, length), limits.header_count, head);
  io_.Use(length);
  request_.method = head->method;
  request_.path = head->path;
  if (*error) return false;
  version_ = head->version;
  head_only_ = head->method == "HEAD";
  if (head->content_length > limits.body_bytes) *error = BodyTooLarge(limits);
  if (!head->keep_alive) close_ = true;
  return !*error;
}

// False: it was refused, or the connection is over.
awaitable<bool> Connection::ReadRequest(Admission* admission) {
  const ServerLimits& limits = state_.options.limits;
  size_t length = 0;
  const bool first = std::exchange(first_, false);
  ReadOutcome got = co_await ReadHead(io_, limits, first, state_.draining, &length);
  if (got.kind != ReadOutcome::Kind::kOk) {
    close_ = true;
    if (got.kind == ReadOutcome::Kind::kRefused) co_await Refuse(std::move(got.error));
    co_return false;
  }
  RequestHead head;
  std::optional<HttpError> error;
  if (!TakeHead(length, &head, &error)) {
    co_await Refuse(std::move(*error));
    co_return false;
  }
  router_ = state_.router();
  const Caller caller{io_.remote_ip(), io_.tls(), certificate_ ? &*certificate_ : nullptr};
  error =
      Admit(head, *router_, state_.auth, caller, state_.options.operator_certificates, admission);
  request_.principal = std::move(admission->principal);
  if (error && head.has_body()) {
    co_await Refuse(std::move(*error));
    co_return false;
  }
  if (error) {
    Report(*error);
    (void)co_await SendError(*this, std::move(*error));
    co_return false;
  }
  got = co_await ReadBody(io_, limits, head, admission->expects_continue, &request_.body);
  if (got.kind != ReadOutcome::Kind::kOk) {
    close_ = true;
    if (got.kind == ReadOutcome::Kind::kRefused) {
      co_await Refuse(std::move(got.error));
    } else {
      Report(MakeError(499, "The client hung up before its request was whole."));
    }
    co_return false;
  }
  if (head_only_) request_.method = "GET";
  request_.query = std::move(head.query);
  request_.params = std::move(admission->match.params);
  request_.headers = std::move(head.headers);
  request_.remote = io_.remote();
  co_return true;
}

awaitable<void> Connection::ServeOne() {
  request_ = Request{};
  access_ = Access{};
  // Until it is authenticated.
  if (state_.auth.has_keys()) request_.principal = Principal{"", "", "", 0, {}, {}};
  version_ = 11;
  head_only_ = false;
  head_.clear();
  answer_ = Answer::kNone;
  Admission admission;
  admission.principal = request_.principal;
  const bool read = co_await ReadRequest(&admission);
  if (!read) co_return;
  if (admission.match.route != nullptr) {
    co_await RunHandler(*admission.match.route);
    co_return;
  }
  // OPTIONS
  std::string& allow = admission.match.allow;
  Headers headers;
  headers.emplace_back("allow", allow.empty() ? "GET, HEAD, POST, OPTIONS" : std::move(allow));
  (void)co_await SendWhole(204, std::move(headers), "");
}

awaitable<void> Connection::RunHandler(const Route& route) {
  ++state_.running;
  in_handler_ = true;
  io_.OnBreak([this] { CallGoneCallback(); });
  io_.WatchForHangUp(true);
  bool failed = false;
  try {
    co_await route.handler(request_, *this);
  } catch (const std::exception& e) {
    failed = true;
    LogError(request_.id + " " + request_.path + ": " + e.what());
  }
  in_handler_ = false;
  gone_callback_ = nullptr;
  io_.OnBreak({});
  io_.WatchForHangUp(false);
  if (answer_ == Answer::kStreaming) Abort();
  if (answer_ == Answer::kNone && !ClientGone()) {
    if (!failed) LogError(request_.id + " " + request_.path + ": the handler gave no answer");
    (void)co_await SendError(*this, MakeError(500, "The server failed to answer this request."));
  }
  --state_.running;
}

void Connection::Report(const HttpError& error) {
  if (request_.id.empty()) request_.id = io_.shard().NewRequestId();
  if (request_.received_micros == 0) request_.received_micros = NowMicros();
  if (request_.remote.empty()) request_.remote = io_.remote();
  state_.router()->ReportRefused(request_, error);
}

// An answer to a request whose rest will not be read.
awaitable<void> Connection::Refuse(HttpError error) {
  Report(error);
  close_ = linger_ = true;
  (void)co_await SendError(*this, std::move(error));
}

// The TLS handshake, where the server has TLS.
awaitable<bool> Connection::Open() {
  std::shared_ptr<const TlsContext> context = state_.tls();
  if (!context) co_return true;
  io_.LimitReads(state_.options.limits.header_time);
  io_.set_idle(true);  // a drain waits for no handshake
  const ConnectionIo::Opening opening = co_await io_.StartTls(std::move(context));
  io_.set_idle(false);
  if (opening == ConnectionIo::Opening::kNotTls) {
    co_await Refuse(MakeError(400, "This port speaks HTTPS; use https://, not http://."));
  }
  certificate_ = io_.Peer();
  co_return opening == ConnectionIo::Opening::kReady;
}

awaitable<void> Connection::Run() {
  const bool open = co_await Open();
  if (!open) LogAccess();
  while (open && !close_ && !ClientGone()) {
    co_await ServeOne();
    LogAccess();
  }
  if (linger_ && !ClientGone()) co_await io_.Linger();
  io_.Close();
}

// ---- the access log ----

// What an answer's own header fields say of it.
void Connection::NoteAnswer(const Headers& headers) {
  AccessNotes& notes = access_.answers;
  for (const auto& [name, value] : headers) {
    if (name == "Verbatim-Cache") {
      notes.cache = value;
      notes.pending = value.starts_with("hit") || value.starts_with("shared");
    } else if (name == "Verbatim-Fingerprint") {
      notes.fingerprint = value;
    } else if (name == "Verbatim-Entry") {
      uint64_t entry = 0;
      const char* end = value.data() + value.size();
      if (std::from_chars(value.data(), end, entry).ptr == end) notes.entry = entry;
    }
  }
}

// A line for each request of which anything was read.
void Connection::LogAccess() {
  if (!Logs() || request_.id.empty()) return;
  AccessNotes& notes = access_.notes;
  AccessNotes& answers = access_.answers;
  if (notes.cache.empty()) notes.cache = std::move(answers.cache);
  if (notes.fingerprint.empty()) notes.fingerprint = std::move(answers.fingerprint);
  if (!notes.entry) notes.entry = answers.entry;
  notes.pending = notes.pending || answers.pending;
  if (notes.trace_id.empty()) {
    if (const auto trace = TraceOf(request_.headers)) notes.trace_id = TraceIdText(*trace);
  }
  AccessRecord record;
  record.Take(notes);
  record.time_micros = request_.received_micros;
  record.request_id = request_.id;
  record.remote = io_.remote();
  record.method = head_only_ ? "HEAD" : std::string_view(request_.method);
  record.path = request_.path;
  const bool reached = access_.first_byte != 0;  // anything of an answer
  record.status = reached ? access_.status : kClientHungUp;
  record.tenant = request_.principal.tenant;
  record.subject = request_.principal.subject;
  record.key_id = request_.principal.key_id;
  record.bytes_in = request_.body.size();
  record.bytes_out = reached ? access_.bytes_out : 0;
  if (access_.begin != 0) record.duration_micros = MonotonicMicros() - access_.begin;
  if (access_.begin != 0 && reached) {
    record.first_byte_micros = access_.first_byte - access_.begin;
  }
  state_.options.access_log->Write(record);
}

// ---- answering ----

std::string Connection::Head(int status, const RenderedFields& fields, const Headers& headers,
                             bool stream, size_t length) {
  if (state_.draining || (stream && version_ == 10)) close_ = true;
  access_.status = status;
  if (Logs()) NoteAnswer(headers);
  ResponseForm form;
  form.version = version_;
  form.stream = stream;
  form.close = close_;
  form.length = length;
  form.anthropic = error_form() == ErrorForm::kAnthropic;
  return ResponseHead(status, fields, headers, form, request_.id, io_.shard().Date());
}

awaitable<Status> Connection::Send(const Parts& parts) {
  if (ClientGone()) co_return GoneStatus();
  const bool sent = co_await io_.Send(parts, state_.options.limits.write_stall);
  if (!sent) co_return GoneStatus();
  if (access_.first_byte == 0 && Logs()) access_.first_byte = MonotonicMicros();
  co_return Status();
}

awaitable<Status> Connection::SendWhole(int status, Headers headers, std::string body) {
  CHECK(answer_ == Answer::kNone);
  answer_ = Answer::kDone;
  const std::string head = Head(status, {}, headers, false, body.size());
  co_return co_await SendAll(head, body, false);
}

awaitable<Status> Connection::StartStream(int status, Headers headers) {
  CHECK(answer_ == Answer::kNone);
  answer_ = Answer::kStreaming;
  head_ = Head(status, {}, headers, true, 0);
  co_return ClientGone() ? GoneStatus() : Status();
}

awaitable<Status> Connection::Write(std::string_view bytes) {
  if (ClientGone()) co_return GoneStatus();
  CHECK(answer_ == Answer::kStreaming);
  if (bytes.empty() || head_only_) co_return Status();
  access_.bytes_out += bytes.size();
  const ChunkSize size(bytes.size());
  const std::string head = std::exchange(head_, {});
  Parts parts{head, bytes};
  if (version_ == 11) parts = {head, size.text(), bytes, "\r\n"};
  co_return co_await Send(parts);
}

awaitable<Status> Connection::FinishWith(std::string_view bytes) {
  if (ClientGone()) co_return GoneStatus();
  CHECK(answer_ == Answer::kStreaming);
  answer_ = Answer::kDone;
  if (head_only_) bytes = {};
  access_.bytes_out += bytes.size();
  const ChunkSize size(bytes.size());
  const std::string head = std::exchange(head_, {});
  Parts parts{head, bytes};
  if (version_ == 11 && !head_only_) {
    parts = {head, "0\r\n\r\n"};
    if (!bytes.empty()) parts = {head, size.text(), bytes, "\r\n0\r\n\r\n"};
  }
  co_return co_await Send(parts);
}

awaitable<Status> Connection::SendRendered(int status, const RenderedFields& fields,
                                           const Headers& more, std::string_view body,
                                           bool stream) {
  CHECK(answer_ == Answer::kNone);
  answer_ = Answer::kDone;
  const std::string head = Head(status, fields, more, stream, body.size());
  co_return co_await SendAll(head, body, stream);
}

// The whole of an answer.
awaitable<Status> Connection::SendAll(std::string_view head, std::string_view body, bool stream) {
  const ChunkSize size(body.size());
  Parts parts{head};
  if (!HasNoBody(access_.status)) {
    access_.bytes_out = body.size();
    if (!stream || version_ == 10) {
      parts[1] = body;
    } else if (body.empty()) {
      parts[1] = "0\r\n\r\n";
    } else {
      parts = {head, size.text(), body, "\r\n0\r\n\r\n"};
    }
  }
  co_return co_await Send(parts);
}

// Over HTTP/1.1 the missing last chunk tells; over 1.0 only a reset does.
void Connection::Abort() {
  if (ClientGone()) return;
  CHECK(answer_ != Answer::kDone);
  answer_ = Answer::kDone;
  close_ = true;
  if (version_ == 11) {
    linger_ = true;
    return;
  }
  io_.ResetOnClose();
  gone_ = true;
}

// ---- the server's entry points ----

awaitable<void> ServeConnection(asio::ip::tcp::socket socket, ServerState& state, Shard& shard) {
  const auto connection = std::make_shared<Connection>(std::move(socket), state, shard);
  co_await connection->Run();
}

awaitable<void> RefuseConnection(asio::ip::tcp::socket socket, ServerState& state, Shard& shard) {
  {
    ConnectionIo io(std::move(socket), shard);
    const HttpError error = MakeError(503, "Too many connections; try again later.");
    const std::string body = ErrorJson(error);
    Headers headers;
    headers.emplace_back("retry-after", "1");
    ResponseForm form;
    form.close = true;
    form.length = body.size();
    const std::string answer = ResponseHead(503, headers, form, "", shard.Date()) + body;
    const bool sent = co_await io.Send(answer, std::chrono::milliseconds(1'000));
    if (sent) co_await io.Linger();
    io.Close();
  }
  --state.connections;
}

}  // namespace verbatim::gateway
