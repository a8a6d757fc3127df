// A std::vector whose data starts on a cache line, as the vector kernels want it; large ones start
// on a huge page and ask the system for such pages, which weights that are streamed once per token
// need.
#pragma once

#include <cstddef>
#include <new>
#include <vector>

namespace verbatim::kernels {

// Throws std::bad_alloc, as vectors do.
void* AllocateAligned(size_t bytes);
void FreeAligned(void* p, size_t bytes);

template <typename T>
struct AlignedAllocator {
  using value_type = T;
  AlignedAllocator() = default;
  template <typename U>
  AlignedAllocator(const AlignedAllocator<U>&) {}  // NOLINT: allocators convert
  T* allocate(size_t n) {
    if (n > static_cast<size_t>(-1) / sizeof(T)) throw std::bad_array_new_length();
    return static_cast<T*>(AllocateAligned(n * sizeof(T)));
  }
  void deallocate(T* p, size_t n) { FreeAligned(p, n * sizeof(T)); }
  friend bool operator==(const AlignedAllocator&, const AlignedAllocator&) { return true; }
};

template <typename T>
using AlignedVector = std::vector<T, AlignedAllocator<T>>;

}  // namespace verbatim::kernels
