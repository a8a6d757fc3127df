// Tokens of a template, with white space around tags already settled as Hugging Face sets Jinja up:
// trim_blocks, lstrip_blocks, no trailing newline kept. Internal to the chat template.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace verbatim::engine::jinja {

enum class TokenKind {
  kData,        // text outside tags
  kBlockBegin,  // {%
  kBlockEnd,
  kVariableBegin,  // {{
  kVariableEnd,
  kName,
  kString,  // unescaped
  kInteger,
  kFloat,
  kOperator,
  kEnd,
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  std::string text;
  int line = 0;
};

// Throws Failure (kInvalid) with the line.
std::vector<Token> Tokenize(std::string_view source);

}  // namespace verbatim::engine::jinja
