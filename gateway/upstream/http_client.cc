#include "gateway/upstream/http_client.h"

#include <boost/asio/post.hpp>
#include <boost/system/system_error.hpp>
#include <mutex>
#include <utility>

#include "gateway/upstream/exchange.h"
#include "gateway/upstream/origin.h"
#include "gateway/upstream/pool.h"

namespace verbatim::gateway {

namespace asio = boost::asio;

namespace {

constexpr int64_t kDayMs = 24 * 3600 * 1000;
constexpr size_t kMinHeaderBytes = 1 << 10, kMaxHeaderBytes = 1 << 20;
constexpr uint64_t kMaxBodyBytes = uint64_t{1} << 40;

Status CheckNumbers(const HttpClientOptions& options) {
  const std::pair<const char*, int64_t> times[] = {{"connect", options.connect_ms},
                                                   {"first byte", options.first_byte_ms},
                                                   {"idle", options.idle_ms},
                                                   {"total", options.total_ms},
                                                   {"keep-alive", options.keep_alive_ms}};
  for (const auto& [name, value] : times) {
    if (value >= 1 && value <= kDayMs) continue;
    return Error{Code::kInvalid,
                 std::string("the ") + name + " time limit is at least 1 ms and at most a day"};
  }
  if (options.max_connections < 1) return Error{Code::kInvalid, "at least 1 connection is needed"};
  if (options.header_bytes < kMinHeaderBytes || options.header_bytes > kMaxHeaderBytes) {
    return Error{Code::kInvalid, "a reply's header limit is between 1 KB and 1 MB"};
  }
  if (options.body_bytes < 1 || options.body_bytes > kMaxBodyBytes) {
    return Error{Code::kInvalid, "a reply's body limit is between 1 byte and 1 TB"};
  }
  return {};
}

}  // namespace

const char* FetchFaultName(FetchFault fault) {
  switch (fault) {
    case FetchFault::kNone:
      return "none";
    case FetchFault::kInvalidRequest:
      return "invalid_request";
    case FetchFault::kDnsFailed:
      return "dns_failed";
    case FetchFault::kConnectFailed:
      return "connect_failed";
    case FetchFault::kTlsFailed:
      return "tls_failed";
    case FetchFault::kConnectTimeout:
      return "connect_timeout";
    case FetchFault::kFirstByteTimeout:
      return "first_byte_timeout";
    case FetchFault::kIdleTimeout:
      return "idle_timeout";
    case FetchFault::kTotalTimeout:
      return "total_timeout";
    case FetchFault::kReset:
      return "reset";
    case FetchFault::kTruncated:
      return "truncated";
    case FetchFault::kTooLarge:
      return "too_large";
    case FetchFault::kBadEncoding:
      return "bad_encoding";
    case FetchFault::kMalformed:
      return "malformed";
    case FetchFault::kCancelled:
      return "cancelled";
  }
  return "unknown";
}

HttpOrigin::HttpOrigin(std::unique_ptr<State> state) : state_(std::move(state)) {}
HttpOrigin::~HttpOrigin() = default;

const HttpClientOptions& HttpOrigin::options() const { return state_->options; }

Result<std::shared_ptr<const HttpOrigin>> HttpOrigin::Make(const HttpClientOptions& options) {
  if (Status status = CheckNumbers(options); !status.ok()) return status.error();
  auto url = ParseUrl(options.url);
  if (!url.ok()) return url.error();
  if (!url->user.empty() || !url->password.empty()) {
    return Error{Code::kInvalid, "an upstream's URL holds no credentials: they go into headers"};
  }
  if (!url->path.empty() && url->path != "/") {
    return Error{Code::kInvalid, "an origin's URL ends with its host or port: " + url->Origin()};
  }
  auto proxy = ChooseProxy(*url, options.proxy, ProcessEnvironment);
  if (!proxy.ok()) return proxy.error();

  auto state = std::make_unique<State>();
  state->options = options;
  // What it says is in `proxy` now; a password is kept in one place.
  state->options.proxy.clear();
  state->url = *std::move(url);
  state->proxy = *std::move(proxy);
  const bool names_tls = !options.ca_file.empty() || !options.client_certificate_file.empty() ||
                         !options.client_key_file.empty();
  if (state->url.https) {
    auto tls = MakeTlsClientContext(
        {options.ca_file, options.client_certificate_file, options.client_key_file});
    if (!tls.ok()) return tls.error();
    state->tls = *std::move(tls);
  } else if (names_tls) {
    return Error{Code::kInvalid, "certificates are named for a URL without TLS; write https://"};
  }
  return std::shared_ptr<const HttpOrigin>(new HttpOrigin(std::move(state)));
}

struct FetchCanceller::State {
  std::mutex mutex;  // of what follows
  bool cancelled = false;
  std::weak_ptr<Exchange> exchange;
  asio::any_io_executor executor;
};

FetchCanceller::FetchCanceller() : state_(std::make_shared<State>()) {}

void FetchCanceller::Cancel() const {
  const std::lock_guard lock(state_->mutex);
  state_->cancelled = true;
  // Under the lock: a fetch that ends takes its executor back first, so that it is still there.
  if (!state_->executor) return;
  asio::post(state_->executor, [weak = state_->exchange] {
    if (auto exchange = weak.lock()) exchange->Break(FetchFault::kCancelled, "cancelled");
  });
}

void FetchCanceller::Resume() const {
  const std::lock_guard lock(state_->mutex);
  if (!state_->executor) return;
  asio::post(state_->executor, [weak = state_->exchange] {
    if (auto exchange = weak.lock()) exchange->Resume();
  });
}

namespace {

// Ties a canceller to an exchange for as long as it runs, and ends the exchange in any case: also
// where the coroutine around it is destroyed.
class Running {
 public:
  Running(std::shared_ptr<Exchange> exchange, std::shared_ptr<FetchCanceller::State> canceller,
          const asio::any_io_executor& executor)
      : exchange_(std::move(exchange)), canceller_(std::move(canceller)) {
    const std::lock_guard lock(canceller_->mutex);
    canceller_->exchange = exchange_;
    canceller_->executor = executor;
    if (canceller_->cancelled) exchange_->Break(FetchFault::kCancelled, "cancelled");
  }
  ~Running() {
    {
      const std::lock_guard lock(canceller_->mutex);
      canceller_->executor = {};
      canceller_->exchange.reset();
    }
    exchange_->Finish();
  }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

