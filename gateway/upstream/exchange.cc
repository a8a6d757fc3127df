#include "gateway/upstream/exchange.h"

#include <algorithm>
#include <utility>

#include "gateway/http.h"

namespace verbatim::gateway {

namespace asio = boost::asio;
using boost::system::error_code;
using std::chrono::duration_cast;
using std::chrono::microseconds;
using std::chrono::milliseconds;

namespace {

// What is read until something of a stream was passed on: its first event need not wait until all
// that came with it is read and judged.
constexpr size_t kFirstReadBytes = 1 << 10;
constexpr size_t kJoinBytes = 16 << 10;  // a body up to this leaves together with its header
// What a body's bytes on the wire may be over its decoded ones: chunks of one byte, and empty
// blocks.
constexpr uint64_t kWireFactor = 8, kWireExtra = 1 << 20;

SteadyClock::time_point In(int64_t ms) { return SteadyClock::now() + milliseconds(ms); }

bool IsToken(std::string_view text) {
  constexpr std::string_view kOthers = "!#$%&'*+-.^_`|~";
  return !text.empty() && std::all_of(text.begin(), text.end(), [&](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           kOthers.find(c) != std::string_view::npos;
  });
}

bool IsTarget(std::string_view text) {
  return !text.empty() && text.front() == '/' &&
         std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c <= '~'; });
}

bool IsValue(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return (byte >= 0x20 && byte != 0x7f) || byte == '\t';
  });
}

// What concerns one connection only, or what the client itself says about the body.
bool IsOurs(std::string_view name) {
  constexpr std::string_view kNames[] = {"host",       "content-length", "transfer-encoding",
                                         "connection", "expect",         "te",
                                         "trailer",    "upgrade",        "keep-alive"};
  std::string lower(name);
  for (char& c : lower) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return std::find(std::begin(kNames), std::end(kNames), lower) != std::end(kNames) ||
         lower.compare(0, 6, "proxy-") == 0;
}

}  // namespace

Exchange::Exchange(std::shared_ptr<ConnectionPool> pool, FetchRequest request, FetchSink& sink)
    : pool_(std::move(pool)),
      request_(std::move(request)),
      sink_(sink),
      began_(SteadyClock::now()),
      total_limit_(began_ + milliseconds(pool_->origin().options().total_ms)),
      step_limit_(total_limit_),
      timer_(pool_->executor()),
      event_(pool_->executor()) {}

Exchange::~Exchange() = default;

asio::awaitable<FetchEnd> Exchange::Run() {
  if (Status status = CheckRequest(); !status.ok()) {
    Break(FetchFault::kInvalidRequest, status.error().message);
  }
  if (!broken()) co_await TakePlace();
  end_.reused = connection_ != nullptr;
  if (!broken() && !connection_) co_await Open();
  while (!broken()) {
    end_.connect_micros = duration_cast<microseconds>(SteadyClock::now() - began_).count();
    Send();
    const bool over = co_await ReadReply();
    if (over) break;
    end_.reused = false;
    end_.reconnected = true;
    co_await Open();
  }
  if (broken()) end_.outcome = FetchOutcome::kBroken;
  co_return std::move(end_);
}

void Exchange::Break(FetchFault fault, std::string message) {
  if (broken() || finished_) return;
  end_.fault = fault;
  end_.message = std::move(message);
  if (connection_) connection_->Close();
  if (waits_) pool_->TakeBack(*this);
  waits_ = false;
  event_.cancel();
}

void Exchange::Finish() {
  if (finished_) return;
  finished_ = true;
  timer_.cancel();
  if (waits_) pool_->TakeBack(*this);
  waits_ = false;
  std::shared_ptr<UpstreamConnection> connection = std::exchange(connection_, nullptr);
  const bool keep = reusable_ && !broken();
  if (connection && !keep) connection->Close();
  if (!has_place_) return;
  has_place_ = false;
  pool_->Release(keep ? std::move(connection) : nullptr);
}

void Exchange::Limit(SteadyClock::time_point until, FetchFault fault) {
  step_limit_ = until;
  step_fault_ = fault;
  ArmTimer();
}

// A limit that moves away, as after every read, costs no timer: it is looked at when the old one
// passes.
void Exchange::ArmTimer() {
  const auto next = std::min(step_limit_, total_limit_);
  if (finished_ || (armed_ && armed_for_ <= next)) return;
  armed_ = true;
  armed_for_ = next;
  timer_.expires_at(next);
  timer_.async_wait([self = shared_from_this()](const error_code& ec) {
    if (!ec) self->OnTimer();
  });
}

