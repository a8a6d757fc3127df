// An upstream that always answers the same, for the gateway's benchmarks: OpenAI's chat
// completions, plain or streamed (where the body says "stream":true), kept alive. Prints its port.
//   fixed_upstream [--port P] [--body-bytes B] [--events N] [--interval-ms M] [--event-bytes E]
//                  [--flood-events F]
// A plain answer has B bytes. A stream has N events, M ms apart (the first at once), the text of
// each E bytes long; then the finish reason, usage, and [DONE]. A body that holds "flood" gets F
// events without pauses.
#include <sys/resource.h>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read_until.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <map>
#include <string>
#include <string_view>

namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using Socket = asio::basic_stream_socket<tcp, asio::io_context::executor_type>;

struct Options {
  size_t port = 0, body_bytes = 2048, events = 20, interval_ms = 0, event_bytes = 16;
  size_t flood_events = 100'000;
};

std::string Chunk(const std::string& bytes) {
  char size[32];
  std::snprintf(size, sizeof size, "%zx\r\n", bytes.size());
  return size + bytes + "\r\n";
}

std::string Event(const std::string& choices, const char* usage) {
  return "data: "
         "{\"id\":\"chatcmpl-fixed\",\"object\":\"chat.completion.chunk\",\"created\":1796054400,"
         "\"model\":\"fixed\",\"choices\":[" +
         choices + "],\"usage\":" + usage + "}\n\n";
}

// Every answer's bytes, made once.
struct Answers {
  std::string plain, stream_head, event, end;
};

Answers MakeAnswers(const Options& options) {
  const std::string begin =
      "{\"id\":\"chatcmpl-fixed\",\"object\":\"chat.completion\",\"created\":1796054400,"
      "\"model\":\"fixed\",\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\","
      "\"content\":\"";
  const std::string end =
      "\"},\"finish_reason\":\"stop\"}],\"usage\":{\"prompt_tokens\":10,\"completion_tokens\":20,"
      "\"total_tokens\":30}}";
  const size_t around = begin.size() + end.size();
  const size_t text = options.body_bytes > around ? options.body_bytes - around : 1;
  const std::string body = begin + std::string(text, 'x') + end;
  const std::string delta = "{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"" +
                            std::string(options.event_bytes, 'y') + "\"},\"finish_reason\":null}";
  Answers answers;
  answers.plain = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: " +
                  std::to_string(body.size()) + "\r\n\r\n" + body;
  answers.stream_head =
      "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
  answers.event = Chunk(Event(delta, "null"));
  answers.end =
      Chunk(Event("{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}", "null") +
            Event("", "{\"prompt_tokens\":10,\"completion_tokens\":20,\"total_tokens\":30}") +
            "data: [DONE]\n\n") +
      "0\r\n\r\n";
  return answers;
}

size_t BodyBytes(std::string_view head) {
  for (const char* name : {"\r\ncontent-length: ", "\r\nContent-Length: "}) {
    const size_t at = head.find(name);
    if (at == std::string_view::npos) continue;
    size_t bytes = 0;
    const char* digits = head.data() + at + 18;
    std::from_chars(digits, head.data() + head.size(), bytes);
    return bytes;
  }
  return 0;
}

asio::awaitable<void> Serve(Socket socket, const Options& options, const Answers& answers) {
  boost::system::error_code error;
  auto token = asio::redirect_error(asio::use_awaitable, error);
  std::string input;
  for (;;) {
    const size_t head = co_await asio::async_read_until(socket, asio::dynamic_buffer(input),
                                                        std::string_view("\r\n\r\n"), token);
    if (error) co_return;
    const size_t whole = head + BodyBytes(std::string_view(input).substr(0, head));
    while (input.size() < whole) {
      const size_t had = input.size();
      input.resize(whole);
      const size_t got =
          co_await socket.async_read_some(asio::buffer(input.data() + had, whole - had), token);
      if (error) co_return;
      input.resize(had + got);
    }
    const std::string_view body = std::string_view(input).substr(head, whole - head);
    const bool streamed = body.find("\"stream\":true") != std::string_view::npos ||
                          body.find("\"stream\": true") != std::string_view::npos;
    const bool flood = body.find("flood") != std::string_view::npos;
    input.erase(0, whole);
    input.shrink_to_fit();
    if (!streamed) {
      co_await asio::async_write(socket, asio::buffer(answers.plain), token);
      if (error) co_return;
      continue;
    }
    co_await asio::async_write(socket, asio::buffer(answers.stream_head), token);
    asio::steady_timer timer(socket.get_executor());
    const size_t events = flood ? options.flood_events : options.events;
    for (size_t i = 0; i < events && !error; ++i) {
      if (i > 0 && options.interval_ms > 0 && !flood) {
        timer.expires_after(std::chrono::milliseconds(options.interval_ms));
        co_await timer.async_wait(token);
      }
      co_await asio::async_write(socket, asio::buffer(answers.event), token);
    }
    if (error) co_return;
    co_await asio::async_write(socket, asio::buffer(answers.end), token);
    if (error) co_return;
  }
}

asio::awaitable<void> Accept(asio::io_context& context, tcp::acceptor& acceptor,
                             const Options& options, const Answers& answers) {
  boost::system::error_code error;
  for (;;) {
    Socket socket(context);
    co_await acceptor.async_accept(socket, asio::redirect_error(asio::use_awaitable, error));
    if (error) continue;
    socket.set_option(tcp::no_delay(true), error);
    asio::co_spawn(context, Serve(std::move(socket), options, answers), asio::detached);
  }
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  const std::map<std::string_view, size_t*> flags = {{"--port", &options.port},
                                                     {"--body-bytes", &options.body_bytes},
                                                     {"--events", &options.events},
                                                     {"--interval-ms", &options.interval_ms},
                                                     {"--event-bytes", &options.event_bytes},
                                                     {"--flood-events", &options.flood_events}};
  for (int i = 1; i < argc; i += 2) {
    const auto flag = flags.find(argv[i]);
    const std::string_view value = i + 1 < argc ? argv[i + 1] : "";
    if (flag == flags.end() ||
        std::from_chars(value.data(), value.data() + value.size(), *flag->second).ec !=
            std::errc()) {
      std::fprintf(stderr, "fixed_upstream: %s: see the head of fixed_upstream.cc\n", argv[i]);
      return 2;
    }
  }
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) == 0) {
    files.rlim_cur = files.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &files);
  }
  const Answers answers = MakeAnswers(options);
  asio::io_context context(1);
  tcp::acceptor acceptor(context,
                         {asio::ip::address_v4::loopback(), static_cast<uint16_t>(options.port)});
  acceptor.listen(8192);
  std::printf("%u\n", acceptor.local_endpoint().port());
  std::fflush(stdout);
  asio::co_spawn(context, Accept(context, acceptor, options, answers), asio::detached);
  context.run();
}
