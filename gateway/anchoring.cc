#include "gateway/anchoring.h"

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <chrono>
#include <exception>
#include <thread>
#include <vector>

#include "base/bytes.h"
#include "base/crypto.h"
#include "base/log.h"
#include "gateway/upstream/http_client.h"
#include "store/anchors.h"
#include "store/checkpoint.h"
#include "store/ledger.h"
#include "store/timestamp.h"
#include "store/witness.h"

namespace verbatim::gateway {

namespace asio = boost::asio;
using std::chrono::seconds;

namespace {

// What others send is small: a witness some lines, an authority a token with its certificates.
constexpr uint64_t kWitnessBytes = 64 << 10, kTimestampBytes = 1 << 20;
constexpr int64_t kRequestMillis = 10'000;
constexpr seconds kTimestampRetry{60};

// An answer, whole.
struct Answer : FetchSink {
  int status = 0;
  std::string body;
  void OnHead(FetchHead head) override { status = head.status; }
  void OnBody(std::string_view bytes) override { body += bytes; }
};

// A service below a URL: its connections, and the path in front of what is asked for.
struct Service {
  std::shared_ptr<const HttpOrigin> origin;
  std::string path;
};
Result<Service> MakeService(const std::string& url, const std::string& ca_file, uint64_t bytes) {
  const size_t slash = url.find('/', url.find("://") + 3);
  HttpClientOptions options;
  options.url = url.substr(0, slash);
  options.ca_file = ca_file;
  options.connect_ms = options.first_byte_ms = options.idle_ms = options.total_ms = kRequestMillis;
  options.max_connections = 1;
  options.body_bytes = bytes;
  Result<std::shared_ptr<const HttpOrigin>> origin = HttpOrigin::Make(options);
  if (!origin.ok()) return origin.error();
  std::string path = slash == std::string::npos ? "" : url.substr(slash);
  return Service{std::move(*origin), std::move(path)};
}

uint64_t SizeOf(const std::string& checkpoint) {
  const Result<store::TreeHead> head =
      store::ParseCheckpoint(checkpoint.substr(0, checkpoint.find("\n\n") + 1));
  return head.ok() ? head->size : 0;
}

class AnchoringImpl : public Anchoring {
 public:
  AnchoringImpl(const policies::LogConfig& config, store::Ledger& ledger)
      : config_(config), ledger_(ledger), io_(1) {}
  ~AnchoringImpl() override {
    if (!thread_.joinable()) return;
    asio::post(io_, [this] { Stop(); });
    thread_.join();
  }

  Status Start() {
    const store::AnchorOptions& options = ledger_.anchors().options();
    for (size_t i = 0; i < config_.witnesses.size(); ++i) {
      std::string url = config_.witnesses[i].url;
      while (url.ends_with('/')) url.pop_back();
      Result<Service> service = MakeService(url, config_.ca_file, kWitnessBytes);
      if (!service.ok()) {
        return Error{service.error().code,
                     "log.witnesses, " + url + ": " + service.error().message};
      }
      auto witness = std::make_unique<Witness>();
      witness->key = options.witnesses.at(i);
      witness->client = std::make_unique<HttpClient>(io_.get_executor(), service->origin);
      witness->target = service->path + "/add-checkpoint";
      witnesses_.push_back(std::move(witness));
    }
    if (!config_.timestamps.url.empty()) {
      Result<Service> service = MakeService(config_.timestamps.url, "", kTimestampBytes);
      if (!service.ok()) {
        return Error{service.error().code, "log.timestamps.url: " + service.error().message};
      }
      authority_ = std::make_unique<HttpClient>(io_.get_executor(), service->origin);
      authority_target_ = service->path.empty() ? "/" : service->path;
    }
    if (!witnesses_.empty()) Spawn(ShowToWitnesses());
    if (authority_) Spawn(AskForTimestamps());
    thread_ = std::thread([this] { io_.run(); });
    return {};
  }

