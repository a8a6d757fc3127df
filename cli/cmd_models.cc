// verbatim models: what model files hold, and what their tokenizer and chat template make of text.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/json.h"
#include "cli/commands.h"
#include "cli/files.h"
#include "cli/models_inspect.h"
#include "engine/chat_template.h"
#include "engine/gguf.h"
#include "engine/tokenizer.h"
#include "engine/tokenizer_gguf.h"

namespace verbatim::cli {
namespace {

constexpr int kUsage = 2;

struct Flags {
  std::string file, chat;
  bool special = false, json = false;
};

[[noreturn]] void Fail(const std::string& message) {
  std::fprintf(stderr, "verbatim models: %s\n", message.c_str());
  throw CLI::RuntimeError(kUsage);
}

template <typename T>
T ValueOrFail(Result<T> result) {
  if (!result) Fail(result.error().message);
  return std::move(result).value();
}

void Print(const std::string& text) { std::fwrite(text.data(), 1, text.size(), stdout); }

// The model files of the cache folder, where tools/run puts them.
void List(const Flags& flags) {
  namespace fs = std::filesystem;
  const char* home = std::getenv("HOME");
  const fs::path folder = fs::path(home == nullptr ? "." : home) / ".cache" / "verbatim";
  std::vector<fs::path> files;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (entry.path().extension() == ".gguf") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  json::Value list = json::Value::MakeArray();
  for (const fs::path& path : files) {
    const auto file = engine::GgufFile::Open(path.string());
    json::Value item = json::Value::MakeObject();
    item.Set("file", path.string());
    if (!file) {
      item.Set("error", file.error().message);
    } else {
      item.Set("bytes", file->file_size());
      const auto name = file->String("general.name");
      if (name) item.Set("name", *name);
      const auto architecture = file->String("general.architecture");
      if (architecture) item.Set("architecture", *architecture);
    }
    if (!flags.json) Print(json::Serialize(item) + "\n");
    list.Append(std::move(item));
  }
  if (flags.json) {
    json::Value out = json::Value::MakeObject();
    out.Set("models", std::move(list));
    Print(json::Serialize(out) + "\n");
  } else if (files.empty()) {
    std::fprintf(stderr, "no models in %s; tools/fetch-model gets the default one\n",
                 folder.c_str());
  }
}

void Tokenize(const Flags& flags) {
  const engine::GgufFile file = ValueOrFail(engine::GgufFile::Open(flags.file));
  const auto tokenizer = ValueOrFail(engine::LoadTokenizer(file));
  const std::string text = ValueOrFail(ReadWhole("-"));
  const std::vector<int32_t> ids = ValueOrFail(tokenizer->Encode(text, flags.special));
  if (!flags.json) {
    std::string line;
    for (const int32_t id : ids) line += (line.empty() ? "" : " ") + std::to_string(id);
    Print(line + "\n");
    return;
  }
  json::Value tokens = json::Value::MakeArray(), bytes = json::Value::MakeArray();
  for (const int32_t id : ids) {
    tokens.Append(int{id});
    bytes.Append(HexEncode(tokenizer->Bytes(id)));
  }
  json::Value out = json::Value::MakeObject();
  out.Set("tokens", std::move(tokens));
  out.Set("pieces_hex", std::move(bytes));
  out.Set("round_trip", tokenizer->Decode(ids) == text);
  Print(json::Serialize(out) + "\n");
}

// FILE.json: a chat request ({"messages": [...], "tools": ..., more variables}), or the messages.
void Render(const Flags& flags) {
  const engine::GgufFile file = ValueOrFail(engine::GgufFile::Open(flags.file));
  const auto tokenizer = ValueOrFail(engine::LoadTokenizer(file));
  const auto source = ValueOrFail(file.String("tokenizer.chat_template"));
  const auto chat_template = ValueOrFail(engine::ChatTemplate::Parse(source));
  json::Value chat = ValueOrFail(ReadJson(flags.chat));

  engine::ChatRequest request;
  if (chat.is_array()) {
    request.messages = std::move(chat);
  } else {
    const json::Value* messages = chat.Find("messages");
    if (messages == nullptr) Fail(flags.chat + " has no \"messages\"");
    request.messages = *messages;
    if (const json::Value* tools = chat.Find("tools")) request.tools = *tools;
    if (const json::Value* add = chat.Find("add_generation_prompt"); add != nullptr) {
      if (!add->is_bool()) Fail("add_generation_prompt must be true or false");
      request.add_generation_prompt = add->as_bool();
    }
    request.variables = chat;
  }
  request.bos_token = tokenizer->bos_text();
  request.eos_token = tokenizer->eos_text();
  request.clock_micros = NowMicros();
  const std::vector<engine::Segment> segments = ValueOrFail(chat_template->RenderChat(request));
  if (!flags.json) {
    Print(engine::JoinSegments(segments));
    return;
  }
  json::Value list = json::Value::MakeArray(), tokens = json::Value::MakeArray();
  for (const engine::Segment& segment : segments) {
    json::Value item = json::Value::MakeObject();
    item.Set("text", segment.text);
    item.Set("trusted", segment.trusted);
    list.Append(std::move(item));
  }
  for (const int32_t id : ValueOrFail(tokenizer->Encode(segments, true))) tokens.Append(int{id});
  json::Value out = json::Value::MakeObject();
  out.Set("segments", std::move(list));
  out.Set("tokens", std::move(tokens));
  Print(json::Serialize(out) + "\n");
}

}  // namespace

void AddModels(CLI::App& app) {
  CLI::App* models = app.add_subcommand("models", "Look into model files");
  models->require_subcommand(1);
  const auto flags = std::make_shared<Flags>();
  const auto add = [&](const char* name, const char* help, void (*run)(const Flags&), bool file) {
    CLI::App* command = models->add_subcommand(name, help);
    if (file) command->add_option("FILE", flags->file, "a GGUF file")->required();
    command->add_flag("--json", flags->json, "print one JSON object");
    command->callback([flags, run] { run(*flags); });
    return command;
  };
  add("list", "The model files in the cache folder", List, false);
  AddModelsInspect(*models);
  add("tokenize", "The token ids of standard input", Tokenize, true)
      ->add_flag("--special", flags->special, "read control tokens as such");
  add("render", "The prompt that the file's chat template makes", Render, true)
      ->add_option("--chat", flags->chat, "JSON: a chat request or its messages")
      ->required();
}

}  // namespace verbatim::cli
