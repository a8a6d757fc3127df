#include "kernels/rope.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "kernels/numerics.h"

namespace verbatim::kernels {
namespace {

Error Invalid(const std::string& what) { return Error{Code::kInvalid, "rope: " + what}; }

Status CheckScaling(const RopeScaling& s, size_t d) {
  using Method = RopeScaling::Method;
  const bool uses_factor =
      s.method == Method::kLinear || s.method == Method::kLlama3 || s.method == Method::kYarn;
  if (uses_factor && !(std::isfinite(s.factor) && s.factor >= 1e-3 && s.factor <= 1e6)) {
    return Invalid("the scaling factor must be between 0.001 and 1000000");
  }
  const bool uses_context = s.method == Method::kLlama3 || s.method == Method::kYarn;
  if (uses_context && !(s.original_context >= 1 && s.original_context <= 0x1p40)) {
    return Invalid("the original context length must be between 1 and 2^40");
  }
  if (s.method == Method::kLlama3 &&
      !(s.low_freq_factor > 0 && s.high_freq_factor > s.low_freq_factor &&
        std::isfinite(s.high_freq_factor))) {
    return Invalid("llama3 scaling needs 0 < low_freq_factor < high_freq_factor");
  }
  if (s.method == Method::kYarn &&
      !(s.beta_slow > 0 && s.beta_fast >= s.beta_slow && std::isfinite(s.beta_fast))) {
    return Invalid("yarn scaling needs 0 < beta_slow <= beta_fast");
  }
  if (s.method == Method::kTable) {
    if (s.table.size() != d / 2) {
      return Invalid("rope_freqs.weight has " + std::to_string(s.table.size()) +
                     " values, expected " + std::to_string(d / 2));
    }
    for (float t : s.table) {
      if (!(std::isfinite(t) && t >= 1e-6f)) return Invalid("rope_freqs.weight has a bad value");
    }
  }
  return {};
}

double Llama3(double theta, const RopeScaling& s) {
  const double turns = (s.original_context * theta) * kInv2Pi;
  if (turns > s.high_freq_factor) return theta;
  if (turns < s.low_freq_factor) return theta / s.factor;
  const double mix = (turns - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor);
  return (1.0 - mix) * (theta / s.factor) + mix * theta;
}

// Returns mag.
double Yarn(std::vector<double>& theta, double base, size_t d, const RopeScaling& s) {
  const double log_base = Log2d(base);
  const double width = static_cast<double>(d);
  const auto dim = [&](double r) {
    return (width * Log2d((s.original_context / r) * kInv2Pi)) / (2.0 * log_base);
  };
  const double lo = std::max(std::floor(dim(s.beta_fast)), 0.0);
  double hi = std::min(std::ceil(dim(s.beta_slow)), width - 1.0);
  if (lo == hi) hi = hi + 0.001;
  for (size_t i = 0; i < theta.size(); ++i) {
    const double r = std::clamp((static_cast<double>(i) - lo) / (hi - lo), 0.0, 1.0);
    theta[i] = (theta[i] / s.factor) * r + theta[i] * (1.0 - r);
  }
  return s.factor <= 1.0 ? 1.0 : (0.1 * (Log2d(s.factor) * kLn2)) + 1.0;
}

}  // namespace

Result<RopeTable> RopeTable::Make(double base, size_t d, const RopeScaling& scaling) {
  if (!(std::isfinite(base) && base > 1.0)) return Invalid("the base must be above 1");
  if (d < 2 || d > 1024 || d % 2 != 0) return Invalid("the dimension must be even, 2 to 1024");
  if (Status s = CheckScaling(scaling, d); !s) return s.error();

  const double log_base = Log2d(base);
  std::vector<double> theta(d / 2);
  for (size_t i = 0; i < theta.size(); ++i) {
    theta[i] = Exp2d(-((static_cast<double>(2 * i) / static_cast<double>(d)) * log_base));
  }
  RopeTable out;
  switch (scaling.method) {
    case RopeScaling::Method::kNone:
      break;
    case RopeScaling::Method::kLinear:
      for (double& t : theta) t = t / scaling.factor;
      break;
    case RopeScaling::Method::kTable:
      for (size_t i = 0; i < theta.size(); ++i) {
        theta[i] = theta[i] / static_cast<double>(scaling.table[i]);
      }
      break;
    case RopeScaling::Method::kLlama3:
      for (double& t : theta) t = Llama3(t, scaling);
      break;
    case RopeScaling::Method::kYarn:
      out.magnitude_ = Yarn(theta, base, d, scaling);
      break;
  }
  for (double t : theta) {
    const double turns = std::rint((t * kInv2Pi) * 0x1p64);
    if (!(turns >= 0 && turns < 0x1p64)) return Invalid("a frequency exceeds one turn per token");
    out.fraction_.push_back(static_cast<uint64_t>(turns));
  }
  return out;
}

void RopeTable::CosSin(uint64_t position, float* cos, float* sin) const {
  for (size_t i = 0; i < fraction_.size(); ++i) {
    const CosSinPair cs = CosSinOfPhase(position * fraction_[i], magnitude_);
    cos[i] = cs.cos;
    sin[i] = cs.sin;
  }
}

}  // namespace verbatim::kernels
