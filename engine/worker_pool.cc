#include "engine/worker_pool.h"

#include <algorithm>

#include "base/check.h"

namespace verbatim::engine {
namespace {

constexpr int kSpins = 600;  // some tens of microseconds

inline void Relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Returns once value is no longer `old`.
void AwaitChange(const std::atomic<uint32_t>& value, uint32_t old) {
  for (int i = 0; i < kSpins; ++i) {
    if (value.load(std::memory_order_acquire) != old) return;
    Relax();
  }
  value.wait(old, std::memory_order_acquire);
}

}  // namespace

WorkerPool::WorkerPool(uint32_t workers) {
  CHECK(workers >= 1);
  for (uint32_t w = 1; w < workers; ++w) threads_.emplace_back([this, w] { Work(w); });
}

WorkerPool::~WorkerPool() {
  if (threads_.empty()) return;
  Start(nullptr, nullptr);
  for (std::thread& t : threads_) t.join();
}

void WorkerPool::Start(void (*call)(void*, uint32_t), void* argument) {
  call_ = call;
  argument_ = argument;
  running_.store(static_cast<uint32_t>(threads_.size()), std::memory_order_relaxed);
  round_.fetch_add(1, std::memory_order_release);
  round_.notify_all();
}

void WorkerPool::Join() {
  for (uint32_t n = running_.load(std::memory_order_acquire); n != 0;
       n = running_.load(std::memory_order_acquire)) {
    AwaitChange(running_, n);
  }
}

void WorkerPool::Work(uint32_t worker) {
  for (uint32_t round = 0;; ++round) {
    AwaitChange(round_, round);
    if (call_ == nullptr) return;
    call_(argument_, worker);
    running_.fetch_sub(1, std::memory_order_release);
    running_.notify_one();
  }
}

Range PartOf(size_t n, size_t grain, uint32_t worker, uint32_t workers) {
  const size_t grains = (n + grain - 1) / grain;
  const size_t begin = grains * worker / workers * grain;
  const size_t end = grains * (worker + 1) / workers * grain;
  return {std::min(begin, n), std::min(end, n)};
}

}  // namespace verbatim::engine