 private:
  struct Witness {
    store::CosignerKey key;
    std::unique_ptr<HttpClient> client;
    std::string target;
    store::WitnessState state;
    bool busy = false;
    FetchCanceller canceller;  // of the fetch under way
    std::string problem;       // what was logged last
  };

  void Spawn(asio::awaitable<void> work) {
    ++running_;
    asio::co_spawn(io_, std::move(work), [this](const std::exception_ptr&) {
      if (--running_ == 0) io_.stop();
    });
  }

  // Everything that waits is woken, and ends by itself; the last one ends the thread.
  void Stop() {
    stopping_ = true;
    round_timer_.cancel();
    timestamp_timer_.cancel();
    for (const auto& witness : witnesses_) witness->canceller.Cancel();
    timestamp_canceller_.Cancel();
    if (running_ == 0) io_.stop();
  }

  asio::awaitable<void> Sleep(asio::steady_timer& timer, seconds time) {
    if (stopping_) co_return;
    boost::system::error_code woken;
    timer.expires_after(time);
    co_await timer.async_wait(asio::redirect_error(asio::use_awaitable, woken));
  }

  asio::awaitable<void> ShowToWitnesses() {
    const seconds interval(config_.interval_seconds);
    while (!stopping_) {
      const std::string checkpoint = ledger_.Checkpoint();
      const store::Anchors::Quorum quorum = ledger_.anchors().quorum();
      // A log that does not grow is shown again before its quorum grows old.
      const int64_t max_age = ledger_.anchors().options().max_age_micros;
      const bool fresh = quorum.age_micros >= 0 && quorum.age_micros < max_age / 3;
      if (SizeOf(checkpoint) != quorum.size || !fresh) {
        for (const auto& witness : witnesses_) {
          if (witness->busy) continue;
          witness->busy = true;
          Spawn(Show(*witness, checkpoint));
        }
      }
      co_await Sleep(round_timer_, interval);
    }
  }

  asio::awaitable<void> Show(Witness& witness, std::string checkpoint) {
    std::string problem = co_await Ask(witness, checkpoint);
    if (problem != witness.problem) {
      if (problem.empty()) LogInfo("witness " + witness.key.name + " cosigns again");
      if (!problem.empty()) LogWarning("witness " + witness.key.name + ": " + problem);
      witness.problem = std::move(problem);
    }
    witness.busy = false;
  }

  // Why there is no cosignature, or "".
  asio::awaitable<std::string> Ask(Witness& witness, const std::string& checkpoint) {
    using Next = store::WitnessState::Next;
    const uint64_t size = SizeOf(checkpoint);
    // A witness that names another size is asked once more from there.
    for (int attempt = 0; attempt < 2; ++attempt) {
      // An older checkpoint than the one it has is of no use to it.
      const uint64_t old = witness.state.old_size();
      if (old > size) co_return std::string();
      auto proof = ledger_.Consistency(old, size);
      if (!proof.ok()) co_return proof.error().message;
      FetchRequest request;
      request.target = witness.target;
      request.headers.emplace_back("content-type", "text/plain; charset=utf-8");
      request.body =
          std::make_shared<const std::string>(store::AddCheckpointBody(old, *proof, checkpoint));
      Answer answer;
      if (stopping_) co_return witness.problem;
      witness.canceller = FetchCanceller();
      const FetchEnd end =
          co_await witness.client->Fetch(std::move(request), answer, witness.canceller);
      if (stopping_) co_return witness.problem;
      if (end.outcome == FetchOutcome::kBroken) co_return end.message;
      const Next next = witness.state.Take(size, answer.status, answer.body);
      if (next == Next::kRefused) co_return witness.state.error();
      if (next == Next::kAgain) continue;
      const Status added = ledger_.anchors().AddCosignatures(checkpoint, answer.body, witness.key);
      co_return added.ok() ? std::string() : added.error().message;
    }
    co_return witness.state.error().empty() ? "it names one size after another"
                                            : witness.state.error();
  }

