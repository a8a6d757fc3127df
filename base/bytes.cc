#include "base/bytes.h"

#include <simdjson.h>

#include <algorithm>

namespace verbatim {

namespace {

constexpr char kBase64[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

int HexValue(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

int Base64Value(char c) {
  if (c >= 'A' && c <= 'Z') return c - 'A';
  if (c >= 'a' && c <= 'z') return c - 'a' + 26;
  if (c >= '0' && c <= '9') return c - '0' + 52;
  if (c == '+') return 62;
  if (c == '/') return 63;
  return -1;
}

uint64_t ReadBigEndian(std::string_view bytes, size_t n) {
  CHECK(bytes.size() >= n);
  uint64_t v = 0;
  for (size_t i = 0; i < n; ++i) v = v << 8 | static_cast<uint8_t>(bytes[i]);
  return v;
}

void AppendBigEndian(std::string& out, uint64_t v, int n) {
  char bytes[8];
  for (int i = 0; i < n; ++i) bytes[i] = static_cast<char>(v >> (8 * (n - 1 - i)) & 0xff);
  out.append(bytes, static_cast<size_t>(n));
}

}  // namespace

Digest ToDigest(std::string_view bytes) {
  CHECK(bytes.size() == 32);
  Digest d;
  std::copy(bytes.begin(), bytes.end(), d.begin());
  return d;
}

std::string HexEncode(std::string_view bytes) {
  static constexpr char kHex[] = "0123456789abcdef";
  std::string out(bytes.size() * 2, '\0');
  char* to = out.data();
  for (char c : bytes) {
    *to++ = kHex[static_cast<uint8_t>(c) >> 4];
    *to++ = kHex[static_cast<uint8_t>(c) & 15];
  }
  return out;
}

Result<std::string> HexDecode(std::string_view hex) {
  if (hex.size() % 2 != 0) return Error{Code::kInvalid, "hexadecimal text has an odd length"};
  std::string out;
  out.reserve(hex.size() / 2);
  for (size_t i = 0; i < hex.size(); i += 2) {
    const int hi = HexValue(hex[i]), lo = HexValue(hex[i + 1]);
    if (hi < 0 || lo < 0) return Error{Code::kInvalid, "not hexadecimal text"};
    out += static_cast<char>(hi << 4 | lo);
  }
  return out;
}

Result<Digest> HexDecodeDigest(std::string_view hex) {
  if (hex.size() != 64) return Error{Code::kInvalid, "a digest is 64 hexadecimal digits"};
  auto bytes = HexDecode(hex);
  if (!bytes) return bytes.error();
  return ToDigest(*bytes);
}

std::string Base64Encode(std::string_view bytes) {
  std::string out;
  out.reserve((bytes.size() + 2) / 3 * 4);
  for (size_t i = 0; i < bytes.size(); i += 3) {
    const size_t n = std::min<size_t>(3, bytes.size() - i);
    uint32_t v = 0;
    for (size_t k = 0; k < 3; ++k) v = v << 8 | (k < n ? static_cast<uint8_t>(bytes[i + k]) : 0);
    for (size_t k = 0; k < 4; ++k) out += k <= n ? kBase64[v >> (18 - 6 * k) & 63] : '=';
  }
  return out;
}

Result<std::string> Base64Decode(std::string_view text) {
  const Error bad{Code::kInvalid, "not base64 (RFC 4648, with padding)"};
  if (text.size() % 4 != 0) return bad;
  std::string out;
  out.reserve(text.size() / 4 * 3);
  for (size_t i = 0; i < text.size(); i += 4) {
    size_t pad = 0;
    if (i + 4 == text.size()) {
      if (text[i + 3] == '=') pad = text[i + 2] == '=' ? 2 : 1;
    }
    uint32_t v = 0;
    for (size_t k = 0; k < 4; ++k) {
      const int digit = k >= 4 - pad ? 0 : Base64Value(text[i + k]);
      if (digit < 0) return bad;
      v = v << 6 | static_cast<uint32_t>(digit);
    }
    if ((pad == 1 && (v & 0xff) != 0) || (pad == 2 && (v & 0xffff) != 0)) return bad;
    for (size_t k = 0; k < 3 - pad; ++k) out += static_cast<char>(v >> (16 - 8 * k) & 0xff);
  }
  return out;
}

void AppendU16(std::string& out, uint16_t v) { AppendBigEndian(out, v, 2); }
void AppendU32(std::string& out, uint32_t v) { AppendBigEndian(out, v, 4); }
void AppendU64(std::string& out, uint64_t v) { AppendBigEndian(out, v, 8); }
uint64_t ReadU64(std::string_view bytes) { return ReadBigEndian(bytes, 8); }
uint16_t ReadU16(std::string_view bytes) { return static_cast<uint16_t>(ReadBigEndian(bytes, 2)); }
uint32_t ReadU32(std::string_view bytes) { return static_cast<uint32_t>(ReadBigEndian(bytes, 4)); }

bool IsUtf8(std::string_view bytes) {
  return bytes.empty() || simdjson::validate_utf8(bytes.data(), bytes.size());
}

}  // namespace verbatim
