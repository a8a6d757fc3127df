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
};
using Expression = std::unique_ptr<pcre2_code, Free>;

constexpr uint32_t kMatchLimit = 2'000'000;      // steps of one match
constexpr uint32_t kHeapLimitKib = 64 << 10;     // of one match
constexpr int64_t kTimeLimitMicros = 1'000'000;  // of all matches in one text

// Every quantifier is bounded, so that the time is linear in the text.
constexpr const char* kEmail =
    R"([\p{L}\p{N}._%+\-']{1,64}@(?:[\p{L}\p{N}](?:[\p{L}\p{N}\-]{0,62})\.){1,8}[\p{L}]{2,63})";
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

}  // namespace

struct TextPattern::Impl {
  enum class What { kRegex, kCard, kIban };
  What what = What::kRegex;
  Expression code;  // where kRegex

  static Result<std::shared_ptr<const Impl>> Compile(std::string_view regex);
  std::vector<TextRange> FindRegex(std::string_view text) const;
};

Result<std::shared_ptr<const TextPattern::Impl>> TextPattern::Impl::Compile(
    std::string_view regex) {
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
  return std::shared_ptr<const Impl>(std::move(impl));
}

std::vector<TextRange> TextPattern::Impl::FindRegex(std::string_view text) const {
  const std::unique_ptr<pcre2_match_data, Free> data(pcre2_match_data_create(1, nullptr));
  const std::unique_ptr<pcre2_match_context, Free> context(pcre2_match_context_create(nullptr));
  CHECK(data && context);
  pcre2_set_match_limit(context.get(), kMatchLimit);
  pcre2_set_heap_limit(context.get(), kHeapLimitKib);
  const int64_t until = MonotonicMicros() + kTimeLimitMicros;
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
  if (name == "credit_card" || name == "iban") {
    auto impl = std::make_shared<Impl>();
    impl->what = name == "iban" ? Impl::What::kIban : Impl::What::kCard;
    return TextPattern(std::move(impl));
  }
  const char* regex = nullptr;
  if (name == "email") regex = kEmail;
  if (name == "phone") regex = kPhone;
  if (name == "us_ssn") regex = kSsn;
  CHECK(regex != nullptr);
  return TextPattern(Impl::Compile(regex).value());
}

Result<TextPattern> TextPattern::Regex(const std::string& regex) {
  auto impl = Impl::Compile(regex);
  if (!impl) return impl.error();
  return TextPattern(*std::move(impl));
}

std::vector<TextRange> TextPattern::Find(std::string_view text) const {
  switch (impl_->what) {
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
