#include "engine/tokenizer_pre.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>
#include <cstdint>
#include <iterator>
#include <span>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"

namespace verbatim::engine {
namespace {

// White_Space of Unicode, as the regular expressions of Hugging Face's tokenizers and llama.cpp
// take \s; PCRE2's own \s differs (U+180E). Written as ~s below.
constexpr std::string_view kSpace =
    "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}"
    "\\x{205f}\\x{3000}";

// The published expressions. Inside brackets ~s stands for the characters of white space; outside
// them write [~s].
constexpr const char* kGpt2 =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^~s\\p{L}\\p{N}]+|[~s]+(?![^~s])|[~s]+";
constexpr const char* kLlama3 =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}|"
    " ?[^~s\\p{L}\\p{N}]+[\\r\\n]*|[~s]*[\\r\\n]+|[~s]+(?![^~s])|[~s]+";
constexpr const char* kQwen2 =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}|"
    " ?[^~s\\p{L}\\p{N}]+[\\r\\n]*|[~s]*[\\r\\n]+|[~s]+(?![^~s])|[~s]+";
constexpr const char* kQwen35 =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}|"
    " ?[^~s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|[~s]*[\\r\\n]+|[~s]+(?![^~s])|[~s]+";
constexpr const char* kNewline = "[\\r\\n]";
constexpr const char* kDigit = "\\p{N}";
constexpr const char* kCjk = "[\\x{4e00}-\\x{9fa5}\\x{800}-\\x{4e00}\\x{ac00}-\\x{d7ff}]+";
// Cased letters as DeepSeek lists them.
constexpr const char* kDeepSeekLetters =
    "[~s]?["
    "\\x{41}-\\x{5a}\\x{61}-\\x{7a}\\x{b5}\\x{c0}-\\x{d6}\\x{d8}-\\x{f6}\\x{f8}-\\x{1ba}"
    "\\x{1bc}-\\x{1bf}\\x{1c4}-\\x{293}\\x{295}-\\x{2af}\\x{370}-\\x{373}\\x{376}\\x{377}"
    "\\x{37b}-\\x{37d}\\x{37f}\\x{386}\\x{388}-\\x{38a}\\x{38c}\\x{38e}-\\x{3a1}"
    "\\x{3a3}-\\x{3f5}\\x{3f7}-\\x{481}\\x{48a}-\\x{52f}\\x{531}-\\x{556}\\x{10a0}-\\x{10c5}"
    "\\x{13a0}-\\x{13f5}\\x{13f8}-\\x{13fd}\\x{1c90}-\\x{1cba}\\x{1cbd}-\\x{1cbf}"
    "\\x{1d00}-\\x{1d2b}\\x{1d6b}-\\x{1d77}\\x{1d79}-\\x{1d9a}\\x{1e00}-\\x{1f15}"
    "\\x{1f18}-\\x{1f1d}\\x{1f20}-\\x{1f45}\\x{1f48}-\\x{1f4d}\\x{1f50}-\\x{1f57}\\x{1f59}"
    "\\x{1f5b}\\x{1f5d}\\x{1f5f}-\\x{1f7d}\\x{1f80}-\\x{1fb4}\\x{1fb6}-\\x{1fbc}\\x{1fbe}"
    "\\x{1fc2}-\\x{1fc4}\\x{1fc6}-\\x{1fcc}\\x{1fd0}-\\x{1fd3}\\x{1fd6}-\\x{1fdb}"
    "\\x{1fe0}-\\x{1fec}\\x{1ff2}-\\x{1ff4}\\x{1ff6}-\\x{1ffc}\\x{2102}\\x{2107}"
    "\\x{210a}-\\x{2113}\\x{2115}\\x{2119}-\\x{211d}\\x{2124}\\x{2126}\\x{2128}"
    "\\x{212a}-\\x{212d}\\x{212f}-\\x{2134}\\x{2139}\\x{213c}-\\x{213f}\\x{2145}-\\x{2149}"
    "\\x{214e}\\x{2183}\\x{2184}\\x{2c00}-\\x{2c7b}\\x{2c7e}-\\x{2ce4}\\x{2ceb}-\\x{2cee}"
    "\\x{2cf2}\\x{2cf3}\\x{a640}-\\x{a66d}\\x{a680}-\\x{a69b}\\x{a722}-\\x{a76f}"
    "\\x{a771}-\\x{a787}\\x{a78b}-\\x{a78e}\\x{ab70}-\\x{abbf}\\x{fb00}-\\x{fb06}"
    "\\x{fb13}-\\x{fb17}\\x{ff21}-\\x{ff3a}\\x{ff41}-\\x{ff5a}\\x{10400}-\\x{1044f}"
    "\\x{104b0}-\\x{104d3}\\x{104d8}-\\x{104fb}\\x{10c80}-\\x{10cb2}\\x{10cc0}-\\x{10cf2}"
    "\\x{118a0}-\\x{118df}\\x{1e900}-\\x{1e943}"
    "]+";
