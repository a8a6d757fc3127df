// An upstream on a local port that answers each request with the next of the replies it was given,
// byte for byte, and keeps what it was asked. A thread for each connection.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace verbatim::gateway::test {

// Instead of a reply: the connection stays open, or is closed at once.
inline constexpr std::string_view kHang = "(hang)";
inline constexpr std::string_view kClose = "(close)";
// At the end of a reply: the connection is closed after it, or stays open with nothing following.
inline constexpr std::string_view kThenClose = "(then close)";
inline constexpr std::string_view kThenHang = "(then hang)";

class ScriptedUpstream {
 public:
  // After the last reply comes the last one again.
  explicit ScriptedUpstream(std::vector<std::string> replies);
  ~ScriptedUpstream();

  std::string url() const;  // "http://127.0.0.1:PORT"
  // As received, header and body, in the order in which they were complete.
  std::vector<std::string> requests() const;

 private:
  void Accept();
  void Serve(int socket);
  std::string NextReply(std::string request);

  const std::vector<std::string> replies_;
  int listener_ = -1;
  uint16_t port_ = 0;
  std::thread acceptor_;
  mutable std::mutex mutex_;  // guards everything below
  std::vector<std::string> requests_;
  std::vector<int> sockets_;
  std::vector<std::thread> threads_;
};

// "HTTP/1.1 429 X\r\ncontent-type: ...\r\n...\r\n\r\nbody", with a content-length. `headers`:
// lines, each with its "\r\n".
std::string HttpReply(int status, std::string_view body, std::string_view headers = "",
                      std::string_view content_type = "application/json");

// A chunked event stream, whole.
std::string StreamReply(const std::vector<std::string>& events);

}  // namespace verbatim::gateway::test
