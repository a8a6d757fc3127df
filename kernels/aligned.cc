#include "kernels/aligned.h"

#include <cstdlib>

#ifdef __linux__
#include <sys/mman.h>
#endif

namespace verbatim::kernels {
namespace {

constexpr size_t kCacheLine = 64;
constexpr size_t kHugePage = size_t{2} << 20;

}  // namespace

void* AllocateAligned(size_t bytes) {
  const size_t alignment = bytes >= kHugePage ? kHugePage : kCacheLine;
  void* p = ::operator new (bytes, std::align_val_t{alignment});
#ifdef __linux__
  // Advice only: where it is not taken, reading weights is slower and nothing else.
  if (bytes >= kHugePage) (void)madvise(p, bytes, MADV_HUGEPAGE);
#endif
  return p;
}

void FreeAligned(void* p, size_t bytes) {
  const size_t alignment = bytes >= kHugePage ? kHugePage : kCacheLine;
  ::operator delete (p, std::align_val_t{alignment});
}

}  // namespace verbatim::kernels
