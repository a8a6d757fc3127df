#include "gateway/upstream/upstream_run.h"

#include <algorithm>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <chrono>
#include <exception>
#include <optional>
#include <random>

#include "base/bytes.h"
#include "base/clock.h"
#include "gateway/upstream/attempt.h"
#include "gateway/upstream/retry.h"

namespace verbatim::gateway {

namespace {

// How long a transfer may go on after its stream's own end.
constexpr std::chrono::milliseconds kGraceAfterEnd{500};

namespace asio = boost::asio;
using Health = CircuitBreaker::Outcome;

double Random() {
  thread_local std::minstd_rand generator{std::random_device()()};
  return std::uniform_real_distribution<double>(0, 1)(generator);
}

// Everything of one run. On the executor of `client`, but for what is const.
struct RunState : std::enable_shared_from_this<RunState> {
  RunState(std::shared_ptr<Upstream> u, std::shared_ptr<const Outgoing> o,
           const RunOptions& options, RunObserver obs)
      : upstream(std::move(u)),
        outgoing(std::move(o)),
        attempts_left(upstream->config.retries.attempts),
        client(*upstream->clients[upstream->next_client()]),
        beside(options.headers),
        observer(std::move(obs)),
        pause(client.executor()),
        grace(client.executor()),
        deadline(client.executor()) {
    if (options.background) attempts_left = std::min<uint64_t>(attempts_left, 2);
    report.Set("upstream", upstream->id);
  }

  asio::awaitable<void> Execute();
  void Stop(bool by_deadline);

  // One attempt. Its end, or null where another one may help: then `failure` holds what the end is
  // if none is made, and `asked` how long the upstream asks to wait. Ends are apart from what lasts
  // as long as the stream.
  using End = std::unique_ptr<RunEnd>;
  asio::awaitable<End> Try();
  End Judge(Attempt& attempt, const FetchEnd& end);
  End JudgeFault(const FetchEnd& end);
  End Unavailable();
  Result<FetchRequest> MakeRequest(std::vector<std::string>& secrets);
  void Note(std::string_view outcome, json::Value attempt, int64_t began);
  End Stopped();
  End Failure(int status, std::string message, std::string cause);

