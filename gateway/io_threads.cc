#include "gateway/io_threads.h"

#include <algorithm>
#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <thread>
#include <vector>

namespace verbatim::gateway {

namespace asio = boost::asio;

struct IoThreads::State {
  struct One {
    asio::io_context context{1};
    asio::executor_work_guard<asio::io_context::executor_type> work{context.get_executor()};
    std::thread thread;
  };

  ~State() {
    for (const auto& one : all) one->work.reset();
    Join();
  }
  void Join() {
    for (const auto& one : all) {
      if (one->thread.joinable()) one->thread.join();
    }
  }

  std::vector<std::unique_ptr<One>> all;
  std::atomic<size_t> next = 0;
};

IoThreads::IoThreads(size_t threads) : state_(std::make_unique<State>()) {
  for (size_t i = 0; i < std::max<size_t>(threads, 1); ++i) {
    state_->all.push_back(std::make_unique<State::One>());
    State::One& one = *state_->all.back();
    one.thread = std::thread([&one] { one.context.run(); });
  }
}

IoThreads::~IoThreads() = default;

size_t IoThreads::size() const { return state_->all.size(); }

asio::io_context& IoThreads::context(size_t i) { return state_->all[i]->context; }

size_t IoThreads::Here() {
  for (size_t i = 0; i < size(); ++i) {
    if (context(i).get_executor().running_in_this_thread()) return i;
  }
  return state_->next++ % size();
}

void IoThreads::Stop() {
  for (const auto& one : state_->all) one->context.stop();
  state_->Join();
}

}  // namespace verbatim::gateway
