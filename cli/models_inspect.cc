#include "cli/models_inspect.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/crypto.h"
#include "base/json.h"
#include "engine/chat_template.h"
#include "engine/gguf.h"
#include "engine/model.h"
#include "engine/tokenizer.h"
#include "engine/tokenizer_gguf.h"

namespace verbatim::cli {
namespace {

constexpr int kUsage = 2;

using engine::GgufFile;
using engine::GgufTensor;

Digest DigestOf(const GgufFile& file, std::string_view architecture) {
  std::vector<Digest> digests;
  for (const GgufTensor& tensor : file.tensors()) digests.push_back(Sha256(tensor.bytes));
  return engine::ModelDigest(file, architecture, digests);
}

// The string of a key where it is there and is UTF-8, else null.
json::Value Text(const GgufFile& file, std::string_view key) {
  Result<std::string_view> v = file.String(key);
  if (!v || !IsUtf8(*v)) return {};
  return *v;
}

json::Value ConfigOf(const engine::ModelConfig& c) {
  json::Value out = json::Value::MakeObject();
  const std::pair<const char*, uint64_t> numbers[] = {
      {"layers", c.layers},           {"dimension", c.dim},
      {"feed_forward", c.ffn_dim},    {"heads", c.heads},
      {"kv_heads", c.kv_heads},       {"head_dimension", c.head_dim},
      {"rope_dimension", c.rope_dim}, {"vocabulary", c.vocab},
      {"context", c.context_length}};
  for (const auto& [name, value] : numbers) out.Set(name, value);
  return out;
}

json::Value TensorsOf(const GgufFile& file) {
  json::Value out = json::Value::MakeArray();
  for (const GgufTensor& tensor : file.tensors()) {
    json::Value dims = json::Value::MakeArray();
    for (const uint64_t d : tensor.dims) dims.Append(d);
    json::Value entry = json::Value::MakeObject();
    entry.Set("name", tensor.name);
    entry.Set("type", engine::TensorTypeName(tensor.type));
    entry.Set("dimensions", std::move(dims));
    entry.Set("bytes", uint64_t{tensor.bytes.size()});
    out.Append(std::move(entry));
  }
  return out;
}

json::Value Describe(const std::string& path, const GgufFile& file) {
  json::Value out = json::Value::MakeObject();
  out.Set("file", path);
  out.Set("bytes", file.file_size());
  out.Set("name", Text(file, "general.name"));
  out.Set("architecture", Text(file, "general.architecture"));
  const Result<engine::ModelConfig> config = engine::ReadConfig(file);
  out.Set("supported", config.ok());
  if (config) {
    out.Set("model_digest", HexEncode(DigestOf(file, config->architecture)));
    out.Set("fidelity", engine::FidelityName(engine::DefaultFidelity(file)));
    out.Set("config", ConfigOf(*config));
  } else {
    out.Set("reason", config.error().message);
  }
  out.Set("tokenizer", Text(file, "tokenizer.ggml.model"));
  out.Set("pre_tokenizer", Text(file, "tokenizer.ggml.pre"));
  const auto tokenizer = engine::LoadTokenizer(file);
  if (tokenizer) {
    json::Value ends = json::Value::MakeArray(), missing = json::Value::MakeArray();
    for (const int32_t id : (*tokenizer)->end_tokens()) ends.Append(int64_t{id});
    for (const uint8_t byte : (*tokenizer)->missing_bytes()) missing.Append(int64_t{byte});
    out.Set("end_tokens", std::move(ends));
    out.Set("bytes_without_token", std::move(missing));
  } else {
    out.Set("tokenizer_refused", tokenizer.error().message);
  }
  const auto source = file.String("tokenizer.chat_template");
  out.Set("chat_template", source.ok());
  if (source) {
    const auto parsed = engine::ChatTemplate::Parse(*source);
    if (!parsed) out.Set("chat_template_refused", parsed.error().message);
  }
  out.Set("tensors", TensorsOf(file));
  return out;
}

// One line per member; tensors counted by type.
void PrintText(const json::Value& description) {
  for (const auto& [name, value] : description.members()) {
    if (name == "tensors") continue;
    std::string text = json::Serialize(value);  // strings: without quotes, control bytes escaped
    if (value.is_string()) text = text.substr(1, text.size() - 2);
    std::printf("%-14s %s\n", name.c_str(), text.c_str());
  }
  std::map<std::string, std::pair<size_t, uint64_t>> types;
  for (const json::Value& tensor : description.Find("tensors")->items()) {
    auto& [count, bytes] = types[tensor.Find("type")->as_string()];
    ++count;
    bytes += *tensor.Find("bytes")->AsUint64();
  }
  for (const auto& [type, sum] : types) {
    std::printf("%-14s %s: %zu, %llu bytes\n", "tensors", type.c_str(), sum.first,
                static_cast<unsigned long long>(sum.second));
  }
}

void Inspect(const std::string& path, bool as_json) {
  Result<GgufFile> file = GgufFile::Open(path);
  if (!file) {
    std::fprintf(stderr, "verbatim models inspect: %s\n", file.error().message.c_str());
    throw CLI::RuntimeError(kUsage);
  }
  const json::Value description = Describe(path, *file);
  if (as_json) {
    std::printf("%s\n", json::Serialize(description).c_str());
  } else {
    PrintText(description);
  }
}

}  // namespace

void AddModelsInspect(CLI::App& models) {
  struct Flags {
    std::string file;
    bool json = false;
  };
  auto flags = std::make_shared<Flags>();
  CLI::App* command =
      models.add_subcommand("inspect", "What a model file holds, and whether this build runs it");
  command->add_option("file", flags->file, "A GGUF file")->required();
  command->add_flag("--json", flags->json, "One JSON object, with every tensor");
  command->callback([flags] { Inspect(flags->file, flags->json); });
}

}  // namespace verbatim::cli
