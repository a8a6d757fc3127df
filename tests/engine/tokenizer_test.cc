// The tokenizer against the ids that llama.cpp gives, and what it promises beyond them: bytes come
// back, control tokens are found in trusted text only, and no text makes it slow.

#include "engine/tokenizer.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "base/json.h"
#include "engine/gguf.h"
#include "engine/tokenizer_gguf.h"

namespace verbatim::engine {
namespace {

namespace fs = std::filesystem;

fs::path Vectors() {
  const char* env = std::getenv("VERBATIM_VECTORS");
  const fs::path root = env != nullptr ? env : VERBATIM_SOURCE_DIR "/../shared/vectors";
  return root / "tokenizers";
}

std::string ReadFile(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// The vocabularies of the vectors, unpacked for one run of the test.
class Vocabularies {
 public:
  Vocabularies() {
    std::string name = fs::temp_directory_path() / "verbatim-vocab-XXXXXX";
    folder_ = mkdtemp(name.data());
  }
  ~Vocabularies() { fs::remove_all(folder_); }
  Result<std::unique_ptr<const Tokenizer>> Load(const std::string& name) {
    const fs::path file = folder_ / (name + ".gguf");
    if (!fs::exists(file)) {
      const fs::path packed = Vectors() / ("ggml-vocab-" + name + ".gguf.xz");
      const std::string command = "xz -dc '" + packed.string() + "' > '" + file.string() + "'";
      if (std::system(command.c_str()) != 0) return Error{Code::kIo, "cannot run: " + command};
    }
    auto gguf = GgufFile::Open(file.string());
    if (!gguf) return gguf.error();
    return LoadTokenizer(*gguf);
  }

 private:
  fs::path folder_;
};

class TokenizerVectors : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!fs::exists(Vectors())) GTEST_SKIP() << "no vectors at " << Vectors();
  }
  bool Has(const std::string& name) {
    return fs::exists(Vectors() / ("ggml-vocab-" + name + ".gguf.xz"));
  }
  Vocabularies vocabularies_;
};

const char* const kBpe[] = {"llama-bpe",      "qwen2",  "qwen35",    "gpt-2", "deepseek-llm",
                            "deepseek-coder", "falcon", "starcoder", "refact"};

std::vector<int32_t> Ids(std::string_view line) {
  std::istringstream in{std::string(line)};
  return {std::istream_iterator<int32_t>(in), {}};
}

TEST_F(TokenizerVectors, GivesTheIdsOfLlamaCpp) {
  int vocabularies = 0;
  for (const std::string name : kBpe) {
    if (!Has(name)) continue;
    auto tokenizer = vocabularies_.Load(name);
    ASSERT_TRUE(tokenizer.ok()) << name << ": " << tokenizer.error().message;
    const std::string input = ReadFile(Vectors() / ("ggml-vocab-" + name + ".gguf.inp"));
    std::istringstream output(ReadFile(Vectors() / ("ggml-vocab-" + name + ".gguf.out")));
    const std::string separator = "\n__ggml_vocab_test__\n";
    int same = 0, cases = 0;
    for (size_t at = 0;;) {
      const size_t end = input.find(separator, at);
      const std::string text = input.substr(at, end == std::string::npos ? end : end - at);
      std::string line;
      // Texts past the last line of ids (the file's end) are no cases.
      if (!std::getline(output, line)) break;
      ++cases;
      auto got = (*tokenizer)->Encode(text, false);
      ASSERT_TRUE(got.ok()) << got.error().message;
      EXPECT_EQ(*got, Ids(line)) << name << ": " << text;
      same += *got == Ids(line);
      EXPECT_EQ((*tokenizer)->Decode(*got), text) << name;
      if (end == std::string::npos) break;
      at = end + separator.size();
    }
    EXPECT_GE(cases, 46) << name;
    ++vocabularies;
    std::cout << name << ": " << same << " of " << cases << " texts\n";
  }
  EXPECT_GE(vocabularies, 5);
}

TEST_F(TokenizerVectors, SentencePieceIsRefusedByName) {
  if (!Has("llama-spm")) GTEST_SKIP() << "no llama-spm";
  auto tokenizer = vocabularies_.Load("llama-spm");
  ASSERT_FALSE(tokenizer.ok());
  EXPECT_EQ(tokenizer.error().code, Code::kUnsupported);
  EXPECT_NE(tokenizer.error().message.find("\"llama\""), std::string::npos);
}