void Exchange::OnTimer() {
  armed_ = false;
  if (finished_ || broken()) return;
  const auto now = SteadyClock::now();
  if (now >= total_limit_) {
    Break(FetchFault::kTotalTimeout,
          "not done within " + std::to_string(pool_->origin().options().total_ms) + " ms");
    return;
  }
  if (now < step_limit_) return ArmTimer();
  if (step_fault_ == FetchFault::kNone) {
    attempt_over_ = true;
    if (connection_) connection_->Close();
    step_limit_ = total_limit_;
    return ArmTimer();
  }
  std::string message = "no byte for " + std::to_string(pool_->origin().options().idle_ms) + " ms";
  if (step_fault_ == FetchFault::kConnectTimeout) {
    message = (has_place_ ? "no connection to " + PeerName() : "none of the connections was free") +
              " within " + std::to_string(pool_->origin().options().connect_ms) + " ms";
  } else if (step_fault_ == FetchFault::kFirstByteTimeout) {
    message = "no reply within " + std::to_string(pool_->origin().options().first_byte_ms) + " ms";
  }
  Break(step_fault_, std::move(message));
}

Status Exchange::CheckRequest() const {
  if (!IsToken(request_.method)) return Error{Code::kInvalid, "the method is no token"};
  if (!IsTarget(request_.target)) {
    return Error{Code::kInvalid, "the target is no path of printable ASCII"};
  }
  for (const auto& [name, value] : request_.headers) {
    if (!IsToken(name)) return Error{Code::kInvalid, "a header's name is no token"};
    if (!IsValue(value)) {
      return Error{Code::kInvalid, "the value of the header " + name + " holds control characters"};
    }
  }
  return {};
}

std::string Exchange::RequestHead() const {
  const HttpOrigin::State& state = origin();
  const bool through_proxy = state.proxy.has_value() && !state.url.https;
  std::string head = request_.method + " ";
  if (through_proxy) head += state.url.Origin();
  head += request_.target + " HTTP/1.1\r\nhost: " + state.url.Authority() + "\r\n";
  if (through_proxy && !state.proxy->authorization.empty()) {
    head += "proxy-authorization: " + state.proxy->authorization + "\r\n";
  }
  for (const auto& [name, value] : request_.headers) {
    if (!IsOurs(name)) head += name + ": " + value + "\r\n";
  }
  if (request_.body) head += "content-length: " + std::to_string(request_.body->size()) + "\r\n";
  return head + "\r\n";
}

void Exchange::Send() {
  std::string head = RequestHead();
  std::shared_ptr<const std::string> body = request_.body;
  if (body && body->size() <= kJoinBytes) {
    head += *body;
    body = nullptr;
  }
  writing_ = true;
  end_.request_sent = true;
  Limit(In(pool_->origin().options().first_byte_ms), FetchFault::kFirstByteTimeout);
  auto progress = [self = shared_from_this()] {
    // A reply that began before the request was sent has its own limit.
    if (self->finished_ || self->step_fault_ != FetchFault::kFirstByteTimeout) return;
    self->step_limit_ = In(self->pool_->origin().options().first_byte_ms);
  };
  auto done = [self = shared_from_this(), raw = connection_.get()](error_code ec) {
    self->OnSent(raw, ec);
  };
  connection_->Write(std::move(head), std::move(body), std::move(progress), std::move(done));
}

// An error is left to the reader: an upstream that refuses a long body answers before it closes.
void Exchange::OnSent(const UpstreamConnection* connection, const error_code& ec) {
  if (finished_ || connection != connection_.get()) return;
  if (!ec) writing_ = false;
}

