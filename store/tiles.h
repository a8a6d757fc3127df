// The log as C2SP tlog-tiles (c2sp.org/tlog-tiles): paths of tiles and entry bundles, and which of
// them a tree has. Their bytes are read by Reader::Tile.
// Values only; all functions may be called from any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace verbatim::store {

inline constexpr unsigned kTileWidth = 256;

struct TilePath {
  bool entries = false;         // an entry bundle, else hashes
  unsigned level = 0;           // 0 to 63; 0 of bundles
  uint64_t index = 0;           // within its level
  unsigned width = kTileWidth;  // of a partial one 1 to 255
};

// What follows "tile/" in a URL: "0/x001/x234/067", "entries/000.p/17". Only the one spelling that
// the format knows: kInvalid for any other (leading zeros, missing or needless x groups).
Result<TilePath> ParseTilePath(std::string_view path);
std::string FormatTilePath(const TilePath& tile);

// Whether a tree of `size` leaves has all of these hashes or entries. A partial tile narrower than
// the newest one is had too: an older checkpoint's.
bool TreeHasTile(const TilePath& tile, uint64_t size);

}  // namespace verbatim::store
