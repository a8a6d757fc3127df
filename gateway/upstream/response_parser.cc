#include "gateway/upstream/response_parser.h"

#include <algorithm>
#include <boost/beast/http/basic_parser.hpp>
#include <boost/beast/http/error.hpp>
#include <limits>
#include <optional>
#include <utility>

namespace verbatim::gateway {
namespace {

namespace beast = boost::beast;
namespace http = boost::beast::http;
using beast::error_code;

constexpr int kMaxInterim = 16;  // 1xx replies before the final one
constexpr uint64_t kMaxLength = std::numeric_limits<int64_t>::max();

std::string_view View(beast::string_view text) { return {text.data(), text.size()}; }

std::string Lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return out;
}

// One message, interim or final.
class MessageParser final : public http::basic_parser<false> {
 public:
  MessageParser(ResponseEvents& events, size_t header_bytes, bool head) : events_(events) {
    header_limit(static_cast<uint32_t>(header_bytes));
    body_limit(boost::none);  // counted by whoever feeds it
    eager(false);             // up to the header's end, so that its bytes can be counted
    skip(head);
  }

  bool interim() const { return status_ / 100 == 1; }
  bool stopped() const { return stopped_; }
  const std::string& why() const { return why_; }

 private:
  void Refuse(error_code& ec, const char* why) {
    why_ = why;
    ec = http::error::bad_value;
  }
  void Pass(bool goes_on, error_code& ec) {
    if (goes_on) return;
    stopped_ = true;
    ec = http::error::end_of_stream;  // any error ends the parsing
  }

  void on_request_impl(http::verb, beast::string_view, beast::string_view, int,
                       error_code&) override {}

  void on_response_impl(int status, beast::string_view, int, error_code& ec) override {
    status_ = status;
    if (status < 100 || status > 599) return Refuse(ec, "a status outside 100 to 599");
    if (status == 101) return Refuse(ec, "an upgrade that nobody asked for");
  }

  void on_field_impl(http::field field, beast::string_view name, beast::string_view value,
                     error_code& ec) override {
    if (trailer_) return;
    if (field == http::field::transfer_encoding && Lower(View(value)) != "chunked") {
      return Refuse(ec, "a transfer-encoding other than chunked");
    }
    headers_.emplace_back(Lower(View(name)), std::string(View(value)));
  }

  void on_header_impl(error_code& ec) override {
    trailer_ = true;
    if (interim()) return;
    const auto announced = content_length();
    const int64_t length = announced ? static_cast<int64_t>(std::min(*announced, kMaxLength)) : -1;
    FetchHead reply{.status = status_, .headers = std::move(headers_)};
    Pass(events_.OnHead(std::move(reply), length), ec);
  }

  void on_body_init_impl(const boost::optional<uint64_t>&, error_code&) override {}
  size_t on_body_impl(beast::string_view body, error_code& ec) override {
    if (!body.empty()) Pass(events_.OnBody(View(body)), ec);
    return body.size();
  }
  void on_chunk_header_impl(uint64_t, beast::string_view, error_code&) override {}
  size_t on_chunk_body_impl(uint64_t, beast::string_view body, error_code& ec) override {
    return on_body_impl(body, ec);
  }
  void on_finish_impl(error_code&) override {}

  ResponseEvents& events_;
  int status_ = 0;
  bool trailer_ = false;  // fields that come now stand behind the body
  bool stopped_ = false;
  std::string why_;
  Headers headers_;
};

}  // namespace

struct ResponseParser::Impl {
  ResponseEvents& events;
  const size_t header_bytes;
  const bool head;
  uint64_t total_left;
  size_t header_left;
  int interim = 0;
  bool has_head = false;
  bool closed = false;
  std::string why{};
  std::optional<MessageParser> message{};

  void Start() { message.emplace(events, header_bytes, head); }

  State Malformed(std::string reason) {
    why = std::move(reason);
    return State::kMalformed;
  }
  State Judge(const error_code& ec) {
    if (message->stopped()) return State::kStopped;
    if (ec == http::error::header_limit) return State::kTooLarge;
    return Malformed(message->why().empty() ? ec.message() : message->why());
  }
};

ResponseParser::ResponseParser(ResponseEvents& events, size_t header_bytes, uint64_t total_bytes,
                               bool head)
    : impl_(new Impl{events, header_bytes, head, total_bytes, header_bytes}) {
  impl_->Start();
}
ResponseParser::~ResponseParser() = default;

size_t ResponseParser::Put(std::string_view bytes, State& state) {
  Impl& impl = *impl_;
  size_t taken = 0;
  for (;;) {
    error_code ec;
    const bool in_header = !impl.has_head;
    const std::string_view rest = bytes.substr(taken);
    const size_t n = impl.message->put(boost::asio::const_buffer(rest.data(), rest.size()), ec);
    taken += n;
    if (n > impl.total_left || (in_header && n > impl.header_left)) {
      state = State::kTooLarge;
      return taken;
    }
    impl.total_left -= n;
    if (in_header) impl.header_left -= n;

    if (ec == http::error::need_more) {
      const bool fits = !in_header || rest.size() - n <= impl.header_left;
      state = fits ? State::kMore : State::kTooLarge;
      return taken;
    }
    if (ec) {
      state = impl.Judge(ec);
      return taken;
    }
    if (in_header && impl.message->is_header_done() && !impl.message->interim()) {
      impl.has_head = true;
      impl.message->eager(true);
    }
    if (impl.message->is_done()) {
      if (impl.has_head) {
        state = State::kDone;
        return taken;
      }
      if (++impl.interim > kMaxInterim) {
        state = impl.Malformed("too many 1xx replies");
        return taken;
      }
      impl.Start();
    }
    if (taken == bytes.size()) {
      state = State::kMore;
      return taken;
    }
  }
}

ResponseParser::State ResponseParser::PutEnd() {
  Impl& impl = *impl_;
  error_code ec;
  if (!impl.has_head) return impl.Malformed("it ended inside its header");
  impl.message->put_eof(ec);
  if (ec) return impl.Malformed("it ended inside its body");
  impl.closed = true;
  return State::kDone;
}

bool ResponseParser::has_head() const { return impl_->has_head; }
bool ResponseParser::keep_alive() const { return !impl_->closed && impl_->message->keep_alive(); }
bool ResponseParser::ended_by_close() const { return impl_->closed; }
std::string_view ResponseParser::why() const { return impl_->why; }

}  // namespace verbatim::gateway
