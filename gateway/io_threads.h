// The threads that do I/O. Each runs one single-threaded Asio context; clients' connections and the
// exchanges with upstreams behind them live on the same ones, so that an answer passes from one to
// the other without another thread.
//
// Made once per process, before what uses it. Any thread may call anything here but Stop and the
// destructor, which no I/O thread may.
#pragma once

#include <cstddef>
#include <memory>

namespace boost::asio {
class io_context;
}

namespace verbatim::gateway {

class IoThreads {
 public:
  explicit IoThreads(size_t threads);  // at least one is made; throws what std::thread does
  // Waits until nothing runs there any more, unless Stop came first.
  ~IoThreads();
  IoThreads(const IoThreads&) = delete;
  IoThreads& operator=(const IoThreads&) = delete;

  size_t size() const;
  boost::asio::io_context& context(size_t i);

  // Which of them the caller is on; for other callers the next in turn.
  size_t Here();

  // What waits there never goes on; joins the threads.
  void Stop();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace verbatim::gateway
