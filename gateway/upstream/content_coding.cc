#include "gateway/upstream/content_coding.h"

#include <brotli/decode.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

namespace verbatim::gateway {
namespace {

constexpr size_t kBlock = 16 << 10;
constexpr int kZstdWindowLog = 23;  // RFC 8878 3.1.1.1.2: what every decoder has to support

using State = ContentDecoder::State;

// gzip (RFC 1952), several members allowed, and deflate: zlib (RFC 1950) or, as some servers send
// it, the bare stream (RFC 1951).
class ZlibDecoder final : public ContentDecoder {
 public:
  explicit ZlibDecoder(bool gzip) : gzip_(gzip) {
    if (gzip) Start(15 + 16);
  }
  ~ZlibDecoder() override {
    if (started_) inflateEnd(&stream_);
  }
  ZlibDecoder(const ZlibDecoder&) = delete;
  ZlibDecoder& operator=(const ZlibDecoder&) = delete;

  State Decode(std::string_view bytes, const DecodedSink& sink) override {
    if (started_) return Inflate(bytes, sink);
    prefix_ += bytes;
    if (prefix_.size() < 2) return State::kOk;
    const auto first = static_cast<uint8_t>(prefix_[0]);
    const unsigned check = first * 256u + static_cast<uint8_t>(prefix_[1]);
    Start((first & 15) == 8 && check % 31 == 0 ? 15 : -15);
    const std::string all = std::exchange(prefix_, {});
    return Inflate(all, sink);
  }

  bool AtEnd() const override { return started_ ? between_ : prefix_.empty(); }

 private:
  void Start(int window_bits) {
    CHECK(inflateInit2(&stream_, window_bits) == Z_OK);
    started_ = true;
  }

  State Inflate(std::string_view bytes, const DecodedSink& sink) {
    std::array<char, kBlock> block;
    while (!bytes.empty()) {
      if (between_ && any_) {
        // Behind a member: another one, or the zeros that fill up a tape's block.
        if (!gzip_) return State::kBad;
        if (bytes.front() == '\0') {
          bytes.remove_prefix(1);
          padded_ = true;
          continue;
        }
        if (padded_ || inflateReset(&stream_) != Z_OK) return State::kBad;
      }
      between_ = false;
      any_ = true;
      const size_t n = std::min<size_t>(bytes.size(), std::numeric_limits<uInt>::max());
      // zlib does not write to its input; its interface only does not say so.
      stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
      stream_.avail_in = static_cast<uInt>(n);
      int code = Z_OK;
      do {
        stream_.next_out = reinterpret_cast<Bytef*>(block.data());
        stream_.avail_out = kBlock;
        code = inflate(&stream_, Z_SYNC_FLUSH);
        if (code != Z_OK && code != Z_STREAM_END && code != Z_BUF_ERROR) return State::kBad;
        const size_t made = kBlock - stream_.avail_out;
        if (made > 0 && !sink({block.data(), made})) return State::kStopped;
      } while (code != Z_STREAM_END && stream_.avail_out == 0);
      between_ = code == Z_STREAM_END;
      if (!between_ && stream_.avail_in > 0) return State::kBad;
      bytes.remove_prefix(n - stream_.avail_in);
    }
    return State::kOk;
  }

  const bool gzip_;
  z_stream stream_{};
  std::string prefix_;    // the first byte or two, until it is clear what they begin
  bool started_ = false;  // inflateInit2 was called
  bool any_ = false;      // some input was taken
  bool between_ = true;   // no member is open
  bool padded_ = false;
};

class BrotliDecoder final : public ContentDecoder {
 public:
  BrotliDecoder() : state_(BrotliDecoderCreateInstance(nullptr, nullptr, nullptr)) {
    CHECK(state_ != nullptr);
  }
  ~BrotliDecoder() override { BrotliDecoderDestroyInstance(state_); }
  BrotliDecoder(const BrotliDecoder&) = delete;
  BrotliDecoder& operator=(const BrotliDecoder&) = delete;

  State Decode(std::string_view bytes, const DecodedSink& sink) override {
    if (bytes.empty()) return State::kOk;
    any_ = true;
    std::array<uint8_t, kBlock> block;
    const auto* in = reinterpret_cast<const uint8_t*>(bytes.data());
    size_t left = bytes.size();
    for (;;) {
      uint8_t* out = block.data();
      size_t room = kBlock;
      const BrotliDecoderResult result =
          BrotliDecoderDecompressStream(state_, &left, &in, &room, &out, nullptr);
      if (result == BROTLI_DECODER_RESULT_ERROR) return State::kBad;
      const size_t made = kBlock - room;
      if (made > 0 && !sink({reinterpret_cast<const char*>(block.data()), made})) {
        return State::kStopped;
      }
      if (result == BROTLI_DECODER_RESULT_NEEDS_MORE_OUTPUT) continue;
      return left == 0 ? State::kOk : State::kBad;
    }
  }

