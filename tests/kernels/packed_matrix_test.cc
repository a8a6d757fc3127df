// What the loader of a model may hand over, and what is refused by name.
#include "kernels/packed_matrix.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "kernels/isa.h"
#include "kernels/rope.h"

namespace verbatim::kernels {
namespace {

TEST(PackedMatrix, RefusesFaultyRowsByName) {
  for (float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                    -0x1p60f}) {
    std::vector<float> w(3 * 40, 1.0f);
    w[2 * 40 + 39] = bad;
    const Result<PackedMatrix> m = PackedMatrix::PackRows("blk.0.attn_q", w, 3, 40, 8);
    ASSERT_FALSE(m.ok());
    EXPECT_EQ(m.error().code, Code::kNumericFault);
    EXPECT_NE(m.error().message.find("blk.0.attn_q: row 2"), std::string::npos);

    std::vector<uint8_t> codes(64, 1);
    std::vector<float> d = {1.0f, bad}, zeros = {0.0f, 0.0f};
    BlockWeights b;
    b.codes = codes;
    b.d = d;
    b.bits = 4;
    b.qm = 15;
    EXPECT_EQ(PackedMatrix::PackBlocks("w", b, 1, 64).error().code, Code::kNumericFault);
    b.d = zeros;
    b.m = d;
    EXPECT_EQ(PackedMatrix::PackBlocks("w", b, 1, 64).error().code, Code::kNumericFault);

    const std::vector<float> good(4, 1.0f);
    const std::vector<float> bias = {0.0f, bad * 0x1p100f};  // 2^160 is infinite
    EXPECT_EQ(PackedMatrix::PackRows("w", good, 2, 2, 16, bias).error().code, Code::kNumericFault);
  }
}

TEST(PackedMatrix, RefusesWrongSizes) {
  const std::vector<float> w(64, 1.0f), bias(3, 0.0f);
  const auto code = [](const Result<PackedMatrix>& m) {
    return m.ok() ? "ok" : CodeName(m.error().code);
  };
  const char* invalid = CodeName(Code::kInvalid);
  EXPECT_EQ(code(PackedMatrix::PackRows("w", w, 2, 33, 8)), std::string(invalid));
  EXPECT_EQ(code(PackedMatrix::PackRows("w", w, 2, 32, 7)), std::string(invalid));
  EXPECT_EQ(code(PackedMatrix::PackRows("w", w, 2, 32, 8, bias)), std::string(invalid));
  EXPECT_EQ(code(PackedMatrix::PackRows("w", w, 0, 32, 8)), std::string(invalid));
  EXPECT_EQ(code(PackedMatrix::PackRows("w", w, 1, 65537, 8)), std::string(invalid));
  EXPECT_EQ(code(PackedMatrix::PackRows("w", w, 2, 32, 8)), std::string("ok"));

  std::vector<uint8_t> codes(64, 15);
  const std::vector<float> d(2, 1.0f);
  BlockWeights b;
  b.codes = codes;
  b.d = d;
  b.bits = 4;
  b.qm = 15;
  EXPECT_EQ(code(PackedMatrix::PackBlocks("w", b, 2, 32)), std::string("ok"));
  EXPECT_EQ(code(PackedMatrix::PackBlocks("w", b, 2, 40)), std::string(invalid));
  EXPECT_EQ(code(PackedMatrix::PackBlocks("w", b, 3, 32)), std::string(invalid));
  codes[63] = 16;
  EXPECT_EQ(code(PackedMatrix::PackBlocks("w", b, 2, 32)), std::string(invalid));
}

TEST(Isa, NamesAreStrict) {
  for (Isa isa : AvailableIsas()) {
    const Result<Isa> chosen = ChooseIsa(IsaName(isa));
    ASSERT_TRUE(chosen.ok());
    EXPECT_EQ(*chosen, isa);
  }
  EXPECT_EQ(ChooseIsa("AVX512").error().code, Code::kInvalid);
  ASSERT_EQ(setenv("VERBATIM_ISA", "scalar", 1), 0);
  EXPECT_EQ(*ChooseIsa(""), Isa::kScalar);
  ASSERT_EQ(setenv("VERBATIM_ISA", "sse9", 1), 0);
  EXPECT_EQ(ChooseIsa("").error().code, Code::kInvalid);
  ASSERT_EQ(unsetenv("VERBATIM_ISA"), 0);
  EXPECT_EQ(*ChooseIsa(""), DetectIsa());
}

TEST(RopeTable, RefusesWhatIsOutOfRange) {
  EXPECT_FALSE(RopeTable::Make(1.0, 64).ok());
  EXPECT_FALSE(RopeTable::Make(std::numeric_limits<double>::infinity(), 64).ok());
  EXPECT_FALSE(RopeTable::Make(10000.0, 63).ok());
  EXPECT_FALSE(RopeTable::Make(10000.0, 0).ok());
  RopeScaling s;
  s.method = RopeScaling::Method::kTable;
  s.table.assign(31, 1.0f);
  EXPECT_FALSE(RopeTable::Make(10000.0, 64, s).ok());
  s.table.assign(32, 0.0f);
  EXPECT_FALSE(RopeTable::Make(10000.0, 64, s).ok());
  s.table.assign(32, 1.0f);
  EXPECT_TRUE(RopeTable::Make(10000.0, 64, s).ok());
  s.method = RopeScaling::Method::kLinear;
  s.factor = 0.0;
  EXPECT_FALSE(RopeTable::Make(10000.0, 64, s).ok());
}

}  // namespace
}  // namespace verbatim::kernels
