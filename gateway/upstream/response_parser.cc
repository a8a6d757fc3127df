#include "gateway/upstream/response_parser.h"

#include <algorithm>
#include <boost/beast/http/basic_parser.hpp>
#include <boost/beast/http/error.hpp>
#include <limits>
#include <optional>
#include <utility>

#include "gateway/upstream/chunked_body.h"

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

// The header of one message, interim or final. Beast's own reading of bodies stays unused: a
// chunked one that comes byte by byte fails an assertion there.
class HeaderParser final : public http::basic_parser<false> {
 public:
  HeaderParser(size_t header_bytes, bool head) {
    header_limit(static_cast<uint32_t>(header_bytes));
    body_limit(boost::none);
    eager(false);  // it stops behind the header
    skip(head);
  }

  int status() const { return status_; }
  bool interim() const { return status_ / 100 == 1; }
  const std::string& why() const { return why_; }
  Headers TakeHeaders() { return std::move(headers_); }

 private:
  void Refuse(error_code& ec, const char* why) {
    why_ = why;
    ec = http::error::bad_value;
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
    if (field == http::field::transfer_encoding && Lower(View(value)) != "chunked") {
      return Refuse(ec, "a transfer-encoding other than chunked");
    }
    headers_.emplace_back(Lower(View(name)), std::string(View(value)));
  }

  void on_header_impl(error_code&) override {}
  void on_body_init_impl(const boost::optional<uint64_t>&, error_code&) override {}
  size_t on_body_impl(beast::string_view, error_code&) override { return 0; }
  void on_chunk_header_impl(uint64_t, beast::string_view, error_code&) override {}
  size_t on_chunk_body_impl(uint64_t, beast::string_view, error_code&) override { return 0; }
  void on_finish_impl(error_code&) override {}

  int status_ = 0;
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
  std::optional<HeaderParser> header{};
  bool has_head = false;
  bool keep_alive = false;
  bool done = false;         // by what the reply itself says
  bool closed = false;       // by the connection's end
  int64_t length_left = -1;  // of a body whose length was announced
  std::optional<ChunkedBody> chunks{};
  std::string why{};

  State Malformed(std::string reason) {
    why = std::move(reason);
    return State::kMalformed;
  }
  size_t PutHeader(std::string_view bytes, State& state);
  State OnHeader();
  size_t PutBody(std::string_view bytes, State& state);
};

ResponseParser::ResponseParser(ResponseEvents& events, size_t header_bytes, uint64_t total_bytes,
                               bool head)
    : impl_(new Impl{events, header_bytes, head, total_bytes, header_bytes}) {
  impl_->header.emplace(header_bytes, head);
}
ResponseParser::~ResponseParser() = default;

size_t ResponseParser::Put(std::string_view bytes, State& state) {
  Impl& impl = *impl_;
  state = State::kMore;
  size_t taken = impl.has_head ? 0 : impl.PutHeader(bytes, state);
  if (impl.has_head && state == State::kMore && taken < bytes.size()) {
    taken += impl.PutBody(bytes.substr(taken), state);
  }
  if (taken > impl.total_left) state = State::kTooLarge;
  impl.total_left -= std::min<uint64_t>(taken, impl.total_left);
  return taken;
}

size_t ResponseParser::Impl::PutHeader(std::string_view bytes, State& state) {
  size_t taken = 0;
  while (taken < bytes.size()) {
    const std::string_view rest = bytes.substr(taken);
    error_code ec;
    const size_t n = header->put(boost::asio::const_buffer(rest.data(), rest.size()), ec);
    taken += n;
    const bool waits = ec == http::error::need_more;
    if (n + (waits ? rest.size() - n : 0) > header_left || ec == http::error::header_limit) {
      state = State::kTooLarge;
      return taken;
    }
    header_left -= n;
    if (waits) return taken;
    if (ec) {
      state = Malformed(header->why().empty() ? ec.message() : header->why());
      return taken;
    }
    if (!header->interim()) {
      state = OnHeader();
      return taken;
    }
    if (++interim > kMaxInterim) {
      state = Malformed("too many 1xx replies");
      return taken;
    }
    header.emplace(header_bytes, head);
  }
  return taken;
}

ResponseParser::State ResponseParser::Impl::OnHeader() {
  has_head = true;
  keep_alive = header->keep_alive();
  done = header->is_done();  // there is no body, whatever its length is said to be
  const auto announced = header->content_length();
  const int64_t length =
      announced ? static_cast<int64_t>(std::min(*announced, kMaxLength)) : int64_t{-1};
  if (!done && header->chunked()) chunks.emplace(header_bytes);
  if (!done && announced) length_left = length;
  FetchHead reply{.status = header->status(), .headers = header->TakeHeaders()};
  header.reset();
  if (!events.OnHead(std::move(reply), length)) return State::kStopped;
  return done ? State::kDone : State::kMore;
}

size_t ResponseParser::Impl::PutBody(std::string_view bytes, State& state) {
  if (chunks) {
    ChunkedBody::State chunk = ChunkedBody::State::kMore;
    const ChunkedBody::Sink sink = [this](std::string_view data) { return events.OnBody(data); };
    const size_t taken = chunks->Put(bytes, sink, chunk);
    switch (chunk) {
      case ChunkedBody::State::kMore:
        break;
      case ChunkedBody::State::kDone:
        state = State::kDone;
        break;
      case ChunkedBody::State::kStopped:
        state = State::kStopped;
        break;
      case ChunkedBody::State::kTooLarge:
        state = State::kTooLarge;
        break;
      case ChunkedBody::State::kMalformed:
        state = Malformed("a bad line between chunks");
        break;
    }
    done = state == State::kDone;
    return taken;
  }
  if (length_left >= 0 && static_cast<uint64_t>(length_left) < bytes.size()) {
    bytes = bytes.substr(0, static_cast<size_t>(length_left));
  }
  if (!events.OnBody(bytes)) {
    state = State::kStopped;
    return bytes.size();
  }
  if (length_left >= 0) {
    length_left -= static_cast<int64_t>(bytes.size());
    done = length_left == 0;
    if (done) state = State::kDone;
  }
  return bytes.size();
}

ResponseParser::State ResponseParser::PutEnd() {
  Impl& impl = *impl_;
  if (!impl.has_head || impl.chunks || impl.length_left >= 0) {
    return impl.Malformed("it ended too early");
  }
  impl.closed = true;
  return State::kDone;
}

bool ResponseParser::has_head() const { return impl_->has_head; }
bool ResponseParser::keep_alive() const { return impl_->done && impl_->keep_alive; }
bool ResponseParser::ended_by_close() const { return impl_->closed; }
std::string_view ResponseParser::why() const { return impl_->why; }

}  // namespace verbatim::gateway
