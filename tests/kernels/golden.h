// Reads tests/golden (its README says what is in them), and counts what a test compares.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "base/json.h"
#include "kernels/numerics.h"

namespace verbatim::kernels {

inline json::Value LoadGolden(const std::string& name) {
  std::ifstream in(std::string(VERBATIM_SOURCE_DIR) + "/tests/golden/" + name + ".json");
  std::stringstream text;
  text << in.rdbuf();
  Result<json::Value> value = json::Parse(text.str());
  CHECK(value.ok());
  return *std::move(value);
}

// A member, which must be there.
inline const json::Value& At(const json::Value& v, const char* key) {
  const json::Value* m = v.Find(key);
  CHECK(m != nullptr);
  return *m;
}
inline size_t Size(const json::Value& v, const char* key) { return *At(v, key).AsUint64(); }

// "3f800000 bf800000": bit patterns.
inline std::vector<float> Floats(const json::Value& v) {
  std::vector<float> out;
  std::istringstream words(v.as_string());
  for (std::string w; words >> w;) {
    out.push_back(FromBits(static_cast<uint32_t>(std::stoul(w, nullptr, 16))));
  }
  return out;
}
inline float OneFloat(const json::Value& v) { return Floats(v).at(0); }
inline std::vector<uint64_t> Words(const json::Value& v) {
  std::vector<uint64_t> out;
  std::istringstream words(v.as_string());
  for (std::string w; words >> w;) out.push_back(std::stoull(w, nullptr, 16));
  return out;
}
inline double OneDouble(const json::Value& v) {
  const uint64_t bits = Words(v).at(0);
  double out;
  std::memcpy(&out, &bits, sizeof out);
  return out;
}
template <typename T>
std::vector<T> Integers(const json::Value& v) {
  std::vector<T> out;
  for (const json::Value& i : v.items()) out.push_back(static_cast<T>(*i.AsInt64()));
  return out;
}

// Counts comparisons and says at the end of the test how many there were; none is a failure.
class Compared {
 public:
  ~Compared() {
    EXPECT_GT(count_, 0u) << "nothing was compared";
    std::printf("compared %zu values\n", count_);
    ::testing::Test::RecordProperty("compared", static_cast<int>(count_));
  }
  // Bit for bit. Stops reporting after a few differences.
  void Bits(const std::vector<float>& want, const float* got, const std::string& what) {
    for (size_t i = 0; i < want.size(); ++i) {
      ++count_;
      if (BitsOf(want[i]) == BitsOf(got[i]) || ++differing_ > 20) continue;
      ADD_FAILURE() << what << " [" << i << "]: want " << std::hex << BitsOf(want[i]) << ", got "
                    << BitsOf(got[i]);
    }
  }
  template <typename T>
  void Equal(const T& want, const T& got, const std::string& what) {
    ++count_;
    if (!(want == got) && ++differing_ <= 20) {
      ADD_FAILURE() << what << ": want " << want << ", got " << got;
    }
  }

 private:
  size_t count_ = 0, differing_ = 0;
};

}  // namespace verbatim::kernels
