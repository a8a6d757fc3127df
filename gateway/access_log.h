// The access log: one JSON object a line for each request that was answered. Holds ids, names and
// numbers, never a payload, a credential, or the values of a query.
//
// Write formats the line on the caller's thread (about a microsecond) and appends it to a bounded
// buffer; one thread writes the buffer out. Where the file does not keep up, lines are dropped and
// counted: a slow disk never slows an answer. Thread-safe.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

#include "base/result.h"

namespace verbatim::gateway {

// What a handler knows of its request and the connection does not. The connection fills the rest.
struct AccessNotes {
  std::string model;        // the name under which it is served
  std::string cache;        // as in Verbatim-Cache
  std::string fingerprint;  // hex
  std::string upstream;     // configured id; empty where the embedded engine answered
  std::string trace_id;     // of traceparent, hex
  std::optional<uint64_t> entry;
  bool pending = false;  // a hit whose interval is open
};

// Empty texts and absent numbers are left out of the line. Any bytes are allowed in the texts: they
// are escaped, and cut after kMaxText bytes.
struct AccessRecord {
  int64_t time_micros = 0;  // when the request's head was whole
  std::string_view request_id, remote, method, path;
  int status = 0;  // 499: the client went away before its answer
  std::string_view tenant, subject, key_id;
  uint64_t bytes_in = 0, bytes_out = 0;  // of the bodies
  int64_t duration_micros = 0;           // to the answer's last byte
  std::optional<int64_t> first_byte_micros;
  std::string_view model, cache, fingerprint, upstream, trace_id;
  std::optional<uint64_t> entry;
  bool pending = false;

  void Take(const AccessNotes& notes);  // borrows from it
};

inline constexpr size_t kMaxText = 1024;

// The line, with its newline.
std::string FormatAccess(const AccessRecord& record);

class AccessLog {
 public:
  static constexpr size_t kBufferBytes = size_t{8} << 20;

  // target: "off", "stdout", "stderr", or a file that is appended to (made with mode 0640).
  // kInvalid and kIo say what is wrong with it.
  static Result<std::unique_ptr<AccessLog>> Open(const std::string& target,
                                                 size_t buffer_bytes = kBufferBytes);
  // Writes what is buffered, for at most a second where the target takes nothing.
  ~AccessLog();
  AccessLog(const AccessLog&) = delete;
  AccessLog& operator=(const AccessLog&) = delete;

  bool enabled() const { return enabled_.load(std::memory_order_relaxed); }
  void Write(const AccessRecord& record);
  // Opens the target anew, as after its rotation; lines written before it go to the old one. On an
  // error the old one stays.
  Status Reopen(const std::string& target);
  // Blocks until everything written before is in the kernel's hands, for at most a second.
  void Flush();
  uint64_t dropped() const { return dropped_.load(std::memory_order_relaxed); }

 private:
  struct Target;
  explicit AccessLog(size_t buffer_bytes) : limit_(buffer_bytes) {}
  void Run();
  std::string_view WriteOut(const Target& target, std::string_view lines);

  const size_t limit_;
  std::atomic<bool> enabled_ = false;
  std::atomic<uint64_t> dropped_ = 0;
  std::mutex mutex_;  // guards everything below
  std::condition_variable changed_, written_;
  std::string buffer_;
  std::shared_ptr<Target> target_;
  bool writing_ = false, hurry_ = false, stopping_ = false;
  std::thread thread_;
};

}  // namespace verbatim::gateway
