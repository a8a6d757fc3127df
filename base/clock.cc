#include "base/clock.h"

#include <chrono>
#include <string>

namespace verbatim {

int64_t NowMicros() {
  return std::chrono::duration_cast<std::chrono::microseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

int64_t MonotonicMicros() {
  return std::chrono::duration_cast<std::chrono::microseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

std::string FormatTime(int64_t micros) {
  using namespace std::chrono;
  const sys_time<microseconds> t{microseconds{micros}};
  const auto day = floor<days>(t);
  const year_month_day ymd{day};
  const hh_mm_ss<microseconds> clock{t - day};
  std::string out = std::to_string(static_cast<int>(ymd.year()));
  if (out.size() < 4) out.insert(0, 4 - out.size(), '0');
  const size_t year_end = out.size();
  out += "-00-00T00:00:00.000000Z";
  const auto put = [&](size_t end, int64_t value) {
    for (; value > 0; value /= 10) out[year_end + --end] = static_cast<char>('0' + value % 10);
  };
  put(3, static_cast<unsigned>(ymd.month()));
  put(6, static_cast<unsigned>(ymd.day()));
  put(9, clock.hours().count());
  put(12, clock.minutes().count());
  put(15, clock.seconds().count());
  put(22, clock.subseconds().count());
  return out;
}

Result<int64_t> ParseTime(std::string_view text) {
  using namespace std::chrono;
  const Error bad{Code::kInvalid, "not a time: '" + std::string(text) +
                                      "'; write it like 2026-11-30T16:10:44Z (UTC)"};
  auto digits = [&](size_t at, size_t n, int& out) {
    if (at + n > text.size()) return false;
    out = 0;
    for (size_t i = at; i < at + n; ++i) {
      if (text[i] < '0' || text[i] > '9') return false;
      out = out * 10 + (text[i] - '0');
    }
    return true;
  };
  int y, mo, d, h, mi, s;
  if (text.size() < 20 || !digits(0, 4, y) || text[4] != '-' || !digits(5, 2, mo) ||
      text[7] != '-' || !digits(8, 2, d) || text[10] != 'T' || !digits(11, 2, h) ||
      text[13] != ':' || !digits(14, 2, mi) || text[16] != ':' || !digits(17, 2, s) ||
      text.back() != 'Z' || h > 23 || mi > 59 || s > 59) {
    return bad;
  }
  int64_t fraction = 0;
  if (text.size() > 20) {
    if (text[19] != '.' || text.size() > 27 || text.size() < 22) return bad;
    int64_t unit = 100000;
    for (size_t i = 20; i + 1 < text.size(); ++i, unit /= 10) {
      if (text[i] < '0' || text[i] > '9') return bad;
      fraction += (text[i] - '0') * unit;
    }
  }
  const year_month_day ymd{year{y}, month{static_cast<unsigned>(mo)},
                           day{static_cast<unsigned>(d)}};
  if (!ymd.ok()) return bad;
  const auto seconds_part = sys_days{ymd}.time_since_epoch() + hours{h} + minutes{mi} + seconds{s};
  return duration_cast<microseconds>(seconds_part).count() + fraction;
}

}  // namespace verbatim
