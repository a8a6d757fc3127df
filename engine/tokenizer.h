// Byte-level BPE, as GGUF files carry it (tokenizer.ggml.model "gpt2"): text is cut into words by
// the file's pre-tokenizer (a regular expression per name, see tokenizer_pre.cc), each word's bytes
// are merged by rank, and every byte string has ids that give it back.
//
// Immutable after Create; any thread may call it. Time is linear in the text but for a factor
// log(longest word); no text can make it hang.
//
// Bytes that are not UTF-8 are kept. For cutting, each byte that belongs to no well-formed
// character counts as one character that is neither letter, digit, mark nor space (U+FFFD); its
// tokens are those of the byte itself. NUL and noncharacters are ordinary characters.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "engine/segment.h"

namespace verbatim::engine {

// What a file says about its tokenizer; the names are those of the GGUF keys. Hostile until Create
// has checked it.
struct TokenizerData {
  std::string model;                // tokenizer.ggml.model: "gpt2"
  std::string pre;                  // tokenizer.ggml.pre: "smollm", "llama-bpe", ...
  std::vector<std::string> tokens;  // tokenizer.ggml.tokens: in the GPT-2 byte alphabet
  std::vector<int32_t> types;       // tokenizer.ggml.token_type (empty: all normal), as TokenType
  std::vector<std::string> merges;  // tokenizer.ggml.merges: "left right", best first
  std::optional<uint32_t> bos, eos, eot, eom;  // tokenizer.ggml.{bos,eos,eot,eom}_token_id
  std::optional<bool> add_bos;                 // tokenizer.ggml.add_bos_token
};

// tokenizer.ggml.token_type (llama.cpp's enum).
enum class TokenType : uint8_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,      // <|im_end|>: has no text of its own
  kUserDefined = 4,  // text that is always one token, wherever it comes from
  kUnused = 5,
  kByte = 6,
};

class Tokenizer {
 public:
  // Errors: kUnsupported, by name (tokenizer model, pre-tokenizer); kCorrupt (no tokens, ids out of
  // range, a token that appears twice, an unknown type, a merge of tokens that are not there).
  static Result<std::unique_ptr<const Tokenizer>> Create(TokenizerData data);
  ~Tokenizer();
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // The ids of the segments' texts, joined: plain text on both sides of a border is one text.
  // Control tokens are recognised in trusted segments only, and only where they stand whole in
  // one run of trusted text. With add_bos, the file's add_bos_token is honoured, unless the
  // first id is the beginning-of-text token already (chat templates often write it).
  // Errors: kInvalid (more than 2^30 bytes), kUnsupported (the regular expression gave up).
  Result<std::vector<int32_t>> Encode(std::span<const Segment> segments, bool add_bos) const;
  // One text, trusted or not, without the beginning-of-text token.
  Result<std::vector<int32_t>> Encode(std::string_view text, bool trusted) const;

  // The bytes that a token stands for, which may be part of a character. A control token's are its
  // name ("<|im_end|>"), and so are those of an unused or unknown one. CHECKs the id; valid as long
  // as the tokenizer.
  std::string_view Bytes(int32_t id) const;
  std::string Decode(std::span<const int32_t> ids) const;

  uint32_t vocab_size() const;
  TokenType type(int32_t id) const;
  // Tokens that end an answer: eos, eot and eom of the file, and the control tokens of a known
  // name (<|im_end|>, <|endoftext|>, <|eot_id|>, <|end_of_text|>, ...). Ascending.
  const std::vector<int32_t>& end_tokens() const;
  bool IsEnd(int32_t id) const;
  std::optional<int32_t> bos() const;
  std::optional<int32_t> eos() const;
  // The bytes without a token of their own, ascending.
  const std::vector<uint8_t>& missing_bytes() const;
  // The texts of bos and eos, for chat templates; empty where the file has none.
  std::string bos_text() const;
  std::string eos_text() const;
  // The id of a token by the bytes it stands for, control tokens by name.
  std::optional<int32_t> Find(std::string_view bytes) const;

 private:
  struct State;
  explicit Tokenizer(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// Bytes as they come, to text as it may leave: holds back the start of a character until the rest
// is there. Bytes that can no longer become UTF-8 turn into U+FFFD (one per maximal part, as in the
// Unicode standard, 3.9). Not thread-safe.
class Utf8Stream {
 public:
  std::string Push(std::string_view bytes);
  std::string Finish();  // what was held back, as U+FFFD; empty where nothing was

 private:
  std::string held_;  // at most three bytes
};

}  // namespace verbatim::engine
