#define PCRE2_CODE_UNIT_WIDTH 8
#include "gateway/redaction_patterns.h"

#include <pcre2.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "base/check.h"
#include "base/clock.h"

namespace verbatim::gateway {
namespace {

struct Free {
  void operator()(pcre2_code* p) const { pcre2_code_free(p); }
  void operator()(pcre2_match_data* p) const { pcre2_match_data_free(p); }
  void operator()(pcre2_match_context* p) const { pcre2_match_context_free(p); }
  void operator()(pcre2_jit_stack* p) const { pcre2_jit_stack_free(p); }
};
using Expression = std::unique_ptr<pcre2_code, Free>;

// Of an operator's expression. Steps of one match, and what each byte of the text adds to them.
constexpr size_t kMatchSteps = 5'000'000, kMatchStepsPerByte = 64;
constexpr uint32_t kHeapLimitKib = 64 << 10;     // of one match
constexpr int64_t kTimeLimitMicros = 1'000'000;  // of all matches in one text
constexpr size_t kJitStackBytes = 1 << 20;

// Every quantifier of these is bounded, so that the time is linear in the text, without limits.
constexpr const char* kPhone =
    R"((?<![\d.])(?:)"
    R"((?:\+|00)[1-9]\d{0,2}(?:[ ./\-]?\(?\d{1,5}\)?){2,6})"     // +49 30 1234567
    R"(|\(?[2-9]\d{2}\)?[ .\-]?[2-9]\d{2}[ .\-]\d{4})"           // (212) 555-0123
    R"(|\(?0[1-9]\d{1,4}\)?[ /\-]\d{2,8}(?:[ \-]\d{1,6}){0,4})"  // 030 1234567
    R"()(?!\d))";
constexpr const char* kSsn =
    R"((?<!\d)(?!000|666|9\d\d)\d{3}([ \-])(?!00)\d{2}\1(?!0000)\d{4}(?!\d))";

bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsAlnum(char c) { return IsDigit(c) || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z'); }
bool IsGap(char c) { return c == ' ' || c == '-' || c == '.'; }

// ISO/IEC 7812-1, annex B.
bool HasLuhnDigit(std::string_view digits) {
  int sum = 0;
  bool twice = false;
  for (size_t i = digits.size(); i-- > 0; twice = !twice) {
    const int d = (digits[i] - '0') * (twice ? 2 : 1);
    sum += d > 9 ? d - 9 : d;
  }
  return sum % 10 == 0;
}

// ISO 7064, MOD 97-10, over the account number with its first four characters at the end.
bool HasIbanDigits(std::string_view text) {
  const auto letter = [](char c) { return !IsDigit(c); };
  if (!letter(text[0]) || !letter(text[1]) || letter(text[2]) || letter(text[3])) return false;
  unsigned rest = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[(i + 4) % text.size()];
    if (IsDigit(c)) {
      rest = (rest * 10 + static_cast<unsigned>(c - '0')) % 97;
    } else {
      rest = (rest * 100 + static_cast<unsigned>((c | 0x20) - 'a' + 10)) % 97;
    }
  }
  return rest == 1;
}

// Numbers in groups: from each place where `is_part` characters begin, the longest run of `min` to
// `max` of them, single gaps between them left out, that ends where such characters end and that
// `check` takes.
std::vector<TextRange> FindGrouped(std::string_view text, size_t min, size_t max,
                                   bool (*is_part)(char), bool (*check)(std::string_view)) {
  std::vector<TextRange> found;
  for (size_t begin = 0; begin < text.size();) {
    const bool starts = is_part(text[begin]) && (begin == 0 || !is_part(text[begin - 1]));
    size_t best = 0;
    std::string part;
    for (size_t i = begin; starts && i < text.size() && part.size() < max; ++i) {
      if (is_part(text[i])) {
        part += text[i];
        const bool ends = i + 1 == text.size() || !is_part(text[i + 1]);
        if (ends && part.size() >= min && check(part)) best = i + 1;
      } else if (!IsGap(text[i]) || !is_part(text[i - 1])) {
        break;
      }
    }
    if (best != 0) found.push_back({begin, best});
    begin = best != 0 ? best : begin + 1;
  }
  return found;
}

// Any byte of a character beyond ASCII counts as a letter: names and domains may be of any script.
bool IsLetterOrDigit(char c) { return IsAlnum(c) || static_cast<unsigned char>(c) >= 0x80; }
bool IsInLocalPart(char c) {
  return IsLetterOrDigit(c) || std::string_view("._%+-'").find(c) != std::string_view::npos;
}

// The longest domain at the beginning of `text`: labels between dots, the last of two letters or
// more, or in Punycode. Its length, or 0.
size_t DomainLength(std::string_view text) {
  size_t length = 0, label = 0, labels = 1;
  bool letters = true;
  for (size_t i = 0;; ++i) {
    const char c = i < text.size() ? text[i] : '\0';
    const bool part = IsLetterOrDigit(c) || (c == '-' && i > label);
    const bool ends = !part || c == '-';
    if (ends && labels > 1 && i - label >= 2) {
      if (letters || text.substr(label, i - label).starts_with("xn--")) length = i;
    }
    if (part) {
      letters &= !IsDigit(c) && c != '-';
      continue;
    }
    if (c != '.' || i == label) return length;
    label = i + 1;
    letters = true;
    ++labels;
  }
}

std::vector<TextRange> FindEmails(std::string_view text) {
  std::vector<TextRange> found;
  size_t free = 0;  // what stands before it is taken
  for (size_t at = text.find('@'); at != text.npos; at = text.find('@', at + 1)) {
    size_t begin = at;
    while (begin > free && IsInLocalPart(text[begin - 1])) --begin;
    const size_t length = DomainLength(text.substr(at + 1));
    if (begin == at || length == 0) continue;
    found.push_back({begin, at + 1 + length});
    free = found.back().end;
  }
  return found;
}

}  // namespace

struct TextPattern::Impl {
  enum class What { kRegex, kEmail, kCard, kIban };
  What what = What::kRegex;
  Expression code;       // where kRegex
  bool limited = false;  // an operator's expression

