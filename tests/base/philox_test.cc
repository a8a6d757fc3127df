#include "base/philox.h"

#include <gtest/gtest.h>

#include "base/json.h"
#include "tests/base/vectors.h"

namespace verbatim {
namespace {

uint64_t FromHex(const json::Value& v) { return std::stoull(v.as_string(), nullptr, 16); }
uint32_t Word(const json::Value& list, size_t i) {
  return static_cast<uint32_t>(FromHex(list.items()[i]));
}

TEST(Philox, GoldenVectors) {
  const auto golden =
      json::Parse(test::ReadFile(std::string(VERBATIM_SOURCE_DIR) + "/tests/golden/philox.json"));
  ASSERT_TRUE(golden.ok());
  size_t compared = 0;
  for (const json::Value& c : golden->Find("kat")->items()) {
    const json::Value &ctr = *c.Find("ctr"), &key = *c.Find("key"), &out = *c.Find("out");
    const auto got = Philox4x32({Word(ctr, 0), Word(ctr, 1), Word(ctr, 2), Word(ctr, 3)},
                                {Word(key, 0), Word(key, 1)});
    for (size_t i = 0; i < 4; ++i, ++compared) EXPECT_EQ(got[i], Word(out, i));
  }
  for (const json::Value& c : golden->Find("draw64")->items()) {
    EXPECT_EQ(Draw64(FromHex(*c.Find("seed")), *c.Find("position")->AsUint64(),
                     *c.Find("stream")->AsUint64()),
              FromHex(*c.Find("r")));
    ++compared;
  }
  EXPECT_EQ(compared, 24u);
  RecordProperty("values_compared", static_cast<int>(compared));
}

}  // namespace
}  // namespace verbatim
