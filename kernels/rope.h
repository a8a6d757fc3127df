// Rotary frequencies of a model and the cos/sin rows of positions (numerics.md 7).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"

namespace verbatim::kernels {

struct RopeScaling {
  enum class Method { kNone, kLinear, kTable, kLlama3, kYarn };
  Method method = Method::kNone;
  double factor = 1;
  double low_freq_factor = 1, high_freq_factor = 4;  // llama3
  double original_context = 0;                       // llama3, yarn
  double beta_fast = 32, beta_slow = 1;              // yarn
  std::vector<float> table;                          // table: rope_freqs.weight, d/2 values
};

class RopeTable {
 public:
  RopeTable() = default;
  // base > 1, d even in [2, 1024]. kInvalid where a parameter is out of range or the table's length
  // is not d/2.
  static Result<RopeTable> Make(double base, size_t d, const RopeScaling& scaling = {});

  size_t d() const { return 2 * fraction_.size(); }
  double magnitude() const { return magnitude_; }  // yarn's mag, else 1
  std::span<const uint64_t> fractions() const {
    return fraction_;
  }  // F_i: turns per position, /2^64

  // cos[d/2], sin[d/2] of a position. Pure; any thread.
  void CosSin(uint64_t position, float* cos, float* sin) const;

 private:
  std::vector<uint64_t> fraction_;
  double magnitude_ = 1;
};

}  // namespace verbatim::kernels
