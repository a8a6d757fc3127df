#include "engine/tokenizer.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <unordered_map>
#include <utility>

#include "base/check.h"
#include "engine/bpe.h"
#include "engine/tokenizer_pre.h"

namespace verbatim::engine {
namespace {

constexpr size_t kMaxText = size_t{1} << 30;

// Control tokens that end an answer, by the names that model families give them.
constexpr std::string_view kEndNames[] = {
    "<|im_end|>",
    "<|endoftext|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<|end|>",
    "<|EOT|>",
    "<end_of_turn>",
    "</s>",
    "<|end_of_turn|>",
    "<|return|>",
    "<|call|>",
    "<|end_of_msg|>",
    "<EOT>",
    "<|end▁of▁sentence|>",
    "<｜end▁of▁sentence｜>",
};

// GPT-2's alphabet: printable bytes stand for themselves, the others for U+0100 and up, in order.
struct ByteAlphabet {
  std::array<uint16_t, 256> character;  // byte -> code point
  std::array<int16_t, 512> byte;        // code point -> byte, or -1
  ByteAlphabet() {
    byte.fill(-1);
    uint16_t other = 256;
    for (int b = 0; b < 256; ++b) {
      const bool printable = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
      character[static_cast<size_t>(b)] = printable ? static_cast<uint16_t>(b) : other++;
      byte[character[static_cast<size_t>(b)]] = static_cast<int16_t>(b);
    }
  }
  // The bytes that a token's name stands for; nothing where it leaves the alphabet.
  std::optional<std::string> Decode(std::string_view name) const {
    std::string out;
    for (size_t i = 0; i < name.size();) {
      const auto c = static_cast<uint8_t>(name[i]);
      uint32_t point = c;
      if (c >= 0x80) {
        if (c < 0xC4 - 2 || c > 0xC5 || i + 1 >= name.size()) return std::nullopt;
        point = (c & 0x1Fu) << 6 | (static_cast<uint8_t>(name[i + 1]) & 0x3Fu);
        ++i;
      }
      ++i;
      if (point >= byte.size() || byte[point] < 0) return std::nullopt;
      out += static_cast<char>(byte[point]);
    }
    return out;
  }
};

// Control and user-defined tokens by their text, for finding the longest at a place.
class SpecialTokens {
 public:
  struct Entry {
    std::string_view text;
    int32_t id;
    bool control;
  };
  void Add(Entry entry) {
    if (entry.text.empty()) return;
    by_first_[static_cast<uint8_t>(entry.text[0])].push_back(entry);
  }
  void Finish() {
    for (auto& entries : by_first_) {
      std::stable_sort(entries.begin(), entries.end(),
                       [](const Entry& a, const Entry& b) { return a.text < b.text; });
    }
  }
  // The longest token that the text starts with; control tokens only within the first `trusted`
  // bytes. Entries that share a prefix are neighbours, so each step narrows the range.
  const Entry* Longest(std::string_view text, size_t trusted) const {
    const auto& entries = by_first_[static_cast<uint8_t>(text[0])];
    auto low = entries.begin();
    auto high = entries.end();
    const Entry* best = nullptr;
    for (size_t n = 1; low != high; ++n) {
      for (auto it = low; it != high && it->text.size() == n; ++it) {
        if (!it->control || n <= trusted) best = &*it;
      }
      if (n >= text.size()) break;
      const auto c = static_cast<uint8_t>(text[n]);
      low = std::partition_point(low, high, [&](const Entry& e) {
        return e.text.size() <= n || static_cast<uint8_t>(e.text[n]) < c;
      });
      high = std::partition_point(
          low, high, [&](const Entry& e) { return static_cast<uint8_t>(e.text[n]) == c; });
    }
    return best;
  }
  bool any(char first) const { return !by_first_[static_cast<uint8_t>(first)].empty(); }

 private:
  std::array<std::vector<Entry>, 256> by_first_;
};

Error Corrupt(const std::string& what) {
  return Error{Code::kCorrupt, "the file's tokenizer is damaged: " + what};
}

}  // namespace

struct Tokenizer::State {
  std::unique_ptr<const PreTokenizer> pre;
  std::vector<std::string> bytes;  // by id
  std::vector<TokenType> types;
  std::unordered_map<std::string_view, int32_t> normal;  // by bytes; views into bytes
  SpecialTokens special;
  std::array<int32_t, 256> byte_ids{};  // -1: the vocabulary has none
  MergeTable merges{0};
  std::vector<int32_t> ends;
  std::vector<uint8_t> missing;
  std::optional<int32_t> bos, eos;
  bool add_bos = false;

