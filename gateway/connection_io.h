// The bytes of one client connection: a socket, with TLS over it or not, read and written with
// deadlines. Lives on its shard's thread; one read or write at a time.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "gateway/server_shard.h"
#include "gateway/server_tls.h"

namespace verbatim::gateway {

class ConnectionIo {
 public:
  ConnectionIo(boost::asio::ip::tcp::socket socket, Shard& shard);
  ~ConnectionIo();
  ConnectionIo(const ConnectionIo&) = delete;
  ConnectionIo& operator=(const ConnectionIo&) = delete;

  // The handshake, where the first byte is one of TLS; kNotTls: it is not, and the connection goes
  // on in the clear (to say so).
  enum class Opening { kReady, kNotTls, kFailed };
  boost::asio::awaitable<Opening> StartTls(std::shared_ptr<const TlsContext> context);
  bool tls() const { return tls_ != nullptr; }
  std::optional<PeerCertificate> Peer() const;

  // ---- reading ----

  enum class Got { kBytes, kEnd, kTimedOut, kBroken };
  // Waits for bytes. They lie in the shard's scratch memory: to be used or kept before anything
  // suspends. An idle connection holds no memory for reading.
  boost::asio::awaitable<Got> Receive(std::string_view* bytes);
  // Of all that is received from now on together, until the next limit.
  void LimitReads(std::chrono::milliseconds limit);
  void LiftLimit() { read_deadline_ = 0; }

  // Bytes received and not used yet: the head being read, or the next pipelined request.
  std::string_view kept() const { return std::string_view(kept_).substr(used_); }
  void Keep(std::string_view bytes) { kept_.append(bytes); }
  void Use(size_t n);

  // ---- writing ----

  static constexpr size_t kMaxParts = 4;
  // All of the parts, one after the other, in the kernel's hands on return. False: the connection
  // broke, or nothing left for `stall`.
  boost::asio::awaitable<bool> Send(std::span<const std::string_view> parts,
                                    std::chrono::milliseconds stall);
  boost::asio::awaitable<bool> Send(std::string_view bytes, std::chrono::milliseconds stall);

  // ---- the end ----

  // After an answer that leaves unread request bytes behind: says that nothing more comes, and
  // reads on for a while, so that the client can read the answer (RFC 9112, section 9.6).
  boost::asio::awaitable<void> Linger();
  void ResetOnClose();  // the client shall see a broken connection
  void Close();

  // Ends whatever waits, at once; nothing is read or written any more.
  void Break();
  bool broken() const { return broken_; }
  // Called once by Break, from within it; an empty function takes it back.
  void OnBreak(std::function<void()> callback) { on_break_ = std::move(callback); }

  void set_idle(bool idle) { idle_ = idle; }  // nothing of a request was read
  void BreakIfIdle() {
    if (idle_) Break();
  }
  // While it is on, a hang-up breaks the connection within two ticks.
  void WatchForHangUp(bool on) { watched_since_ = on ? shard_.now() + 1 : 0; }

  Shard& shard() { return shard_; }
  const std::string& remote() const { return remote_; }        // "127.0.0.1:40312"
  const std::string& remote_ip() const { return remote_ip_; }  // "127.0.0.1"

 private:
  friend class Shard;
  enum class Wait { kRead, kWrite };
  boost::asio::awaitable<bool> WaitFor(Wait what, uint64_t deadline);
  TlsSession::Step ReadSome(std::span<char> out, size_t* n);
  TlsSession::Step SendSome(std::span<const std::string_view> parts, size_t* n);

  int descriptor() { return socket_.native_handle(); }
  void CheckDeadline();
  bool Watched() const { return watched_since_ != 0 && watched_since_ < shard_.now() && !broken_; }

  Shard& shard_;
  size_t place_ = 0;  // in the shard's list
  boost::asio::ip::tcp::socket socket_;
  std::unique_ptr<TlsSession> tls_;
  std::string remote_, remote_ip_;
  std::string kept_;
  size_t used_ = 0;  // of kept_
  std::function<void()> on_break_;
  // In the shard's ticks; 0: none.
  uint64_t read_deadline_ = 0;
  uint64_t deadline_ = 0;  // of the wait in progress
  uint64_t watched_since_ = 0;
  bool timed_out_ = false;
  bool broken_ = false;
  bool idle_ = false;
};

}  // namespace verbatim::gateway
