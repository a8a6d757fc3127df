// Byte strings, fixed digests and their text forms.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"

namespace verbatim {

// Bytes are held in std::string (any byte value) and borrowed as std::string_view.
using Digest = std::array<uint8_t, 32>;

inline std::string_view AsBytes(const Digest& d) {
  return {reinterpret_cast<const char*>(d.data()), d.size()};
}
// 32 bytes to a Digest; CHECKs the length.
Digest ToDigest(std::string_view bytes);

// Lower-case hexadecimal. HexDecode accepts lower and upper case and an even length only.
std::string HexEncode(std::string_view bytes);
inline std::string HexEncode(const Digest& d) { return HexEncode(AsBytes(d)); }
Result<std::string> HexDecode(std::string_view hex);
Result<Digest> HexDecodeDigest(std::string_view hex);

// RFC 4648 section 4 base64 with padding. Decode is strict: no spaces, right padding, zero unused
// bits.
std::string Base64Encode(std::string_view bytes);
Result<std::string> Base64Decode(std::string_view text);

// Big-endian integers, appended or read.
void AppendU16(std::string& out, uint16_t v);
void AppendU32(std::string& out, uint32_t v);
void AppendU64(std::string& out, uint64_t v);
uint64_t ReadU64(std::string_view bytes);  // the first 8 bytes; CHECKs the length
uint16_t ReadU16(std::string_view bytes);  // the first 2 bytes; CHECKs the length
uint32_t ReadU32(std::string_view bytes);  // the first 4 bytes; CHECKs the length

// True where the bytes are well-formed UTF-8 (RFC 3629: no surrogates, no overlong forms).
bool IsUtf8(std::string_view bytes);

}  // namespace verbatim