  Status EncodePlain(std::string_view text, std::vector<int32_t>& ids) const;
};

Tokenizer::Tokenizer(std::unique_ptr<State> state) : state_(std::move(state)) {}
Tokenizer::~Tokenizer() = default;

Result<std::unique_ptr<const Tokenizer>> Tokenizer::Create(TokenizerData data) {
  if (data.model != "gpt2") {
    return Error{Code::kUnsupported, "tokenizer model \"" + data.model +
                                         "\" (tokenizer.ggml.model) is not supported yet; "
                                         "known: gpt2 (byte-level BPE)"};
  }
  auto pre = PreTokenizer::Create(data.pre);
  if (!pre) return pre.error();
  const size_t count = data.tokens.size();
  if (count == 0 || count > (size_t{1} << 24)) return Corrupt("no tokens, or more than 2^24");
  if (!data.types.empty() && data.types.size() != count) {
    return Corrupt("tokenizer.ggml.token_type has another length than tokenizer.ggml.tokens");
  }

  auto state = std::make_unique<State>();
  state->pre = std::move(pre).value();
  state->types.resize(count, TokenType::kNormal);
  state->bytes.resize(count);
  const ByteAlphabet alphabet;
  std::unordered_map<std::string_view, int32_t> by_name;  // views into data.tokens
  by_name.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    const auto id = static_cast<int32_t>(i);
    const std::string& name = data.tokens[i];
    if (!by_name.emplace(name, id).second) return Corrupt("token \"" + name + "\" appears twice");
    const int32_t type = data.types.empty() ? 1 : data.types[i];
    if (type < 1 || type > 6) return Corrupt("token type " + std::to_string(type));
    state->types[i] = static_cast<TokenType>(type);
    // A normal token outside the byte alphabet cannot come from text; it keeps its name.
    auto decoded = state->types[i] == TokenType::kNormal ? alphabet.Decode(name) : std::nullopt;
    const bool reachable = decoded.has_value();
    state->bytes[i] = reachable ? std::move(*decoded) : name;
    if (reachable) state->normal.emplace(state->bytes[i], id);
    const bool control =
        state->types[i] == TokenType::kControl || state->types[i] == TokenType::kUnknown;
    if (control || state->types[i] == TokenType::kUserDefined) {
      state->special.Add({state->bytes[i], id, control});
    }
    if (state->types[i] == TokenType::kControl &&
        std::find(std::begin(kEndNames), std::end(kEndNames), name) != std::end(kEndNames)) {
      state->ends.push_back(id);
    }
  }
  state->special.Finish();

  for (size_t b = 0; b < 256; ++b) {
    const char c = static_cast<char>(b);
    const auto it = state->normal.find(std::string_view(&c, 1));
    state->byte_ids[b] = it == state->normal.end() ? -1 : it->second;
    if (it == state->normal.end()) state->missing.push_back(static_cast<uint8_t>(b));
  }

  if (data.merges.size() > (size_t{1} << 24)) return Corrupt("more than 2^24 merges");
  state->merges = MergeTable(data.merges.size());
  std::string joined;
  for (size_t rank = 0; rank < data.merges.size(); ++rank) {
    const std::string_view line = data.merges[rank];
    // The first character may be the separator's own kind in no byte alphabet; search from 1.
    const size_t space = line.find(' ', 1);
    if (space == std::string_view::npos) return Corrupt("merge \"" + data.merges[rank] + "\"");
    joined.assign(line.substr(0, space)).append(line.substr(space + 1));
    const auto left = by_name.find(line.substr(0, space));
    const auto right = by_name.find(line.substr(space + 1));
    const auto result = by_name.find(joined);
    if (left == by_name.end() || right == by_name.end() || result == by_name.end()) {
      return Corrupt("merge \"" + data.merges[rank] + "\" names a token that is not there");
    }
    state->merges.Insert(left->second, right->second,
                         {static_cast<uint32_t>(rank), result->second});
  }

  for (const auto& [id, key] : {std::pair{data.bos, "bos"}, std::pair{data.eos, "eos"},
                                std::pair{data.eot, "eot"}, std::pair{data.eom, "eom"}}) {
    if (!id) continue;
    if (*id >= count) return Corrupt(std::string(key) + " token id is out of range");
    if (key != std::string_view("bos")) state->ends.push_back(static_cast<int32_t>(*id));
  }
  std::sort(state->ends.begin(), state->ends.end());
  state->ends.erase(std::unique(state->ends.begin(), state->ends.end()), state->ends.end());
  if (data.bos) state->bos = static_cast<int32_t>(*data.bos);
  if (data.eos) state->eos = static_cast<int32_t>(*data.eos);
  // Files of the Llama 3 family leave the key out and mean true (llama.cpp takes it so).
  state->add_bos = state->bos && data.add_bos.value_or(state->pre->whole_words_first());
  return std::unique_ptr<const Tokenizer>(new Tokenizer(std::move(state)));
}

