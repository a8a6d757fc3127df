#include "encoders.h"

#include <brotli/encode.h>
#include <gtest/gtest.h>
#include <zlib.h>
#include <zstd.h>

#include <array>

namespace verbatim::gateway::test {

struct EventEncoder::State {
  std::string coding;
  z_stream zlib{};
  BrotliEncoderState* br = nullptr;
  ZSTD_CCtx* zstd = nullptr;

  ~State() {
    if (br != nullptr) {
      BrotliEncoderDestroyInstance(br);
    } else if (zstd != nullptr) {
      ZSTD_freeCCtx(zstd);
    } else {
      deflateEnd(&zlib);
    }
  }

  std::string Run(std::string_view text, bool end) {
    std::string out;
    std::array<char, 1 << 16> block;
    if (br != nullptr) {
      size_t left = text.size();
      const auto* in = reinterpret_cast<const uint8_t*>(text.data());
      do {
        size_t room = block.size();
        auto* to = reinterpret_cast<uint8_t*>(block.data());
        EXPECT_TRUE(
            BrotliEncoderCompressStream(br, end ? BROTLI_OPERATION_FINISH : BROTLI_OPERATION_FLUSH,
                                        &left, &in, &room, &to, nullptr));
        out.append(block.data(), block.size() - room);
      } while (left > 0 || BrotliEncoderHasMoreOutput(br));
    } else if (zstd != nullptr) {
      ZSTD_inBuffer in{text.data(), text.size(), 0};
      size_t left = 1;
      while (left > 0) {
        ZSTD_outBuffer to{block.data(), block.size(), 0};
        left = ZSTD_compressStream2(zstd, &to, &in, end ? ZSTD_e_end : ZSTD_e_flush);
        EXPECT_FALSE(ZSTD_isError(left));
        out.append(block.data(), to.pos);
      }
    } else {
      zlib.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
      zlib.avail_in = static_cast<uInt>(text.size());
      do {
        zlib.next_out = reinterpret_cast<Bytef*>(block.data());
        zlib.avail_out = static_cast<uInt>(block.size());
        deflate(&zlib, end ? Z_FINISH : Z_SYNC_FLUSH);
        out.append(block.data(), block.size() - zlib.avail_out);
      } while (zlib.avail_out == 0);
    }
    return out;
  }
};

EventEncoder::EventEncoder(std::string_view coding) : state_(std::make_unique<State>()) {
  state_->coding = coding;
  if (coding == "br") {
    state_->br = BrotliEncoderCreateInstance(nullptr, nullptr, nullptr);
    BrotliEncoderSetParameter(state_->br, BROTLI_PARAM_QUALITY, 5);
  } else if (coding == "zstd") {
    state_->zstd = ZSTD_createCCtx();
  } else {
    const int bits = coding == "gzip" ? 31 : coding == "zlib" ? 15 : -15;
    EXPECT_EQ(deflateInit2(&state_->zlib, 6, Z_DEFLATED, bits, 8, Z_DEFAULT_STRATEGY), Z_OK);
  }
}
EventEncoder::~EventEncoder() = default;

std::string EventEncoder::Flush(std::string_view event) { return state_->Run(event, false); }
std::string EventEncoder::End() { return state_->Run("", true); }

std::string Encode(std::string_view coding, std::string_view text) {
  EventEncoder encoder(coding);
  std::string out = text.empty() ? "" : encoder.Flush(text);
  return out + encoder.End();
}

std::string EncodeZstd(std::string_view text, int window_log) {
  ZSTD_CCtx* context = ZSTD_createCCtx();
  ZSTD_CCtx_setParameter(context, ZSTD_c_windowLog, window_log);
  std::string out;
  std::array<char, 1 << 16> block;
  ZSTD_inBuffer in{text.data(), text.size(), 0};
  // Flushed first, so that the frame does not know how short it is.
  for (const ZSTD_EndDirective how : {ZSTD_e_flush, ZSTD_e_end}) {
    ZSTD_outBuffer to{block.data(), block.size(), 0};
    EXPECT_EQ(ZSTD_compressStream2(context, &to, &in, how), 0u);
    out.append(block.data(), to.pos);
  }
  ZSTD_freeCCtx(context);
  return out;
}

}  // namespace verbatim::gateway::test