asio::awaitable<bool> Exchange::ReadReply() {
  const HttpClientOptions& options = pool_->origin().options();
  parser_.emplace(static_cast<ResponseEvents&>(*this), options.header_bytes,
                  options.body_bytes * kWireFactor + kWireExtra, request_.method == "HEAD");
  rest_ = {};
  bool at_once = false;
  for (;;) {
    if (parser_->has_head() && !sink_.WantsMore()) co_await WaitUntilWanted();
    if (broken()) co_return true;
    error_code ec;
    std::span<char> into = pool_->scratch();
    const bool first = delivered_ == 0;
    if (first) into = into.first(std::min(into.size(), kFirstReadBytes));
    std::string_view bytes = co_await connection_->Receive(into, ec, at_once);
    const bool full = bytes.size() == into.size();
    if (broken()) co_return true;
    if (ec) co_return OnReadError(ec);
    if (!end_.reply_began) {
      end_.reply_began = true;
      // It is not sent again: a stream need not keep it.
      request_.headers = Headers();
      end_.first_byte_micros = duration_cast<microseconds>(SteadyClock::now() - began_).count();
    }
    if (!rest_.empty()) bytes = rest_.append(bytes);

    auto state = ResponseParser::State::kMore;
    const size_t taken = parser_->Put(bytes, state);
    rest_ = std::string(bytes.substr(taken));
    if (broken()) co_return true;
    if (state == ResponseParser::State::kTooLarge) {
      Break(FetchFault::kTooLarge,
            parser_->has_head() ? "the body is over its limit" : "the header is over its limit");
    } else if (state == ResponseParser::State::kMalformed) {
      Break(FetchFault::kMalformed, "no HTTP reply: " + std::string(parser_->why()));
    } else if (state == ResponseParser::State::kDone) {
      OnDone();
    }
    if (state != ResponseParser::State::kMore) co_return true;
    if (parser_->has_head()) Limit(In(options.idle_ms), FetchFault::kIdleTimeout);
    at_once = first && full && !is_open_ended_;  // of a whole there is nothing to pass on yet
  }
}

// That nothing is read meanwhile is no fault of the upstream's: only the total limit goes on.
asio::awaitable<void> Exchange::WaitUntilWanted() {
  Limit(total_limit_, FetchFault::kTotalTimeout);
  do {
    co_await WaitForEvent();
  } while (!broken() && !sink_.WantsMore());
  Limit(In(pool_->origin().options().idle_ms), FetchFault::kIdleTimeout);
}

bool Exchange::OnReadError(const error_code& ec) {
  const bool in_order = UpstreamConnection::IsEnd(ec);
  if (!end_.reply_began) {
    if (end_.reused && !end_.reconnected) {
      connection_->Close();
      connection_ = nullptr;
      return false;
    }
    Break(FetchFault::kReset, in_order
                                  ? "the connection was closed before a reply came"
                                  : "the connection broke before a reply came: " + ec.message());
    return true;
  }
  if (!parser_->has_head()) {
    Break(FetchFault::kReset, "the connection ended inside the reply's header");
    return true;
  }
  if (in_order && parser_->PutEnd() == ResponseParser::State::kDone) {
    OnDone();
  } else {
    Break(FetchFault::kTruncated, in_order
                                      ? "the connection was closed inside the body"
                                      : "the connection broke inside the body: " + ec.message());
  }
  return true;
}

void Exchange::OnDone() {
  if (decoder_ && !decoder_->AtEnd()) {
    Break(FetchFault::kTruncated, "the body ends before its content coding does");
    return;
  }
  end_.outcome = parser_->ended_by_close() ? FetchOutcome::kEndedByClose : FetchOutcome::kWhole;
  reusable_ = parser_->keep_alive() && !writing_ && rest_.empty();
}

bool Exchange::OnHead(FetchHead head, int64_t length) {
  is_open_ended_ = length < 0;
  std::string codings;
  for (const auto& [name, value] : head.headers) {
    if (name == "content-encoding") codings += (codings.empty() ? "" : ",") + value;
  }
  const bool no_body = request_.method == "HEAD" || head.status == 204 || head.status == 304;
  sink_.OnHead(std::move(head));
  if (no_body || broken()) return !broken();

  auto decoder = MakeContentDecoder(codings);
  if (!decoder.ok()) {
    Break(FetchFault::kBadEncoding, decoder.error().message);
    return false;
  }
  decoder_ = *std::move(decoder);
  const uint64_t limit = pool_->origin().options().body_bytes;
  if (!decoder_ && length > 0 && static_cast<uint64_t>(length) > limit) {
    Break(FetchFault::kTooLarge, "a body of " + std::to_string(length) +
                                     " bytes is announced; at most " + std::to_string(limit) +
                                     " are taken");
  }
  return !broken();
}

bool Exchange::OnBody(std::string_view bytes) {
  if (!decoder_) return Deliver(bytes);
  const DecodedSink deliver = [this](std::string_view decoded) { return Deliver(decoded); };
  if (decoder_->Decode(bytes, deliver) == ContentDecoder::State::kBad) {
    Break(FetchFault::kBadEncoding, "the body is not in its content coding");
  }
  return !broken();
}

bool Exchange::Deliver(std::string_view bytes) {
  const uint64_t limit = pool_->origin().options().body_bytes;
  if (bytes.size() > limit - delivered_) {
    Break(FetchFault::kTooLarge, "the body is over " + std::to_string(limit) + " bytes");
    return false;
  }
  delivered_ += bytes.size();
  sink_.OnBody(bytes);
  return !broken();
}

}  // namespace verbatim::gateway