  static Result<std::shared_ptr<Impl>> Compile(std::string_view regex);
  std::vector<TextRange> FindRegex(std::string_view text) const;
};

Result<std::shared_ptr<TextPattern::Impl>> TextPattern::Impl::Compile(std::string_view regex) {
  int error = 0;
  PCRE2_SIZE at = 0;
  auto impl = std::make_shared<Impl>();
  impl->code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(regex.data()), regex.size(),
                                 PCRE2_UTF | PCRE2_MATCH_INVALID_UTF | PCRE2_NEVER_BACKSLASH_C,
                                 &error, &at, nullptr));
  if (!impl->code) {
    unsigned char text[256] = {};
    pcre2_get_error_message(error, text, sizeof(text));
    return Error{Code::kInvalid, "not a regular expression at byte " + std::to_string(at) + ": " +
                                     reinterpret_cast<const char*>(text)};
  }
  // Where the machine allows no JIT, pcre2_match interprets: slower, with the same matches.
  (void)pcre2_jit_compile(impl->code.get(), PCRE2_JIT_COMPLETE);
  return impl;
}

std::vector<TextRange> TextPattern::Impl::FindRegex(std::string_view text) const {
  const std::unique_ptr<pcre2_match_data, Free> data(pcre2_match_data_create(1, nullptr));
  const std::unique_ptr<pcre2_match_context, Free> context(pcre2_match_context_create(nullptr));
  const std::unique_ptr<pcre2_jit_stack, Free> stack(
      pcre2_jit_stack_create(32 << 10, kJitStackBytes, nullptr));
  CHECK(data && context && stack);
  pcre2_jit_stack_assign(context.get(), nullptr, stack.get());
  size_t steps = UINT32_MAX;
  if (limited) steps = std::min(steps, kMatchSteps + kMatchStepsPerByte * text.size());
  pcre2_set_match_limit(context.get(), static_cast<uint32_t>(steps));
  pcre2_set_heap_limit(context.get(), kHeapLimitKib);
  const int64_t until = limited ? MonotonicMicros() + kTimeLimitMicros : INT64_MAX;
  std::vector<TextRange> found;
  for (size_t at = 0; at < text.size();) {
    const int rc = pcre2_match(code.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                               at, PCRE2_NOTEMPTY, data.get(), context.get());
    if (rc == PCRE2_ERROR_NOMATCH) break;
    const PCRE2_SIZE* match = pcre2_get_ovector_pointer(data.get());
    if (rc < 0 || match[0] < at || match[1] <= match[0] || MonotonicMicros() > until) {
      found.push_back({at, text.size()});
      break;
    }
    found.push_back({match[0], match[1]});
    at = match[1];
  }
  return found;
}

TextPattern::TextPattern(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}

TextPattern TextPattern::Named(std::string_view name) {
  using What = Impl::What;
  for (const auto& [given, what] :
       {std::pair("email", What::kEmail), std::pair("credit_card", What::kCard),
        std::pair("iban", What::kIban)}) {
    if (name != given) continue;
    auto impl = std::make_shared<Impl>();
    impl->what = what;
    return TextPattern(std::move(impl));
  }
  const char* regex = nullptr;
  if (name == "phone") regex = kPhone;
  if (name == "us_ssn") regex = kSsn;
  CHECK(regex != nullptr);
  return TextPattern(Impl::Compile(regex).value());
}

Result<TextPattern> TextPattern::Regex(const std::string& regex) {
  auto impl = Impl::Compile(regex);
  if (!impl) return impl.error();
  (*impl)->limited = true;
  return TextPattern(*std::move(impl));
}

std::vector<TextRange> TextPattern::Find(std::string_view text) const {
  switch (impl_->what) {
    case Impl::What::kEmail:
      return FindEmails(text);
    case Impl::What::kCard:
      return FindGrouped(text, 13, 19, IsDigit, HasLuhnDigit);
    case Impl::What::kIban:
      return FindGrouped(text, 15, 34, IsAlnum, HasIbanDigits);
    case Impl::What::kRegex:
      break;
  }
  return impl_->FindRegex(text);
}

}  // namespace verbatim::gateway
