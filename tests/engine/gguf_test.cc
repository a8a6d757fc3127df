// The GGUF reader: what it reads, and that no damaged file gets past it or brings it down.
#include "engine/gguf.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "engine/model.h"
#include "engine/worker_pool.h"
#include "tests/engine/gguf_writer.h"
#include "tests/engine/test_files.h"

namespace verbatim::engine {
namespace {

GgufWriter Sound() {
  GgufWriter w;
  w.String("general.architecture", "llama");
  w.Uint32("u", 7);
  w.Float32("f", 0.5f);
  w.Bool("b", true);
  w.Strings("ss", {"one", "", "three"});
  w.Int32s("is", {-1, 2});
  w.Raw("i8", GgufType::kInt8, std::string(1, '\xff'));
  w.Raw("u64", GgufType::kUint64, LittleEndian(UINT64_MAX));
  w.Raw("f64", GgufType::kFloat64, LittleEndian(0.1));
  w.Tensor("t", {2, 3}, TensorType::kF32, std::string(24, 'x'));
  w.Tensor("q", {32}, TensorType::kQ4_1, std::string(20, 'y'));
  return w;
}

Result<GgufFile> OpenBytes(const std::string& bytes) {
  const TemporaryFile file(bytes);
  return GgufFile::Open(file.path());
}

TEST(Gguf, ReadsMetadataAndTensors) {
  Result<GgufFile> file = OpenBytes(Sound().Build());
  ASSERT_TRUE(file.ok()) << file.error().message;
  EXPECT_EQ(*file->String("general.architecture"), "llama");
  EXPECT_EQ(*file->Uint("u"), 7u);
  EXPECT_EQ(*file->Uint("u64"), UINT64_MAX);
  EXPECT_EQ(*file->Float("f"), 0.5);
  EXPECT_EQ(*file->Float("f64"), 0.1);
  EXPECT_TRUE(*file->Bool("b"));
  ASSERT_EQ(file->Strings("ss")->size(), 3u);
  EXPECT_EQ((*file->Strings("ss"))[2], "three");
  EXPECT_EQ(*file->Ints("is"), (std::vector<int64_t>{-1, 2}));
  const GgufTensor* t = file->FindTensor("t");
  ASSERT_NE(t, nullptr);
  EXPECT_EQ(t->columns(), 2u);
  EXPECT_EQ(t->rows(), 3u);
  EXPECT_EQ(t->bytes, std::string(24, 'x'));
  EXPECT_EQ(file->FindTensor("q")->bytes, std::string(20, 'y'));
  EXPECT_EQ(TensorTypeName(file->FindTensor("q")->type), "Q4_1");

  EXPECT_EQ(file->Uint("absent").error().code, Code::kNotFound);
  EXPECT_EQ(file->Uint("f").error().code, Code::kCorrupt);
  EXPECT_EQ(file->Uint("i8").error().code, Code::kCorrupt);  // -1
  EXPECT_EQ(file->String("u").error().code, Code::kCorrupt);
  EXPECT_EQ(file->Strings("is").error().code, Code::kCorrupt);
  EXPECT_EQ(file->Ints("ss").error().code, Code::kCorrupt);
}

TEST(Gguf, FilesThatAreNotThere) {
  EXPECT_EQ(GgufFile::Open("/nonexistent/model.gguf").error().code, Code::kNotFound);
  EXPECT_EQ(GgufFile::Open("/").error().code, Code::kInvalid);
  EXPECT_EQ(OpenBytes("").error().code, Code::kInvalid);
}

// Each case edits a sound file and names what the message must name.
TEST(Gguf, DamagedFilesAreRefusedByName) {
  const auto raw = [](GgufType type, const std::string& value) {
    return [=](GgufWriter& w) { w.Raw("x", type, value); };
  };
  const auto huge = LittleEndian(uint64_t{1} << 62);
  const auto of = [](GgufType t) { return LittleEndian(static_cast<uint32_t>(t)); };
  struct Case {
    const char* message;
    std::function<void(GgufWriter&)> edit;
  };
  const Case cases[] = {
      {"ends inside the value of \"x\"", raw(GgufType::kString, huge)},
      {"unknown type 13", raw(static_cast<GgufType>(13), "")},
      {"unknown type 4294967295", raw(static_cast<GgufType>(UINT32_MAX), "")},
      {"neither 0 nor 1", raw(GgufType::kBool, "\2")},
      {"more than its", raw(GgufType::kArray, of(GgufType::kString) + huge)},
      {"more than its", raw(GgufType::kArray, of(GgufType::kFloat64) + huge)},
      {"array of arrays", raw(GgufType::kArray, of(GgufType::kArray) + LittleEndian(uint64_t{1}))},
      {"not UTF-8", [](GgufWriter& w) { w.Uint32("a\xff", 1); }},
      {"is empty", [](GgufWriter& w) { w.Uint32("", 1); }},
      {"too long", [](GgufWriter& w) { w.Uint32(std::string(70000, 'k'), 1); }},
      {"general.alignment is 48", [](GgufWriter& w) { w.Uint32("general.alignment", 48); }},
      {"general.alignment is 0", [](GgufWriter& w) { w.Uint32("general.alignment", 0); }},
      {"general.alignment is not", [](GgufWriter& w) { w.String("general.alignment", "32"); }},
      {"not a multiple of the alignment 64",
       [](GgufWriter& w) { w.Uint32("general.alignment", 64); }},
      {"0 dimensions", [](GgufWriter& w) { w.Tensor("x", {}, TensorType::kF32, ""); }},
      {"5 dimensions",
       [](GgufWriter& w) {
         w.Tensor("x", {1, 1, 1, 1, 1}, TensorType::kF32, "four");
       }},
      {"zero or too large",
       [](GgufWriter& w) {
         w.Tensor("x", {4, 0}, TensorType::kF32, "");
       }},
      {"zero or too large",
       [](GgufWriter& w) {
         w.Tensor("x", {uint64_t{1} << 32, uint64_t{1} << 32}, TensorType::kF32, "");
       }},
      {"beyond the end", [](GgufWriter& w) { w.Tensor("x", {1 << 20}, TensorType::kF32, ""); }},
      {"unknown type 4711",
       [](GgufWriter& w) { w.Tensor("x", {1}, static_cast<TensorType>(4711), ""); }},
      {"not a multiple of the 32",
       [](GgufWriter& w) { w.Tensor("x", {33}, TensorType::kQ8_0, std::string(99, ' ')); }},
  };
  for (const Case& c : cases) {
    GgufWriter w = Sound();
    c.edit(w);
    Result<GgufFile> file = OpenBytes(w.Build());
    ASSERT_FALSE(file.ok()) << c.message;
    EXPECT_NE(file.error().message.find(c.message), std::string::npos)
        << "want: " << c.message << "\ngot:  " << file.error().message;
  }
}

// Edits of the bytes themselves, which no writer would make.
TEST(Gguf, DamagedBytesAreRefusedByName) {
  const std::string sound = Sound().Build();
  const auto edited = [&](const std::string& from, const std::string& to) {
    std::string bytes = sound;
    const size_t at = bytes.find(from);
    EXPECT_NE(at, std::string::npos);
    return bytes.replace(at, from.size(), to);
  };
  const auto key = [](const std::string& s) { return LittleEndian(uint64_t{s.size()}) + s; };
  const std::string header = sound.substr(0, 24);
  const auto counts = [](uint64_t tensors, uint64_t metadata) {
    return "GGUF" + LittleEndian(uint32_t{3}) + LittleEndian(tensors) + LittleEndian(metadata);
  };
  const std::pair<const char*, std::string> cases[] = {
      {"begin with \"GGUF\"", edited("GGUF", "GGML")},
      {"version 2 ", edited("GGUF\3", "GGUF\2")},
      {"metadata entries", edited(header, counts(2, UINT64_MAX))},
      {"metadata entries", edited(header, counts(2, sound.size() / 13 + 1))},
      {"tensors", edited(header, counts(UINT64_MAX, 10))},
      {"\"u\" occurs twice", edited(key("f"), key("u"))},
      {"\"t\" occurs twice", edited(key("q"), key("t"))},
      // The second tensor's offset becomes that of the first.
      {"overlap", edited(LittleEndian(uint32_t{3}) + LittleEndian(uint64_t{32}),
                         LittleEndian(uint32_t{3}) + LittleEndian(uint64_t{0}))},
      {"beyond the end", edited(LittleEndian(uint32_t{3}) + LittleEndian(uint64_t{32}),
                                LittleEndian(uint32_t{3}) + LittleEndian(~uint64_t{31}))},
      {"not a multiple of the alignment",
       edited(LittleEndian(uint32_t{3}) + LittleEndian(uint64_t{32}),
              LittleEndian(uint32_t{3}) + LittleEndian(uint64_t{33}))},
  };
  for (const auto& [message, bytes] : cases) {
    Result<GgufFile> file = OpenBytes(bytes);
    ASSERT_FALSE(file.ok()) << message;
    EXPECT_NE(file.error().message.find(message), std::string::npos)
        << "want: " << message << "\ngot:  " << file.error().message;
  }
}

TEST(Gguf, EveryTruncationIsAnError) {
  size_t header_size = 0;
  const std::string sound = Sound().Build(&header_size);
  const TemporaryFile file("");
  for (size_t n = 0; n < sound.size(); ++n) {
    // The padding behind the last tensor may be missing.
    if (n >= sound.size() - 12) break;
    file.Write(sound.substr(0, n));
    EXPECT_FALSE(GgufFile::Open(file.path()).ok()) << n << " of " << sound.size() << " bytes";
  }
}

// Every byte of the header of a whole model takes three other values; what still opens is loaded.
// The sanitizers see the rest.
TEST(Gguf, ChangedBytesNeverBringTheLoaderDown) {
  size_t header_size = 0;
  const std::string sound = MakeSmallModel({.with_tokenizer = false}).Build(&header_size);
  const TemporaryFile file("");
  WorkerPool workers(1);
  size_t opened = 0, loaded = 0;
  for (size_t i = 0; i < header_size; ++i) {
    for (const int value : {0x01, 0xff, sound[i] ^ 0x10}) {
      std::string bytes = sound;
      bytes[i] = static_cast<char>(value);
      file.Write(bytes);
      Result<GgufFile> gguf = GgufFile::Open(file.path());
      if (!gguf) continue;
      ++opened;
      loaded += LoadModel(*gguf, Fidelity::kWBA16, workers, {}).ok();
    }
  }
  EXPECT_GT(opened, loaded);
  EXPECT_GT(loaded, 0u);
}

TEST(Gguf, PrintableHidesControlBytes) {
  EXPECT_EQ(Printable("blk.0"), "\"blk.0\"");
  EXPECT_EQ(Printable("a\x1b[31m\n"), "\"a\\x1b[31m\\x0a\"");
  EXPECT_EQ(Printable("\xff"), "\"\\xff\"");
  EXPECT_EQ(Printable("\xc3\xa9"), "\"\xc3\xa9\"");
  EXPECT_EQ(Printable(std::string(100, 'a')), "\"" + std::string(80, 'a') + "...\"");
}

}  // namespace
}  // namespace verbatim::engine
