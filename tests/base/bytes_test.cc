#include "base/bytes.h"

#include <gtest/gtest.h>
#include <simdjson.h>

#include <random>

namespace verbatim {
namespace {

TEST(Bytes, Hex) {
  EXPECT_EQ(HexEncode(std::string_view("\x00\x7f\xff", 3)), "007fff");
  EXPECT_EQ(*HexDecode("00aAfF"), std::string("\x00\xaa\xff", 3));
  for (const char* bad : {"0", "0g", " 0", "0x"}) EXPECT_FALSE(HexDecode(bad).ok()) << bad;
  EXPECT_FALSE(HexDecodeDigest(std::string(62, '0')).ok());
  EXPECT_EQ(HexEncode(*HexDecodeDigest(std::string(64, 'a'))), std::string(64, 'a'));
}

TEST(Bytes, Base64) {
  struct Case {
    const char* bytes;
    const char* text;
  };
  // RFC 4648, section 10.
  const Case cases[] = {{"", ""},
                        {"f", "Zg=="},
                        {"fo", "Zm8="},
                        {"foo", "Zm9v"},
                        {"foob", "Zm9vYg=="},
                        {"fooba", "Zm9vYmE="},
                        {"foobar", "Zm9vYmFy"}};
  for (const Case& c : cases) {
    EXPECT_EQ(Base64Encode(c.bytes), c.text);
    EXPECT_EQ(*Base64Decode(c.text), c.bytes);
  }
  for (const char* bad :
       {"Zg", "Zg=", "Zg===", "Zh==", "Zm9=", "Zm 9v", "=m9v", "Z=9v", "Zm9v\n", "Zg==Zg=="}) {
    EXPECT_FALSE(Base64Decode(bad).ok()) << bad;
  }
}

TEST(Bytes, BigEndian) {
  std::string out;
  AppendU16(out, 0x0102);
  AppendU32(out, 0x03040506);
  AppendU64(out, 0x0708090a0b0c0d0e);
  EXPECT_EQ(HexEncode(out), "0102030405060708090a0b0c0d0e");
  EXPECT_EQ(ReadU32(out.substr(2)), 0x03040506u);
  EXPECT_EQ(ReadU64(out.substr(6)), 0x0708090a0b0c0d0eu);
}

TEST(Bytes, Utf8AgreesWithSimdjson) {
  std::mt19937 random(1);
  static const char* const kParts[] = {
      "a",    "\u00e9",   "\u20ac", "\U0001F600", "\xed\xa0\x80", "\xc0\x80", "\xf4\x90\x80\x80",
      "\x80", "\xe2\x82", "\xff",   "\xf0\x9f"};
  size_t valid = 0;
  for (int i = 0; i < 20'000; ++i) {
    std::string s;
    for (uint32_t n = random() % 8; n > 0; --n)
      s += kParts[random() % (random() % 4 == 0 ? 11 : 4)];
    ASSERT_EQ(IsUtf8(s), simdjson::validate_utf8(s.data(), s.size())) << HexEncode(s);
    valid += IsUtf8(s);
  }
  EXPECT_GT(valid, 2000u);
  EXPECT_LT(valid, 18'000u);
}

}  // namespace
}  // namespace verbatim