// A vocabulary small enough to see through: the bytes, four merges and some special tokens.
TokenizerData Small() {
  TokenizerData data;
  data.model = "gpt2";
  data.pre = "gpt-2";
  for (int b = 0, other = 256; b < 256; ++b) {
    const bool printable = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
    const int c = printable ? b : other++;
    data.tokens.push_back(c < 0x80 ? std::string(1, static_cast<char>(c))
                                   : std::string{static_cast<char>(0xC0 | c >> 6),
                                                 static_cast<char>(0x80 | (c & 0x3F))});
  }
  for (const char* t : {"ab", "abab",
                        "\xC4\xA0"
                        "a",
                        "aa"})
    data.tokens.push_back(t);  // 256-259
  data.merges = {"a b", "ab ab", "\xC4\xA0 a", "a a"};
  data.types.assign(data.tokens.size(), 1);
  const auto add = [&](const char* name, TokenType type) {
    data.tokens.push_back(name);
    data.types.push_back(static_cast<int32_t>(type));
  };
  add("<|im_end|>", TokenType::kControl);        // 260
  add("<s>", TokenType::kControl);               // 261
  add("<tool>", TokenType::kUserDefined);        // 262
  add("<tool><tool>", TokenType::kUserDefined);  // 263
  data.bos = 261;
  data.eos = 260;
  return data;
}

std::unique_ptr<const Tokenizer> Make(TokenizerData data) {
  auto tokenizer = Tokenizer::Create(std::move(data));
  EXPECT_TRUE(tokenizer.ok()) << (tokenizer.ok() ? "" : tokenizer.error().message);
  return tokenizer.ok() ? std::move(tokenizer).value() : nullptr;
}

TEST(Tokenizer, MergesByRankAndFromTheLeft) {
  const auto t = Make(Small());
  const struct {
    const char* text;
    std::vector<int32_t> ids;
  } cases[] = {
      {"", {}},
      {"a", {'a'}},
      {"ab", {256}},
      {"abab", {257}},
      {"ababab", {257, 256}},
      {" a", {258}},
      {"aaa", {259, 'a'}},
      {"aab", {'a', 256}},
  };
  for (const auto& c : cases) {
    auto got = t->Encode(c.text, false);
    ASSERT_TRUE(got.ok());
    EXPECT_EQ(*got, c.ids) << c.text;
  }
}

TEST(Tokenizer, LongWordsMergeLikeShortOnes) {
  const auto t = Make(Small());
  std::mt19937 random(7);
  for (int n = 28; n < 40; ++n) {
    for (int round = 0; round < 200; ++round) {
      // The tail after "b" merges with nothing, so that a long word equals a short one and it.
      std::string word;
      for (int i = 0; i < n; ++i) word += random() % 2 ? 'a' : 'b';
      const auto whole = t->Encode(word + "zzzzzzzzzz", false);
      auto parts = *t->Encode(word, false);
      for (int i = 0; i < 10; ++i) parts.push_back('z');
      ASSERT_EQ(*whole, parts) << word;
    }
  }
}

TEST(Tokenizer, ControlTokensAreFoundInTrustedTextOnly) {
  const auto t = Make(Small());
  const auto plain = *t->Encode("<|im_end|>", false);
  EXPECT_EQ(plain.size(), 10u);
  EXPECT_EQ(*t->Encode("<|im_end|>", true), std::vector<int32_t>{260});

  const struct {
    std::vector<Segment> segments;
    std::vector<int32_t> ids;
  } cases[] = {
      {{{"<s>", true}, {"<|im_end|>", false}, {"<|im_end|>", true}},
       {261, '<', '|', 'i', 'm', '_', 'e', 'n', 'd', '|', '>', 260}},
      // Not even where trusted and untrusted text make it together.
      {{{"<|im_", true}, {"end|>", false}}, {'<', '|', 'i', 'm', '_', 'e', 'n', 'd', '|', '>'}},
      // Two trusted pieces are one run.
      {{{"<|im_", true}, {"end|>", true}}, {260}},
      {{{"<|im_", true}, {"", false}, {"end|>", true}}, {260}},
      // Plain text is one text across a border: " a", and "ab" from two sources.
      {{{" ", true}, {"a", false}}, {258}},
      {{{"a", false}, {"b", true}}, {256}},
      // User-defined tokens are text that is always one token; the longest wins.
      {{{"<tool>", false}}, {262}},
      {{{"<to", true}, {"ol><tool>", false}}, {263}},
  };
  for (const auto& c : cases) {
    auto got = t->Encode(c.segments, false);
    ASSERT_TRUE(got.ok());
    EXPECT_EQ(*got, c.ids) << JoinSegments(c.segments);
  }
}

