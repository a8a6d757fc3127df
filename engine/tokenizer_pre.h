// Pre-tokenizers: cutting text into the words that byte-level BPE works on. One list of regular
// expressions per name of tokenizer.ggml.pre; each expression cuts the pieces that the one before
// left, into its matches and what lies between them.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace verbatim::engine {

class PreTokenizer {
 public:
  // kUnsupported where the name is not known: its words would be guessed.
  static Result<std::unique_ptr<const PreTokenizer>> Create(std::string_view name);
  ~PreTokenizer();

  // Whether a word that is a token as a whole is taken as that token, whatever the merges say.
  bool whole_words_first() const;

  // Appends the words of the text, in order and without gaps. Bytes that are no UTF-8 count as
  // U+FFFD, one each. kUnsupported where the matcher's limits were reached.
  Status Split(std::string_view text, std::vector<std::string_view>& words) const;

 private:
  struct State;
  explicit PreTokenizer(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// Of the PCRE2 that runs: "10.42".
std::string PcreVersion();

}  // namespace verbatim::engine
