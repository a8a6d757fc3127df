// How a thread wakes a coroutine that lives on another one's executor.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

namespace verbatim::gateway {

// A flag that any thread may raise and one coroutine waits for. Raised while nobody waits, it is
// kept; raised more often, it counts once. The coroutine resumes on its own executor.
class Wakeup {
 public:
  void Notify();
  boost::asio::awaitable<void> Wait();  // one waiter at a time; lowers the flag

 private:
  std::mutex mutex_;              // guards what follows
  bool raised_ = false;           //
  std::function<void()> resume_;  // of the coroutine that waits
};

// Calls `start` with a callback and waits until it was called, from any thread, once.
template <typename T>
boost::asio::awaitable<T> AwaitCallback(std::function<void(std::function<void(T)>)> start) {
  struct Shared {
    Wakeup wakeup;
    std::optional<T> value;  // written before Notify, read after Wait
  };
  auto shared = std::make_shared<Shared>();
  start([shared](T value) {
    shared->value.emplace(std::move(value));
    shared->wakeup.Notify();
  });
  co_await shared->wakeup.Wait();
  co_return std::move(*shared->value);
}

}  // namespace verbatim::gateway
