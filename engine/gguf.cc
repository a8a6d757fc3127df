#include "engine/gguf.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"

namespace verbatim::engine {
namespace {

static_assert(std::endian::native == std::endian::little, "GGUF is read in place");

constexpr uint64_t kMaxKeyBytes = 65535;  // docs/gguf.md
constexpr uint64_t kMaxNameBytes = 255;   // ggml uses at most 64
constexpr uint64_t kMaxElements = uint64_t{1} << 40;

struct TypeTraits {
  uint32_t id;
  const char* name;
  uint32_t block;  // elements per block
  uint32_t bytes;  // bytes per block
};
// ggml.h (enum ggml_type) and the block structs of ggml-common.h.
constexpr TypeTraits kTypes[] = {
    {0, "F32", 1, 4},         {1, "F16", 1, 2},         {2, "Q4_0", 32, 18},
    {3, "Q4_1", 32, 20},      {6, "Q5_0", 32, 22},      {7, "Q5_1", 32, 24},
    {8, "Q8_0", 32, 34},      {9, "Q8_1", 32, 36},      {10, "Q2_K", 256, 84},
    {11, "Q3_K", 256, 110},   {12, "Q4_K", 256, 144},   {13, "Q5_K", 256, 176},
    {14, "Q6_K", 256, 210},   {15, "Q8_K", 256, 292},   {16, "IQ2_XXS", 256, 66},
    {17, "IQ2_XS", 256, 74},  {18, "IQ3_XXS", 256, 98}, {19, "IQ1_S", 256, 50},
    {20, "IQ4_NL", 32, 18},   {21, "IQ3_S", 256, 110},  {22, "IQ2_S", 256, 82},
    {23, "IQ4_XS", 256, 136}, {24, "I8", 1, 1},         {25, "I16", 1, 2},
    {26, "I32", 1, 4},        {27, "I64", 1, 8},        {28, "F64", 1, 8},
    {29, "IQ1_M", 256, 56},   {30, "BF16", 1, 2},       {34, "TQ1_0", 256, 54},
    {35, "TQ2_0", 256, 66},   {39, "MXFP4", 32, 17},
};

const TypeTraits* FindType(uint32_t id) {
  for (const TypeTraits& t : kTypes) {
    if (t.id == id) return &t;
  }
  return nullptr;
}

Error Corrupt(std::string message) {
  return Error{Code::kCorrupt, "GGUF: " + std::move(message) + "; fetch the file again"};
}

// Bytes of a scalar of this type; 0 for strings, arrays and unknown types.
size_t ScalarBytes(GgufType type) {
  switch (type) {
    case GgufType::kUint8:
    case GgufType::kInt8:
    case GgufType::kBool:
      return 1;
    case GgufType::kUint16:
    case GgufType::kInt16:
      return 2;
    case GgufType::kUint32:
    case GgufType::kInt32:
    case GgufType::kFloat32:
      return 4;
    case GgufType::kUint64:
    case GgufType::kInt64:
    case GgufType::kFloat64:
      return 8;
    case GgufType::kString:
    case GgufType::kArray:
      return 0;
  }
  return 0;
}

template <typename T>
T LoadAs(const char* p) {
  T v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}

// An element of an integer type as int64; nothing for other types and for values above its range.
std::optional<int64_t> IntegerAt(GgufType type, const char* p) {
  switch (type) {
    case GgufType::kUint8:
      return LoadAs<uint8_t>(p);
    case GgufType::kInt8:
      return LoadAs<int8_t>(p);
    case GgufType::kUint16:
      return LoadAs<uint16_t>(p);
    case GgufType::kInt16:
      return LoadAs<int16_t>(p);
    case GgufType::kUint32:
      return LoadAs<uint32_t>(p);
    case GgufType::kInt32:
      return LoadAs<int32_t>(p);
    case GgufType::kInt64:
      return LoadAs<int64_t>(p);
    case GgufType::kUint64: {
      const uint64_t v = LoadAs<uint64_t>(p);
      if (v > uint64_t{INT64_MAX}) return std::nullopt;
      return static_cast<int64_t>(v);
    }
    default:
      return std::nullopt;
  }
}

}  // namespace

std::string Printable(std::string_view s) {
  constexpr size_t kMax = 80;
  constexpr char kHex[] = "0123456789abcdef";
  const bool utf8 = IsUtf8(s);
  std::string out = "\"";
  for (const char c : s.substr(0, kMax)) {
    const auto b = static_cast<uint8_t>(c);
    if (b < 0x20 || b == 0x7f || (b >= 0x80 && (!utf8 || s.size() > kMax))) {
      out += "\\x";
      out += kHex[b >> 4];
      out += kHex[b & 15];
    } else {
      out += c;
    }
  }
  if (s.size() > kMax) out += "...";
  return out + "\"";
}

std::string_view TensorTypeName(TensorType type) {
  const TypeTraits* traits = FindType(static_cast<uint32_t>(type));
  return traits == nullptr ? "unknown" : traits->name;
}

uint64_t GgufTensor::rows() const {
  uint64_t n = 1;
  for (size_t i = 1; i < dims.size(); ++i) n *= dims[i];
  return n;
}

// One pass over the header. Each read checks that the bytes are there.
class GgufFile::Parser {
 public:
  explicit Parser(std::string_view bytes) : bytes_(bytes) {}

