#include "gateway/wire/fields.h"

#include <algorithm>
#include <string>
#include <vector>

namespace verbatim::gateway {

namespace {

using enum FieldKind;
using enum Effect;

constexpr double kAnyCount = 2147483647;

// clang-format off
constexpr Field kFields[] = {
    // name                       endpoints      kind      effect     min, max, neutral
    {"model",                     kAllFields,    kString,  kHonoured},
    {"messages",                  kChat | kAnthropic, kArray, kHonoured},
    {"prompt",                    kCompletions,  kAny,     kHonoured},
    {"input",                     kResponses,    kAny,     kHonoured},
    {"instructions",              kResponses,    kString,  kHonoured},
    {"system",                    kAnthropic,    kAny,     kHonoured},
    {"temperature",               kOpenAi,       kNumber,  kHonoured, 0, 2},
    {"temperature",               kMessages,     kNumber,  kHonoured, 0, 1},
    {"top_p",                     kGenerates,    kNumber,  kHonoured, 0, 1},
    {"top_k",                     kGenerates,    kInteger, kHonoured, -1, 9.2e18},  // -1, 0: off
    {"max_tokens",                kBoth | kMessages, kInteger, kHonoured, 1, kAnyCount},
    {"max_completion_tokens",     kChat,         kInteger, kHonoured, 1, kAnyCount},
    {"max_output_tokens",         kResponses,    kInteger, kHonoured, 1, kAnyCount},
    {"stop",                      kOpenAi,       kAny,     kHonoured},
    {"stop_sequences",            kMessages,     kArray,   kHonoured},
    {"stream",                    kGenerates,    kBool,    kHonoured},
    {"stream_options",            kBoth,         kObject,  kHonoured},
    {"presence_penalty",          kOpenAi,       kNumber,  kHonoured, -2, 2},
    {"frequency_penalty",         kOpenAi,       kNumber,  kHonoured, -2, 2},
    {"logit_bias",                kOpenAi,       kObject,  kHonoured},
    // Honoured on every endpoint, whether its inventor has them or not.
    {"seed",                      kGenerates,    kInteger, kHonoured},
    {"min_p",                     kGenerates,    kNumber,  kHonoured, 0, 1},
    {"repetition_penalty",        kGenerates,    kNumber,  kHonoured, 0.01, 100},
    {"ignore_eos",                kGenerates,    kBool,    kHonoured},
    {"deterministic",             kGenerates,    kBool,    kHonoured},
    {"chat_template_kwargs",      kChat | kResponses | kAnthropic, kObject, kHonoured},
    // Objects whose members count one by one.
    {"text",                      kResponses,    kObject,  kHonoured},
    {"text.format",               kResponses,    kObject,  kRefused, 0, 0, "{\"type\":\"text\"}"},
    {"text.verbosity",            kResponses,    kString,  kRefused, 0, 0, "\"medium\""},
    {"reasoning",                 kResponses,    kObject,  kHonoured},
    {"reasoning.effort",          kResponses,    kString,  kRefused, 0, 0, "\"none\""},
    {"reasoning.summary",         kResponses,    kString,  kRefused},
    {"reasoning.generate_summary", kResponses,   kString,  kRefused},
    {"reasoning.context",         kResponses,    kString,  kRefused, 0, 0, "\"auto\""},
    {"reasoning.mode",            kResponses,    kString,  kRefused, 0, 0, "\"standard\""},
    {"prompt_cache_options",      kChat | kResponses, kObject, kHonoured},
    {"prompt_cache_options.prewarm", kChat | kResponses, kBool, kRefused, 0, 0, "false"},
    {"output_config",             kAnthropic,    kObject,  kHonoured},
    {"output_config.effort",      kAnthropic,    kString,  kRefused, 0, 0, "\"high\""},
    {"output_config.format",      kAnthropic,    kObject,  kRefused},

    {"user",                      kOpenAi,       kString,  kInert},
    {"metadata",                  kChat | kResponses | kMessages, kObject, kInert},
    {"store",                     kChat | kResponses, kBool, kInert},
    {"service_tier",              kChat | kResponses | kMessages, kString, kInert},
    {"safety_identifier",         kChat | kResponses, kString, kInert},
    {"prompt_cache_key",          kChat | kResponses, kString, kInert},
    {"prompt_cache_retention",    kChat | kResponses, kString, kInert},
    {"parallel_tool_calls",       kChat | kResponses, kBool, kInert},
    {"max_tool_calls",            kResponses,    kInteger, kInert},
    {"stream_options",            kResponses,    kObject,  kInert},
    {"access_programs",           kResponses,    kObject,  kInert},
    {"background_options",        kResponses,    kObject,  kInert},
    {"image",                     kResponses,    kObject,  kInert},
    {"cache_control",             kAnthropic,    kObject,  kInert},
    {"diagnostics",               kMessages,     kObject,  kInert},
    {"inference_geo",             kMessages,     kString,  kInert},
    {"speed",                     kAnthropic,    kString,  kInert},
    {"user_profile_id",           kAnthropic,    kString,  kInert},
    {"workspace_id",              kAnthropic,    kString,  kInert},
    {"billing_policy",            kAnthropic,    kAny,     kInert},
    {"fallback_credit_token",     kMessages,     kAny,     kInert},

    {"n",                         kGenerates,    kInteger, kRefused, 1, 128, "1"},
    {"tools",                     kAllFields,    kArray,   kRefused, 0, 0, "[]"},
    {"tool_choice",               kChat | kResponses, kAny, kRefused, 0, 0, "\"none\"|\"auto\""},
    {"tool_choice",               kAnthropic,    kObject,  kRefused, 0, 0, "{\"type\":\"none\"}|{\"type\":\"auto\"}"},
    {"functions",                 kChat,         kArray,   kRefused, 0, 0, "[]"},
    {"function_call",             kChat,         kAny,     kRefused, 0, 0, "\"none\"|\"auto\""},
    {"response_format",           kGenerates,    kObject,  kRefused, 0, 0, "{\"type\":\"text\"}"},
    {"logprobs",                  kChat | kResponses | kMessages, kBool, kRefused, 0, 0, "false"},
    {"top_logprobs",              kChat | kResponses | kMessages, kInteger, kRefused, 0, 20, "0"},
    {"modalities",                kChat,         kArray,   kRefused, 0, 0, "[\"text\"]"},
    {"audio",                     kChat,         kObject,  kRefused},
    {"prediction",                kChat,         kObject,  kRefused},
    {"moderation",                kChat | kResponses, kObject, kRefused},
    {"web_search_options",        kChat,         kObject,  kRefused},
    {"reasoning_effort",          kChat | kResponses | kMessages, kString, kRefused, 0, 0, "\"none\""},
    {"verbosity",                 kChat | kResponses, kString, kRefused, 0, 0, "\"medium\""},
    {"logprobs",                  kCompletions,  kInteger, kRefused, 0, 20},
    {"echo",                      kBoth,         kBool,    kRefused, 0, 0, "false"},
    {"suffix",                    kBoth,         kString,  kRefused, 0, 0, "\"\""},
    {"max_completion_tokens",     kCompletions | kResponses | kMessages, kInteger, kRefused},
    {"best_of",                   kBoth,         kInteger, kRefused, 1, 20, "1"},
    // What /v1/responses keeps beside the request, or does with it.
    {"max_tokens",                kResponses,    kInteger, kRefused},
    {"background",                kResponses,    kBool,    kRefused, 0, 0, "false"},
    {"conversation",              kResponses,    kAny,     kRefused},
    {"previous_response_id",      kResponses,    kString,  kRefused},
    {"prompt",                    kResponses,    kObject,  kRefused},
    {"include",                   kResponses,    kArray,   kRefused, 0, 0, "[]|[\"reasoning.encrypted_content\"]"},
    {"truncation",                kResponses,    kString,  kRefused, 0, 0, "\"disabled\""},
    {"context_management",        kResponses,    kArray,   kRefused, 0, 0, "[]"},
    // And /v1/messages.
    {"max_output_tokens",         kMessages,     kInteger, kRefused},
    {"stop",                      kMessages,     kAny,     kRefused, 0, 0, "[]"},
    {"thinking",                  kAnthropic,    kObject,  kRefused, 0, 0, "{\"type\":\"disabled\"}"},
    {"container",                 kMessages,     kAny,     kRefused},
    {"context_management",        kAnthropic,    kObject,  kRefused, 0, 0, "{}|{\"edits\":[]}"},
    {"compaction",                kAnthropic,    kObject,  kRefused},
    {"mcp_servers",               kAnthropic,    kArray,   kRefused, 0, 0, "[]"},
    {"fallbacks",                 kMessages,     kAny,     kRefused, 0, 0, "[]"},
    {"thread",                    kMessages,     kObject,  kRefused},
    {"output_format",             kAnthropic,    kObject,  kRefused},

    // Of vLLM, llama.cpp and others.
    {"min_tokens",                kGenerates,    kInteger, kRefused, 0, kAnyCount, "0"},
    {"stop_token_ids",            kGenerates,    kArray,   kRefused, 0, 0, "[]"},
    {"bad_words",                 kGenerates,    kArray,   kRefused, 0, 0, "[]"},
    {"allowed_token_ids",         kGenerates,    kArray,   kRefused, 0, 0, "[]"},
    {"include_stop_str_in_output", kGenerates,   kBool,    kRefused, 0, 0, "false"},
    {"skip_special_tokens",       kGenerates,    kBool,    kRefused, 0, 0, "true"},
    {"prompt_logprobs",           kGenerates,    kAny,     kRefused, 0, 0, "false"},
    {"use_beam_search",           kGenerates,    kBool,    kRefused, 0, 0, "false"},
    {"length_penalty",            kGenerates,    kNumber,  kRefused, 0, 0, "1"},
    {"repeat_penalty",            kGenerates,    kNumber,  kRefused, 0, 0, "1"},
    {"typical_p",                 kGenerates,    kNumber,  kRefused, 0, 0, "1"},
    {"tfs_z",                     kGenerates,    kNumber,  kRefused, 0, 0, "1"},
    {"top_a",                     kGenerates,    kNumber,  kRefused, 0, 0, "0"},
    {"mirostat",                  kGenerates,    kInteger, kRefused, 0, 2, "0"},
    {"dynatemp_range",            kGenerates,    kNumber,  kRefused, 0, 0, "0"},
    {"xtc_probability",           kGenerates,    kNumber,  kRefused, 0, 0, "0"},
    {"dry_multiplier",            kGenerates,    kNumber,  kRefused, 0, 0, "0"},
    {"truncate_prompt_tokens",    kGenerates,    kInteger, kRefused},
    {"guided_json",               kGenerates,    kAny,     kRefused},
    {"guided_regex",              kGenerates,    kAny,     kRefused},
    {"guided_choice",             kGenerates,    kAny,     kRefused},
    {"guided_grammar",            kGenerates,    kAny,     kRefused},
    {"structured_outputs",        kGenerates,    kAny,     kRefused},
    {"json_schema",               kGenerates,    kAny,     kRefused},
    {"grammar",                   kGenerates,    kAny,     kRefused},
    {"logits_processors",         kGenerates,    kAny,     kRefused, 0, 0, "[]"},
    {"chat_template",             kChat | kResponses | kAnthropic, kString, kRefused},
    {"documents",                 kChat | kResponses | kAnthropic, kArray, kRefused, 0, 0, "[]"},
    {"add_generation_prompt",     kChat | kResponses | kAnthropic, kBool, kRefused, 0, 0, "true"},
    {"continue_final_message",    kChat | kResponses | kAnthropic, kBool, kRefused, 0, 0, "false"},
};
// clang-format on

// A request may have hundreds of thousands of members: rows are found by name.
using Rows = std::vector<const Field*>;
const Rows& ByName() {
  static const Rows rows = [] {
    Rows all;
    for (const Field& f : kFields) all.push_back(&f);
    std::stable_sort(all.begin(), all.end(),
                     [](const Field* a, const Field* b) { return a->name < b->name; });
    return all;
  }();
  return rows;
}

Rows::const_iterator LowerBound(std::string_view name) {
  const auto before = [](const Field* f, std::string_view other) { return f->name < other; };
  return std::lower_bound(ByName().begin(), ByName().end(), name, before);
}

const Field* FindRow(std::string_view name, int endpoints) {
  for (auto at = LowerBound(name); at != ByName().end() && (*at)->name == name; ++at) {
    if (((*at)->endpoints & endpoints) != 0) return *at;
  }
  return nullptr;
}

}  // namespace

int FieldsOf(Endpoint endpoint) {
  switch (endpoint) {
    case Endpoint::kChatCompletions:
      return kChat;
    case Endpoint::kCompletions:
      return kCompletions;
    case Endpoint::kResponses:
      return kResponses;
    case Endpoint::kMessages:
      return kMessages;
    case Endpoint::kCountTokens:
      return kCountTokens;
    case Endpoint::kEmbeddings:
      break;
  }
  return 0;
}

std::span<const Field> KnownFields() { return kFields; }

const Field* FindField(std::string_view name, int endpoints) {
  if (name.find('.') != name.npos) return nullptr;
  return FindRow(name, endpoints);
}

const Field* FindMember(std::string_view name, std::string_view member, int endpoints) {
  std::string whole(name);
  whole += '.';
  whole += member;
  return FindRow(whole, endpoints);
}

bool HasMembers(std::string_view name, int endpoints) {
  const std::string prefix = std::string(name) + '.';
  const Rows& rows = ByName();
  for (auto at = LowerBound(prefix); at != rows.end() && (*at)->name.starts_with(prefix); ++at) {
    if (((*at)->endpoints & endpoints) != 0) return true;
  }
  return false;
}

}  // namespace verbatim::gateway
