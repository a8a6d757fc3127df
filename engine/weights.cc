#include "engine/weights.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <string>

namespace verbatim::engine {
namespace {

// IEEE binary16, exactly.
float HalfToFloat(uint16_t h) {
  const uint32_t sign = uint32_t{h & 0x8000u} << 16;
  const uint32_t exponent = (h >> 10) & 31u;
  const uint32_t fraction = h & 0x3ffu;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | (fraction << 13));
  if (exponent == 0) {  // zero or subnormal: fraction * 2^-24
    const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
    return sign == 0 ? magnitude : -magnitude;
  }
  return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (fraction << 13));
}

float HalfAt(const uint8_t* p) {
  uint16_t h;
  std::memcpy(&h, p, sizeof(h));
  return HalfToFloat(h);
}

// The block structs of ggml-common.h: f16 d, f16 m where the type has one, the fifth bits of the
// 5-bit types (u32), then the codes; of 4 bits, code i in the low nibble of byte i and code 16 + i
// in the high.
struct BlockFormat {
  size_t bytes;  // per block of 32
  bool has_m;
  int bits;
  int offset;  // subtracted from a code
  int qm;      // annex A
};

const BlockFormat* FindFormat(TensorType type) {
  static constexpr BlockFormat kQ4_0{18, false, 4, 8, 8}, kQ4_1{20, true, 4, 0, 15},
      kQ5_0{22, false, 5, 16, 16}, kQ5_1{24, true, 5, 0, 31}, kQ8_0{34, false, 8, 128, 127};
  switch (type) {
    case TensorType::kQ4_0:
      return &kQ4_0;
    case TensorType::kQ4_1:
      return &kQ4_1;
    case TensorType::kQ5_0:
      return &kQ5_0;
    case TensorType::kQ5_1:
      return &kQ5_1;
    case TensorType::kQ8_0:
      return &kQ8_0;
    default:
      return nullptr;
  }
}

// One block: codes[32] unsigned, d and m (0 where the type has none).
void ReadBlock(const BlockFormat& format, const uint8_t* block, uint8_t* codes, float& d,
               float& m) {
  d = HalfAt(block);
  block += 2;
  m = 0;
  if (format.has_m) {
    m = HalfAt(block);
    block += 2;
  }
  if (format.bits == 8) {
    for (int i = 0; i < 32; ++i) codes[i] = static_cast<uint8_t>(block[i] ^ 0x80);  // int8 + 128
    return;
  }
  uint32_t fifth = 0;
  if (format.bits == 5) {
    std::memcpy(&fifth, block, sizeof(fifth));
    block += 4;
  }
  for (int i = 0; i < 16; ++i) {
    codes[i] = static_cast<uint8_t>((block[i] & 15) | ((fifth >> i & 1) << 4));
    codes[16 + i] = static_cast<uint8_t>((block[i] >> 4) | ((fifth >> (16 + i) & 1) << 4));
  }
}

Error Unsupported(const GgufTensor& tensor) {
  return Error{Code::kUnsupported,
               "tensor " + Printable(tensor.name) + " has the type " +
                   std::string(TensorTypeName(tensor.type)) +
                   "; this build reads F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1 and Q8_0"};
}

Result<kernels::PackedMatrix> PackBlocks(const GgufTensor& tensor, const BlockFormat& format,
                                         const std::vector<float>& bias) {
  const size_t blocks = tensor.bytes.size() / format.bytes;
  const auto* bytes = reinterpret_cast<const uint8_t*>(tensor.bytes.data());
  std::vector<uint8_t> codes(blocks * 32);
  std::vector<float> d(blocks), m(blocks);
  for (size_t b = 0; b < blocks; ++b) {
    ReadBlock(format, bytes + b * format.bytes, &codes[b * 32], d[b], m[b]);
  }
  if (!format.has_m) m.clear();
  const kernels::BlockWeights weights{codes, d, m, format.bits, format.offset, format.qm};
  return kernels::PackedMatrix::PackBlocks(std::string(tensor.name), weights, tensor.rows(),
                                           tensor.columns(), bias);
}

}  // namespace

bool IsBlockQuantised(TensorType type) { return FindFormat(type) != nullptr; }

Result<std::vector<float>> Dequantise(const GgufTensor& tensor) {
  const size_t n = tensor.columns() * tensor.rows();
  const auto* bytes = reinterpret_cast<const uint8_t*>(tensor.bytes.data());
  std::vector<float> out(n);
  if (tensor.type == TensorType::kF32) {
    std::memcpy(out.data(), bytes, n * sizeof(float));
  } else if (tensor.type == TensorType::kF16) {
    for (size_t i = 0; i < n; ++i) out[i] = HalfAt(bytes + 2 * i);
  } else if (tensor.type == TensorType::kBF16) {
    for (size_t i = 0; i < n; ++i) {
      out[i] =
          std::bit_cast<float>(uint32_t{bytes[2 * i]} << 16 | uint32_t{bytes[2 * i + 1]} << 24);
    }
  } else if (const BlockFormat* format = FindFormat(tensor.type)) {
    for (size_t b = 0; b < n / 32; ++b) {
      uint8_t codes[32];
      float d, m;
      ReadBlock(*format, bytes + b * format->bytes, codes, d, m);
      for (int i = 0; i < 32; ++i) {
        const float product = d * static_cast<float>(codes[i] - format->offset);
        out[b * 32 + i] = format->has_m ? product + m : product;
      }
    }
  } else {
    return Unsupported(tensor);
  }
  for (const float x : out) {
    if (!std::isfinite(x)) {
      return Error{Code::kNumericFault,
                   "tensor " + Printable(tensor.name) +
                       " has an element that is not finite; the file is damaged"};
    }
  }
  return out;
}

Result<kernels::PackedMatrix> PackTensor(const GgufTensor& tensor, Fidelity fidelity,
                                         const std::vector<float>& bias) {
  if (fidelity == Fidelity::kWBA16) {
    if (const BlockFormat* format = FindFormat(tensor.type)) {
      return PackBlocks(tensor, *format, bias);
    }
  }
  Result<std::vector<float>> w = Dequantise(tensor);
  if (!w) return w.error();
  const int bits = fidelity == Fidelity::kW8A16 ? 8 : 16;
  return kernels::PackedMatrix::PackRows(std::string(tensor.name), *w, tensor.rows(),
                                         tensor.columns(), bits, bias);
}

}  // namespace verbatim::engine
