// Secrets of the configuration that go upstream: from the environment, or from files that rotate.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "base/result.h"

namespace verbatim::gateway {

// One secret. Any thread may ask for it.
class Credential {
 public:
  // `reference`: "env:NAME" or "file:PATH". kNotFound or kInvalid where it cannot be read, is
  // empty, or could not stand in a header (bytes outside printable ASCII).
  static Result<std::unique_ptr<Credential>> Make(const std::string& reference);

  // The value now: a file is read again where its size, time or inode changed. While a file cannot
  // be read (it is just being replaced) the value before stays in force, for a minute at most; then
  // the error comes.
  Result<std::string> Value();

 private:
  explicit Credential(std::string reference);
  Status Read();

  const std::string reference_;
  std::mutex mutex_;  // guards everything below
  std::string value_;
  struct Seen {
    uint64_t inode = 0, size = 0;
    int64_t seconds = 0, nanoseconds = 0;
    bool operator==(const Seen&) const = default;
  } seen_;
  int64_t unreadable_since_ = 0;  // MonotonicMicros(); 0: readable
};

}  // namespace verbatim::gateway