constexpr const char* kDeepSeekPunctuation =
    "[~s]?[!-/:-~\\x{ff01}-\\x{ff0f}\\x{ff1a}-\\x{ff5e}\\x{2018}-\\x{201f}\\x{3000}-\\x{3002}]+";
// "\s+$", written so that it is linear: the look-behind lets only the start of a run try.
constexpr const char* kTrailingSpace = "(?<![~s])[~s]++\\z";

struct Named {
  std::string_view name;
  bool whole_words_first;
  std::array<const char*, 6> expressions;
};

constexpr Named kNamed[] = {
    {"gpt-2", false, {kGpt2}},
    {"smollm", false, {kDigit, kGpt2}},
    {"starcoder", false, {kDigit, kGpt2}},
    {"refact", false, {kDigit, kGpt2}},
    {"falcon", false, {"[\\p{P}$+<=>\\^\\~|`]+", kGpt2, "[0-9][0-9][0-9]"}},
    {"llama-bpe", true, {kLlama3}},
    {"llama3", true, {kLlama3}},
    {"llama-v3", true, {kLlama3}},
    {"qwen2", false, {kQwen2}},
    {"deepseek-r1-qwen", false, {kQwen2}},
    {"qwen35", false, {kQwen35}},
    {"deepseek-llm",
     false,
     {kNewline, kDeepSeekLetters, kDeepSeekPunctuation, kTrailingSpace, kCjk, "\\p{N}+"}},
    {"deepseek-coder", false, {kNewline, "[~s]?\\p{L}+", "[~s]?\\p{P}+", kCjk, kDigit}},
};

// ~s becomes the characters of white space.
std::string Expand(std::string_view expression) {
  std::string out;
  for (size_t i = 0; i < expression.size(); ++i) {
    if (expression.substr(i, 2) == "~s") {
      out += kSpace;
      ++i;
    } else {
      out += expression[i];
    }
  }
  return out;
}

struct CodeFree {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
};
struct MatchFree {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};
using Pattern = std::unique_ptr<pcre2_code, CodeFree>;
using MatchData = std::unique_ptr<pcre2_match_data, MatchFree>;

// The length of the well-formed character at the start of the bytes (RFC 3629), or 0.
size_t CharacterLength(std::string_view s) {
  const auto at = [&](size_t i) { return static_cast<uint8_t>(s[i]); };
  const uint8_t c = at(0);
  const size_t n = c < 0x80 ? 1 : c < 0xC2 ? 0 : c < 0xE0 ? 2 : c < 0xF0 ? 3 : c < 0xF5 ? 4 : 0;
  if (n > s.size()) return 0;
  for (size_t i = 1; i < n; ++i) {
    if ((at(i) & 0xC0) != 0x80) return 0;
  }
  if (c == 0xE0 && at(1) < 0xA0) return 0;
  if (c == 0xED && at(1) > 0x9F) return 0;
  if (c == 0xF0 && at(1) < 0x90) return 0;
  if (c == 0xF4 && at(1) > 0x8F) return 0;
  return n;
}

using Range = std::pair<size_t, size_t>;  // begin, end

