// Content codings: whatever a sender flushed comes out at once, cut anywhere, and nothing that is
// short, over its bound or no such coding passes for a body.
#include "gateway/upstream/content_coding.h"

#include <gtest/gtest.h>

#include <random>

#include "encoders.h"

namespace verbatim::gateway {
namespace {

using test::Encode;
using test::EventEncoder;
using State = ContentDecoder::State;

std::string Text() {
  std::string text;
  for (int i = 0; i < 400; ++i) text += "data: {\"delta\":\"" + std::to_string(i * i) + "\"}\n\n";
  return text;
}

std::unique_ptr<ContentDecoder> Decoder(const std::string& codings) {
  auto made = MakeContentDecoder(codings);
  EXPECT_TRUE(made.ok()) << codings << ": " << made.error().message;
  return *std::move(made);
}

State DecodeInParts(ContentDecoder& decoder, std::string_view bytes, size_t size,
                    std::string& out) {
  const DecodedSink sink = [&](std::string_view decoded) {
    EXPECT_LE(decoded.size(), 16u << 10);
    out += decoded;
    return true;
  };
  for (size_t at = 0; at < bytes.size(); at += size) {
    const State state = decoder.Decode(bytes.substr(at, size), sink);
    if (state != State::kOk) return state;
  }
  return State::kOk;
}

TEST(ContentCoding, GivesBackWhatWasEncodedHoweverItIsCut) {
  const std::string text = Text();
  const std::pair<const char*, std::vector<std::string>> cases[] = {
      {"gzip", {"gzip"}},           {"x-gzip", {"gzip"}},
      {"GZIP", {"gzip"}},           {"deflate", {"zlib"}},
      {"deflate", {"deflate"}},     {"br", {"br"}},
      {"zstd", {"zstd"}},           {"gzip, br", {"gzip", "br"}},
      {"br,gzip", {"br", "gzip"}},  {"zstd , gzip", {"zstd", "gzip"}},
      {"identity, gzip", {"gzip"}}, {"identity, gzip, identity, br,,", {"gzip", "br"}},
  };
  for (const auto& [header, encoders] : cases) {
    for (const std::string& plain : {text, std::string("x"), std::string(300'000, 'a')}) {
      std::string coded = plain;
      for (const std::string& encoder : encoders) coded = Encode(encoder, coded);
      for (const size_t size : {size_t{1}, size_t{2}, size_t{7}, size_t{1000}, coded.size()}) {
        auto decoder = Decoder(header);
        std::string out;
        EXPECT_EQ(DecodeInParts(*decoder, coded, size, out), State::kOk) << header << " " << size;
        EXPECT_TRUE(out == plain) << header << " by " << size << ": " << out.size()
                                  << " bytes, want " << plain.size();
        EXPECT_TRUE(decoder->AtEnd()) << header << " by " << size;
      }
    }
  }
}

TEST(ContentCoding, NoneNeedsNoDecoder) {
  for (const char* header : {"", "identity", "Identity", " , ", "identity, identity"}) {
    EXPECT_EQ(Decoder(header), nullptr) << header;
  }
}

TEST(ContentCoding, OthersAreRefusedByName) {
  const std::pair<const char*, const char*> cases[] = {
      {"compress", "compress"},
      {"gzip, aes128gcm", "aes128gcm"},
      {"gzip, br, zstd", "more than two"},
      {"gz\x01ip", "gz?ip"},
      {"gzip;q=1", "gzip;q=1"},
  };
  for (const auto& [header, want] : cases) {
    auto made = MakeContentDecoder(header);
    ASSERT_FALSE(made.ok()) << header;
    EXPECT_EQ(made.error().code, Code::kUnsupported);
    EXPECT_NE(made.error().message.find(want), std::string::npos) << made.error().message;
  }
}

// A stream's event must not wait for the next one.
TEST(ContentCoding, FlushedEventsComeOutAtOnce) {
  for (const char* coding : {"gzip", "deflate", "br", "zstd"}) {
    EventEncoder encoder(coding);
    auto decoder = Decoder(coding);
    for (int i = 0; i < 50; ++i) {
      const std::string event = "data: event " + std::to_string(i) + "\n\n";
      std::string out;
      EXPECT_EQ(DecodeInParts(*decoder, encoder.Flush(event), 3, out), State::kOk);
      EXPECT_EQ(out, event) << coding;
      EXPECT_FALSE(decoder->AtEnd()) << coding;
    }
    std::string out;
    EXPECT_EQ(DecodeInParts(*decoder, encoder.End(), 100, out), State::kOk);
    EXPECT_EQ(out, "");
    EXPECT_TRUE(decoder->AtEnd()) << coding;
  }
}

TEST(ContentCoding, EveryPrefixIsKnownToBeShort) {
  for (const char* coding : {"gzip", "zlib", "deflate", "br", "zstd"}) {
    const std::string coded = Encode(coding, "a text that is long enough to have a middle");
    const std::string header = coding == std::string("zlib") ? "deflate" : coding;
    for (size_t n = 1; n < coded.size(); ++n) {
      auto decoder = Decoder(header);
      std::string out;
      EXPECT_EQ(DecodeInParts(*decoder, std::string_view(coded).substr(0, n), n, out), State::kOk);
      EXPECT_FALSE(decoder->AtEnd()) << coding << ": " << n << " of " << coded.size();
    }
    EXPECT_TRUE(Decoder(header)->AtEnd()) << "nothing at all is an empty body";
  }
}

TEST(ContentCoding, MembersFollowEachOther) {
  const std::string zeros(600, '\0');
  const struct {
    const char* header;
    std::string bytes;
    State state;
    std::string out;
  } cases[] = {
      {"gzip", Encode("gzip", "one ") + Encode("gzip", "two"), State::kOk, "one two"},
      {"gzip", Encode("gzip", "") + Encode("gzip", "two"), State::kOk, "two"},
      {"gzip", Encode("gzip", "one") + zeros, State::kOk, "one"},
      {"gzip", Encode("gzip", "one") + "junk", State::kBad, "one"},
      {"gzip", Encode("gzip", "one") + zeros + Encode("gzip", "two"), State::kBad, "one"},
      {"deflate", Encode("zlib", "one") + Encode("zlib", "two"), State::kBad, "one"},
      {"zstd", Encode("zstd", "one ") + Encode("zstd", "two"), State::kOk, "one two"},
      {"zstd", Encode("zstd", "one") + "junk", State::kBad, "one"},
      {"br", Encode("br", "one") + "x", State::kBad, "one"},
  };
  for (const auto& c : cases) {
    for (const size_t size : {size_t{1}, c.bytes.size()}) {
      auto decoder = Decoder(c.header);
      std::string out;
      EXPECT_EQ(DecodeInParts(*decoder, c.bytes, size, out), c.state) << c.header << " " << c.out;
      EXPECT_EQ(out, c.out) << c.header;
    }
  }
}

TEST(ContentCoding, BytesOfAnotherCodingAreBad) {
  for (const char* coding : {"gzip", "zstd"}) {
    auto decoder = Decoder(coding);
    std::string out;
    EXPECT_EQ(DecodeInParts(*decoder, "{\"plain\":\"text, not coded at all\"}", 5, out),
              State::kBad)
        << coding;
  }
  // A flipped byte anywhere gives an error, another text or a short one; never a crash, nor the
  // text.
  std::mt19937 random(7);
  for (const char* coding : {"gzip", "deflate", "br", "zstd"}) {
    const std::string text = Text();
    const std::string coded = Encode(coding == std::string("deflate") ? "zlib" : coding, text);
    for (int i = 0; i < 100; ++i) {
      std::string damaged = coded;
      damaged[random() % damaged.size()] ^= static_cast<char>(1 << random() % 8);
      auto decoder = Decoder(coding);
      std::string out;
      const DecodedSink sink = [&](std::string_view decoded) {
        out += decoded;
        return out.size() < 10 * text.size();
      };
      (void)decoder->Decode(damaged, sink);
    }
  }
}

// The reader's bound holds while a bomb is decoded, not after it.
TEST(ContentCoding, ABombStopsAtTheReadersBound) {
  const std::string zeros(5 << 20, '\0');
  const std::pair<const char*, std::string> cases[] = {
      {"gzip", Encode("gzip", zeros)},
      {"deflate", Encode("zlib", zeros)},
      {"br", Encode("br", zeros)},
      {"zstd", Encode("zstd", zeros)},
      {"gzip, gzip", Encode("gzip", Encode("gzip", zeros))},
      {"br, zstd", Encode("zstd", Encode("br", zeros))},
  };
  for (const auto& [coding, bomb] : cases) {
    EXPECT_LT(bomb.size(), 40'000u) << coding;
    auto decoder = Decoder(coding);
    size_t taken = 0;
    const DecodedSink sink = [&](std::string_view decoded) {
      taken += decoded.size();
      return taken < 100'000;
    };
    EXPECT_EQ(decoder->Decode(bomb, sink), State::kStopped) << coding;
    EXPECT_LT(taken, 120'000u) << coding;
  }
}

// A window that a hostile frame asks for would be memory: RFC 8878's 8 MB are the most.
TEST(ContentCoding, ZstdWindowsAreBounded) {
  for (const int log : {23, 27}) {
    const std::string coded = test::EncodeZstd(std::string(1000, 'x'), log);
    auto decoder = Decoder("zstd");
    std::string out;
    EXPECT_EQ(DecodeInParts(*decoder, coded, coded.size(), out),
              log <= 23 ? State::kOk : State::kBad)
        << log;
  }
}

}  // namespace
}  // namespace verbatim::gateway
