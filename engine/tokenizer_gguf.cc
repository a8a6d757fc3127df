#include "engine/tokenizer_gguf.h"

#include <optional>
#include <string>
#include <utility>

namespace verbatim::engine {
namespace {

// Reads an optional key into `out`, or leaves it empty.
Status ReadId(const GgufFile& file, const char* key, std::optional<uint32_t>& out) {
  if (!file.Has(key)) return {};
  Result<uint64_t> v = file.Uint(key);
  if (!v) return v.error();
  if (*v > INT32_MAX) return Error{Code::kCorrupt, std::string(key) + " is no token id"};
  out = static_cast<uint32_t>(*v);
  return {};
}

Status ReadStrings(const GgufFile& file, const char* key, std::vector<std::string>& out) {
  Result<std::span<const std::string_view>> v = file.Strings(key);
  if (!v) return Error{Code::kCorrupt, v.error().message};
  out.assign(v->begin(), v->end());
  return {};
}

}  // namespace

Result<std::unique_ptr<const Tokenizer>> LoadTokenizer(const GgufFile& file) {
  TokenizerData data;
  Result<std::string_view> model = file.String("tokenizer.ggml.model");
  if (!model) return Error{Code::kCorrupt, model.error().message};
  data.model = *model;
  if (file.Has("tokenizer.ggml.pre")) {
    Result<std::string_view> pre = file.String("tokenizer.ggml.pre");
    if (!pre) return pre.error();
    data.pre = *pre;
  }
  if (Status s = ReadStrings(file, "tokenizer.ggml.tokens", data.tokens); !s.ok()) return s.error();
  if (file.Has("tokenizer.ggml.merges")) {
    if (Status s = ReadStrings(file, "tokenizer.ggml.merges", data.merges); !s.ok()) {
      return s.error();
    }
  }
  if (file.Has("tokenizer.ggml.token_type")) {
    Result<std::vector<int64_t>> types = file.Ints("tokenizer.ggml.token_type");
    if (!types) return types.error();
    for (const int64_t t : *types) {
      data.types.push_back(t >= 0 && t <= INT32_MAX ? static_cast<int32_t>(t) : -1);
    }
  }
  for (const auto& [key, out] : {std::pair("tokenizer.ggml.bos_token_id", &data.bos),
                                 {"tokenizer.ggml.eos_token_id", &data.eos},
                                 {"tokenizer.ggml.eot_token_id", &data.eot},
                                 {"tokenizer.ggml.eom_token_id", &data.eom}}) {
    if (Status s = ReadId(file, key, *out); !s.ok()) return s.error();
  }
  if (file.Has("tokenizer.ggml.add_bos_token")) {
    Result<bool> add_bos = file.Bool("tokenizer.ggml.add_bos_token");
    if (!add_bos) return add_bos.error();
    data.add_bos = *add_bos;
  }
  return Tokenizer::Create(std::move(data));
}

}  // namespace verbatim::engine