  asio::awaitable<void> AskForTimestamps() {
    const seconds interval(config_.timestamps.interval_seconds);
    uint64_t stamped = 0;
    std::string last_problem;
    while (!stopping_) {
      const std::string checkpoint = ledger_.Checkpoint();
      const uint64_t size = SizeOf(checkpoint);
      std::string problem;
      if (size > stamped) problem = co_await AskForTimestamp(checkpoint);
      if (problem.empty()) stamped = size;
      if (!problem.empty() && problem != last_problem) {
        LogWarning("no timestamp of the log's head: " + problem);
      }
      const bool failed = !problem.empty();
      last_problem = std::move(problem);
      const seconds wait = failed ? std::min(interval, kTimestampRetry) : interval;
      co_await Sleep(timestamp_timer_, wait);
    }
  }

  asio::awaitable<std::string> AskForTimestamp(const std::string& checkpoint) {
    // Below 2^63: some authorities read nonces as signed numbers.
    const uint64_t nonce = (ReadU64(RandomBytes(8)) >> 1) | 1;
    FetchRequest request;
    request.target = authority_target_;
    request.headers.emplace_back("content-type", "application/timestamp-query");
    request.body =
        std::make_shared<const std::string>(store::MakeTimestampRequest(checkpoint, nonce));
    Answer answer;
    timestamp_canceller_ = FetchCanceller();
    const FetchEnd end =
        co_await authority_->Fetch(std::move(request), answer, timestamp_canceller_);
    if (stopping_) co_return std::string();
    if (end.outcome == FetchOutcome::kBroken) co_return end.message;
    if (answer.status != 200) {
      co_return "the authority answered " + std::to_string(answer.status);
    }
    const auto added = ledger_.anchors().AddTimestamp(checkpoint, answer.body, nonce);
    co_return added.ok() ? std::string() : added.error().message;
  }

  const policies::LogConfig config_;
  store::Ledger& ledger_;
  asio::io_context io_;
  // On the context's thread alone.
  asio::steady_timer round_timer_{io_}, timestamp_timer_{io_};
  std::vector<std::unique_ptr<Witness>> witnesses_;
  std::unique_ptr<HttpClient> authority_;
  std::string authority_target_;
  FetchCanceller timestamp_canceller_;
  bool stopping_ = false;
  size_t running_ = 0;  // coroutines
  std::thread thread_;
};

}  // namespace

Result<store::AnchorOptions> ToAnchorOptions(const policies::LogConfig& config) {
  store::AnchorOptions options;
  for (const policies::WitnessConfig& witness : config.witnesses) {
    Result<store::CosignerKey> key = store::ParseCosignerKey(witness.vkey);
    if (!key.ok()) {
      return Error{Code::kInvalid, "log.witnesses, " + witness.url + ": " + key.error().message};
    }
    for (const store::CosignerKey& other : options.witnesses) {
      if (other.name == key->name || other.public_key == key->public_key) {
        return Error{Code::kInvalid, "log.witnesses: two have the name or key of " + key->name +
                                         "; each counts once"};
      }
    }
    options.witnesses.push_back(std::move(*key));
  }
  const size_t count = options.witnesses.size();
  options.quorum = config.quorum != 0 ? config.quorum : (count == 0 ? 0 : count / 2 + 1);
  options.max_age_micros = static_cast<int64_t>(config.max_age_seconds) * 1'000'000;
  options.timestamp_ca = config.timestamps.ca_file;
  return options;
}

store::TokenConfig ToTokenConfig(const policies::Pkcs11Config& config) {
  return {config.module, config.token, config.label, config.wrapping_label, config.pin};
}

Result<std::unique_ptr<Anchoring>> Anchoring::Start(const policies::LogConfig& config,
                                                    store::Ledger& ledger) {
  if (config.witnesses.empty() && config.timestamps.url.empty()) {
    return std::unique_ptr<Anchoring>();
  }
  auto anchoring = std::make_unique<AnchoringImpl>(config, ledger);
  if (Status started = anchoring->Start(); !started.ok()) return started.error();
  return std::unique_ptr<Anchoring>(std::move(anchoring));
}

}  // namespace verbatim::gateway
