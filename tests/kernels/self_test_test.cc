// The start-up check passes here on every instruction set, quickly, and notices what it is there
// for.
#include "kernels/self_test.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <string>

#include "base/clock.h"
#include "kernels/numerics.h"

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

namespace verbatim::kernels {
namespace {

TEST(SelfTest, PassesOnEveryIsaWithin20Milliseconds) {
  for (Isa isa : AvailableIsas()) {
    int64_t best = INT64_MAX;
    for (int run = 0; run < 3; ++run) {
      const int64_t start = MonotonicMicros();
      const Status s = SelfTest(Select(isa));
      best = std::min(best, MonotonicMicros() - start);
      EXPECT_TRUE(s.ok()) << s.error().message;
    }
#ifdef __OPTIMIZE__
    EXPECT_LT(best, 20000) << IsaName(isa);
#endif
    std::printf("%s: %lld us\n", IsaName(isa), static_cast<long long>(best));
  }
}

#if defined(__SSE2__)
TEST(SelfTest, NoticesFlushedSubnormalsAndRoundingModes) {
  const unsigned saved = _mm_getcsr();
  for (unsigned bad : {0x8000u, 0x0040u, 0x2000u, 0x6000u}) {
    _mm_setcsr(saved | bad);
    const Status s = CheckFloatEnvironment();
    _mm_setcsr(saved);
    ASSERT_FALSE(s.ok()) << std::hex << bad;
    EXPECT_EQ(s.error().code, Code::kNumericFault);
  }
  EXPECT_TRUE(CheckFloatEnvironment().ok());
}

// An op that flushes on its own, as one built with fast-math would, is caught by its bits.
const Ops* real_ops;
unsigned flush_mode;
bool FlushingRmsNorm(const float* x, const float* gain, float eps, size_t K, float* y) {
  const unsigned saved = _mm_getcsr();
  _mm_setcsr(saved | flush_mode);
  const bool ok = real_ops->rms_norm(x, gain, eps, K, y);
  _mm_setcsr(saved);
  return ok;
}

TEST(SelfTest, NamesTheOpThatFlushes) {
  for (Isa isa : AvailableIsas()) {
    real_ops = &Select(isa);
    Ops flushing = *real_ops;
    flushing.rms_norm = FlushingRmsNorm;
    for (unsigned mode : {0x8000u, 0x0040u}) {
      flush_mode = mode;
      const Status s = SelfTest(flushing);
      ASSERT_FALSE(s.ok());
      EXPECT_NE(s.error().message.find(std::string("rms_norm on ") + IsaName(isa)),
                std::string::npos)
          << s.error().message;
    }
  }
}
#endif

// One wrong result in any op is enough, and the message names it.
TEST(SelfTest, NamesAWrongOp) {
  Ops wrong = Select(DetectIsa());
  wrong.add = [](float* x, const float* y, size_t n) {
    for (size_t i = 0; i < n; ++i) x[i] = x[i] + y[i];
    x[n - 1] = FromBits(BitsOf(x[n - 1]) ^ 1);
  };
  const Status s = SelfTest(wrong);
  ASSERT_FALSE(s.ok());
  EXPECT_NE(s.error().message.find("add"), std::string::npos);
}

}  // namespace
}  // namespace verbatim::kernels
