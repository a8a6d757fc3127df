// Threads that run one function together, again and again: a forward pass has a few hundred such
// rounds, so a round must cost about a microsecond. Between rounds a worker looks for the next one
// for some microseconds, then sleeps in the kernel; it never spins for longer, so that a machine
// with more runnable threads than cores only gets slower by a wake-up.
//
// One thread, the owner, calls Run; it takes part as worker 0. Results must not depend on which
// worker does what: the work of a round is divided by worker number alone.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

namespace verbatim::engine {

class WorkerPool {
 public:
  explicit WorkerPool(uint32_t workers);  // at least 1; starts workers - 1 threads
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  uint32_t size() const { return static_cast<uint32_t>(threads_.size()) + 1; }

  // Calls f(worker) once for each worker in [0, size()), concurrently; returns when all have
  // returned. What the caller wrote before is visible to f, and what f wrote is visible to the
  // caller after.
  template <typename F>
  void Run(F&& f) {
    if (threads_.empty()) return f(uint32_t{0});
    using Function = std::remove_reference_t<F>;
    Start([](void* g, uint32_t worker) { (*static_cast<Function*>(g))(worker); }, &f);
    f(uint32_t{0});
    Join();
  }

 private:
  void Start(void (*call)(void*, uint32_t), void* argument);
  void Join();
  void Work(uint32_t worker);

  void (*call_)(void*, uint32_t) = nullptr;  // null: the threads end
  void* argument_ = nullptr;
  alignas(64) std::atomic<uint32_t> round_{0};    // raised when call_ and argument_ are set
  alignas(64) std::atomic<uint32_t> running_{0};  // threads that have not finished the round
  std::vector<std::thread> threads_;
};

// Part `worker` of [0, n) divided into `workers` parts whose borders are multiples of `grain` (the
// last part takes the rest). Parts may be empty.
struct Range {
  size_t begin = 0, end = 0;
  size_t size() const { return end - begin; }
};
Range PartOf(size_t n, size_t grain, uint32_t worker, uint32_t workers);

}  // namespace verbatim::engine
