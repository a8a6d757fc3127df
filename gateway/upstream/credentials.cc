#include "gateway/upstream/credentials.h"

#include <sys/stat.h>

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "policies/loader.h"

namespace verbatim::gateway {

namespace {

constexpr int64_t kGraceMicros = 60'000'000;

bool FitsHeader(const std::string& value) {
  return std::all_of(value.begin(), value.end(), [](char c) { return c >= ' ' && c < 0x7f; });
}

}  // namespace

Credential::Credential(std::string reference) : reference_(std::move(reference)) {}

Result<std::unique_ptr<Credential>> Credential::Make(const std::string& reference) {
  std::unique_ptr<Credential> credential(new Credential(reference));
  if (auto value = credential->Value(); !value.ok()) return value.error();
  return credential;
}

Status Credential::Read() {
  auto value = policies::ResolveSecret(reference_);
  if (!value.ok()) return value.error();
  while (value->ends_with('\r') || value->ends_with('\n') || value->ends_with(' ')) {
    value->pop_back();
  }
  if (value->empty() || !FitsHeader(*value)) {
    return Error{Code::kInvalid,
                 reference_ + ": the secret is empty, or has bytes that no header can have"};
  }
  value_ = *std::move(value);
  return {};
}

Result<std::string> Credential::Value() {
  const std::lock_guard lock(mutex_);
  Seen seen;
  if (reference_.starts_with("file:")) {
    struct stat s;
    if (stat(reference_.c_str() + 5, &s) == 0) {
      seen = {.inode = s.st_ino,
              .size = static_cast<uint64_t>(s.st_size),
              .seconds = s.st_mtim.tv_sec,
              .nanoseconds = s.st_mtim.tv_nsec};
    }
  }
  if (!value_.empty() && seen == seen_ && unreadable_since_ == 0) return value_;

  if (Status status = Read(); !status.ok()) {
    const int64_t now = MonotonicMicros();
    if (unreadable_since_ == 0) unreadable_since_ = now;
    if (value_.empty() || now - unreadable_since_ > kGraceMicros) return status.error();
    return value_;
  }
  seen_ = seen;
  unreadable_since_ = 0;
  return value_;
}

}  // namespace verbatim::gateway
