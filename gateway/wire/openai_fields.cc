#include "gateway/wire/openai_fields.h"

namespace verbatim::gateway {

namespace {

using enum FieldKind;
using enum Effect;

constexpr double kAnyCount = 2147483647;

// clang-format off
constexpr Field kFields[] = {
    // name                       endpoints      kind      effect     min, max, neutral
    {"model",                     kBoth,         kString,  kHonoured},
    {"messages",                  kChat,         kArray,   kHonoured},
    {"prompt",                    kCompletions,  kAny,     kHonoured},
    {"temperature",               kBoth,         kNumber,  kHonoured, 0, 2},
    {"top_p",                     kBoth,         kNumber,  kHonoured, 0, 1},
    {"top_k",                     kBoth,         kInteger, kHonoured, -1, 9.2e18},  // -1, 0: off
    {"min_p",                     kBoth,         kNumber,  kHonoured, 0, 1},
    {"presence_penalty",          kBoth,         kNumber,  kHonoured, -2, 2},
    {"frequency_penalty",         kBoth,         kNumber,  kHonoured, -2, 2},
    {"repetition_penalty",        kBoth,         kNumber,  kHonoured, 0.01, 100},
    {"logit_bias",                kBoth,         kObject,  kHonoured},
    {"seed",                      kBoth,         kInteger, kHonoured},
    {"max_tokens",                kBoth,         kInteger, kHonoured, 1, kAnyCount},
    {"max_completion_tokens",     kChat,         kInteger, kHonoured, 1, kAnyCount},
    {"stop",                      kBoth,         kAny,     kHonoured},
    {"ignore_eos",                kBoth,         kBool,    kHonoured},
    {"stream",                    kBoth,         kBool,    kHonoured},
    {"stream_options",            kBoth,         kObject,  kHonoured},
    {"deterministic",             kBoth,         kBool,    kHonoured},
    {"chat_template_kwargs",      kChat,         kObject,  kHonoured},

    {"user",                      kBoth,         kString,  kInert},
    {"metadata",                  kChat,         kObject,  kInert},
    {"store",                     kChat,         kBool,    kInert},
    {"service_tier",              kChat,         kString,  kInert},
    {"safety_identifier",         kChat,         kString,  kInert},
    {"prompt_cache_key",          kChat,         kString,  kInert},
    {"parallel_tool_calls",       kChat,         kBool,    kInert},

    {"n",                         kBoth,         kInteger, kRefused, 1, 128, "1"},
    {"tools",                     kBoth,         kArray,   kRefused, 0, 0, "[]"},
    {"tool_choice",               kChat,         kAny,     kRefused, 0, 0, "\"none\"|\"auto\""},
    {"functions",                 kChat,         kArray,   kRefused, 0, 0, "[]"},
    {"function_call",             kChat,         kAny,     kRefused, 0, 0, "\"none\"|\"auto\""},
    {"response_format",           kBoth,         kObject,  kRefused, 0, 0, "{\"type\":\"text\"}"},
    {"logprobs",                  kChat,         kBool,    kRefused, 0, 0, "false"},
    {"top_logprobs",              kChat,         kInteger, kRefused, 0, 20, "0"},
    {"modalities",                kChat,         kArray,   kRefused, 0, 0, "[\"text\"]"},
    {"audio",                     kChat,         kObject,  kRefused},
    {"prediction",                kChat,         kObject,  kRefused},
    {"web_search_options",        kChat,         kObject,  kRefused},
    {"reasoning_effort",          kChat,         kString,  kRefused, 0, 0, "\"none\""},
    {"verbosity",                 kChat,         kString,  kRefused, 0, 0, "\"medium\""},
    {"logprobs",                  kCompletions,  kInteger, kRefused, 0, 20},
    {"echo",                      kBoth,         kBool,    kRefused, 0, 0, "false"},
    {"suffix",                    kBoth,         kString,  kRefused, 0, 0, "\"\""},
    {"max_completion_tokens",     kCompletions,  kInteger, kRefused},
    {"best_of",                   kBoth,         kInteger, kRefused, 1, 20, "1"},

    // Of vLLM, llama.cpp and others.
    {"min_tokens",                kBoth,         kInteger, kRefused, 0, kAnyCount, "0"},
    {"stop_token_ids",            kBoth,         kArray,   kRefused, 0, 0, "[]"},
    {"bad_words",                 kBoth,         kArray,   kRefused, 0, 0, "[]"},
    {"allowed_token_ids",         kBoth,         kArray,   kRefused, 0, 0, "[]"},
    {"include_stop_str_in_output", kBoth,        kBool,    kRefused, 0, 0, "false"},
    {"skip_special_tokens",       kBoth,         kBool,    kRefused, 0, 0, "true"},
    {"prompt_logprobs",           kBoth,         kAny,     kRefused, 0, 0, "false"},
    {"use_beam_search",           kBoth,         kBool,    kRefused, 0, 0, "false"},
    {"length_penalty",            kBoth,         kNumber,  kRefused, 0, 0, "1"},
    {"repeat_penalty",            kBoth,         kNumber,  kRefused, 0, 0, "1"},
    {"typical_p",                 kBoth,         kNumber,  kRefused, 0, 0, "1"},
    {"tfs_z",                     kBoth,         kNumber,  kRefused, 0, 0, "1"},
    {"top_a",                     kBoth,         kNumber,  kRefused, 0, 0, "0"},
    {"mirostat",                  kBoth,         kInteger, kRefused, 0, 2, "0"},
    {"dynatemp_range",            kBoth,         kNumber,  kRefused, 0, 0, "0"},
    {"xtc_probability",           kBoth,         kNumber,  kRefused, 0, 0, "0"},
    {"dry_multiplier",            kBoth,         kNumber,  kRefused, 0, 0, "0"},
    {"truncate_prompt_tokens",    kBoth,         kInteger, kRefused},
    {"guided_json",               kBoth,         kAny,     kRefused},
    {"guided_regex",              kBoth,         kAny,     kRefused},
    {"guided_choice",             kBoth,         kAny,     kRefused},
    {"guided_grammar",            kBoth,         kAny,     kRefused},
    {"structured_outputs",        kBoth,         kAny,     kRefused},
    {"json_schema",               kBoth,         kAny,     kRefused},
    {"grammar",                   kBoth,         kAny,     kRefused},
    {"logits_processors",         kBoth,         kAny,     kRefused, 0, 0, "[]"},
    {"chat_template",             kChat,         kString,  kRefused},
    {"documents",                 kChat,         kArray,   kRefused, 0, 0, "[]"},
    {"add_generation_prompt",     kChat,         kBool,    kRefused, 0, 0, "true"},
    {"continue_final_message",    kChat,         kBool,    kRefused, 0, 0, "false"},
};
// clang-format on

}  // namespace

std::span<const Field> KnownFields() { return kFields; }

const Field* FindField(std::string_view name, int endpoint) {
  for (const Field& f : kFields) {
    if ((f.endpoints & endpoint) != 0 && f.name == name) return &f;
  }
  return nullptr;
}

}  // namespace verbatim::gateway
