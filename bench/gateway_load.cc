// The load that wrk does not make, for the gateway's benchmarks. Prints one JSON object.
//   gateway_load latency --direct PORT --gateway PORT --requests N [--stream] [--sync-file FILE]
//     Unlike requests, one at a time, in turn to the upstream itself and through the gateway: the
//     time to the first bytes of the answer's body and to its last, in microseconds. In between,
//     4 KiB are written to FILE and synced, which is what a commit waits for at least.
//   gateway_load streams --gateway PORT --streams N --seconds S [--slow K]
//     N streams at once, of unlike requests; K more ask for a flood and never read it. Says "open"
//     once each of the N had its first event, then reads on for S seconds.
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using Clock = std::chrono::steady_clock;

struct Options {
  uint16_t direct = 0, gateway = 0;
  size_t requests = 1000, streams = 1000, slow = 0;
  double seconds = 10;
  bool stream = false;
  std::string sync_file;
};

double MicrosSince(Clock::time_point begin) {
  return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
}

double Quantile(std::vector<double>& values, double q) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(q * static_cast<double>(values.size() - 1))];
}

std::string RequestText(const std::string& prompt, bool stream) {
  const std::string body =
      "{\"model\":\"fixed\",\"temperature\":0,\"messages\":[{\"role\":\"user\","
      "\"content\":\"" +
      prompt + "\"}],\"stream\":" + (stream ? "true" : "false") + "}";
  return "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: "
         "application/json\r\ncontent-length: " +
         std::to_string(body.size()) + "\r\n\r\n" + body;
}