Status Tokenizer::State::EncodePlain(std::string_view text, std::vector<int32_t>& ids) const {
  std::vector<std::string_view> words;
  if (Status status = pre->Split(text, words); !status) return status;
  std::vector<int32_t> symbols;
  for (const std::string_view word : words) {
    if (pre->whole_words_first()) {
      if (const auto it = normal.find(word); it != normal.end()) {
        ids.push_back(it->second);
        continue;
      }
    }
    symbols.resize(word.size());
    for (size_t i = 0; i < word.size(); ++i) {
      symbols[i] = byte_ids[static_cast<uint8_t>(word[i])];
    }
    MergeWord(merges, symbols, ids);
  }
  return {};
}

Result<std::vector<int32_t>> Tokenizer::Encode(std::span<const Segment> segments,
                                               bool add_bos) const {
  size_t total = 0;
  for (const Segment& s : segments) total += s.text.size();
  if (total > kMaxText) {
    return Error{Code::kInvalid, "the text is longer than 2^30 bytes; send less"};
  }
  // The text as a whole, and where runs of trusted text end.
  std::string text;
  text.reserve(total);
  std::vector<std::pair<size_t, bool>> runs;  // end, trusted
  for (const Segment& s : segments) {
    if (s.text.empty()) continue;
    text += s.text;
    if (!runs.empty() && runs.back().second == s.trusted) {
      runs.back().first = text.size();
    } else {
      runs.emplace_back(text.size(), s.trusted);
    }
  }

  std::vector<int32_t> ids;
  size_t plain = 0;  // where the plain text begins that is not yet encoded
  size_t run = 0;
  for (size_t i = 0; i < text.size();) {
    while (runs[run].first <= i) ++run;
    const SpecialTokens::Entry* found = nullptr;
    if (state_->special.any(text[i])) {
      const size_t trusted = runs[run].second ? runs[run].first - i : 0;
      found = state_->special.Longest(std::string_view(text).substr(i), trusted);
    }
    if (found == nullptr) {
      ++i;
      continue;
    }
    const auto before = std::string_view(text).substr(plain, i - plain);
    if (Status status = state_->EncodePlain(before, ids); !status) return status.error();
    ids.push_back(found->id);
    i += found->text.size();
    plain = i;
  }
  if (Status status = state_->EncodePlain(std::string_view(text).substr(plain), ids); !status) {
    return status.error();
  }
  if (add_bos && state_->add_bos && (ids.empty() || ids.front() != *state_->bos)) {
    ids.insert(ids.begin(), *state_->bos);
  }
  return ids;
}

Result<std::vector<int32_t>> Tokenizer::Encode(std::string_view text, bool trusted) const {
  const Segment segment{std::string(text), trusted};
  return Encode(std::span<const Segment>(&segment, 1), false);
}

std::string_view Tokenizer::Bytes(int32_t id) const {
  CHECK(id >= 0 && static_cast<size_t>(id) < state_->bytes.size());
  return state_->bytes[static_cast<size_t>(id)];
}

std::string Tokenizer::Decode(std::span<const int32_t> ids) const {
  std::string out;
  for (const int32_t id : ids) out += Bytes(id);
  return out;
}

uint32_t Tokenizer::vocab_size() const { return static_cast<uint32_t>(state_->bytes.size()); }

TokenType Tokenizer::type(int32_t id) const {
  CHECK(id >= 0 && static_cast<size_t>(id) < state_->types.size());
  return state_->types[static_cast<size_t>(id)];
}

const std::vector<int32_t>& Tokenizer::end_tokens() const { return state_->ends; }
bool Tokenizer::IsEnd(int32_t id) const {
  return std::binary_search(state_->ends.begin(), state_->ends.end(), id);
}
std::optional<int32_t> Tokenizer::bos() const { return state_->bos; }
std::optional<int32_t> Tokenizer::eos() const { return state_->eos; }
const std::vector<uint8_t>& Tokenizer::missing_bytes() const { return state_->missing; }

std::string Tokenizer::bos_text() const {
  return state_->bos ? std::string(Bytes(*state_->bos)) : std::string();
}
std::string Tokenizer::eos_text() const {
  return state_->eos ? std::string(Bytes(*state_->eos)) : std::string();
}

std::optional<int32_t> Tokenizer::Find(std::string_view bytes) const {
  if (bytes.empty()) return std::nullopt;
  if (const auto* special = state_->special.Longest(bytes, bytes.size());
      special != nullptr && special->text.size() == bytes.size()) {
    return special->id;
  }
  const auto it = state_->normal.find(bytes);
  return it == state_->normal.end() ? std::nullopt : std::optional<int32_t>(it->second);
}

}  // namespace verbatim::engine
