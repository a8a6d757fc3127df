// Result<T>: a value or an error. Errors are values here; a message says what to do about it.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "base/check.h"

namespace verbatim {

enum class Code {
  kInvalid,             // the input is wrong: say what and what is allowed
  kNotFound,            // the thing named is not there
  kAlreadyExists,       // a precondition "absent" did not hold
  kFailedPrecondition,  // the state does not allow it (folder locked, other version, ...)
  kCorrupt,             // stored bytes are not what they were
  kUnavailable,         // try again later: overloaded, draining
  kCancelled,           // the caller went away
  kNumericFault,        // NaN, infinity or overflow in the engine (numerics.md 1.1)
  kIo,                  // the operating system or the database failed: disk full, fsync, network
  kUnsupported,         // well-formed, but this build or version does not do it
};

// The code's name in snake_case, for logs and ledger entries.
const char* CodeName(Code code);

struct [[nodiscard]] Error {
  Code code = Code::kInvalid;
  std::string message;
};

// Status is Result<void>: ok, or an Error.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Error error) : error_(std::move(error)) {}  // NOLINT: implicit on purpose
  bool ok() const { return !error_.has_value(); }
  explicit operator bool() const { return ok(); }
  const Error& error() const {
    CHECK(error_.has_value());
    return *error_;
  }

 private:
  std::optional<Error> error_;
};

template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : data_(std::in_place_index<0>, std::move(value)) {}      // NOLINT
  Result(Error error) : data_(std::in_place_index<1>, std::move(error)) {}  // NOLINT
  bool ok() const { return data_.index() == 0; }
  explicit operator bool() const { return ok(); }
  T& value() & {
    CHECK(ok());
    return std::get<0>(data_);
  }
  const T& value() const& {
    CHECK(ok());
    return std::get<0>(data_);
  }
  T&& value() && {
    CHECK(ok());
    return std::get<0>(std::move(data_));
  }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }
  const Error& error() const {
    CHECK(!ok());
    return std::get<1>(data_);
  }

 private:
  std::variant<T, Error> data_;
};

}  // namespace verbatim
