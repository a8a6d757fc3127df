#include "gateway/server_shard.h"

#include "base/bytes.h"
#include "base/clock.h"
#include "base/crypto.h"
#include "gateway/connection_io.h"

namespace verbatim::gateway {
namespace {

constexpr std::chrono::milliseconds kTick{100};
constexpr size_t kScratchSize = size_t{64} << 10;
constexpr size_t kIdBytes = 10;  // random ones, behind six of the time
constexpr size_t kIdsAtOnce = 64;

}  // namespace

Shard::Shard(boost::asio::io_context& context, bool half_close)
    : hang_up_events_(half_close ? short{0} : static_cast<short>(POLLRDHUP)),
      scratch_(kScratchSize),
      context_(context),
      timer_(context) {}

uint64_t Shard::Ticks(std::chrono::milliseconds limit) {
  return static_cast<uint64_t>((limit + kTick - std::chrono::milliseconds(1)) / kTick) + 1;
}

void Shard::Add(ConnectionIo* connection) {
  connection->place_ = connections_.size();
  connections_.push_back(connection);
  if (!ticking_) StartTicking();
}

void Shard::Remove(ConnectionIo* connection) {
  connections_.back()->place_ = connection->place_;
  connections_[connection->place_] = connections_.back();
  connections_.pop_back();
}

void Shard::StartTicking() {
  ticking_ = true;
  timer_->expires_after(kTick);
  timer_->async_wait([self = shared_from_this()](const boost::system::error_code& ec) {
    self->ticking_ = false;
    if (ec || !self->timer_) return;
    self->Tick();
    if (!self->connections_.empty()) self->StartTicking();
  });
}

// What it sets off (cancelled operations, callbacks) only posts: no connection ends meanwhile.
void Shard::Tick() {
  ++tick_;
  polled_.clear();
  watched_.clear();
  for (ConnectionIo* connection : connections_) {
    connection->CheckDeadline();
    if (!connection->Watched()) continue;
    polled_.push_back({connection->descriptor(), hang_up_events_, 0});
    watched_.push_back(connection);
  }
  if (polled_.empty() || ::poll(polled_.data(), polled_.size(), 0) <= 0) return;
  for (size_t i = 0; i < polled_.size(); ++i) {
    if (polled_[i].revents != 0) watched_[i]->Break();
  }
}

void Shard::CloseIdle() {
  for (ConnectionIo* connection : connections_) connection->BreakIfIdle();
}

void Shard::CloseAll() {
  for (ConnectionIo* connection : connections_) connection->Break();
}

void Shard::Stop() { timer_.reset(); }

std::string Shard::NewRequestId() {
  if (random_.empty()) random_ = RandomBytes(kIdBytes * kIdsAtOnce);
  const size_t rest = random_.size() - kIdBytes;
  std::string bytes;
  AppendU64(bytes, static_cast<uint64_t>(NowMicros() / 1000));
  bytes.erase(0, 2);
  bytes.append(random_, rest, kIdBytes);
  random_.resize(rest);
  return "req_" + HexEncode(bytes);
}

}  // namespace verbatim::gateway