  Status Parse(GgufFile& file) {
    if (bytes_.size() < 24 || bytes_.substr(0, 4) != "GGUF") {
      return Error{Code::kCorrupt,
                   "not a GGUF file (it does not begin with \"GGUF\"); give a .gguf"};
    }
    at_ = 4;
    uint32_t version = 0;
    uint64_t tensor_count = 0, metadata_count = 0;
    if (!Read(version) || !Read(tensor_count) || !Read(metadata_count)) return Truncated("header");
    if (version != 3) {
      return Error{Code::kUnsupported, "GGUF version " + std::to_string(version) +
                                           " is not supported; convert the file to version 3"};
    }
    // A key with a one-byte value takes 13 bytes or more, a tensor 24 or more.
    if (metadata_count > bytes_.size() / 13) return TooMany("metadata entries", metadata_count);
    if (tensor_count > bytes_.size() / 24) return TooMany("tensors", tensor_count);
    for (uint64_t i = 0; i < metadata_count; ++i) {
      if (Status s = ReadMetadata(file); !s.ok()) return s;
    }
    if (file.Has("general.alignment")) {
      Result<uint64_t> alignment = file.Uint("general.alignment");
      if (!alignment) return alignment.error();
      if (!std::has_single_bit(*alignment) || *alignment < 8 || *alignment > (1u << 20)) {
        return Corrupt("general.alignment is " + std::to_string(*alignment) +
                       ", not a power of two from 8 to 1048576");
      }
      alignment_ = *alignment;
    }
    std::vector<uint64_t> offsets;
    for (uint64_t i = 0; i < tensor_count; ++i) {
      if (Status s = ReadTensorInfo(file, offsets); !s.ok()) return s;
    }
    return PlaceTensors(file, offsets);
  }

 private:
  Error Truncated(const std::string& what) const {
    return Corrupt("the file ends inside " + what + " at byte " + std::to_string(at_));
  }
  Error TooMany(const char* what, uint64_t n) const {
    return Corrupt("it states " + std::to_string(n) + " " + what + ", more than its " +
                   std::to_string(bytes_.size()) + " bytes can hold");
  }

  template <typename T>
  bool Read(T& out) {
    if (bytes_.size() - at_ < sizeof(T)) return false;
    out = LoadAs<T>(bytes_.data() + at_);
    at_ += sizeof(T);
    return true;
  }
  bool ReadBytes(uint64_t n, std::string_view& out) {
    if (bytes_.size() - at_ < n) return false;
    out = bytes_.substr(at_, n);
    at_ += n;
    return true;
  }
  bool ReadString(std::string_view& out) {
    uint64_t n = 0;
    return Read(n) && ReadBytes(n, out);
  }