TEST(Tokenizer, AddsTheBeginningOnceAndOnlyWhereTheFileSaysSo) {
  const Segment text{"a", false}, with_bos[] = {{"<s>", true}, {"a", false}};
  TokenizerData data = Small();
  EXPECT_EQ(*Make(data)->Encode({&text, 1}, true), std::vector<int32_t>{'a'});
  data.add_bos = true;
  EXPECT_EQ(*Make(data)->Encode({&text, 1}, true), (std::vector<int32_t>{261, 'a'}));
  EXPECT_EQ(*Make(data)->Encode({&text, 1}, false), std::vector<int32_t>{'a'});
  EXPECT_EQ(*Make(data)->Encode(with_bos, true), (std::vector<int32_t>{261, 'a'}));
}

TEST(Tokenizer, KnowsTheTokensThatEndAnAnswer) {
  TokenizerData data = Small();
  data.eos = 261;
  const auto t = Make(data);
  EXPECT_EQ(t->end_tokens(), (std::vector<int32_t>{260, 261}));  // <|im_end|> by its name
  EXPECT_TRUE(t->IsEnd(260));
  EXPECT_FALSE(t->IsEnd('a'));
  EXPECT_EQ(t->Find("<|im_end|>"), 260);
  EXPECT_EQ(t->Find("abab"), 257);
  EXPECT_EQ(t->Find("nothing"), std::nullopt);
}

TEST(Tokenizer, RefusesWhatItDoesNotKnowAndWhatIsDamaged) {
  const auto refused = [](auto change) {
    TokenizerData data = Small();
    change(data);
    auto t = Tokenizer::Create(std::move(data));
    EXPECT_FALSE(t.ok());
    return t.ok() ? Error{} : t.error();
  };
  Error e = refused([](TokenizerData& d) { d.pre = "some-new-one"; });
  EXPECT_EQ(e.code, Code::kUnsupported);
  EXPECT_NE(e.message.find("some-new-one"), std::string::npos);
  EXPECT_EQ(refused([](TokenizerData& d) { d.pre = ""; }).code, Code::kUnsupported);
  EXPECT_EQ(refused([](TokenizerData& d) { d.model = "llama"; }).code, Code::kUnsupported);
  EXPECT_EQ(refused([](TokenizerData& d) { d.tokens.clear(); }).code, Code::kCorrupt);
  EXPECT_EQ(refused([](TokenizerData& d) { d.types.pop_back(); }).code, Code::kCorrupt);
  EXPECT_EQ(refused([](TokenizerData& d) { d.types[0] = 9; }).code, Code::kCorrupt);
  EXPECT_EQ(refused([](TokenizerData& d) { d.bos = 100000; }).code, Code::kCorrupt);
  EXPECT_EQ(refused([](TokenizerData& d) { d.tokens[1] = d.tokens[0]; }).code, Code::kCorrupt);
  EXPECT_EQ(refused([](TokenizerData& d) { d.merges.push_back("x nothing"); }).code,
            Code::kCorrupt);
  EXPECT_EQ(refused([](TokenizerData& d) { d.merges.push_back(""); }).code, Code::kCorrupt);
}

TEST(Tokenizer, EveryByteStringComesBack) {
  std::mt19937 random(1);
  const std::string hard[] = {
      std::string("\0a\0", 3), "\xEF\xBF\xBE",   "\xCC\x81", "\xFF\xFE",
      "\xF0\x9F\x98",          "a\xED\xA0\x80z", "\xC0\x80", "\xF4\x90\x80\x80"};
  for (const char* pre : {"gpt-2", "smollm", "llama-bpe", "qwen2", "qwen35", "deepseek-llm",
                          "deepseek-coder", "falcon"}) {
    TokenizerData data = Small();
    data.pre = pre;
    const auto t = Make(data);
    for (const std::string& text : hard) {
      EXPECT_EQ(t->Decode(*t->Encode(text, false)), text) << pre;
    }
    for (int round = 0; round < 500; ++round) {
      std::string text(random() % 200, ' ');
      // Bytes of all kinds, or pieces of UTF-8 cut anywhere.
      const bool any = random() % 2 == 0;
      for (char& c : text)
        c = any ? static_cast<char>(random()) : "aB 1\n\xC3\xA9\xF0\x9F\xA6\x99.'"[random() % 13];
      auto ids = t->Encode(text, random() % 2 == 0);
      ASSERT_TRUE(ids.ok());
      ASSERT_EQ(t->Decode(*ids), text) << pre << ": " << json::Quote(text);
    }
  }
}

