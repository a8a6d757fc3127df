// Reader of GGUF version 3 model files (ggml's docs/gguf.md), little-endian, over a read-only
// mapping. Nothing in a file is trusted: counts, lengths, types, offsets and names are checked
// against the file's real size before use, and memory grows with the bytes read, never with a
// number that a file states. Errors: kIo (open, map), kCorrupt (what is wrong, and where),
// kUnsupported (other versions, nested arrays). After Open everything is const and may be read from
// any thread.
//
// All strings and tensor bytes are borrowed from the mapping, which lives as long as the GgufFile.
// The file must not be truncated meanwhile (the system then ends the process with SIGBUS).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/result.h"

namespace verbatim::engine {

// ggml_type: the numbers are the file's.
enum class TensorType : uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kBF16 = 30,
};

// "Q4_1"; every type of the format has a name, also those that the engine refuses.
std::string_view TensorTypeName(TensorType type);

struct GgufTensor {
  std::string_view name;
  TensorType type = TensorType::kF32;
  std::vector<uint64_t>
      dims;                // 1 to 4, the fastest first: a matrix [rows][columns] is {columns, rows}
  std::string_view bytes;  // rows follow each other without gaps

  uint64_t columns() const { return dims[0]; }
  uint64_t rows() const;  // the product of all other dimensions
};

// gguf_metadata_value_type, and a value in the widest form of its kind.
enum class GgufType : uint32_t {
  kUint8 = 0,
  kInt8 = 1,
  kUint16 = 2,
  kInt16 = 3,
  kUint32 = 4,
  kInt32 = 5,
  kFloat32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kUint64 = 10,
  kInt64 = 11,
  kFloat64 = 12,
};
struct GgufArray {
  GgufType element = GgufType::kUint8;
  uint64_t count = 0;
  std::string_view raw;                   // the elements as they are in the file; not for strings
  std::vector<std::string_view> strings;  // where element is kString
};
struct GgufValue {
  GgufType type = GgufType::kUint8;
  std::variant<uint64_t, int64_t, double, bool, std::string_view, GgufArray> value;
};

class GgufFile {
 public:
  static Result<GgufFile> Open(const std::string& path);
  ~GgufFile();
  GgufFile(GgufFile&& other) noexcept;
  GgufFile& operator=(GgufFile&&) = delete;

  // Metadata by key. Errors: kNotFound, kCorrupt where the value has another type.
  bool Has(std::string_view key) const { return metadata_.contains(key); }
  Result<std::string_view> String(std::string_view key) const;
  Result<uint64_t> Uint(std::string_view key) const;  // any integer type; negative is kCorrupt
  Result<double> Float(std::string_view key) const;   // f32 (exact) or f64
  Result<bool> Bool(std::string_view key) const;
  Result<std::span<const std::string_view>> Strings(std::string_view key) const;
  Result<std::vector<int64_t>> Ints(std::string_view key) const;  // an array of any integer type
  Result<std::vector<float>> Floats(std::string_view key) const;  // an array of f32

  const std::map<std::string_view, GgufValue>& metadata() const { return metadata_; }
  const std::vector<GgufTensor>& tensors() const { return tensors_; }  // in the file's order
  const GgufTensor* FindTensor(std::string_view name) const;           // null where there is none
  uint64_t file_size() const { return map_.size(); }

 private:
  class Parser;
  GgufFile() = default;
  std::string_view map_;
  std::map<std::string_view, GgufValue> metadata_;
  std::vector<GgufTensor> tensors_;
  std::map<std::string_view, size_t> tensor_index_;
};

// A string of a file as it may stand in a message: quoted, cut at 80 bytes, control bytes escaped.
std::string Printable(std::string_view s);

}  // namespace verbatim::engine