  bool AtEnd() const override { return !any_ || BrotliDecoderIsFinished(state_) == BROTLI_TRUE; }

 private:
  BrotliDecoderState* state_;
  bool any_ = false;
};

class ZstdDecoder final : public ContentDecoder {
 public:
  ZstdDecoder() : stream_(ZSTD_createDStream()) {
    CHECK(stream_ != nullptr);
    CHECK(!ZSTD_isError(ZSTD_DCtx_setParameter(stream_, ZSTD_d_windowLogMax, kZstdWindowLog)));
  }
  ~ZstdDecoder() override { ZSTD_freeDStream(stream_); }
  ZstdDecoder(const ZstdDecoder&) = delete;
  ZstdDecoder& operator=(const ZstdDecoder&) = delete;

  State Decode(std::string_view bytes, const DecodedSink& sink) override {
    std::array<char, kBlock> block;
    ZSTD_inBuffer in{bytes.data(), bytes.size(), 0};
    bool more = !bytes.empty();
    while (more) {
      ZSTD_outBuffer out{block.data(), kBlock, 0};
      const size_t left = ZSTD_decompressStream(stream_, &out, &in);
      if (ZSTD_isError(left)) return State::kBad;
      between_ = left == 0;
      if (out.pos > 0 && !sink({block.data(), out.pos})) return State::kStopped;
      // A frame's end leaves nothing behind; anything else may, where the block is full.
      more = in.pos < in.size || (!between_ && out.pos == kBlock);
    }
    return State::kOk;
  }

  bool AtEnd() const override { return between_; }

 private:
  ZSTD_DStream* stream_;
  bool between_ = true;  // no frame is open
};

// Two codings, the outer one decoded first.
class DecoderPair final : public ContentDecoder {
 public:
  DecoderPair(std::unique_ptr<ContentDecoder> outer, std::unique_ptr<ContentDecoder> inner)
      : outer_(std::move(outer)), inner_(std::move(inner)) {}

  State Decode(std::string_view bytes, const DecodedSink& sink) override {
    State inside = State::kOk;
    const DecodedSink through = [&](std::string_view decoded) {
      inside = inner_->Decode(decoded, sink);
      return inside == State::kOk;
    };
    const State state = outer_->Decode(bytes, through);
    return state == State::kStopped ? inside : state;
  }

  bool AtEnd() const override { return outer_->AtEnd() && inner_->AtEnd(); }

 private:
  std::unique_ptr<ContentDecoder> outer_, inner_;
};

std::unique_ptr<ContentDecoder> MakeOne(std::string_view name) {
  if (name == "gzip" || name == "x-gzip") return std::make_unique<ZlibDecoder>(true);
  if (name == "deflate") return std::make_unique<ZlibDecoder>(false);
  if (name == "br") return std::make_unique<BrotliDecoder>();
  if (name == "zstd") return std::make_unique<ZstdDecoder>();
  return nullptr;
}

// The names between the commas, lower-case, without identity.
std::vector<std::string> Codings(std::string_view value) {
  std::vector<std::string> names;
  std::string name;
  for (size_t i = 0; i <= value.size(); ++i) {
    const char c = i < value.size() ? value[i] : ',';
    if (c == ',') {
      if (!name.empty() && name != "identity") names.push_back(name);
      name.clear();
    } else if (c >= 'A' && c <= 'Z') {
      name += static_cast<char>(c - 'A' + 'a');
    } else if (c != ' ' && c != '\t') {
      name += c > ' ' && c <= '~' ? c : '?';  // it may end in a message
    }
  }
  return names;
}

}  // namespace

Result<std::unique_ptr<ContentDecoder>> MakeContentDecoder(std::string_view content_encoding) {
  const std::vector<std::string> names = Codings(content_encoding);
  if (names.size() > 2) {
    return Error{Code::kUnsupported, "more than two content codings, one over the other"};
  }
  std::unique_ptr<ContentDecoder> decoder;
  for (const std::string& name : names) {
    std::unique_ptr<ContentDecoder> one = MakeOne(name);
    if (!one) {
      return Error{Code::kUnsupported, "the content coding \"" + name.substr(0, 40) +
                                           "\" is none of gzip, deflate, br and zstd"};
    }
    decoder = decoder ? std::make_unique<DecoderPair>(std::move(one), std::move(decoder))
                      : std::move(one);
  }
  return decoder;
}

}  // namespace verbatim::gateway