// Cuts one range of the text by one expression: matches and gaps, appended in order.
bool Cut(const pcre2_code* code, pcre2_match_data* data, std::string_view text, Range range,
         std::vector<Range>& out) {
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data() + range.first);
  const size_t length = range.second - range.first;
  const PCRE2_SIZE* match = pcre2_get_ovector_pointer(data);
  size_t done = 0;
  while (done < length) {
    const int rc = pcre2_match(code, subject, length, done, PCRE2_NO_UTF_CHECK, data, nullptr);
    if (rc == PCRE2_ERROR_NOMATCH) break;
    if (rc < 0 || match[1] <= match[0]) return false;
    if (match[0] > done) out.emplace_back(range.first + done, range.first + match[0]);
    out.emplace_back(range.first + match[0], range.first + match[1]);
    done = match[1];
  }
  if (done < length) out.emplace_back(range.first + done, range.second);
  return true;
}

}  // namespace

struct PreTokenizer::State {
  bool whole_words_first = false;
  std::vector<Pattern> codes;
};

PreTokenizer::PreTokenizer(std::unique_ptr<State> state) : state_(std::move(state)) {}
PreTokenizer::~PreTokenizer() = default;
bool PreTokenizer::whole_words_first() const { return state_->whole_words_first; }

Result<std::unique_ptr<const PreTokenizer>> PreTokenizer::Create(std::string_view name) {
  for (const Named& named : kNamed) {
    if (named.name != name) continue;
    auto state = std::make_unique<State>();
    state->whole_words_first = named.whole_words_first;
    for (const char* expression : named.expressions) {
      if (expression == nullptr) break;
      const std::string pattern = Expand(expression);
      int error = 0;
      PCRE2_SIZE offset = 0;
      Pattern code(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                                 PCRE2_UTF, &error, &offset, nullptr));
      CHECK(code != nullptr);
      // Where the machine allows no JIT, pcre2_match interprets: slower, with the same matches.
      (void)pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE);
      state->codes.push_back(std::move(code));
    }
    return std::unique_ptr<const PreTokenizer>(new PreTokenizer(std::move(state)));
  }
  std::string known;
  for (const Named& named : kNamed) known += (known.empty() ? "" : ", ") + std::string(named.name);
  return Error{Code::kUnsupported, "pre-tokenizer \"" + std::string(name) +
                                       "\" (tokenizer.ggml.pre) is not supported; known: " + known};
}

Status PreTokenizer::Split(std::string_view text, std::vector<std::string_view>& words) const {
  // The matcher sees valid UTF-8: each stray byte becomes U+FFFD, and origin leads back.
  std::string repaired;
  std::vector<size_t> origin;
  std::string_view subject = text;
  if (!IsUtf8(text)) {
    for (size_t i = 0; i < text.size();) {
      const size_t n = CharacterLength(text.substr(i));
      repaired += n == 0 ? std::string_view("\xEF\xBF\xBD") : text.substr(i, n);
      while (origin.size() < repaired.size()) origin.push_back(i);
      i += n == 0 ? 1 : n;
    }
    origin.push_back(text.size());
    subject = repaired;
  }
  if (subject.empty()) return {};

  const MatchData data(pcre2_match_data_create(1, nullptr));
  CHECK(data != nullptr);
  std::vector<Range> ranges{{0, subject.size()}}, next;
  for (const Pattern& code : state_->codes) {
    next.clear();
    for (const Range& range : ranges) {
      if (!Cut(code.get(), data.get(), subject, range, next)) {
        return Error{Code::kUnsupported,
                     "the pre-tokenizer's regular expression reached its limits on this text"};
      }
    }
    ranges.swap(next);
  }
  words.reserve(words.size() + ranges.size());
  for (const auto& [begin, end] : ranges) {
    const size_t from = origin.empty() ? begin : origin[begin];
    const size_t to = origin.empty() ? end : origin[end];
    words.push_back(text.substr(from, to - from));
  }
  return {};
}

std::string PcreVersion() {
  char text[64];  // "10.42 2022-12-11"; pcre2api(3) says that 24 code units are enough
  if (pcre2_config(PCRE2_CONFIG_VERSION, text) < 0) return "";
  const std::string version = text;
  return version.substr(0, version.find(' '));
}

}  // namespace verbatim::engine
