#include "gateway/upstream/retry.h"

#include <time.h>

#include <algorithm>
#include <string>

namespace verbatim::gateway {

namespace {

constexpr int64_t kDayMicros = int64_t{86'400} * 1'000'000;

// A decimal number of seconds or milliseconds, as micros of `unit`.
std::optional<int64_t> ParseDelay(std::string_view text, int64_t unit) {
  const size_t point = text.find('.');
  const std::string_view whole = text.substr(0, point);
  const std::string_view fraction = point == std::string_view::npos ? "" : text.substr(point + 1);
  const auto digits = [](std::string_view s) {
    return s.find_first_not_of("0123456789") == std::string_view::npos;
  };
  if (whole.empty() || !digits(whole) || !digits(fraction)) return std::nullopt;
  int64_t micros = 0;
  for (const char c : whole) {
    micros = micros * 10 + (c - '0') * unit;
    if (micros > kDayMicros) return kDayMicros;
  }
  int64_t scale = unit;
  for (const char c : fraction) {
    scale /= 10;
    micros += (c - '0') * scale;
  }
  return micros;
}

// IMF-fixdate, RFC 850's form, asctime's form. The program never leaves the "C" locale.
std::optional<int64_t> ParseHttpDate(const std::string& text) {
  for (const char* form :
       {"%a, %d %b %Y %H:%M:%S GMT", "%A, %d-%b-%y %H:%M:%S GMT", "%a %b %d %H:%M:%S %Y"}) {
    struct tm parts = {};
    const char* end = strptime(text.c_str(), form, &parts);
    if (end == nullptr || *end != '\0') continue;
    const time_t seconds = timegm(&parts);
    if (seconds >= 0 && seconds < int64_t{1} << 40) return int64_t{seconds} * 1'000'000;
  }
  return std::nullopt;
}

}  // namespace

bool WorthRetrying(int status, const Headers& headers) {
  const std::string_view advice = FindHeader(headers, "x-should-retry");
  if (advice == "true") return true;
  if (advice == "false") return false;
  static constexpr int kStatuses[] = {408, 409, 429, 500, 502, 503, 504, 529};
  return std::find(std::begin(kStatuses), std::end(kStatuses), status) != std::end(kStatuses);
}

std::optional<int64_t> AskedDelay(const Headers& headers, int64_t now_micros) {
  if (const auto delay = ParseDelay(FindHeader(headers, "retry-after-ms"), 1'000)) return delay;
  const std::string_view after = FindHeader(headers, "retry-after");
  if (const auto delay = ParseDelay(after, 1'000'000)) return delay;
  const auto date = ParseHttpDate(std::string(after));
  if (!date) return std::nullopt;
  return std::clamp<int64_t>(*date - now_micros, 0, kDayMicros);
}

Backoff::Backoff(int64_t base_micros, int64_t max_micros, std::function<double()> random)
    : base_(std::min(base_micros, max_micros)),
      max_(max_micros),
      last_(base_),
      random_(std::move(random)) {}

std::optional<int64_t> Backoff::Next(std::optional<int64_t> asked) {
  if (asked && *asked > max_) return std::nullopt;
  const double span = static_cast<double>(3 * last_ - base_);
  const int64_t drawn = base_ + static_cast<int64_t>(span * random_());
  last_ = std::min(max_, drawn);
  // The jitter stays on top, within bounds: everyone else was told the same time.
  if (asked) return std::min(max_, *asked + std::min(last_, *asked / 4));
  return last_;
}

}  // namespace verbatim::gateway
