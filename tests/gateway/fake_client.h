// A pipeline over a ledger in memory, and clients that call it as the HTTP server would.
#pragma once

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <condition_variable>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "fake_backend.h"
#include "gateway/http.h"
#include "gateway/manifest.h"
#include "gateway/metrics.h"
#include "gateway/operator_api.h"
#include "gateway/pipeline.h"
#include "gateway/wakeup.h"
#include "policies/policy.h"
#include "store/kv_memory.h"
#include "store/ledger.h"

namespace verbatim::gateway {

// What a client has of its answer. Written on the I/O thread, read anywhere.
class FakeSink : public ResponseSink {
 public:
  explicit FakeSink(boost::asio::io_context& io) : io_(io) {}

  boost::asio::awaitable<Status> SendWhole(int status, Headers headers, std::string body) override;
  boost::asio::awaitable<Status> StartStream(int status, Headers headers) override;
  boost::asio::awaitable<Status> Write(std::string_view bytes) override;
  boost::asio::awaitable<Status> Finish() override;
  boost::asio::awaitable<Status> SendRendered(int status, const RenderedFields& fields,
                                              const Headers& more, std::string_view body,
                                              bool stream) override;
  void Abort() override;
  bool ClientGone() const override;
  void OnClientGone(std::function<void()> callback) override;

  void HangUp();  // from the test
  void Stall();   // the next Write waits until Resume: a client that does not read
  void Resume();
  void WaitForBody(const std::string& contains);  // blocks until it is there

  int status() const { return Locked(status_); }
  std::string header(std::string_view name) const;  // any case
  Headers headers() const { return Locked(headers_); }
  std::string body() const { return Locked(body_); }
  bool finished() const { return Locked(finished_); }  // whole, or the terminating chunk
  bool aborted() const { return Locked(aborted_); }

 private:
  template <typename T>
  T Locked(const T& v) const {
    std::lock_guard lock(mutex_);
    return v;
  }
  boost::asio::io_context& io_;
  std::function<void()> on_gone_;  // on the I/O thread only
  Wakeup resumed_;
  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  int status_ = 0;
  Headers headers_;
  std::string body_;
  bool finished_ = false, aborted_ = false, gone_ = false, stalled_ = false;
};

// One request under way.
struct Exchange {
  std::unique_ptr<Request> request;
  std::unique_ptr<FakeSink> sink;
  std::future<void> done;
  FakeSink& Wait() {
    done.get();
    return *sink;
  }
};

// What a client asks for; the harness fills in the rest.
struct Ask {
  std::string body = R"({"model":"m","messages":[{"role":"user","content":"hi"}]})";
  std::string path = "/v1/chat/completions";
  std::string method = "POST";
  std::string tenant = "acme";
  std::string cache_control{};
  std::string query{};
};

class Harness {
 public:
  // hit_memory_bytes: of PipelineOptions.
  explicit Harness(policies::Policy policy = {}, std::string locked = "",
                   uint64_t hit_memory_bytes = uint64_t{1} << 20);
  ~Harness();

  Exchange Start(const Ask& ask);
  // Start and wait.
  std::unique_ptr<FakeSink> Do(const Ask& ask);
  // Closes everything and opens it anew over what the store holds, with another machine's manifest.
  void Restart(const std::string& isa);
  // The kinds of all entries but the server's own, in their order.
  std::vector<std::string> Kinds() const;
  store::EntryView Entry(uint64_t n) const;
  void WaitForEntries(const std::string& kind, size_t count);  // blocks

  std::shared_ptr<Script> script = std::make_shared<Script>();
  store::KvMemory* kv = nullptr;  // of the ledger that is open
  std::unique_ptr<store::Ledger> ledger;
  std::unique_ptr<Metrics> metrics;
  std::unique_ptr<Pipeline> pipeline;

 private:
  void Open(std::unique_ptr<store::KvMemory> memory, const std::string& isa);
  void Close();

  policies::Policy policy_;
  std::string locked_;
  uint64_t hit_memory_bytes_;
  std::string folder_;
  Manifest manifest_;
  Router router_;
  int next_id_ = 0;
  boost::asio::io_context io_{1};
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_{
      io_.get_executor()};
  std::thread thread_{[this] { io_.run(); }};
};

}  // namespace verbatim::gateway