// One answer as far as it has come; knows its end.
class Answer {
 public:
  void Add(std::string_view bytes) {
    // Of a long stream only the end is of interest.
    if (head_ > 0 && text_.size() > (size_t{64} << 10))
      text_.erase(head_, text_.size() - head_ - 16);
    text_ += bytes;
    if (head_ > 0) return;
    const size_t end = text_.find("\r\n\r\n");
    if (end == std::string::npos) return;
    head_ = end + 4;
    const size_t length = text_.find("ontent-length: ");
    if (length < end) length_ = std::strtoull(text_.c_str() + length + 15, nullptr, 10);
  }
  bool ok() const { return text_.compare(0, 13, "HTTP/1.1 200 ") == 0; }
  bool has_body() const { return head_ > 0 && text_.size() > head_; }
  bool complete() const {
    if (head_ == 0) return false;
    if (length_ > 0) return text_.size() - head_ >= length_;
    return text_.size() >= head_ + 5 && text_.compare(text_.size() - 5, 5, "0\r\n\r\n") == 0;
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
  size_t head_ = 0, length_ = 0;
};

[[noreturn]] void Fail(const std::string& what) {
  std::fprintf(stderr, "gateway_load: %s\n", what.c_str());
  std::exit(1);
}

asio::awaitable<void> Connect(tcp::socket& socket, uint16_t port) {
  const tcp::endpoint to(asio::ip::address_v4::loopback(), port);
  co_await socket.async_connect(to, asio::use_awaitable);
  socket.set_option(tcp::no_delay(true));
}

// --- latency

struct Times {
  std::vector<double> first, last;
};

asio::awaitable<void> Ask(tcp::socket& socket, const std::string& request, Times& times) {
  const Clock::time_point began = Clock::now();
  co_await asio::async_write(socket, asio::buffer(request), asio::use_awaitable);
  Answer answer;
  double first = 0;
  std::vector<char> buffer(size_t{16} << 10);
  while (!answer.complete()) {
    const size_t n = co_await socket.async_read_some(asio::buffer(buffer), asio::use_awaitable);
    answer.Add({buffer.data(), n});
    if (first == 0 && answer.has_body()) first = MicrosSince(began);
  }
  if (!answer.ok()) Fail("not answered: " + answer.text().substr(0, 400));
  times.first.push_back(first);
  times.last.push_back(MicrosSince(began));
}

double Sync(int file) {
  static const std::vector<char> page(4096, 's');
  const Clock::time_point began = Clock::now();
  if (::write(file, page.data(), page.size()) != 4096 || ::fdatasync(file) != 0) {
    Fail("cannot write and sync the file");
  }
  return MicrosSince(began);
}

void PrintTimes(const char* name, Times& times) {
  std::printf("\"%s\":{\"first_p50\":%.1f,\"first_p99\":%.1f,\"last_p50\":%.1f,\"last_p99\":%.1f},",
              name, Quantile(times.first, 0.5), Quantile(times.first, 0.99),
              Quantile(times.last, 0.5), Quantile(times.last, 0.99));
}

asio::awaitable<void> Latency(asio::io_context& context, const Options& options) {
  tcp::socket direct(context), gateway(context);
  co_await Connect(direct, options.direct);
  co_await Connect(gateway, options.gateway);
  int file = -1;
  if (!options.sync_file.empty()) {
    file = ::open(options.sync_file.c_str(), O_CREAT | O_TRUNC | O_WRONLY | O_APPEND, 0600);
    if (file < 0) Fail("cannot make " + options.sync_file);
  }
  Times direct_times, gateway_times, warm_up;
  std::vector<double> syncs;
  const std::string run = std::to_string(Clock::now().time_since_epoch().count());
  for (size_t i = 0; i < options.requests + 20; ++i) {
    const bool counts = i >= 20;
    const std::string request =
        RequestText("Request " + std::to_string(i) + " of run " + run, options.stream);
    // Whoever comes first after a sync finds cold caches.
    const bool direct_first = i % 2 == 0;
    if (direct_first) co_await Ask(direct, request, counts ? direct_times : warm_up);
    co_await Ask(gateway, request, counts ? gateway_times : warm_up);
    if (!direct_first) co_await Ask(direct, request, counts ? direct_times : warm_up);
    if (file >= 0 && counts) syncs.push_back(Sync(file));
  }
  std::printf("{\"requests\":%zu,\"stream\":%s,", options.requests,
              options.stream ? "true" : "false");
  PrintTimes("direct", direct_times);
  PrintTimes("gateway", gateway_times);
  std::printf("\"sync_p50\":%.1f}\n", Quantile(syncs, 0.5));
}

// --- streams

struct Counts {
  size_t open = 0, ended = 0, failed = 0, events = 0;
  std::vector<double> gaps;  // between two reads of one stream, milliseconds
};

asio::awaitable<void> ReadStream(asio::io_context& context, const Options& options, size_t number,
                                 Counts& counts) {
  boost::system::error_code error;
  auto token = asio::redirect_error(asio::use_awaitable, error);
  tcp::socket socket(context);
  const tcp::endpoint to(asio::ip::address_v4::loopback(), options.gateway);
  co_await socket.async_connect(to, token);
  const std::string request = RequestText(
      "Stream " + std::to_string(number) + " of process " + std::to_string(::getpid()), true);
  if (!error) co_await asio::async_write(socket, asio::buffer(request), token);
  Answer answer;
  bool open = false;
  std::vector<char> buffer(2048);
  Clock::time_point before = Clock::now();
  while (!error && !answer.complete()) {
    const size_t n = co_await socket.async_read_some(asio::buffer(buffer), token);
    if (error) break;
    answer.Add({buffer.data(), n});
    if (open) counts.gaps.push_back(MicrosSince(before) * 1e-3);
    before = Clock::now();
    ++counts.events;
    if (!open && answer.has_body()) {
      if (!answer.ok()) Fail("not answered: " + answer.text().substr(0, 400));
      open = true;
      ++counts.open;
    }
  }
  ++(answer.complete() ? counts.ended : counts.failed);
}

// Asks, and reads nothing.
asio::awaitable<void> Ignore(tcp::socket& socket, const Options& options, size_t number) {
  co_await Connect(socket, options.gateway);
  const std::string request = RequestText(
      "flood " + std::to_string(number) + " of process " + std::to_string(::getpid()), true);
  co_await asio::async_write(socket, asio::buffer(request), asio::use_awaitable);
}

asio::awaitable<void> Streams(asio::io_context& context, const Options& options, Counts& counts,
                              std::vector<std::unique_ptr<tcp::socket>>& slow) {
  asio::steady_timer timer(context);
  const auto pause = [&timer](int milliseconds) {
    timer.expires_after(std::chrono::milliseconds(milliseconds));
    return timer.async_wait(asio::use_awaitable);
  };
  for (size_t i = 0; i < options.slow; ++i) {
    slow.push_back(std::make_unique<tcp::socket>(context));
    co_await Ignore(*slow.back(), options, i);
  }
  for (size_t i = 0; i < options.streams; ++i) {
    asio::co_spawn(context, ReadStream(context, options, i, counts), asio::detached);
    // As fast as one by one: a burst of connections is another benchmark.
    if (i % 10 == 9) co_await pause(2);
  }
  while (counts.open + counts.failed < options.streams) co_await pause(20);
  std::printf("open\n");
  std::fflush(stdout);
  counts.gaps.clear();
  counts.events = 0;
  const Clock::time_point began = Clock::now();
  while (MicrosSince(began) < options.seconds * 1e6) co_await pause(50);
  std::printf(
      "{\"open\":%zu,\"ended\":%zu,\"failed\":%zu,\"reads\":%zu,\"gap_p50_ms\":%.1f,"
      "\"gap_p99_ms\":%.1f}\n",
      counts.open, counts.ended, counts.failed, counts.events, Quantile(counts.gaps, 0.5),
      Quantile(counts.gaps, 0.99));
  std::fflush(stdout);
  ::_exit(0);
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  const std::string mode = argc > 1 ? argv[1] : "";
  const std::map<std::string, std::function<void(const char*)>> flags = {
      {"--direct", [&](const char* v) { options.direct = static_cast<uint16_t>(std::atoi(v)); }},
      {"--gateway", [&](const char* v) { options.gateway = static_cast<uint16_t>(std::atoi(v)); }},
      {"--requests", [&](const char* v) { options.requests = std::strtoull(v, nullptr, 10); }},
      {"--streams", [&](const char* v) { options.streams = std::strtoull(v, nullptr, 10); }},
      {"--slow", [&](const char* v) { options.slow = std::strtoull(v, nullptr, 10); }},
      {"--seconds", [&](const char* v) { options.seconds = std::atof(v); }},
      {"--sync-file", [&](const char* v) { options.sync_file = v; }}};
  for (int i = 2; i < argc; ++i) {
    if (std::string_view(argv[i]) == "--stream") {
      options.stream = true;
      continue;
    }
    const auto flag = flags.find(argv[i]);
    if (flag == flags.end() || i + 1 == argc) Fail(std::string(argv[i]) + ": unknown, or no value");
    flag->second(argv[++i]);
  }
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) == 0) {
    files.rlim_cur = files.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &files);
  }
  asio::io_context context(1);
  Counts counts;
  std::vector<std::unique_ptr<tcp::socket>> slow;
  const auto fail = [](std::exception_ptr e) {
    if (!e) return;
    try {
      std::rethrow_exception(e);
    } catch (const std::exception& error) {
      Fail(error.what());
    }
  };
  if (mode == "latency") {
    asio::co_spawn(context, Latency(context, options), fail);
  } else if (mode == "streams") {
    asio::co_spawn(context, Streams(context, options, counts, slow), fail);
  } else {
    Fail("latency or streams; see the head of gateway_load.cc");
  }
  context.run();
}
