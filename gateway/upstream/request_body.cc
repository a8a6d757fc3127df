#include "gateway/upstream/request_body.h"

#include <algorithm>
#include <iterator>

namespace verbatim::gateway {

namespace {

HttpError Bad(std::string message, std::string param) {
  return HttpError{.status = 400, .message = std::move(message), .param = std::move(param)};
}

// Null counts as absent, as the APIs have it.
const json::Value* Given(const json::Value& object, std::string_view name) {
  const json::Value* value = object.Find(name);
  return value != nullptr && !value->is_null() ? value : nullptr;
}

template <typename Names>
bool Has(const Names& names, std::string_view name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

std::string_view TextOf(const json::Value& object, std::string_view name) {
  const json::Value* value = object.Find(name);
  return value != nullptr && value->is_string() ? std::string_view(value->as_string()) : "";
}

// ---- splicing ----

// Whether `text` can be the text of `value`, as far as its ends tell: no proof, but a bound to the
// damage if a text of something else came along.
bool Fits(const json::Value& value, std::string_view text) {
  switch (value.type()) {
    case json::Value::Type::kNull:
      return text == "null";
    case json::Value::Type::kBool:
      return text == (value.as_bool() ? "true" : "false");
    case json::Value::Type::kNumber:
      return text == value.number_text();
    case json::Value::Type::kString:
      return text.size() >= 2 && text.front() == '"' && text.back() == '"';
    case json::Value::Type::kArray:
      return text.front() == '[' && text.back() == ']';
    case json::Value::Type::kObject:
      return text.front() == '{' && text.back() == '}';
  }
  return false;
}

// All of `value` came from the parsed text: it and what it holds stand there within [begin, end),
// in order.
bool FromText(const json::Value& value, std::string_view text, size_t begin, size_t end) {
  if (value.text_begin() < begin || value.text_end() > end ||
      value.text_begin() >= value.text_end() ||
      !Fits(value, text.substr(value.text_begin(), value.text_end() - value.text_begin()))) {
    return false;
  }
  size_t at = value.text_begin();
  const auto next = [&](const json::Value& inner) {
    if (!FromText(inner, text, at, value.text_end())) return false;
    at = inner.text_end();
    return true;
  };
  if (value.is_array()) {
    return std::all_of(value.items().begin(), value.items().end(), next);
  }
  if (value.is_object()) {
    return std::all_of(value.members().begin(), value.members().end(),
                       [&](const json::Member& member) { return next(member.second); });
  }
  return true;
}

void AppendValue(const json::Value& value, std::string_view text, std::string& out) {
  if (FromText(value, text, 0, text.size())) {
    out += text.substr(value.text_begin(), value.text_end() - value.text_begin());
  } else if (value.is_object()) {
    out += '{';
    for (const auto& [name, inner] : value.members()) {
      if (out.back() != '{') out += ',';
      out += json::Quote(name) + ":";
      AppendValue(inner, text, out);
    }
    out += '}';
  } else if (value.is_array()) {
    out += '[';
    for (const json::Value& inner : value.items()) {
      if (out.back() != '[') out += ',';
      AppendValue(inner, text, out);
    }
    out += ']';
  } else {
    out += json::Serialize(value);
  }
}

// `options` (absent, null, or the client's) with include_usage true.
json::Value AskingForUsage(const json::Value* options) {
  json::Value out =
      options != nullptr && options->is_object() ? *options : json::Value::MakeObject();
  out.Set("include_usage", true);
  return out;
}

// ---- what an answer depends on ----

// Top-level fields that name something kept or run elsewhere, whatever their value.
constexpr std::string_view kStatefulFields[] = {
    "assistant_id", "cached_content", "connectors",       "container",
    "conversation", "data_sources",   "file_ids",         "kv_transfer_params",
    "mcp_servers",  "models",         "plugins",          "previous_response_id",
    "route",        "search_mode",    "search_options",   "search_parameters",
    "thread_id",    "tool_resources", "vector_store_ids", "web_search_options"};

// Likewise, but where they are false.
constexpr std::string_view kStatefulSwitches[] = {"background", "enable_search"};

// Tools that run at the client. Anthropic's carry a date: "bash_20250124".
constexpr std::string_view kClientTools[] = {"apply_patch", "custom", "function", "local_shell"};
constexpr std::string_view kClientToolPrefixes[] = {"bash_", "memory_", "text_editor_"};

// Where conversations stand, whose parts may refer to files and URLs.
constexpr std::string_view kConversationFields[] = {"content",  "documents", "input",
                                                    "messages", "prompt",    "system"};

// Members of its parts that hold text, which may begin with a URL.
constexpr std::string_view kTexts[] = {
    "arguments", "cited_text", "code",  "content",    "context",   "input",
    "name",      "output",     "query", "refusal",    "summary",   "suffix",
    "text",      "thinking",   "title", "transcript", "reasoning", "reasoning_content"};

bool RunsElsewhere(const json::Value& tool) {
  if (!tool.is_object()) return true;
  const json::Value* type = Given(tool, "type");
  // OpenAI's and Anthropic's forms of a function; any other names what the vendor runs.
  if (type == nullptr) {
    const bool has_schema = Given(tool, "input_schema") || Given(tool, "parameters");
    return !Given(tool, "function") && !(Given(tool, "name") && has_schema);
  }
  const std::string_view name = TextOf(tool, "type");
  if (Has(kClientTools, name)) return false;
  return std::none_of(std::begin(kClientToolPrefixes), std::end(kClientToolPrefixes),
                      [&](std::string_view prefix) { return name.starts_with(prefix); });
}

// "https://..." or {"url": "https://..."}; data: URLs hold what they name.
bool IsRemote(const json::Value& url) {
  if (url.is_object()) {
    const json::Value* inner = Given(url, "url");
    return inner != nullptr && IsRemote(*inner);
  }
  return url.is_string() && !url.as_string().starts_with("data:");
}

// "https://...", "gs://...", "file:///...": any scheme, after spaces.
bool IsUrl(std::string_view text) {
  constexpr size_t kLongestScheme = 16;
  text.remove_prefix(std::min(text.find_first_not_of(" \t\r\n"), text.size()));
  const size_t scheme = text.substr(0, kLongestScheme + 3).find("://");
  return scheme != text.npos && scheme > 0 &&
         std::all_of(text.begin(), text.begin() + static_cast<ptrdiff_t>(scheme), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                  c == '+' || c == '-' || c == '.';
         });
}

bool RefersElsewhere(const json::Value& part);

// A list with URLs in it: the frames of a video.
bool HoldsUrls(const json::Value& list) {
  return list.is_array() &&
         std::any_of(list.items().begin(), list.items().end(), [](const json::Value& item) {
           return item.is_string() && IsUrl(item.as_string());
         });
}

bool MemberRefersElsewhere(std::string_view type, const json::Member& member) {
  const auto& [key, value] = member;
  if (value.is_null()) return false;
  if (key == "file_id" || key == "container_id") return value.is_string();
  if (key == "file_ids") return value.is_array() && !value.items().empty();
  if (key.ends_with("_url")) return IsRemote(value);
  if (key == "source" && value.is_object()) {
    static constexpr std::string_view kHere[] = {"base64", "content", "text"};
    return !Has(kHere, TextOf(value, "type")) || RefersElsewhere(value);
  }
  if (key == "audio" && value.is_object()) {
    return Given(value, "id") != nullptr && Given(value, "data") == nullptr;
  }
  // What a tool was called with is the model's own text, whatever it looks like.
  if (key == "input" && type.ends_with("tool_use")) return false;
  // Labels of what the request holds or quotes, which nobody fetches.
  if (type == "url_citation" || (type == "search_result" && key == "source")) return false;
  if (value.is_string()) return !Has(kTexts, key) && IsUrl(value.as_string());
  return (!Has(kTexts, key) && HoldsUrls(value)) || RefersElsewhere(value);
}

bool RefersElsewhere(const json::Value& part) {
  if (part.is_array()) {
    return std::any_of(part.items().begin(), part.items().end(), RefersElsewhere);
  }
  if (!part.is_object()) return false;
  const std::string_view type = TextOf(part, "type");
  if (type == "item_reference" || type == "container_upload") return true;
  // Media that the server keeps under a name, and that the request leaves out.
  if (Given(part, "uuid") &&
      std::any_of(part.members().begin(), part.members().end(),
                  [](const json::Member& member) { return member.second.is_null(); })) {
    return true;
  }
  // A reasoning item without its encrypted content is found by its id.
  if (type == "reasoning" && Given(part, "id") && !Given(part, "encrypted_content")) return true;
  return std::any_of(
      part.members().begin(), part.members().end(),
      [type](const json::Member& member) { return MemberRefersElsewhere(type, member); });
}

bool ModelSearches(std::string_view model) {
  const std::string_view name = model.substr(model.rfind('/') + 1);
  if (name.starts_with("sonar") || name.starts_with("compound-beta")) return true;
  if (model.starts_with("groq/compound")) return true;
  return model.ends_with(":online") || model.find("-search-preview") != model.npos ||
         model.find("-search-api") != model.npos;
}

bool IsStateful(const json::Value& body) {
  for (const std::string_view field : kStatefulFields) {
    const json::Value* value = Given(body, field);
    if (value != nullptr && !(value->is_array() && value->items().empty())) return true;
  }
  for (const std::string_view field : kStatefulSwitches) {
    const json::Value* value = Given(body, field);
    if (value != nullptr && !(value->is_bool() && !value->as_bool())) return true;
  }
  const json::Value* prompt = Given(body, "prompt");
  if (prompt != nullptr && prompt->is_object()) return true;  // a stored one, by its id
  if (ModelSearches(TextOf(body, "model"))) return true;

  const json::Value* tools = Given(body, "tools");
  if (tools != nullptr && !tools->is_array()) return true;
  if (tools != nullptr &&
      std::any_of(tools->items().begin(), tools->items().end(), RunsElsewhere)) {
    return true;
  }
  return std::any_of(std::begin(kConversationFields), std::end(kConversationFields),
                     [&](std::string_view field) {
                       const json::Value* value = body.Find(field);
                       return value != nullptr && RefersElsewhere(*value);
                     });
}

}  // namespace

Answered<GenerationRequest> DecodeForUpstream(Endpoint endpoint, const json::Value& body) {
  if (!body.is_object()) return Bad("The request body must be a JSON object.", "");
  GenerationRequest request;
  request.endpoint = endpoint;
  request.body = body;

  const json::Value* model = body.Find("model");
  if (model == nullptr || !model->is_string() || model->as_string().empty()) {
    return Bad("`model` must be the name of a model.", "model");
  }
  request.model = model->as_string();

  if (const json::Value* stream = Given(body, "stream")) {
    if (!stream->is_bool()) return Bad("`stream` must be true or false.", "stream");
    request.stream = stream->as_bool();
  }
  if (const json::Value* options = Given(body, "stream_options")) {
    const json::Value* usage = options->is_object() ? Given(*options, "include_usage") : nullptr;
    request.include_usage = usage != nullptr && usage->is_bool() && usage->as_bool();
  }
  if (const json::Value* seed = Given(body, "seed")) {
    if (const auto v = seed->AsUint64()) {
      request.seed = *v;
    } else if (const auto negative = seed->AsInt64()) {
      request.seed = static_cast<uint64_t>(*negative);
    }
  }
  const json::Value* deterministic = Given(body, "deterministic");
  if (deterministic != nullptr && !(deterministic->is_bool() && !deterministic->as_bool())) {
    HttpError error = Bad(
        "`deterministic` is a promise that only this server's own engine can give; the model `" +
            request.model + "` is served by an upstream. Leave the field out.",
        "deterministic");
    error.code = "unsupported_parameter";
    return error;
  }
  return request;
}

std::string UpstreamBody(const json::Value& body, std::string_view text,
                         const BodyChanges& changes) {
  std::string out;
  out.reserve(text.size() + 64);
  out += '{';
  const auto begin_member = [&](std::string_view name) {
    if (out.size() > 1) out += ',';
    out += json::Quote(name);
    out += ':';
  };
  for (const auto& [name, value] : body.members()) {
    if (name == "deterministic") continue;
    begin_member(name);
    if (name == "model" && value.is_string() && value.as_string() != changes.model) {
      out += json::Quote(changes.model);
    } else if (name == "stream_options" && changes.ask_usage) {
      AppendValue(AskingForUsage(&value), text, out);
    } else {
      AppendValue(value, text, out);
    }
  }
  if (changes.ask_usage && body.Find("stream_options") == nullptr) {
    begin_member("stream_options");
    out += json::Serialize(AskingForUsage(nullptr));
  }
  return out + "}";
}

bool UsageMustBeAskedFor(Endpoint endpoint) {
  return endpoint == Endpoint::kChatCompletions || endpoint == Endpoint::kCompletions;
}

Reuse ReuseOf(Endpoint endpoint, const json::Value& body) {
  if (IsStateful(body)) return Reuse::kStateful;
  if (endpoint == Endpoint::kEmbeddings || endpoint == Endpoint::kCountTokens) {
    return Reuse::kAlways;
  }
  const json::Value* temperature = Given(body, "temperature");
  if (temperature != nullptr && temperature->AsDouble() == 0.0) return Reuse::kAlways;
  return Given(body, "seed") != nullptr ? Reuse::kAlways : Reuse::kSampled;
}

json::Value ParametersOf(const json::Value& body) {
  static constexpr std::string_view kNames[] = {"frequency_penalty",
                                                "max_completion_tokens",
                                                "max_output_tokens",
                                                "max_tokens",
                                                "min_p",
                                                "n",
                                                "presence_penalty",
                                                "repetition_penalty",
                                                "seed",
                                                "temperature",
                                                "top_k",
                                                "top_p"};
  constexpr size_t kMaxDigits = 64;
  json::Value out = json::Value::MakeObject();
  for (const std::string_view name : kNames) {
    const json::Value* value = Given(body, name);
    if (value == nullptr || !value->is_number() || value->number_text().size() > kMaxDigits) {
      continue;
    }
    out.Set(std::string(name), json::Value::NumberFromText(value->number_text()));
  }
  return out;
}

}  // namespace verbatim::gateway
