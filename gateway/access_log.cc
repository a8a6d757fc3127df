#include "gateway/access_log.h"

#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>

#include "base/bytes.h"
#include "base/check.h"
#include "base/clock.h"

namespace verbatim::gateway {
namespace {

constexpr int64_t kStopMicros = 1'000'000;  // how long the last lines may take to be written
constexpr int kPollMillis = 100;
constexpr std::chrono::milliseconds kGather{5};

// Bytes put together on the stack, since most lines fit there.
class Bytes {
 public:
  void Append(std::string_view text) {
    if (text.size() > sizeof(block_) - size_) Spill();
    if (text.size() > sizeof(block_)) {
      spilled_.append(text);
      return;
    }
    std::memcpy(block_ + size_, text.data(), text.size());
    size_ += text.size();
  }
  void Append(char c) {
    if (size_ == sizeof(block_)) Spill();
    block_[size_++] = c;
  }
  std::string Take() {
    Spill();
    return std::move(spilled_);
  }

 private:
  void Spill() {
    spilled_.append(block_, size_);
    size_ = 0;
  }
  std::string spilled_;
  size_t size_ = 0;
  char block_[1024];
};

// Control bytes, quotes and backslashes as JSON escapes them; where the text is not UTF-8, every
// byte beyond ASCII as the escape of its number, so that a line is always valid JSON.
void AppendEscaped(Bytes& out, std::string_view text) {
  constexpr char kHex[] = "0123456789abcdef";
  const bool utf8 = IsUtf8(text);
  for (const char c : text) {
    const auto byte = static_cast<uint8_t>(c);
    if (c == '"' || c == '\\') {
      out.Append('\\');
      out.Append(c);
    } else if (byte < 0x20 || byte == 0x7F || (byte >= 0x80 && !utf8)) {
      out.Append("\\u00");
      out.Append(kHex[byte >> 4]);
      out.Append(kHex[byte & 15]);
    } else {
      out.Append(c);
    }
  }
}

// The first kMaxText bytes, without the beginning of a character that does not fit.
std::string_view Cut(std::string_view text) {
  if (text.size() <= kMaxText) return text;
  text = text.substr(0, kMaxText);
  while (!text.empty() && (static_cast<uint8_t>(text.back()) & 0xC0) == 0x80) text.remove_suffix(1);
  if (!text.empty() && static_cast<uint8_t>(text.back()) >= 0xC0) text.remove_suffix(1);
  return text;
}

void AppendQuoted(Bytes& out, std::string_view whole) {
  const std::string_view text = Cut(whole);
  int special = 0;  // without branches, since nearly no text has any
  for (const char c : text) {
    const auto byte = static_cast<uint8_t>(c);
    special |= (byte < 0x20) | (byte >= 0x7F) | (c == '"') | (c == '\\');
  }
  out.Append('"');
  if (special == 0) {
    out.Append(text);
  } else {
    AppendEscaped(out, text);
  }
  if (text.size() < whole.size()) out.Append("...");
  out.Append('"');
}

// Members of one line. A key is a literal with all that stands before its value: `,"status":`.
class Line {
 public:
  void Text(std::string_view key, std::string_view value) {
    if (value.empty()) return;
    out_.Append(key);
    AppendQuoted(out_, value);
  }
  template <typename Integer>
  void Number(std::string_view key, Integer value) {
    out_.Append(key);
    char digits[24];
    char* const end = std::to_chars(digits, digits + sizeof(digits), value).ptr;
    out_.Append({digits, static_cast<size_t>(end - digits)});
  }
  // Microseconds as milliseconds, exactly.
  void Millis(std::string_view key, int64_t micros) {
    micros = std::max<int64_t>(micros, 0);
    Number(key, micros / 1000);
    out_.Append('.');
    Digits<3>(micros % 1000);
  }
  // As FormatTime has it, which is too slow for each request.
  void Time(std::string_view key, int64_t micros) {
    using namespace std::chrono;
    const sys_time<microseconds> time{microseconds{micros}};
    const auto day = floor<days>(time);
    const year_month_day date{day};
    const int64_t of_day = (time - day).count();
    out_.Append(key);
    out_.Append('"');
    Digits<4>(static_cast<int>(date.year()), '-');
    Digits<2>(static_cast<unsigned>(date.month()), '-');
    Digits<2>(static_cast<unsigned>(date.day()), 'T');
    Digits<2>(of_day / 3'600'000'000, ':');
    Digits<2>(of_day / 60'000'000 % 60, ':');
    Digits<2>(of_day / 1'000'000 % 60, '.');
    Digits<6>(of_day % 1'000'000, 'Z');
    out_.Append('"');
  }
  void Literal(std::string_view text) { out_.Append(text); }
  std::string Take() { return out_.Take(); }

 private:
  template <int N, typename Integer>
  void Digits(Integer value, char after = 0) {
    char digits[N + 1];
    for (int i = N; i-- > 0; value /= 10) digits[i] = static_cast<char>('0' + value % 10);
    digits[N] = after;
    out_.Append({digits, after == 0 ? size_t{N} : size_t{N + 1}});
  }
  Bytes out_;
};

Error Failed(const std::string& target, const char* what) {
  return {Code::kIo, "access log " + target + ": " + what + ": " + std::strerror(errno)};
}

}  // namespace

void AccessRecord::Take(const AccessNotes& notes) {
  model = notes.model;
  cache = notes.cache;
  fingerprint = notes.fingerprint;
  upstream = notes.upstream;
  trace_id = notes.trace_id;
  entry = notes.entry;
  pending = notes.pending;
}

std::string FormatAccess(const AccessRecord& record) {
  Line line;
  line.Time(R"({"time":)", record.time_micros);
  line.Text(R"(,"request_id":)", record.request_id);
  line.Text(R"(,"remote":)", record.remote);
  line.Text(R"(,"method":)", record.method);
  line.Text(R"(,"path":)", record.path);
  line.Number(R"(,"status":)", record.status);
  line.Text(R"(,"tenant":)", record.tenant);
  line.Text(R"(,"subject":)", record.subject);
  line.Text(R"(,"key_id":)", record.key_id);
  line.Text(R"(,"model":)", record.model);
  line.Text(R"(,"cache":)", record.cache);
  line.Text(R"(,"fingerprint":)", record.fingerprint);
  if (record.entry) line.Number(R"(,"entry":)", *record.entry);
  if (record.pending) line.Literal(R"(,"pending":true)");
  line.Text(R"(,"upstream":)", record.upstream);
  line.Number(R"(,"bytes_in":)", record.bytes_in);
  line.Number(R"(,"bytes_out":)", record.bytes_out);
  line.Millis(R"(,"duration_ms":)", record.duration_micros);
  if (record.first_byte_micros) line.Millis(R"(,"first_byte_ms":)", *record.first_byte_micros);
  line.Text(R"(,"trace_id":)", record.trace_id);
  line.Literal("}\n");
  return line.Take();
}

// Where lines go. A file is closed with its last user.
struct AccessLog::Target {
  int fd = -1;  // -1: off
  bool owned = false;
  bool regular = false;  // a file: takes everything, or fails
  ~Target() {
    if (owned) ::close(fd);
  }
};

namespace {

// How much of it to write at once. A pipe that poll calls writable takes PIPE_BUF bytes without
// blocking; whole lines, where they fit.
size_t Chunk(std::string_view rest, bool regular) {
  if (regular || rest.size() <= PIPE_BUF) return rest.size();
  const size_t newline = rest.rfind('\n', PIPE_BUF - 1);
  return newline == std::string_view::npos ? PIPE_BUF : newline + 1;
}

bool IsWritable(int fd) {
  pollfd entry{fd, POLLOUT, 0};
  return ::poll(&entry, 1, kPollMillis) > 0;
}

}  // namespace

Result<std::unique_ptr<AccessLog>> AccessLog::Open(const std::string& target, size_t buffer_bytes) {
  std::unique_ptr<AccessLog> log(new AccessLog(buffer_bytes));
  if (Status opened = log->Reopen(target); !opened.ok()) return opened.error();
  log->thread_ = std::thread([raw = log.get()] { raw->Run(); });
  return log;
}

Status AccessLog::Reopen(const std::string& target) {
  auto fresh = std::make_shared<Target>();
  if (target == "stdout") {
    fresh->fd = STDOUT_FILENO;
  } else if (target == "stderr") {
    fresh->fd = STDERR_FILENO;
  } else if (target != "off") {
    if (target.empty()) {
      return Error{Code::kInvalid, "access log: name a file, stdout, stderr or off"};
    }
    fresh->fd = ::open(target.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY, 0640);
    if (fresh->fd < 0) return Failed(target, "cannot be opened for appending");
    fresh->owned = true;
  }
  struct stat status {};
  fresh->regular = fresh->fd >= 0 && ::fstat(fresh->fd, &status) == 0 && S_ISREG(status.st_mode);
  if (thread_.joinable()) Flush();
  const std::lock_guard lock(mutex_);
  target_ = std::move(fresh);
  enabled_ = target_->fd >= 0;
  return {};
}

AccessLog::~AccessLog() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

void AccessLog::Write(const AccessRecord& record) {
  if (!enabled()) return;
  const std::string line = FormatAccess(record);
  const std::lock_guard lock(mutex_);
  if (buffer_.size() + line.size() > limit_) {
    dropped_.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  const bool was_empty = buffer_.empty();
  buffer_ += line;
  if (was_empty) changed_.notify_one();
}

void AccessLog::Flush() {
  std::unique_lock lock(mutex_);
  hurry_ = true;
  changed_.notify_all();
  written_.wait_for(lock, std::chrono::seconds(1), [&] { return buffer_.empty() && !writing_; });
  hurry_ = false;
}

void AccessLog::Run() {
  // A pipe whose reader is gone is an error of write here, and not the end of the program.
  sigset_t broken_pipe;
  sigemptyset(&broken_pipe);
  sigaddset(&broken_pipe, SIGPIPE);
  ::pthread_sigmask(SIG_BLOCK, &broken_pipe, nullptr);
  std::string lines;
  bool torn = false;  // the last line that was written lacks its end
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stopping_ || !buffer_.empty(); });
    if (buffer_.empty()) return;
    // Lines of some milliseconds at once, so that the callers seldom wake this thread.
    changed_.wait_for(lock, kGather, [&] { return stopping_ || hurry_; });
    lines.assign(torn ? "\n" : "");
    lines += buffer_;
    buffer_.clear();
    writing_ = true;
    const std::shared_ptr<Target> target = target_;
    lock.unlock();
    const std::string_view lost = WriteOut(*target, lines);
    const size_t written = lines.size() - lost.size();
    if (written > 0) torn = lines[written - 1] != '\n';
    dropped_ += static_cast<uint64_t>(std::count(lost.begin(), lost.end(), '\n'));
    lock.lock();
    writing_ = false;
    written_.notify_all();
  }
}

// What the target did not take. One that takes nothing is waited for, until the log ends.
std::string_view AccessLog::WriteOut(const Target& target, std::string_view lines) {
  int64_t give_up = 0;
  while (!lines.empty()) {
    if (!target.regular && !IsWritable(target.fd)) {
      const std::lock_guard lock(mutex_);
      if (!stopping_) continue;
      const int64_t now = MonotonicMicros();
      if (give_up == 0) give_up = now + kStopMicros;
      if (now >= give_up) break;
      continue;
    }
    const ssize_t n = ::write(target.fd, lines.data(), Chunk(lines, target.regular));
    if (n > 0) lines.remove_prefix(static_cast<size_t>(n));
    if (n < 0 && errno != EINTR && errno != EAGAIN) break;
  }
  return lines;
}

}  // namespace verbatim::gateway
