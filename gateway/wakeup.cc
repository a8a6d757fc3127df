#include "gateway/wakeup.h"

#include <boost/asio/associated_executor.hpp>
#include <boost/asio/async_result.hpp>
#include <boost/asio/execution/outstanding_work.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/prefer.hpp>
#include <boost/asio/use_awaitable.hpp>

#include "base/check.h"

namespace verbatim::gateway {

namespace asio = boost::asio;

void Wakeup::Notify() {
  std::function<void()> resume;
  {
    std::lock_guard lock(mutex_);
    if (!resume_) {
      raised_ = true;
      return;
    }
    resume = std::move(resume_);
    resume_ = nullptr;
  }
  resume();
}

asio::awaitable<void> Wakeup::Wait() {
  auto start = [this](auto handler) {
    // The handler may only be moved, std::function wants copies; it is called once.
    auto shared = std::make_shared<decltype(handler)>(std::move(handler));
    // Counted as work, so that the executor's context does not run dry while somebody waits.
    auto executor = asio::prefer(asio::get_associated_executor(*shared),
                                 asio::execution::outstanding_work.tracked);
    std::function<void()> resume = [shared, executor] {
      asio::post(executor, [shared] { std::move (*shared)(); });
    };
    {
      std::lock_guard lock(mutex_);
      if (!raised_) {
        CHECK(!resume_);
        resume_ = std::move(resume);
        return;
      }
      raised_ = false;
    }
    resume();
  };
  co_await asio::async_initiate<const asio::use_awaitable_t<>&, void()>(start, asio::use_awaitable);
}

}  // namespace verbatim::gateway