 private:
  const std::shared_ptr<Exchange> exchange_;
  const std::shared_ptr<FetchCanceller::State> canceller_;
};

}  // namespace

struct HttpClient::State {
  std::shared_ptr<const HttpOrigin> origin;
  std::shared_ptr<ConnectionPool> pool;
};

HttpClient::HttpClient(asio::any_io_executor executor, std::shared_ptr<const HttpOrigin> origin)
    : state_(std::make_shared<State>()) {
  state_->origin = origin;
  state_->pool = std::make_shared<ConnectionPool>(std::move(executor), std::move(origin));
}

HttpClient::~HttpClient() { state_->pool->Shut(); }

asio::awaitable<FetchEnd> HttpClient::Fetch(FetchRequest request, FetchSink& sink,
                                            FetchCanceller canceller) {
  auto exchange = std::make_shared<Exchange>(state_->pool, std::move(request), sink);
  const Running running(exchange, canceller.state(), state_->pool->executor());
  FetchEnd end;
  try {
    end = co_await exchange->Run();
  } catch (const boost::system::system_error&) {
    // Asio's own way to cancel a coroutine.
    end.fault = FetchFault::kCancelled;
    end.message = "cancelled";
  }
  co_return end;
}

void HttpClient::CloseUnused() { state_->pool->CloseUnused(); }
const asio::any_io_executor& HttpClient::executor() const { return state_->pool->executor(); }
const HttpOrigin& HttpClient::origin() const { return *state_->origin; }
size_t HttpClient::used() const { return state_->pool->used(); }
size_t HttpClient::unused() const { return state_->pool->unused(); }

}  // namespace verbatim::gateway