  Status ReadMetadata(GgufFile& file) {
    std::string_view key;
    if (!ReadString(key)) return Truncated("a metadata key");
    if (key.empty() || key.size() > kMaxKeyBytes || !IsUtf8(key)) {
      return Corrupt("metadata key " + Printable(key) + " is empty, too long or not UTF-8");
    }
    uint32_t type = 0;
    if (!Read(type)) return Truncated("the type of " + Printable(key));
    GgufValue value;
    value.type = static_cast<GgufType>(type);
    if (value.type == GgufType::kArray) {
      GgufArray array;
      if (Status s = ReadArray(key, array); !s.ok()) return s;
      value.value = std::move(array);
    } else if (Status s = ReadScalar(key, value); !s.ok()) {
      return s;
    }
    if (!file.metadata_.emplace(key, std::move(value)).second) {
      return Corrupt("metadata key " + Printable(key) + " occurs twice");
    }
    return {};
  }

  Status ReadScalar(std::string_view key, GgufValue& value) {
    std::string_view raw;
    if (value.type == GgufType::kString) {
      if (!ReadString(raw)) return Truncated("the value of " + Printable(key));
      value.value = raw;
      return {};
    }
    const size_t bytes = ScalarBytes(value.type);
    if (bytes == 0) return UnknownType(key, value.type);
    if (!ReadBytes(bytes, raw)) return Truncated("the value of " + Printable(key));
    switch (value.type) {
      case GgufType::kFloat32:
        value.value = double{LoadAs<float>(raw.data())};
        break;
      case GgufType::kFloat64:
        value.value = LoadAs<double>(raw.data());
        break;
      case GgufType::kBool:
        if (static_cast<uint8_t>(raw[0]) > 1) {
          return Corrupt("the value of " + Printable(key) + " is a bool that is neither 0 nor 1");
        }
        value.value = raw[0] != 0;
        break;
      case GgufType::kUint64:
        value.value = LoadAs<uint64_t>(raw.data());
        break;
      default:
        value.value = *IntegerAt(value.type, raw.data());
    }
    return {};
  }

  Status ReadArray(std::string_view key, GgufArray& array) {
    uint32_t element = 0;
    if (!Read(element) || !Read(array.count)) return Truncated("the array " + Printable(key));
    array.element = static_cast<GgufType>(element);
    const uint64_t left = bytes_.size() - at_;
    if (array.element == GgufType::kArray) {
      return Error{Code::kUnsupported,
                   "GGUF: " + Printable(key) + " is an array of arrays; none is known to be used"};
    }
    if (array.element == GgufType::kString) {
      if (array.count > left / 8) return TooMany("strings in an array", array.count);
      for (uint64_t i = 0; i < array.count; ++i) {
        std::string_view s;
        if (!ReadString(s)) {
          return Truncated("string " + std::to_string(i) + " of " + Printable(key));
        }
        array.strings.push_back(s);
      }
      return {};
    }
    const size_t bytes = ScalarBytes(array.element);
    if (bytes == 0) return UnknownType(key, array.element);
    if (array.count > left / bytes) return TooMany("elements in an array", array.count);
    CHECK(ReadBytes(array.count * bytes, array.raw));
    return {};
  }

  Error UnknownType(std::string_view key, GgufType type) const {
    return Corrupt("the value of " + Printable(key) + " has the unknown type " +
                   std::to_string(static_cast<uint32_t>(type)));
  }

