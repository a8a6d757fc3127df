#include "gateway/connection_io.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <cerrno>
#include <utility>

#include "base/check.h"

namespace verbatim::gateway {
namespace {

namespace asio = boost::asio;
using asio::awaitable;
using boost::system::error_code;
using Step = TlsSession::Step;

constexpr std::chrono::milliseconds kLingerTime{2'000};
constexpr size_t kLingerBytes = size_t{32} << 20;
// What TLS puts into one record; parts up to that are joined, so that they are one.
constexpr size_t kTlsRecord = size_t{16} << 10;
// What the kernel holds for a client who does not read, over what it has sent out.
constexpr int kUnsentBytes = 64 << 10;
constexpr char kTlsHandshakeRecord = 0x16;  // RFC 8446, section 5.1

bool WouldBlock() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

Step ReceiveSome(int descriptor, std::span<char> out, int flags, size_t* n) {
  const ssize_t got = ::recv(descriptor, out.data(), out.size(), flags);
  if (got < 0) return WouldBlock() ? Step::kWantRead : Step::kFailed;
  *n = static_cast<size_t>(got);
  return got == 0 ? Step::kEnd : Step::kDone;
}

size_t TotalSize(std::span<const std::string_view> parts) {
  size_t total = 0;
  for (std::string_view part : parts) total += part.size();
  return total;
}

}  // namespace

ConnectionIo::ConnectionIo(asio::ip::tcp::socket socket, Shard& shard)
    : shard_(shard), socket_(std::move(socket)) {
  error_code ec;
  socket_.set_option(asio::ip::tcp::no_delay(true), ec);
  using Unsent = asio::detail::socket_option::integer<IPPROTO_TCP, TCP_NOTSENT_LOWAT>;
  socket_.set_option(Unsent(kUnsentBytes), ec);
  socket_.native_non_blocking(true, ec);
  const auto remote = socket_.remote_endpoint(ec);
  if (!ec) {
    const std::string address = remote.address().to_string();
    remote_ip_ = address;
    remote_ = (remote.address().is_v6() ? "[" + address + "]" : address) + ":" +
              std::to_string(remote.port());
  }
  shard_.Add(this);
}

ConnectionIo::~ConnectionIo() { shard_.Remove(this); }

// ---- waiting ----

void ConnectionIo::CheckDeadline() {
  if (deadline_ == 0 || deadline_ > shard_.now()) return;
  deadline_ = 0;
  timed_out_ = true;
  error_code ignored;
  socket_.cancel(ignored);
}

void ConnectionIo::Break() {
  if (broken_) return;
  broken_ = true;
  error_code ignored;
  socket_.cancel(ignored);
  const std::function<void()> callback = std::exchange(on_break_, nullptr);
  if (callback) callback();
}

// False: past the deadline (timed_out_), or broken.
awaitable<bool> ConnectionIo::WaitFor(Wait what, uint64_t deadline) {
  if (broken_) co_return false;
  timed_out_ = false;
  deadline_ = deadline;
  const auto type =
      what == Wait::kRead ? asio::socket_base::wait_read : asio::socket_base::wait_write;
  error_code ec;
  co_await socket_.async_wait(type, asio::redirect_error(asio::use_awaitable, ec));
  deadline_ = 0;
  co_return !ec && !broken_ && !timed_out_;
}

// ---- TLS ----

awaitable<ConnectionIo::Opening> ConnectionIo::StartTls(std::shared_ptr<const TlsContext> context) {
  char first = 0;
  size_t n = 0;
  Step step;
  while ((step = ReceiveSome(descriptor(), {&first, 1}, MSG_PEEK, &n)) == Step::kWantRead) {
    const bool ready = co_await WaitFor(Wait::kRead, read_deadline_);
    if (!ready) co_return Opening::kFailed;
  }
  if (step != Step::kDone) co_return Opening::kFailed;
  if (first != kTlsHandshakeRecord) co_return Opening::kNotTls;
  tls_ = std::make_unique<TlsSession>(std::move(context), descriptor());
  while ((step = tls_->Handshake()) != Step::kDone) {
    if (step != Step::kWantRead && step != Step::kWantWrite) co_return Opening::kFailed;
    const Wait what = step == Step::kWantRead ? Wait::kRead : Wait::kWrite;
    const bool ready = co_await WaitFor(what, read_deadline_);
    if (!ready) co_return Opening::kFailed;
  }
  co_return Opening::kReady;
}

std::optional<PeerCertificate> ConnectionIo::Peer() const {
  return tls_ ? tls_->Peer() : std::nullopt;
}

// ---- reading ----

void ConnectionIo::LimitReads(std::chrono::milliseconds limit) {
  read_deadline_ = shard_.now() + Shard::Ticks(limit);
}

void ConnectionIo::Use(size_t n) {
  used_ += n;
  CHECK(used_ <= kept_.size());
  if (used_ < kept_.size()) return;
  kept_ = std::string();
  used_ = 0;
}

Step ConnectionIo::ReadSome(std::span<char> out, size_t* n) {
  if (tls_) return tls_->Read(out.data(), out.size(), n);
  return ReceiveSome(descriptor(), out, 0, n);
}

awaitable<ConnectionIo::Got> ConnectionIo::Receive(std::string_view* bytes) {
  // A try that fails costs a system call, and between requests it nearly always would. Bytes of a
  // TLS record that was read already are no event of the socket's.
  bool ready = tls_ != nullptr;
  Wait what = Wait::kRead;
  for (;;) {
    if (ready) {
      if (broken_) co_return Got::kBroken;
      const std::span<char> scratch = shard_.scratch();
      size_t n = 0;
      const Step step = ReadSome(scratch, &n);
      if (step == Step::kDone) {
        *bytes = {scratch.data(), n};
        co_return Got::kBytes;
      }
      if (step == Step::kEnd) co_return Got::kEnd;
      if (step == Step::kFailed) co_return Got::kBroken;
      what = step == Step::kWantRead ? Wait::kRead : Wait::kWrite;
    }
    ready = co_await WaitFor(what, read_deadline_);
    if (!ready) co_return broken_ || !timed_out_ ? Got::kBroken : Got::kTimedOut;
  }
}

// ---- writing ----

Step ConnectionIo::SendSome(std::span<const std::string_view> parts, size_t* n) {
  if (tls_) return tls_->Write(parts.front(), n);
  std::array<iovec, kMaxParts> list;
  for (size_t i = 0; i < parts.size(); ++i) {
    list[i] = {const_cast<char*>(parts[i].data()), parts[i].size()};
  }
  msghdr message{};
  message.msg_iov = list.data();
  message.msg_iovlen = parts.size();
  const ssize_t sent = ::sendmsg(descriptor(), &message, MSG_NOSIGNAL);
  if (sent < 0) return WouldBlock() ? Step::kWantWrite : Step::kFailed;
  *n = static_cast<size_t>(sent);
  return Step::kDone;
}

awaitable<bool> ConnectionIo::Send(std::span<const std::string_view> given,
                                   std::chrono::milliseconds stall) {
  CHECK(given.size() <= kMaxParts);
  std::array<std::string_view, kMaxParts> copy;
  std::copy(given.begin(), given.end(), copy.begin());
  std::span<std::string_view> parts(copy.data(), given.size());
  std::string joined;
  if (tls_ && parts.size() > 1 && TotalSize(parts) <= kTlsRecord) {
    for (std::string_view part : parts) joined.append(part);
    copy[0] = joined;
    parts = parts.first(1);
  }
  for (;;) {
    while (!parts.empty() && parts.front().empty()) parts = parts.subspan(1);
    if (parts.empty()) co_return true;
    if (broken_) co_return false;
    size_t n = 0;
    const Step step = SendSome(parts, &n);
    if (step == Step::kDone) {
      for (std::string_view& part : parts) {
        const size_t of_part = std::min(n, part.size());
        part.remove_prefix(of_part);
        n -= of_part;
      }
      continue;
    }
    bool ready = step == Step::kWantRead || step == Step::kWantWrite;
    if (ready) {
      const Wait what = step == Step::kWantRead ? Wait::kRead : Wait::kWrite;
      ready = co_await WaitFor(what, shard_.now() + Shard::Ticks(stall));
    }
    if (!ready) {
      Break();
      co_return false;
    }
  }
}

awaitable<bool> ConnectionIo::Send(std::string_view bytes, std::chrono::milliseconds stall) {
  const std::array<std::string_view, 1> parts = {bytes};
  const bool sent = co_await Send(std::span<const std::string_view>(parts), stall);
  co_return sent;
}

// ---- the end ----

awaitable<void> ConnectionIo::Linger() {
  error_code ec;
  if (tls_) tls_->Shutdown();
  socket_.shutdown(asio::socket_base::shutdown_send, ec);
  LimitReads(kLingerTime);
  for (size_t total = 0; !ec && total < kLingerBytes && !broken_;) {
    size_t n = 0;
    const Step step = ReceiveSome(descriptor(), shard_.scratch(), 0, &n);
    total += n;
    if (step == Step::kDone) continue;
    if (step != Step::kWantRead) break;
    const bool ready = co_await WaitFor(Wait::kRead, read_deadline_);
    if (!ready) break;
  }
}

void ConnectionIo::ResetOnClose() {
  error_code ignored;
  socket_.set_option(asio::socket_base::linger(true, 0), ignored);
}

void ConnectionIo::Close() {
  error_code ignored;
  if (tls_ && !broken_) tls_->Shutdown();
  socket_.shutdown(asio::socket_base::shutdown_both, ignored);
  socket_.close(ignored);
}

}  // namespace verbatim::gateway