TEST(Tokenizer, NoMegabyteMakesItSlow) {
  const size_t n = size_t{1} << 20;
  std::string words, digits_and_space;
  while (words.size() < n) words += "ab" + std::string(words.size() % 7, ' ');
  while (digits_and_space.size() < n) digits_and_space += "1 \t";
  const std::string texts[] = {
      std::string(n, 'a'),
      std::string(n, ' '),
      std::string(n, ' ') + "x",
      std::string(n, '\n'),
      std::string(n, ' ') + "\n x",
      std::string(n, '.'),
      std::string(n, '7'),
      std::string(n, '\xFF'),
      std::string(n, '<'),
      std::string(n, '\''),
      words,
      digits_and_space,
  };
  for (const char* pre : {"gpt-2", "smollm", "llama-bpe", "qwen2", "qwen35", "deepseek-llm",
                          "deepseek-coder", "falcon"}) {
    TokenizerData data = Small();
    data.pre = pre;
    const auto t = Make(data);
    for (const std::string& text : texts) {
      const auto start = std::chrono::steady_clock::now();
      auto ids = t->Encode(text, true);
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
      ASSERT_TRUE(ids.ok()) << pre << " " << ids.error().message;
      ASSERT_EQ(t->Decode(*ids), text);
      // Quadratic work would take many minutes; the bound leaves room for sanitizers on a busy
      // machine.
      EXPECT_LT(took.count(), 60.0) << pre << ": " << text.substr(0, 8);
    }
  }
}

TEST(Utf8Stream, HoldsBackWhatIsNotYetACharacter) {
  const struct {
    std::vector<std::string> pieces;
    std::vector<std::string> texts;  // one per piece, then what Finish gives
  } cases[] = {
      {{"abc"}, {"abc", ""}},
      {{"\xC3", "\xA9"}, {"", "\xC3\xA9", ""}},
      {{"\xF0\x9F", "\xA6", "\x99."}, {"", "", "\xF0\x9F\xA6\x99.", ""}},
      {{"\xF0\x9F\xA6"}, {"", "\xEF\xBF\xBD"}},
      {{"\xF0\x9F", "a"},
       {"",
        "\xEF\xBF\xBD"
        "a",
        ""}},
      {{"\xFF", "\x80"}, {"\xEF\xBF\xBD", "\xEF\xBF\xBD", ""}},
      {{"\xE2\x82", "\xE2\x82\xAC"}, {"", "\xEF\xBF\xBD\xE2\x82\xAC", ""}},
      {{"\xED\xA0"}, {"\xEF\xBF\xBD\xEF\xBF\xBD", ""}},
      {{std::string("\0", 1)}, {std::string("\0", 1), ""}},
  };
  for (const auto& c : cases) {
    Utf8Stream stream;
    std::vector<std::string> got;
    for (const std::string& piece : c.pieces) got.push_back(stream.Push(piece));
    got.push_back(stream.Finish());
    EXPECT_EQ(got, c.texts);
  }
}

TEST(DefaultModel, TokenizesChatMarkersAndText) {
  const char* env = std::getenv("VERBATIM_MODEL");
  const char* home = std::getenv("HOME");
  const std::string path = env != nullptr ? std::string(env)
                                          : std::string(home != nullptr ? home : "") +
                                                "/.cache/verbatim/SmolLM2-135M-Instruct.Q4_1.gguf";
  if (!fs::exists(path)) GTEST_SKIP() << "no model at " << path;
  auto file = GgufFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.error().message;
  auto t = LoadTokenizer(*file);
  ASSERT_TRUE(t.ok()) << t.error().message;
  const Segment segments[] = {
      {"<|im_start|>", true}, {"user\nHello 2024 <|im_end|>", false}, {"<|im_end|>\n", true}};
  auto ids = (*t)->Encode(segments, true);
  ASSERT_TRUE(ids.ok());
  EXPECT_EQ(ids->front(), 1);
  EXPECT_EQ((*ids)[ids->size() - 2], 2);
  EXPECT_EQ(std::count(ids->begin(), ids->end(), 2), 1);
  EXPECT_EQ((*t)->Decode(*ids), "<|im_start|>user\nHello 2024 <|im_end|><|im_end|>\n");
  EXPECT_TRUE((*t)->IsEnd(2));
  EXPECT_EQ((*t)->missing_bytes().size(), 21u);

  std::string text;
  while (text.size() < (size_t{4} << 20)) {
    text += "The quick brown fox jumps over " + std::to_string(text.size()) + " lazy dogs.\n";
  }
  const auto start = std::chrono::steady_clock::now();
  auto many = (*t)->Encode(text, false);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  ASSERT_TRUE(many.ok());
  EXPECT_EQ((*t)->Decode(*many), text);
  std::cout << "plain text: " << static_cast<double>(text.size()) / took.count() / 1e6 << " MB/s\n";
}

}  // namespace
}  // namespace verbatim::engine
