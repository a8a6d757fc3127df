#include "gateway/server.h"

#include <sys/resource.h>

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/use_future.hpp>
#include <charconv>
#include <future>
#include <optional>
#include <thread>
#include <vector>

#include "gateway/connection.h"
#include "gateway/io_threads.h"

namespace verbatim::gateway {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;
using std::chrono::milliseconds;

// Connections beyond the limit that are told so at one time; more are closed without a word.
constexpr size_t kRefusedAtOnce = 64;
constexpr milliseconds kEndTime{5'000};
constexpr size_t kOtherFiles = 512;  // database, log, models

Result<tcp::endpoint> ParseListen(const std::string& text) {
  const auto fail = [&](const char* what) {
    return Error{Code::kInvalid, "cannot listen on '" + text + "': " + what +
                                     "; write HOST:PORT, such as 127.0.0.1:8080 or [::1]:8080"};
  };
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos) return fail("no port");
  std::string host = text.substr(0, colon);
  const std::string_view digits = std::string_view(text).substr(colon + 1);
  uint16_t port = 0;
  const auto [end, code] = std::from_chars(digits.data(), digits.data() + digits.size(), port);
  if (code != std::errc() || end != digits.data() + digits.size() || digits.empty()) {
    return fail("the port must be a number up to 65535");
  }
  if (host == "localhost") host = "127.0.0.1";
  const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (bracketed) host = host.substr(1, host.size() - 2);
  error_code ec;
  const asio::ip::address address = asio::ip::make_address(host, ec);
  if (ec || address.is_v6() != bracketed) return fail("the host must be an IP address");
  return tcp::endpoint(address, port);
}

// Raises the soft limit of open files, and checks that `connections` fit: each may have a
// connection to an upstream beside it.
Status CheckOpenFiles(size_t connections) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return Status();
  if (limit.rlim_cur < limit.rlim_max) {
    limit.rlim_cur = limit.rlim_max;
    (void)::setrlimit(RLIMIT_NOFILE, &limit);
    (void)::getrlimit(RLIMIT_NOFILE, &limit);
  }
  const size_t needed = 2 * connections + kOtherFiles;
  if (limit.rlim_cur >= needed) return Status();
  return Error{Code::kFailedPrecondition,
               "this process may open " + std::to_string(limit.rlim_cur) + " files and needs " +
                   std::to_string(needed) + " for " + std::to_string(connections) +
                   " connections; raise the hard limit (ulimit -Hn, LimitNOFILE=), or lower "
                   "server.limits.connections"};
}

Status CheckCertificates(const ServerOptions& options) {
  const TlsOptions& tls = options.tls;
  if (tls.certificate.empty()) {
    if (tls.key.empty() && tls.client_ca.empty() && !options.operator_certificates &&
        tls.clients == TlsOptions::Clients::kNone) {
      return Status();
    }
    return Error{Code::kInvalid, "TLS needs server.tls.certificate, a PEM file"};
  }
  if (options.operator_certificates && tls.clients == TlsOptions::Clients::kNone) {
    return Error{Code::kInvalid,
                 "server.tls.operator_certificates needs server.tls.client_certificates: optional "
                 "or required"};
  }
  return Status();
}

class ServerImpl : public Server {
 public:
  ServerImpl(ServerOptions options, Router router, Authenticator auth) {
    state_.set_router(std::move(router));
    state_.auth = std::move(auth);
    if (options.io == nullptr) {
      own_io_ = std::make_unique<IoThreads>(static_cast<size_t>(std::max(options.threads, 1)));
    }
    IoThreads& io = own_io_ ? *own_io_ : *options.io;
    for (size_t i = 0; i < io.size(); ++i) {
      shards_.push_back(std::make_shared<Shard>(io.context(i), options.half_close));
    }
    acceptor_ = std::make_unique<tcp::acceptor>(shards_[0]->context());
    state_.options = std::move(options);
  }
  ~ServerImpl() override;

  Status Listen(const tcp::endpoint& endpoint);
  void Serve();

  std::string url() const override { return url_; }
  uint16_t port() const override { return port_; }
  void SetRouter(Router router) override { state_.set_router(std::move(router)); }
  Status ReloadTls() override;
  size_t running() const override { return state_.running; }
  size_t open_connections() const override { return state_.connections; }
  bool Drain(milliseconds limit, const std::function<void(size_t)>& progress) override;

 private:
  asio::awaitable<void> Accept();
  void StopAccepting();
  void OnEveryShard(void (Shard::*action)());
  bool WaitUntilEmpty(milliseconds limit, const std::function<void(size_t)>& progress);

  ServerState state_;
  std::string url_;
  uint16_t port_ = 0;
  std::vector<std::shared_ptr<Shard>> shards_;
  // Goes before the state that its coroutines refer to.
  std::unique_ptr<IoThreads> own_io_;
  std::unique_ptr<tcp::acceptor> acceptor_;
  std::optional<std::future<void>> accepting_;  // until Accept has ended
};

Status ServerImpl::Listen(const tcp::endpoint& endpoint) {
  const std::string& listen = state_.options.listen;
  error_code ec;
  acceptor_->open(endpoint.protocol(), ec);
  if (!ec) acceptor_->set_option(asio::socket_base::reuse_address(true), ec);
  if (!ec) acceptor_->bind(endpoint, ec);
  if (!ec) acceptor_->listen(asio::socket_base::max_listen_connections, ec);
  if (ec == asio::error::address_in_use) {
    return Error{Code::kFailedPrecondition,
                 listen +
                     " is in use; stop the program there, or choose another port with "
                     "--listen HOST:PORT"};
  }
  if (ec) return Error{Code::kIo, "cannot listen on " + listen + ": " + ec.message()};
  port_ = acceptor_->local_endpoint(ec).port();
  const std::string host = endpoint.address().to_string();
  url_ = (state_.tls() ? "https://" : "http://") +
         (endpoint.address().is_v6() ? "[" + host + "]" : host) + ":" + std::to_string(port_);
  return Status();
}