  Status ReadTensorInfo(GgufFile& file, std::vector<uint64_t>& offsets) {
    GgufTensor tensor;
    uint32_t dim_count = 0, type = 0;
    uint64_t offset = 0;
    if (!ReadString(tensor.name)) return Truncated("a tensor's name");
    const std::string name = Printable(tensor.name);
    if (tensor.name.empty() || tensor.name.size() > kMaxNameBytes || !IsUtf8(tensor.name)) {
      return Corrupt("tensor name " + name + " is empty, too long or not UTF-8");
    }
    if (!Read(dim_count)) return Truncated("the tensor " + name);
    if (dim_count < 1 || dim_count > 4) {
      return Corrupt("tensor " + name + " has " + std::to_string(dim_count) +
                     " dimensions; 1 to 4 are allowed");
    }
    uint64_t elements = 1;
    for (uint32_t i = 0; i < dim_count; ++i) {
      uint64_t d = 0;
      if (!Read(d)) return Truncated("the tensor " + name);
      if (d == 0 || d > kMaxElements / elements) {
        return Corrupt("dimension " + std::to_string(i) + " of tensor " + name + " is " +
                       std::to_string(d) + ": zero or too large");
      }
      elements *= d;
      tensor.dims.push_back(d);
    }
    if (!Read(type) || !Read(offset)) return Truncated("the tensor " + name);
    const TypeTraits* traits = FindType(type);
    if (traits == nullptr) {
      return Error{Code::kUnsupported,
                   "GGUF: tensor " + name + " has the unknown type " + std::to_string(type)};
    }
    if (tensor.dims[0] % traits->block != 0) {
      return Corrupt("rows of tensor " + name + " have " + std::to_string(tensor.dims[0]) +
                     " elements, not a multiple of the " + std::to_string(traits->block) +
                     " of a block of " + traits->name);
    }
    if (offset % alignment_ != 0) {
      return Corrupt("the offset " + std::to_string(offset) + " of tensor " + name +
                     " is not a multiple of the alignment " + std::to_string(alignment_));
    }
    tensor.type = static_cast<TensorType>(type);
    if (!file.tensor_index_.emplace(tensor.name, file.tensors_.size()).second) {
      return Corrupt("tensor " + name + " occurs twice");
    }
    file.tensors_.push_back(std::move(tensor));
    offsets.push_back(offset);
    return {};
  }

  // Gives every tensor its bytes: inside the file, and no two over each other.
  Status PlaceTensors(GgufFile& file, const std::vector<uint64_t>& offsets) {
    const uint64_t data = (at_ + alignment_ - 1) & ~(alignment_ - 1);
    if (!offsets.empty() && data > bytes_.size())
      return Truncated("the padding before the tensors");
    struct Range {
      uint64_t begin, end;
      size_t tensor;
    };
    std::vector<Range> ranges;
    for (size_t i = 0; i < offsets.size(); ++i) {
      GgufTensor& tensor = file.tensors_[i];
      const TypeTraits* traits = FindType(static_cast<uint32_t>(tensor.type));
      const uint64_t size = tensor.dims[0] / traits->block * traits->bytes * tensor.rows();
      const uint64_t room = bytes_.size() - data;
      if (offsets[i] > room || size > room - offsets[i]) {
        return Corrupt("tensor " + Printable(tensor.name) + " (" + std::to_string(size) +
                       " bytes at offset " + std::to_string(offsets[i]) +
                       ") reaches beyond the end of the file");
      }
      tensor.bytes = bytes_.substr(data + offsets[i], size);
      ranges.push_back({offsets[i], offsets[i] + size, i});
    }
    std::sort(ranges.begin(), ranges.end(),
              [](const Range& a, const Range& b) { return a.begin < b.begin; });
    for (size_t i = 1; i < ranges.size(); ++i) {
      if (ranges[i].begin < ranges[i - 1].end) {
        return Corrupt("tensors " + Printable(file.tensors_[ranges[i - 1].tensor].name) + " and " +
                       Printable(file.tensors_[ranges[i].tensor].name) + " overlap");
      }
    }
    return {};
  }

