#include "engine/jinja_lexer.h"

#include <algorithm>
#include <cstdint>
#include <iterator>

#include "engine/jinja_text.h"

namespace verbatim::engine::jinja {
namespace {

bool IsNameChar(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         static_cast<uint8_t>(c) >= 0x80;
}
bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsHex(char c) { return IsDigit(c) || ((c | 0x20) >= 'a' && (c | 0x20) <= 'f'); }

// All line ends become \n, and one at the very end goes.
std::string NormalizeNewlines(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      out += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      out += source[i];
    }
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

class Lexer {
 public:
  explicit Lexer(std::string source) : s_(std::move(source)) {}

  std::vector<Token> Run() {
    while (at_ < s_.size()) Data();
    tokens_.push_back({TokenKind::kEnd, "", line_});
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void Error(const std::string& what) const {
    Fail("template, line " + std::to_string(line_) + ": " + what);
  }
  std::string_view Rest() const { return std::string_view(s_).substr(at_); }
  bool Starts(std::string_view text) const { return Rest().starts_with(text); }
  void Advance(size_t n) {
    line_ += static_cast<int>(std::count(s_.begin() + static_cast<ptrdiff_t>(at_),
                                         s_.begin() + static_cast<ptrdiff_t>(at_ + n), '\n'));
    at_ += n;
    if (n > 0) line_starting_ = s_[at_ - 1] == '\n';
  }
  // White space from `i` on, as Python's \s.
  size_t SkipSpace(size_t i) const {
    while (i < s_.size() && IsSpace(CharAt(s_, i))) i += CharLength(s_, i);
    return i;
  }

  void Add(TokenKind kind, std::string text) { tokens_.push_back({kind, std::move(text), line_}); }

  // The text before a tag that begins at `end` with the sign after its opening, if any.
  void AddData(size_t end, char sign, bool is_variable) {
    std::string_view text = std::string_view(s_).substr(at_, end - at_);
    if (sign == '-') {
      text = text.substr(0, Strip(text, Side::kRight, nullptr).second);
    } else if (sign != '+' && !is_variable) {
      const size_t newline = text.rfind('\n');
      const size_t begin = newline == std::string_view::npos ? 0 : newline + 1;
      if ((begin > 0 || line_starting_) &&
          Strip(text.substr(begin), Side::kBoth, nullptr).first == text.size() - begin) {
        text = text.substr(0, begin);
      }
    }
    if (!text.empty()) Add(TokenKind::kData, std::string(text));
    Advance(end - at_);
  }

  // Past the end of a tag: a sign, the closing, and the white space or newline that goes with it.
  // Returns false where the closing is not here.
  bool Close(std::string_view closing, bool trim_newline) {
    size_t i = at_;
    char sign = 0;
    if (i < s_.size() && (s_[i] == '-' || s_[i] == '+')) sign = s_[i++];
    if (sign == '+' && closing == "}}") return false;
    if (!std::string_view(s_).substr(i).starts_with(closing)) return false;
    i += closing.size();
    if (sign == '-') {
      i = SkipSpace(i);
    } else if (sign == 0 && trim_newline && i < s_.size() && s_[i] == '\n') {
      ++i;
    }
    Advance(i - at_);
    return true;
  }

  void Data() {
    size_t tag = at_;
    do {
      tag = s_.find('{', tag);
      if (tag == std::string::npos || tag + 1 >= s_.size()) {
        const size_t end = s_.size();
        Add(TokenKind::kData, s_.substr(at_));
        Advance(end - at_);
        return;
      }
      if (s_[tag + 1] == '{' || s_[tag + 1] == '%' || s_[tag + 1] == '#') break;
      ++tag;
    } while (true);
    const char type = s_[tag + 1];
    const char sign =
        tag + 2 < s_.size() && (s_[tag + 2] == '-' || s_[tag + 2] == '+') ? s_[tag + 2] : 0;
    AddData(tag, sign, type == '{');
    Advance(sign == 0 ? 2 : 3);
    if (type == '#') {
      Comment();
    } else if (type == '%') {
      if (!Raw()) Tag(TokenKind::kBlockBegin, TokenKind::kBlockEnd, "%}");
    } else {
      Tag(TokenKind::kVariableBegin, TokenKind::kVariableEnd, "}}");
    }
  }

  void Comment() {
    const size_t end = s_.find("#}", at_);
    if (end == std::string::npos) Error("a comment is not closed (#})");
    const bool signed_end = end > at_ && (s_[end - 1] == '-' || s_[end - 1] == '+');
    Advance(end - at_ - (signed_end ? 1 : 0));
    Close("#}", true);
  }

  // {% raw %} ... {% endraw %}, whose inside is text.
  bool Raw() {
    const size_t name = SkipSpace(at_);
    if (std::string_view(s_).substr(name, 3) != "raw") return false;
    const size_t after = SkipSpace(name + 3);
    const std::string_view rest = std::string_view(s_).substr(after);
    if (!rest.starts_with("%}") && !rest.starts_with("-%}")) return false;
    Advance(after - at_);
    Close("%}", false);
    for (size_t tag = at_;; ++tag) {
      tag = s_.find("{%", tag);
      if (tag == std::string::npos) Error("{% raw %} without {% endraw %}");
      const char sign =
          tag + 2 < s_.size() && (s_[tag + 2] == '-' || s_[tag + 2] == '+') ? s_[tag + 2] : 0;
      const size_t word = SkipSpace(tag + (sign == 0 ? 2 : 3));
      if (std::string_view(s_).substr(word, 6) != "endraw") continue;
      const size_t close = SkipSpace(word + 6);
      const std::string_view end = std::string_view(s_).substr(close);
      if (!end.starts_with("%}") && !end.starts_with("-%}") && !end.starts_with("+%}")) continue;
      AddData(tag, sign, false);
      Advance(close - at_);
      Close("%}", true);
      return true;
    }
  }

  void Tag(TokenKind begin, TokenKind end, std::string_view closing) {
    Add(begin, "");
    std::string open;  // brackets that wait for their partner
    while (true) {
      Advance(SkipSpace(at_) - at_);
      if (at_ >= s_.size()) Error("a tag is not closed (" + std::string(closing) + ")");
      if (open.empty()) {
        const int line = line_;
        if (Close(closing, closing == "%}")) {
          tokens_.push_back({end, "", line});
          return;
        }
      }
      const char c = s_[at_];
      if (IsDigit(c)) {
        Number();
      } else if (IsNameChar(c)) {
        size_t i = at_;
        while (i < s_.size() && IsNameChar(s_[i])) ++i;
        Add(TokenKind::kName, s_.substr(at_, i - at_));
        Advance(i - at_);
      } else if (c == '\'' || c == '"') {
        String(c);
      } else {
        Operator(open);
      }
    }
  }

  void Operator(std::string& open) {
    static constexpr std::string_view kTwo[] = {"//", "**", "==", "!=", ">=", "<="};
    for (const std::string_view op : kTwo) {
      if (Starts(op)) {
        Add(TokenKind::kOperator, std::string(op));
        Advance(op.size());
        return;
      }
    }
    const char c = s_[at_];
    if (std::string_view("+-*/%~[]()<>=.:|,;{}").find(c) == std::string_view::npos) {
      Error("unexpected character " + std::string(1, c));
    }
    if (c == '(' || c == '[' || c == '{') open += c == '(' ? ')' : c == '[' ? ']' : '}';
    if (c == ')' || c == ']' || c == '}') {
      if (open.empty() || open.back() != c) Error(std::string("unexpected '") + c + "'");
      open.pop_back();
    }
    Add(TokenKind::kOperator, std::string(1, c));
    Advance(1);
  }

  // Digits with single underscores between them.
  size_t Digits(size_t i) const {
    while (i < s_.size() &&
           (IsDigit(s_[i]) || (s_[i] == '_' && i + 1 < s_.size() && IsDigit(s_[i + 1])))) {
      ++i;
    }
    return i;
  }

  void Number() {
    const auto digits = [](std::string text) {
      std::erase(text, '_');
      return text;
    };
    const char second = at_ + 1 < s_.size() ? static_cast<char>(s_[at_ + 1] | 0x20) : '\0';
    if (s_[at_] == '0' && (second == 'x' || second == 'o' || second == 'b')) {
      size_t i = at_ + 2;
      while (i < s_.size() && (IsHex(s_[i]) || s_[i] == '_')) ++i;
      const std::string text = digits(s_.substr(at_ + 2, i - at_ - 2));
      const int base = second == 'x' ? 16 : second == 'o' ? 8 : 2;
      size_t used = 0;
      unsigned long long value = 0;
      if (text.empty() || text.size() > 15) Error("a number is malformed or too large");
      for (const char c : text) {
        const int digit = IsDigit(c) ? c - '0' : (c | 0x20) - 'a' + 10;
        if (digit >= base) Error("a number is malformed");
        value = value * static_cast<unsigned>(base) + static_cast<unsigned>(digit);
        ++used;
      }
      Add(TokenKind::kInteger, std::to_string(value));
      return Advance(i - at_);
    }
    size_t i = Digits(at_);
    bool is_float = false;
    const bool after_dot = at_ > 0 && s_[at_ - 1] == '.';
    if (!after_dot) {
      if (i + 1 < s_.size() && s_[i] == '.' && IsDigit(s_[i + 1])) {
        is_float = true;
        i = Digits(i + 1);
      }
      size_t e = i;
      if (e < s_.size() && (s_[e] | 0x20) == 'e') {
        ++e;
        if (e < s_.size() && (s_[e] == '+' || s_[e] == '-')) ++e;
        if (e < s_.size() && IsDigit(s_[e])) {
          is_float = true;
          i = Digits(e);
        }
      }
    }
    Add(is_float ? TokenKind::kFloat : TokenKind::kInteger, digits(s_.substr(at_, i - at_)));
    Advance(i - at_);
  }

  // Python's escapes in a string literal.
  void String(char quote) {
    std::string out;
    size_t i = at_ + 1;
    const auto hex = [&](size_t count) {
      uint32_t value = 0;
      for (size_t k = 0; k < count; ++k, ++i) {
        if (i >= s_.size() || !IsHex(s_[i])) Error("a \\x or \\u escape is truncated");
        value = value * 16 +
                static_cast<uint32_t>(IsDigit(s_[i]) ? s_[i] - '0' : (s_[i] | 0x20) - 'a' + 10);
      }
      if (value > 0x10FFFF) Error("an escape is beyond U+10FFFF");
      AppendChar(out, value);
    };
    while (true) {
      if (i >= s_.size()) Error("a string is not closed");
      const char c = s_[i++];
      if (c == quote) break;
      if (c != '\\') {
        out += c;
        continue;
      }
      if (i >= s_.size()) Error("a string is not closed");
      const char e = s_[i++];
      switch (e) {
        case '\n':
          break;
        case '\\':
        case '\'':
        case '"':
          out += e;
          break;
        case 'a':
          out += '\a';
          break;
        case 'b':
          out += '\b';
          break;
        case 'f':
          out += '\f';
          break;
        case 'n':
          out += '\n';
          break;
        case 'r':
          out += '\r';
          break;
        case 't':
          out += '\t';
          break;
        case 'v':
          out += '\v';
          break;
        case 'x':
          hex(2);
          break;
        case 'u':
          hex(4);
          break;
        case 'U':
          hex(8);
          break;
        case 'N':
          FailUnsupported("template, line " + std::to_string(line_) +
                          ": \\N{...} in a string is outside the subset");
        default:
          if (e >= '0' && e <= '7') {
            uint32_t value = static_cast<uint32_t>(e - '0');
            for (int k = 0; k < 2 && i < s_.size() && s_[i] >= '0' && s_[i] <= '7'; ++k) {
              value = value * 8 + static_cast<uint32_t>(s_[i++] - '0');
            }
            AppendChar(out, value);
          } else {
            out += '\\';
            out += e;
          }
      }
    }
    Add(TokenKind::kString, std::move(out));
    Advance(i - at_);
  }

  const std::string s_;
  size_t at_ = 0;
  int line_ = 1;
  bool line_starting_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> Tokenize(std::string_view source) {
  return Lexer(NormalizeNewlines(source)).Run();
}

}  // namespace verbatim::engine::jinja