Status ServerImpl::ReloadTls() {
  const TlsOptions& options = state_.options.tls;
  if (options.certificate.empty()) return Status();
  auto loaded = TlsContext::Load(options);
  if (!loaded.ok()) return loaded.error();
  state_.set_tls(std::move(loaded).value());
  return Status();
}

void ServerImpl::Serve() {
  accepting_ = asio::co_spawn(shards_[0]->context(), Accept(), asio::use_future);
}

asio::awaitable<void> ServerImpl::Accept() {
  asio::steady_timer pause(shards_[0]->context());
  for (size_t next = 0; acceptor_->is_open(); ++next) {
    Shard& shard = *shards_[next % shards_.size()];
    error_code ec;
    tcp::socket socket =
        co_await acceptor_->async_accept(asio::any_io_executor(shard.context().get_executor()),
                                         asio::redirect_error(asio::use_awaitable, ec));
    if (ec == asio::error::operation_aborted) co_return;
    if (ec) {  // out of descriptors, mostly: those that close make room
      pause.expires_after(milliseconds(100));
      co_await pause.async_wait(asio::redirect_error(asio::use_awaitable, ec));
      continue;
    }
    const size_t open = ++state_.connections;
    if (open > state_.options.limits.connections + kRefusedAtOnce) {
      --state_.connections;
      continue;
    }
    // Each takes itself off the count when it ends.
    if (open > state_.options.limits.connections) {
      asio::co_spawn(shard.context(), RefuseConnection(std::move(socket), state_, shard),
                     asio::detached);
    } else {
      asio::co_spawn(shard.context(), ServeConnection(std::move(socket), state_, shard),
                     asio::detached);
    }
  }
}

void ServerImpl::StopAccepting() {
  asio::post(shards_[0]->context(), [this] {
    error_code ignored;
    acceptor_->close(ignored);
  });
}

void ServerImpl::OnEveryShard(void (Shard::*action)()) {
  for (auto& shard : shards_) {
    asio::post(shard->context(), [action, raw = shard.get()] { (raw->*action)(); });
  }
}

bool ServerImpl::WaitUntilEmpty(milliseconds limit, const std::function<void(size_t)>& progress) {
  const auto start = std::chrono::steady_clock::now();
  auto next_line = start + milliseconds(1000);
  while (state_.connections > 0) {
    const auto now = std::chrono::steady_clock::now();
    if (now - start >= limit) return false;
    if (now >= next_line && progress) {
      progress(state_.running);
      next_line += milliseconds(1000);
    }
    std::this_thread::sleep_for(milliseconds(20));
  }
  return true;
}

bool ServerImpl::Drain(milliseconds limit, const std::function<void(size_t)>& progress) {
  state_.draining = true;
  StopAccepting();
  OnEveryShard(&Shard::CloseIdle);
  const bool finished = WaitUntilEmpty(limit, progress);
  if (!finished) {
    OnEveryShard(&Shard::CloseAll);
    (void)WaitUntilEmpty(kEndTime, nullptr);
  }
  return finished;
}

ServerImpl::~ServerImpl() {
  if (accepting_) {
    state_.draining = true;
    StopAccepting();
    OnEveryShard(&Shard::CloseAll);
    bool ended = WaitUntilEmpty(kEndTime, nullptr);
    // On the threads of others nothing can be left behind.
    while (!ended && !own_io_) ended = WaitUntilEmpty(kEndTime, nullptr);
  }
  if (own_io_) {
    own_io_->Stop();
    for (const auto& shard : shards_) shard->Stop();
    return;
  }
  if (accepting_) accepting_->wait();
  // A connection is counted out a moment before it is gone.
  for (const auto& shard : shards_) {
    asio::post(shard->context(), asio::use_future([&shard] { shard->Stop(); })).wait();
  }
}

}  // namespace

Result<std::unique_ptr<Server>> Server::Start(ServerOptions options, Router router,
                                              Authenticator auth) {
  const Result<tcp::endpoint> endpoint = ParseListen(options.listen);
  if (!endpoint.ok()) return endpoint.error();
  if (!auth.has_keys() && !endpoint->address().is_loopback()) {
    return Error{Code::kInvalid, "refused to listen on " + options.listen +
                                     " without API keys: anyone who reaches it could use it; "
                                     "configure keys, or listen on 127.0.0.1"};
  }
  if (Status status = CheckCertificates(options); !status.ok()) return status.error();
  if (Status status = CheckOpenFiles(options.limits.connections); !status.ok()) {
    return status.error();
  }
  try {
    auto server =
        std::make_unique<ServerImpl>(std::move(options), std::move(router), std::move(auth));
    if (Status status = server->ReloadTls(); !status.ok()) return status.error();
    if (Status status = server->Listen(*endpoint); !status.ok()) return status.error();
    server->Serve();
    return std::unique_ptr<Server>(std::move(server));
  } catch (const std::exception& e) {
    return Error{Code::kIo, std::string("cannot start the server: ") + e.what()};
  }
}

}  // namespace verbatim::gateway
