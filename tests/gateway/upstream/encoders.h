// Content codings as servers make them, for tests.
#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace verbatim::gateway::test {

// `coding`: gzip, zlib (what "deflate" should be), deflate (bare), br or zstd.
std::string Encode(std::string_view coding, std::string_view text);

// A zstd frame that asks for a window of 2^log bytes.
std::string EncodeZstd(std::string_view text, int window_log);

// A stream of events that a server flushes one by one.
class EventEncoder {
 public:
  explicit EventEncoder(std::string_view coding);  // gzip, deflate, br or zstd
  ~EventEncoder();
  std::string Flush(std::string_view event);
  std::string End();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace verbatim::gateway::test
