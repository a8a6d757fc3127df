#include "tests/gateway/raw_client.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "base/check.h"

namespace verbatim::gateway {

using Clock = std::chrono::steady_clock;

RawClient::RawClient(uint16_t port) : fd_(::socket(AF_INET, SOCK_STREAM, 0)) {
  CHECK(fd_ >= 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  CHECK(::connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0);
}

RawClient::~RawClient() {
  if (fd_ >= 0) ::close(fd_);
}

bool RawClient::Send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  return true;
}

void RawClient::ShutdownSend() { ::shutdown(fd_, SHUT_WR); }

void RawClient::Reset() {
  const linger now{1, 0};
  ::setsockopt(fd_, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
  ::close(fd_);
  fd_ = -1;
}

void RawClient::SetReceiveBuffer(int bytes) {
  ::setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof(bytes));
}

bool RawClient::ReadSome(Clock::time_point deadline) {
  if (closed_) return false;
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
  pollfd entry{fd_, POLLIN, 0};
  if (left.count() <= 0 || ::poll(&entry, 1, static_cast<int>(left.count())) <= 0) return false;
  char bytes[16384];
  const ssize_t n = ::recv(fd_, bytes, sizeof(bytes), 0);
  if (n <= 0) {
    closed_ = true;
    return false;
  }
  received_.append(bytes, static_cast<size_t>(n));
  return true;
}

std::string RawClient::ReadUntil(std::string_view marker, std::chrono::milliseconds limit) {
  const auto deadline = Clock::now() + limit;
  size_t at;
  while ((at = received_.find(marker)) == std::string::npos) {
    if (!ReadSome(deadline)) return std::exchange(received_, "");
  }
  std::string out = received_.substr(0, at + marker.size());
  received_.erase(0, out.size());
  return out;
}

std::string RawClient::ReadResponse(std::chrono::milliseconds limit) {
  std::string out = ReadUntil("\r\n\r\n", limit);
  const size_t length_at = out.find("content-length: ");
  if (length_at != std::string::npos) {
    const size_t length = std::strtoul(out.c_str() + length_at + 16, nullptr, 10);
    const auto deadline = Clock::now() + limit;
    while (received_.size() < length && ReadSome(deadline)) {
    }
    const size_t n = std::min(length, received_.size());
    out += received_.substr(0, n);
    received_.erase(0, n);
  } else if (out.find("transfer-encoding: chunked") != std::string::npos) {
    out += ReadUntil("0\r\n\r\n", limit);
  }
  return out;
}

std::string RawClient::ReadAll(std::chrono::milliseconds limit, bool* closed) {
  const auto deadline = Clock::now() + limit;
  while (ReadSome(deadline)) {
  }
  *closed = closed_;
  return std::exchange(received_, "");
}

}  // namespace verbatim::gateway
