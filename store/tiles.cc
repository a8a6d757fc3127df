#include "store/tiles.h"

#include <charconv>

#include "base/check.h"

namespace verbatim::store {
namespace {

constexpr unsigned kMaxLevel = 63;
constexpr size_t kMaxGroups = 7;  // 2^64 has 20 digits

Error NoTile(std::string_view path) {
  return {Code::kInvalid, "tile/" + std::string(path) +
                              " is no tile's path; they are tile/<L>/<N>[.p/<W>] and "
                              "tile/entries/<N>[.p/<W>] after c2sp.org/tlog-tiles"};
}

// A decimal number as the format writes it: digits, no leading zero.
bool ReadDecimal(std::string_view text, unsigned max, unsigned* out) {
  if (text.empty() || text.size() > 3 || (text.size() > 1 && text[0] == '0')) return false;
  const char* end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, *out);
  return parsed.ec == std::errc() && parsed.ptr == end && *out <= max;
}

bool IsThreeDigits(std::string_view text) {
  return text.size() == 3 && text.find_first_not_of("0123456789") == std::string_view::npos;
}

// "x001/x234/067".
bool ReadIndex(std::string_view text, uint64_t* out) {
  uint64_t index = 0;
  for (size_t groups = 1;; ++groups) {
    const bool more = text.starts_with('x');
    if (more) text.remove_prefix(1);
    const std::string_view digits = text.substr(0, 3);
    if (groups > kMaxGroups || !IsThreeDigits(digits)) return false;
    if (more && groups == 1 && digits == "000") return false;
    uint64_t value = 0;
    std::from_chars(digits.data(), digits.data() + 3, value);
    if (__builtin_mul_overflow(index, uint64_t{1000}, &index) ||
        __builtin_add_overflow(index, value, &index)) {
      return false;
    }
    text.remove_prefix(3);
    if (!more) break;
    if (!text.starts_with('/')) return false;
    text.remove_prefix(1);
  }
  *out = index;
  return text.empty();
}

}  // namespace

Result<TilePath> ParseTilePath(std::string_view path) {
  TilePath tile;
  const size_t slash = path.find('/');
  if (slash == std::string_view::npos) return NoTile(path);
  const std::string_view level = path.substr(0, slash);
  std::string_view rest = path.substr(slash + 1);
  tile.entries = level == "entries";
  if (!tile.entries && !ReadDecimal(level, kMaxLevel, &tile.level)) return NoTile(path);
  if (const size_t partial = rest.find(".p/"); partial != std::string_view::npos) {
    const std::string_view width = rest.substr(partial + 3);
    if (!ReadDecimal(width, kTileWidth - 1, &tile.width) || tile.width == 0) return NoTile(path);
    rest = rest.substr(0, partial);
  }
  if (!ReadIndex(rest, &tile.index)) return NoTile(path);
  return tile;
}

std::string FormatTilePath(const TilePath& tile) {
  std::string index;
  uint64_t rest = tile.index;
  for (bool last = true; last || rest > 0; last = false, rest /= 1000) {
    std::string digits = std::to_string(rest % 1000);
    digits.insert(0, 3 - digits.size(), '0');
    index = last ? digits : "x" + digits + "/" + index;
  }
  std::string path = tile.entries ? "entries" : std::to_string(tile.level);
  path += "/" + index;
  if (tile.width < kTileWidth) path += ".p/" + std::to_string(tile.width);
  return path;
}

bool TreeHasTile(const TilePath& tile, uint64_t size) {
  CHECK(tile.level <= kMaxLevel && tile.width >= 1 && tile.width <= kTileWidth);
  const unsigned height = 8 * tile.level;
  const uint64_t hashes = height < 64 ? size >> height : 0;  // complete ones of that level
  if (tile.index > hashes / kTileWidth) return false;
  return tile.index * kTileWidth + tile.width <= hashes;
}

}  // namespace verbatim::store