  const std::string_view bytes_;
  size_t at_ = 0;
  uint64_t alignment_ = 32;
};

Result<GgufFile> GgufFile::Open(const std::string& path) {
  const auto fail = [&path](const char* what) {
    const Code code = errno == ENOENT ? Code::kNotFound : Code::kIo;
    return Error{code, std::string(what) + " " + path + ": " + std::strerror(errno)};
  };
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return fail("cannot open the model file");
  struct stat st {};
  if (fstat(fd, &st) != 0) {
    const Error error = fail("cannot read the size of");
    close(fd);
    return error;
  }
  if (!S_ISREG(st.st_mode) || st.st_size <= 0) {
    close(fd);
    return Error{Code::kInvalid, path + " is empty or no regular file; give a .gguf file"};
  }
  const size_t size = static_cast<size_t>(st.st_size);
  void* address = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
  const Error map_error = fail("cannot map");
  close(fd);
  if (address == MAP_FAILED) return map_error;
  GgufFile file;
  file.map_ = {static_cast<const char*>(address), size};
  Parser parser(file.map_);
  if (Status s = parser.Parse(file); !s.ok()) {
    return Error{s.error().code, path + ": " + s.error().message};
  }
  return file;
}

GgufFile::GgufFile(GgufFile&& other) noexcept
    : map_(std::exchange(other.map_, {})),
      metadata_(std::move(other.metadata_)),
      tensors_(std::move(other.tensors_)),
      tensor_index_(std::move(other.tensor_index_)) {}

GgufFile::~GgufFile() {
  if (!map_.empty()) munmap(const_cast<char*>(map_.data()), map_.size());
}

namespace {

// The value of a key as a T of the variant.
template <typename T>
Result<const T*> Lookup(const std::map<std::string_view, GgufValue>& metadata, std::string_view key,
                        const char* kind) {
  const auto it = metadata.find(key);
  if (it == metadata.end()) {
    return Error{Code::kNotFound, "the model file has no " + std::string(key)};
  }
  const T* value = std::get_if<T>(&it->second.value);
  if (value == nullptr) return Corrupt(std::string(key) + " is not " + kind);
  return value;
}

}  // namespace

Result<std::string_view> GgufFile::String(std::string_view key) const {
  Result<const std::string_view*> v = Lookup<std::string_view>(metadata_, key, "a string");
  if (!v) return v.error();
  return **v;
}

Result<uint64_t> GgufFile::Uint(std::string_view key) const {
  const auto it = metadata_.find(key);
  if (it != metadata_.end()) {
    if (const auto* u = std::get_if<uint64_t>(&it->second.value)) return *u;
    if (const auto* i = std::get_if<int64_t>(&it->second.value); i != nullptr && *i < 0) {
      return Corrupt(std::string(key) + " is negative");
    }
  }
  Result<const int64_t*> v = Lookup<int64_t>(metadata_, key, "an integer");
  if (!v) return v.error();
  return static_cast<uint64_t>(**v);
}

Result<double> GgufFile::Float(std::string_view key) const {
  Result<const double*> v = Lookup<double>(metadata_, key, "a float");
  if (!v) return v.error();
  return **v;
}

Result<bool> GgufFile::Bool(std::string_view key) const {
  Result<const bool*> v = Lookup<bool>(metadata_, key, "a bool");
  if (!v) return v.error();
  return **v;
}

Result<std::span<const std::string_view>> GgufFile::Strings(std::string_view key) const {
  Result<const GgufArray*> v = Lookup<GgufArray>(metadata_, key, "an array");
  if (!v) return v.error();
  if ((*v)->element != GgufType::kString) return Corrupt(std::string(key) + " has no strings");
  return std::span<const std::string_view>((*v)->strings);
}

Result<std::vector<int64_t>> GgufFile::Ints(std::string_view key) const {
  Result<const GgufArray*> v = Lookup<GgufArray>(metadata_, key, "an array");
  if (!v) return v.error();
  const GgufArray& array = **v;
  const size_t bytes = ScalarBytes(array.element);
  std::vector<int64_t> out;
  for (uint64_t i = 0; i < array.count; ++i) {
    const std::optional<int64_t> x =
        bytes == 0 ? std::nullopt : IntegerAt(array.element, array.raw.data() + i * bytes);
    if (!x) return Corrupt(std::string(key) + " has an element that is no 64-bit integer");
    out.push_back(*x);
  }
  return out;
}

Result<std::vector<float>> GgufFile::Floats(std::string_view key) const {
  Result<const GgufArray*> v = Lookup<GgufArray>(metadata_, key, "an array");
  if (!v) return v.error();
  if ((*v)->element != GgufType::kFloat32)
    return Corrupt(std::string(key) + " has no f32 elements");
  std::vector<float> out((*v)->count);
  if (!out.empty()) std::memcpy(out.data(), (*v)->raw.data(), (*v)->raw.size());
  return out;
}

const GgufTensor* GgufFile::FindTensor(std::string_view name) const {
  const auto it = tensor_index_.find(name);
  return it == tensor_index_.end() ? nullptr : &tensors_[it->second];
}

}  // namespace verbatim::engine