  const std::shared_ptr<Upstream> upstream;
  const std::shared_ptr<const Outgoing> outgoing;
  uint64_t attempts_left;
  HttpClient& client;
  const Headers beside;  // RunOptions::headers
  RunObserver observer;
  asio::steady_timer pause;     // between attempts
  asio::steady_timer grace;     // after a stream's own end, for the transfer's
  asio::steady_timer deadline;  // of all of them
  FetchCanceller canceller;     // of the attempt that runs
  bool cancelled = false;
  bool timed_out = false;
  bool left_open = false;  // the reply was whole, and its transfer did not end
  End failure;
  std::optional<int64_t> asked;
  json::Value attempts = json::Value::MakeArray();
  json::Value report = json::Value::MakeObject();
};

void RunState::Stop(bool by_deadline) {
  (by_deadline ? timed_out : cancelled) = true;
  canceller.Cancel();
  pause.cancel();
}

RunState::End RunState::Failure(int status, std::string message, std::string cause) {
  auto end = std::make_unique<RunEnd>();
  end->outcome = RunEnd::Outcome::kFailed;
  end->error = {.status = status, .message = std::move(message), .code = cause};
  end->cause = std::move(cause);
  end->elsewhere = true;
  return end;
}

RunState::End RunState::Stopped() {
  if (cancelled) {
    auto end = std::make_unique<RunEnd>();
    end->outcome = RunEnd::Outcome::kCancelled;
    end->cause = "cancelled";
    return end;
  }
  return Failure(504, "The upstream `" + upstream->id + "` did not answer in time.",
                 "upstream_timeout");
}

void RunState::Note(std::string_view outcome, json::Value attempt, int64_t began) {
  const int64_t micros = MonotonicMicros() - began;
  attempt.Set("micros", micros);
  const bool retry = !attempts.items().empty();
  attempts.Append(std::move(attempt));
  if (!upstream->on_attempt) return;
  const std::string_view endpoint = outgoing->judged ? EndpointPath(outgoing->endpoint) : "";
  upstream->on_attempt({.upstream = upstream->id,
                        .model = outgoing->model,
                        .endpoint = endpoint,
                        .outcome = outcome,
                        .seconds = static_cast<double>(micros) * 1e-6,
                        .retry = retry});
}

// The circuit is open: an answer at once, that says when to come back.
RunState::End RunState::Unavailable() {
  Note("circuit_open", json::Object{{"cause", "circuit_open"}}, MonotonicMicros());
  End end = Failure(503,
                    "The upstream `" + upstream->id +
                        "` has failed repeatedly and is left alone for a while. Try again later.",
                    "upstream_unavailable");
  const int64_t wait = upstream->breaker.OpenFor(MonotonicMicros());
  end->error.headers.emplace_back("retry-after", std::to_string(wait / 1'000'000 + 1));
  return end;
}

Result<FetchRequest> RunState::MakeRequest(std::vector<std::string>& secrets) {
  FetchRequest request{.method = outgoing->method,
                       .target = outgoing->target,
                       .headers = outgoing->headers,
                       .body = outgoing->body};
  for (const auto& header : beside) {
    std::erase_if(request.headers, [&](const auto& other) { return other.first == header.first; });
    request.headers.push_back(header);
  }
  for (const auto& [name, credential] : upstream->secret_headers) {
    auto value = credential->Value();
    if (!value.ok()) return value.error();
    secrets.push_back(*value);
    request.headers.emplace_back(name, *std::move(value));
  }
  if (upstream->credential) {
    auto value = upstream->credential->Value();
    if (!value.ok()) return value.error();
    secrets.push_back(*value);
    if (upstream->credential_header == "authorization") value->insert(0, "Bearer ");
    request.headers.emplace_back(upstream->credential_header, *std::move(value));
  }
  for (const auto& [name, value] : outgoing->client_credentials) {
    secrets.push_back(value.substr(value.find(' ') + 1));
    request.headers.emplace_back(name, value);
  }
  for (const std::string& secret : outgoing->target_secrets) secrets.push_back(secret);
  return request;
}

asio::awaitable<RunState::End> RunState::Try() {
  const int64_t began = MonotonicMicros();
  const auto ticket = upstream->breaker.Enter(began);
  if (!ticket) co_return Unavailable();
  bool reported = false;
  const auto leave = [&](Health health) {
    if (!std::exchange(reported, true)) upstream->breaker.Leave(*ticket, health, MonotonicMicros());
  };

  Attempt attempt(*upstream, *outgoing, observer);
  attempt.on_head = [&](int status) {
    leave(status < 500 ? Health::kHealthy : Health::kUnhealthy);
  };
  auto request = MakeRequest(attempt.secrets);
  if (!request.ok()) {
    leave(Health::kUnknown);
    Note("credentials", json::Object{{"cause", "credentials"}, {"detail", request.error().message}},
         began);
    co_return Failure(
        502, "This server's credentials for the upstream `" + upstream->id + "` cannot be read.",
        "upstream_credentials");
  }

  // Some say that their answer is whole and leave the transfer open.
  attempt.on_protocol_end = [&] {
    grace.expires_after(kGraceAfterEnd);
    grace.async_wait([self = weak_from_this()](const boost::system::error_code& error) {
      const auto state = self.lock();
      if (!state || error) return;
      state->left_open = true;
      state->canceller.Cancel();
    });
  };
  canceller = FetchCanceller();
  FetchEnd end = co_await client.Fetch(*std::move(request), attempt, canceller);
  grace.cancel();
  if (left_open && end.fault == FetchFault::kCancelled && !cancelled && !timed_out) {
    end.outcome = FetchOutcome::kWhole;
    end.fault = FetchFault::kNone;
  }
  const bool stopped = end.fault == FetchFault::kCancelled;
  const bool unsaid = (stopped && !timed_out) || end.fault == FetchFault::kInvalidRequest;
  leave(unsaid ? Health::kUnknown : Health::kUnhealthy);

  json::Value note = json::Value::MakeObject();
  const std::string status = std::to_string(attempt.head().status);
  const char* fault = FetchFaultName(end.fault);
  if (stopped && timed_out) fault = FetchFaultName(FetchFault::kTotalTimeout);
  if (attempt.began()) note.Set("status", attempt.head().status);
  if (end.outcome == FetchOutcome::kBroken) {
    note.Set("cause", fault);
    if (IsUtf8(end.message)) note.Set("detail", end.message);
  }
  if (end.first_byte_micros >= 0) note.Set("first_byte_micros", end.first_byte_micros);
  Note(attempt.began() ? std::string_view(status) : std::string_view(fault), std::move(note),
       began);
  co_return Judge(attempt, end);
}

RunState::End RunState::Judge(Attempt& attempt, const FetchEnd& end) {
  if (std::string id = attempt.RequestId(); !id.empty()) report.Set("request_id", std::move(id));
  if (attempt.succeeded()) {
    // Of a reply that has begun nothing is asked again: it may have reached someone.
    if (cancelled && end.outcome == FetchOutcome::kBroken) return Stopped();
    const bool late = timed_out || end.fault == FetchFault::kIdleTimeout ||
                      end.fault == FetchFault::kTotalTimeout;
    return std::make_unique<RunEnd>(attempt.Finish(end, late));
  }
  if (cancelled || (timed_out && end.fault == FetchFault::kCancelled)) return Stopped();
  if (!attempt.began()) return JudgeFault(end);

  const int status = attempt.head().status;
  failure = std::make_unique<RunEnd>();
  failure->outcome = RunEnd::Outcome::kFailed;
  failure->error = attempt.Error(end);
  failure->cause = "upstream_" + std::to_string(status);
  failure->elsewhere = status == 408 || status == 429 || status >= 500;
  asked = AskedDelay(attempt.head().headers, NowMicros());
  if (WorthRetrying(status, attempt.head().headers)) return nullptr;
  return std::move(failure);
}

// Nothing of a reply came.
RunState::End RunState::JudgeFault(const FetchEnd& end) {
  const std::string subject = "The upstream `" + upstream->id + "` ";
  const std::string because = std::string(" (") + FetchFaultName(end.fault) + ").";
  asked = std::nullopt;
  switch (end.fault) {
    case FetchFault::kDnsFailed:
    case FetchFault::kConnectFailed:
    case FetchFault::kTlsFailed:
    case FetchFault::kConnectTimeout:
      failure = Failure(502, subject + "cannot be reached" + because, "upstream_unreachable");
      return nullptr;
    case FetchFault::kReset:
      failure = Failure(502, subject + "closed the connection" + because, "upstream_broken");
      if (!end.reply_began) return nullptr;
      return std::move(failure);
    case FetchFault::kFirstByteTimeout:
    case FetchFault::kIdleTimeout:
    case FetchFault::kTotalTimeout:
      return Failure(504, subject + "did not answer in time" + because, "upstream_timeout");
    case FetchFault::kInvalidRequest: {
      End invalid =
          Failure(400, "The request cannot be sent upstream: " + end.message, "invalid_request");
      invalid->elsewhere = false;
      return invalid;
    }
    default:
      return Failure(502, subject + "answered with what is no HTTP reply" + because,
                     "upstream_broken");
  }
}

asio::awaitable<void> RunState::Execute() {
  const auto& retries = upstream->config.retries;
  const int64_t until =
      MonotonicMicros() + static_cast<int64_t>(upstream->config.timeouts.total_ms) * 1'000;
  deadline.expires_after(std::chrono::milliseconds(upstream->config.timeouts.total_ms));
  auto on_deadline = [self = weak_from_this()](const boost::system::error_code& error) {
    const auto state = self.lock();
    if (state && !error) state->Stop(true);
  };
  deadline.async_wait(std::move(on_deadline));

  Backoff backoff(static_cast<int64_t>(retries.base_ms) * 1'000,
                  static_cast<int64_t>(retries.max_ms) * 1'000, Random);
  End last;
  for (;;) {
    if (cancelled || timed_out) {
      last = Stopped();
      break;
    }
    --attempts_left;
    last = co_await Try();
    if (last) break;
    const auto wait = backoff.Next(asked);
    const bool in_time = wait && MonotonicMicros() + *wait < until;
    if (attempts_left == 0 || !in_time) {
      last = std::move(failure);
      break;
    }
    pause.expires_after(std::chrono::microseconds(*wait));
    (void)co_await pause.async_wait(asio::as_tuple(asio::use_awaitable));
  }
  deadline.cancel();
  report.Set("attempts", std::move(attempts));
  last->report = std::move(report);
  observer.on_end(std::move(*last));
}

class UpstreamRun : public Run {
 public:
  explicit UpstreamRun(std::shared_ptr<RunState> state) : state_(std::move(state)) {}
  ~UpstreamRun() override { Cancel(); }

  void Resume() override {
    asio::post(state_->client.executor(), [state = state_] { state->canceller.Resume(); });
  }

  void Cancel() override {
    asio::post(state_->client.executor(), [state = state_] { state->Stop(false); });
  }

 private:
  const std::shared_ptr<RunState> state_;
};

}  // namespace

Upstream::Upstream(std::string id_, const policies::UpstreamConfig& config_)
    : id(std::move(id_)),
      config(config_),
      breaker({.failures = config.breaker.failures,
               .window_micros = static_cast<int64_t>(config.breaker.window_ms) * 1'000,
               .open_micros = static_cast<int64_t>(config.breaker.open_ms) * 1'000}) {}

Upstream::~Upstream() {
  for (auto& client : clients) {
    const asio::any_io_executor executor = client->executor();
    asio::post(executor, [gone = std::move(client)] {});
  }
}

std::unique_ptr<Run> StartUpstreamRun(std::shared_ptr<Upstream> upstream,
                                      std::shared_ptr<const Outgoing> outgoing,
                                      const RunOptions& options, RunObserver observer) {
  auto state = std::make_shared<RunState>(std::move(upstream), std::move(outgoing), options,
                                          std::move(observer));
  const asio::any_io_executor executor = state->client.executor();
  auto execute = [state]() -> asio::awaitable<void> { co_await state->Execute(); };
  // What an observer throws is a bug that nobody could report: it ends the process.
  auto rethrow = [](std::exception_ptr error) {
    if (error) std::rethrow_exception(error);
  };
  asio::co_spawn(executor, std::move(execute), rethrow);
  return std::make_unique<UpstreamRun>(std::move(state));
}

}  // namespace verbatim::gateway
