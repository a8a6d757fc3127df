#include "fake_client.h"

#include <gtest/gtest.h>
#include <strings.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/use_future.hpp>
#include <chrono>
#include <filesystem>

#include "base/check.h"
#include "base/clock.h"
#include "base/crypto.h"

namespace verbatim::gateway {

namespace asio = boost::asio;

namespace {
Error Gone() { return {Code::kCancelled, "the client is gone"}; }
}  // namespace

asio::awaitable<Status> FakeSink::SendWhole(int status, Headers headers, std::string body) {
  std::lock_guard lock(mutex_);
  CHECK(status_ == 0);
  if (gone_) co_return Gone();
  status_ = status;
  headers_ = std::move(headers);
  body_ = std::move(body);
  finished_ = true;
  changed_.notify_all();
  co_return Status();
}

asio::awaitable<Status> FakeSink::SendRendered(int status, const RenderedFields& fields,
                                               const Headers& more, std::string_view body, bool) {
  Headers headers;
  for (std::string_view rest = fields.text; !rest.empty();) {
    const size_t colon = rest.find(": "), end = rest.find("\r\n");
    CHECK(colon < end && end != std::string_view::npos);
    headers.emplace_back(rest.substr(0, colon), rest.substr(colon + 2, end - colon - 2));
    rest.remove_prefix(end + 2);
  }
  headers.insert(headers.end(), more.begin(), more.end());
  co_return co_await SendWhole(status, std::move(headers), std::string(body));
}

asio::awaitable<Status> FakeSink::StartStream(int status, Headers headers) {
  std::lock_guard lock(mutex_);
  CHECK(status_ == 0);
  if (gone_) co_return Gone();
  status_ = status;
  headers_ = std::move(headers);
  co_return Status();
}

void FakeSink::Stall() {
  std::lock_guard lock(mutex_);
  stalled_ = true;
}

void FakeSink::Resume() {
  {
    std::lock_guard lock(mutex_);
    stalled_ = false;
  }
  resumed_.Notify();
}

asio::awaitable<Status> FakeSink::Write(std::string_view bytes) {
  if (Locked(stalled_)) co_await resumed_.Wait();
  std::lock_guard lock(mutex_);
  CHECK(status_ != 0 && !finished_ && !aborted_);
  if (gone_) co_return Gone();
  body_ += bytes;
  changed_.notify_all();
  co_return Status();
}

asio::awaitable<Status> FakeSink::Finish() {
  std::lock_guard lock(mutex_);
  CHECK(status_ != 0 && !finished_ && !aborted_);
  if (gone_) co_return Gone();
  finished_ = true;
  co_return Status();
}

void FakeSink::Abort() {
  std::lock_guard lock(mutex_);
  aborted_ = true;
}

bool FakeSink::ClientGone() const { return Locked(gone_); }

void FakeSink::OnClientGone(std::function<void()> callback) { on_gone_ = std::move(callback); }

void FakeSink::HangUp() {
  asio::post(io_, [this] {
    {
      std::lock_guard lock(mutex_);
      gone_ = true;
    }
    if (on_gone_) std::exchange(on_gone_, {})();
  });
}

void FakeSink::WaitForBody(const std::string& contains) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return body_.find(contains) != std::string::npos; });
}

std::string FakeSink::header(std::string_view name) const {
  std::lock_guard lock(mutex_);
  for (const auto& [key, value] : headers_) {
    if (key.size() == name.size() && strncasecmp(key.data(), name.data(), name.size()) == 0) {
      return value;
    }
  }
  return "";
}

Harness::Harness(policies::Policy policy, std::string locked, uint64_t hit_memory_bytes)
    : policy_(std::move(policy)),
      locked_(std::move(locked)),
      hit_memory_bytes_(hit_memory_bytes),
      folder_(testing::TempDir() + "/pipeline_" + HexEncode(RandomBytes(8))) {
  Open(std::make_unique<store::KvMemory>(), "avx512");
}

Harness::~Harness() {
  Close();
  work_.reset();
  thread_.join();
  std::filesystem::remove_all(folder_);
}

