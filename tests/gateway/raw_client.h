// A client that sends exactly the bytes it is told, over a plain socket. For tests of the server.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

namespace verbatim::gateway {

class RawClient {
 public:
  explicit RawClient(uint16_t port);  // connects to 127.0.0.1
  ~RawClient();
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;

  bool Send(std::string_view bytes);  // false where the connection broke
  void ShutdownSend();
  void Reset();  // closes with a RST
  void SetReceiveBuffer(int bytes);

  // What arrives until `marker` has, the server closes, or the time is over.
  std::string ReadUntil(std::string_view marker, std::chrono::milliseconds limit);
  // One response with its content-length or chunked body, as received; what follows it stays.
  std::string ReadResponse(std::chrono::milliseconds limit = std::chrono::milliseconds(5000));
  // Everything until the server closes. *closed: whether it did within the time.
  std::string ReadAll(std::chrono::milliseconds limit, bool* closed);

 private:
  bool ReadSome(std::chrono::steady_clock::time_point deadline);
  int fd_;
  bool closed_ = false;
  std::string received_;
};

}  // namespace verbatim::gateway
