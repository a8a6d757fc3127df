// What the HTTP layer itself costs, with a handler that does nothing.
//   http_floor [SECONDS] [CONNECTIONS]   requests for a fixed 2 KB body over keep-alive
//   connections,
//                                        from a process of its own: requests/s, and the server's
//                                        CPU time per request
//   http_floor streams [N]               memory of the server per open stream (5,000)
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "base/check.h"
#include "gateway/server.h"

namespace {

using namespace verbatim;
using namespace verbatim::gateway;
using Clock = std::chrono::steady_clock;

constexpr size_t kBody = 2048;
constexpr char kRequest[] =
    "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:8080\r\nAccept: application/json\r\n"
    "Accept-Encoding: gzip, deflate\r\nConnection: keep-alive\r\nUser-Agent: OpenAI/Python 1.0\r\n"
    "Authorization: Bearer sk-none\r\nContent-Type: application/json\r\nContent-Length: 76\r\n\r\n"
    R"({"model":"m","messages":[{"role":"user","content":"hello"}],"temperature":0})";

boost::asio::awaitable<void> Answer(const Request&, ResponseSink& sink) {
  Headers headers;
  headers.emplace_back("Verbatim-Cache", "hit");
  (void)co_await sink.SendWhole(200, std::move(headers), std::string(kBody, 'x'));
}

boost::asio::awaitable<void> HoldStream(const Request&, ResponseSink& sink) {
  boost::asio::steady_timer timer(co_await boost::asio::this_coro::executor);
  Headers headers;
  (void)co_await sink.StartStream(200, std::move(headers));
  (void)co_await sink.Write("data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n");
  timer.expires_after(std::chrono::minutes(1));
  sink.OnClientGone([&timer] { timer.cancel(); });
  try {
    co_await timer.async_wait(boost::asio::use_awaitable);
  } catch (const std::exception&) {
  }
}

int Connect(uint16_t port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  CHECK(fd >= 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  CHECK(::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0);
  const int on = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  return fd;
}

void SendRequest(int fd) {
  CHECK(::send(fd, kRequest, sizeof(kRequest) - 1, MSG_NOSIGNAL) ==
        static_cast<ssize_t>(sizeof(kRequest) - 1));
}

// One thread, every connection with one request out. Returns how many were answered.
uint64_t Load(uint16_t port, int connections, int seconds) {
  struct Client {
    int fd = 0;
    size_t got = 0, whole = 0;
  };
  std::vector<Client> clients(static_cast<size_t>(connections));
  const int poller = ::epoll_create1(0);
  for (size_t i = 0; i < clients.size(); ++i) {
    clients[i].fd = Connect(port);
    epoll_event event{EPOLLIN, {.u64 = i}};
    CHECK(::epoll_ctl(poller, EPOLL_CTL_ADD, clients[i].fd, &event) == 0);
    SendRequest(clients[i].fd);
  }
  uint64_t answered = 0;
  std::vector<char> buffer(65536);
  std::vector<epoll_event> events(clients.size());
  const auto end = Clock::now() + std::chrono::seconds(seconds);
  while (Clock::now() < end) {
    const int n = ::epoll_wait(poller, events.data(), connections, 100);
    for (int i = 0; i < n; ++i) {
      Client& client = clients[events[static_cast<size_t>(i)].data.u64];
      const ssize_t got = ::recv(client.fd, buffer.data(), buffer.size(), 0);
      CHECK(got > 0);
      if (client.got == 0) {
        const std::string_view text(buffer.data(), static_cast<size_t>(got));
        client.whole = text.find("\r\n\r\n") + 4 + kBody;
      }
      client.got += static_cast<size_t>(got);
      if (client.got < client.whole) continue;
      client.got = 0;
      ++answered;
      SendRequest(client.fd);
    }
  }
  return answered;
}

double CpuSeconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

size_t ResidentBytes() {
  FILE* file = std::fopen("/proc/self/statm", "r");
  size_t total = 0, resident = 0;
  CHECK(file != nullptr && std::fscanf(file, "%zu %zu", &total, &resident) == 2);
  std::fclose(file);
  return resident * static_cast<size_t>(::sysconf(_SC_PAGESIZE));
}

std::unique_ptr<Server> Serve(Handler handler) {
  Router router;
  router.Add({"POST", "/v1/chat/completions", static_cast<uint8_t>(Role::kClient), handler});
  ServerOptions options;
  options.listen = "127.0.0.1:0";
  auto server = Server::Start(options, std::move(router), Authenticator());
  if (!server.ok()) {
    std::fprintf(stderr, "%s\n", server.error().message.c_str());
    std::exit(2);
  }
  return std::move(server).value();
}

int Requests(int seconds, int connections) {
  const auto server = Serve(Answer);
  int pipes[2];
  CHECK(::pipe(pipes) == 0);
  const double before = CpuSeconds();
  const pid_t child = ::fork();
  if (child == 0) {
    const uint64_t answered = Load(server->port(), connections, seconds);
    CHECK(::write(pipes[1], &answered, sizeof(answered)) == sizeof(answered));
    ::_exit(0);
  }
  uint64_t answered = 0;
  CHECK(::read(pipes[0], &answered, sizeof(answered)) == sizeof(answered) && answered > 0);
  const double cpu = CpuSeconds() - before;
  ::waitpid(child, nullptr, 0);
  std::printf("%d connections: %.0f requests/s, %.1f us of the server's CPU each\n", connections,
              static_cast<double>(answered) / seconds, cpu * 1e6 / static_cast<double>(answered));
  return 0;
}

int Streams(int count) {
  const auto server = Serve(HoldStream);
  const pid_t child = ::fork();
  if (child == 0) {
    for (int i = 0; i < count; ++i) {
      const int fd = Connect(server->port());
      SendRequest(fd);
      char byte;
      CHECK(::recv(fd, &byte, 1, 0) == 1);
    }
    ::pause();
  }
  size_t before = 0;
  while (server->running() < static_cast<size_t>(count)) {
    if (before == 0 && server->running() >= 10) before = ResidentBytes();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  const double grown = static_cast<double>(ResidentBytes() - before);
  std::printf("%d open streams: %.1f KB each\n", count, grown / 1024 / (count - 10));
  const double cpu = CpuSeconds();
  std::this_thread::sleep_for(std::chrono::seconds(2));
  std::printf("idle: %.2f %% of a core\n", (CpuSeconds() - cpu) / 2 * 100);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && std::strcmp(argv[1], "streams") == 0) {
    return Streams(argc > 2 ? std::atoi(argv[2]) : 5'000);
  }
  return Requests(argc > 1 ? std::atoi(argv[1]) : 3, argc > 2 ? std::atoi(argv[2]) : 32);
}