void Harness::Open(std::unique_ptr<store::KvMemory> memory, const std::string& isa) {
  {
    std::lock_guard lock(script->mutex);
    script->isa = isa;
  }
  kv = memory.get();
  store::LedgerOptions options;
  options.kv = std::move(memory);
  options.control_socket = false;
  options.publish_interval_micros = 1'000;
  options.hit_interval_micros = 20'000;
  auto folder = store::DataFolder::Open(folder_);
  CHECK(folder.ok());
  auto opened = store::Ledger::Open(*std::move(folder), std::move(options));
  if (!opened.ok()) ADD_FAILURE() << opened.error().message;
  ledger = *std::move(opened);
  metrics = std::make_unique<Metrics>();
  PipelineOptions pipeline_options;
  pipeline_options.in_force.policy = policy_;
  pipeline_options.ledger = ledger.get();
  pipeline_options.metrics = metrics.get();
  pipeline_options.in_force.catalog.AddModel({"m", std::make_shared<FakeBackend>(script), 1});
  manifest_ = MakeManifest({{"m", pipeline_options.in_force.catalog.Find("m")->Describe()}});
  pipeline_options.manifest = &manifest_;
  pipeline_options.hit_memory_bytes = hit_memory_bytes_;
  pipeline_options.in_force.locked = locked_;
  pipeline = std::make_unique<Pipeline>(std::move(pipeline_options));
  router_ = Router();
  pipeline->AddRoutes(router_);
  OperatorApiOptions operators;
  operators.ledger = ledger.get();
  operators.manifest = &manifest_;
  operators.metrics = metrics.get();
  operators.not_serving = [this] { return pipeline->NotServing(); };
  operators.not_ready = [this] { return pipeline->Overload(); };
  AddOperatorRoutes(router_, std::move(operators));
}

void Harness::Close() {
  pipeline.reset();
  EXPECT_TRUE(ledger->Close().ok());
}

void Harness::Restart(const std::string& isa) {
  Close();
  auto copy = kv->Clone();
  ledger.reset();
  Open(std::move(copy), isa);
}

Exchange Harness::Start(const Ask& ask) {
  Exchange exchange;
  exchange.request = std::make_unique<Request>();
  Request& request = *exchange.request;
  request.id = "req_" + std::to_string(next_id_++);
  request.method = ask.method;
  request.path = ask.path;
  request.query = ask.query;
  request.body = ask.body;
  request.received_micros = NowMicros();
  request.principal.tenant = ask.tenant;
  request.principal.roles = kEveryRole;
  if (!ask.cache_control.empty()) {
    request.headers.emplace_back("cache-control", ask.cache_control);
  }
  auto match = router_.Find(ask.method, ask.path);
  CHECK(match.route != nullptr);
  request.params = match.params;
  exchange.sink = std::make_unique<FakeSink>(io_);
  exchange.done =
      asio::co_spawn(io_, match.route->handler(request, *exchange.sink), asio::use_future);
  return exchange;
}

std::unique_ptr<FakeSink> Harness::Do(const Ask& ask) {
  Exchange exchange = Start(ask);
  exchange.Wait();
  return std::move(exchange.sink);
}

store::EntryView Harness::Entry(uint64_t n) const {
  auto view = ledger->Entry(n, true);
  if (!view.ok()) ADD_FAILURE() << "entry " << n << ": " << view.error().message;
  return view.ok() ? *std::move(view) : store::EntryView{};
}

std::vector<std::string> Harness::Kinds() const {
  std::vector<std::string> kinds;
  for (uint64_t n = 0; n < ledger->Size(); ++n) {
    const store::Kind kind = Entry(n).leaf.kind;
    if (kind == store::Kind::kServerStarted || kind == store::Kind::kServerStopped) continue;
    kinds.emplace_back(store::KindName(kind));
  }
  return kinds;
}

void Harness::WaitForEntries(const std::string& kind, size_t count) {
  for (int i = 0; i < 500; ++i) {
    const auto kinds = Kinds();
    if (static_cast<size_t>(std::count(kinds.begin(), kinds.end(), kind)) >= count) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  ADD_FAILURE() << "no " << count << " entries of kind " << kind;
}

}  // namespace verbatim::gateway
