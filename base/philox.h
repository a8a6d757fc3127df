// Philox4x32-10 (Salmon et al. 2011, as in Random123) and the sampler's draw (numerics.md 11).
#pragma once

#include <array>
#include <cstdint>

namespace verbatim {

std::array<uint32_t, 4> Philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

// 64 random bits for the token that will stand at absolute position `position`; `stream` is the
// index of the choice. Depends on nothing but (seed, position, stream).
uint64_t Draw64(uint64_t seed, uint64_t position, uint64_t stream);

}  // namespace verbatim
