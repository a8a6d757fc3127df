#include "tests/gateway/upstream/scripted_upstream.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "base/check.h"

namespace verbatim::gateway::test {

namespace {

void WriteAll(int socket, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n <= 0) return;
    bytes.remove_prefix(static_cast<size_t>(n));
  }
}

size_t ContentLength(std::string_view head) {
  const std::string_view name = "\r\ncontent-length: ";
  std::string lower(head);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  const size_t at = lower.find(name);
  return at == lower.npos ? 0 : std::stoul(lower.substr(at + name.size()));
}

bool TakeSuffix(std::string_view& text, std::string_view suffix) {
  if (!text.ends_with(suffix)) return false;
  text.remove_suffix(suffix.size());
  return true;
}

}  // namespace

ScriptedUpstream::ScriptedUpstream(std::vector<std::string> replies)
    : replies_(std::move(replies)), listener_(socket(AF_INET, SOCK_STREAM, 0)) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  CHECK(bind(listener_, reinterpret_cast<sockaddr*>(&address), size) == 0);
  CHECK(listen(listener_, 64) == 0);
  CHECK(getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size) == 0);
  port_ = ntohs(address.sin_port);
  acceptor_ = std::thread([this] { Accept(); });
}

ScriptedUpstream::~ScriptedUpstream() {
  shutdown(listener_, SHUT_RDWR);
  acceptor_.join();
  close(listener_);
  std::vector<std::thread> threads;
  {
    const std::lock_guard lock(mutex_);
    for (const int s : sockets_) shutdown(s, SHUT_RDWR);
    threads.swap(threads_);
  }
  for (std::thread& thread : threads) thread.join();
  for (const int s : sockets_) close(s);
}

std::string ScriptedUpstream::url() const { return "http://127.0.0.1:" + std::to_string(port_); }

std::vector<std::string> ScriptedUpstream::requests() const {
  const std::lock_guard lock(mutex_);
  return requests_;
}

void ScriptedUpstream::Accept() {
  for (;;) {
    const int accepted = accept(listener_, nullptr, nullptr);
    if (accepted < 0) return;
    const std::lock_guard lock(mutex_);
    sockets_.push_back(accepted);
    threads_.emplace_back([this, accepted] { Serve(accepted); });
  }
}

std::string ScriptedUpstream::NextReply(std::string request) {
  const std::lock_guard lock(mutex_);
  requests_.push_back(std::move(request));
  return replies_[std::min(requests_.size(), replies_.size()) - 1];
}

void ScriptedUpstream::Serve(int socket) {
  std::string received;
  char buffer[16384];
  for (;;) {
    const size_t head = received.find("\r\n\r\n");
    const size_t whole =
        head == received.npos ? head : head + 4 + ContentLength({received.data(), head});
    if (whole == received.npos || received.size() < whole) {
      const ssize_t n = recv(socket, buffer, sizeof buffer, 0);
      if (n <= 0) return;
      received.append(buffer, static_cast<size_t>(n));
      continue;
    }
    const std::string reply = NextReply(received.substr(0, whole));
    received.erase(0, whole);
    std::string_view bytes = reply;
    if (bytes == kHang || bytes == kClose) bytes = {};
    const bool hang = TakeSuffix(bytes, kThenHang) || reply == kHang;
    const bool end = TakeSuffix(bytes, kThenClose) || reply == kClose;
    WriteAll(socket, bytes);
    if (end) shutdown(socket, SHUT_RDWR);
    if (end || hang) {
      while (recv(socket, buffer, sizeof buffer, 0) > 0) {
      }
      return;
    }
  }
}

std::string HttpReply(int status, std::string_view body, std::string_view headers,
                      std::string_view content_type) {
  return "HTTP/1.1 " + std::to_string(status) + " X\r\ncontent-type: " + std::string(content_type) +
         "\r\ncontent-length: " + std::to_string(body.size()) + "\r\n" + std::string(headers) +
         "\r\n" + std::string(body);
}

std::string StreamReply(const std::vector<std::string>& events) {
  std::string out =
      "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
      "transfer-encoding: chunked\r\n\r\n";
  for (const std::string& event : events) {
    char size[32];
    std::snprintf(size, sizeof size, "%zx\r\n", event.size());
    out += size + event + "\r\n";
  }
  return out + "0\r\n\r\n";
}

}  // namespace verbatim::gateway::test
