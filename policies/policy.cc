#include "policies/policy.h"

#include <algorithm>

#include "base/crypto.h"
#include "policies/schema.h"

namespace verbatim::policies {

namespace {

// What /v1/completions generates where the request names no number, as OpenAI has it.
constexpr uint64_t kCompletionsDefaultTokens = 16;

// The text at a dotted path of the manifest; nothing where there is none. A member's own name may
// have dots in it: the longest one that fits is taken first.
std::optional<std::string> Component(const json::Value& at, std::string_view path) {
  for (size_t end = path.size();; end = path.rfind('.', end - 1)) {
    if (const json::Value* v = at.Find(path.substr(0, end))) {
      if (end == path.size()) return v->is_string() ? v->as_string() : json::Canonical(*v);
      if (auto found = Component(*v, path.substr(end + 1))) return found;
    }
    if (end == 0 || path.rfind('.', end - 1) == std::string_view::npos) return std::nullopt;
  }
}

// The paths of all components, in the manifest's order.
void ListComponents(const json::Value& at, const std::string& path, std::vector<std::string>& out) {
  if (!at.is_object()) {
    out.push_back(path);
    return;
  }
  for (const auto& [name, value] : at.members()) {
    ListComponents(value, path.empty() ? name : path + "." + name, out);
  }
}

Digest ManifestDigest(const json::Value& manifest) { return Sha256(json::Canonical(manifest)); }

uint64_t TextBytes(const json::Value& v) {
  if (v.is_string()) return v.as_string().size();
  uint64_t sum = 0;
  if (v.is_array()) {
    for (const json::Value& item : v.items()) sum += TextBytes(item);
  } else if (v.is_object()) {
    for (const json::Member& m : v.members()) sum += TextBytes(m.second);
  }
  return sum;
}

Refusal OverLimit(std::string param, const std::string& what, uint64_t is, uint64_t limit) {
  return {std::move(param),
          what + ": " + std::to_string(is) + ", and policy allows at most " + std::to_string(limit),
          "limit_exceeded"};
}

// Sizes against limits. The number of tokens is looked at after overrides (CapTokens).
std::optional<Refusal> CheckSizes(const Limits& limits, const json::Value& request,
                                  uint64_t body_bytes) {
  if (limits.body_bytes != 0 && body_bytes > limits.body_bytes) {
    return OverLimit("", "The body's bytes", body_bytes, limits.body_bytes);
  }
  const json::Value* messages = request.Find("messages");
  if (messages != nullptr && messages->is_array() && limits.messages != 0 &&
      messages->items().size() > limits.messages) {
    return OverLimit("messages", "The number of messages", messages->items().size(),
                     limits.messages);
  }
  for (const char* field : {"messages", "prompt", "input", "system", "instructions"}) {
    const json::Value* text = request.Find(field);
    if (text == nullptr || limits.prompt_bytes == 0) continue;
    if (const uint64_t bytes = TextBytes(*text); bytes > limits.prompt_bytes) {
      return OverLimit(field, "The bytes of text", bytes, limits.prompt_bytes);
    }
  }
  return std::nullopt;
}

// What the absence of a field means where that is one number for all who know the field.
constexpr std::pair<std::string_view, std::string_view> kNeutral[] = {{"top_k", "0"},
                                                                      {"min_p", "0"},
                                                                      {"presence_penalty", "0"},
                                                                      {"frequency_penalty", "0"},
                                                                      {"repetition_penalty", "1"}};

bool IsNeutral(const Enforced& e) {
  return std::any_of(std::begin(kNeutral), std::end(kNeutral), [&](const auto& row) {
    return row.first == e.field && row.second == json::Canonical(e.value);
  });
}

bool HasField(std::string_view endpoint, std::string_view field) {
  if (endpoint == "/v1/chat/completions" || endpoint == "/v1/completions") return true;
  if (field == "temperature" || field == "top_p") {
    return endpoint == "/v1/responses" || endpoint == "/v1/messages";
  }
  return field == "top_k" && endpoint == "/v1/messages";
}

std::optional<Refusal> Enforce(const Policy& policy, std::string_view endpoint, Decision& d) {
  for (const Enforced& e : policy.enforce) {
    if (!HasField(endpoint, e.field)) continue;
    const json::Value* sent = d.request.Find(e.field);
    const bool open = sent == nullptr || sent->is_null();
    if (open ? IsNeutral(e) : *sent == e.value) continue;
    if (!open && e.how == How::kRefuse) {
      return Refusal{e.field,
                     "Policy fixes " + e.field + " at " + json::Canonical(e.value) + ", and " +
                         json::Canonical(*sent).substr(0, 100) +
                         " was asked for. Leave it out, or send the fixed value.",
                     "policy_violation"};
    }
    d.request.Set(e.field, e.value);
    d.changed.push_back(e.field);
  }
  return std::nullopt;
}

// A request that names a number above the limit is refused; one that leaves it open gets the limit
// written into it, so that the fingerprint holds what the answer depends on.
std::optional<Refusal> CapTokens(uint64_t limit, std::string_view endpoint, Decision& d) {
  const bool chat = endpoint == "/v1/chat/completions";
  const bool responses = endpoint == "/v1/responses";
  const bool completions = endpoint == "/v1/completions";
  if (limit == 0 || !(chat || responses || completions || endpoint == "/v1/messages")) {
    return std::nullopt;
  }
  bool named = false;
  for (const char* field : {"max_tokens", "max_completion_tokens", "max_output_tokens"}) {
    const json::Value* asked = d.request.Find(field);
    if (asked == nullptr || asked->is_null()) continue;
    named = true;
    const auto n = asked->AsUint64();
    // What is no such number, an upstream may still take for a large one.
    if (!n || *n == 0) {
      return Refusal{field,
                     "Policy bounds " + std::string(field) + "; it must be an integer from 1 to " +
                         std::to_string(limit) + ".",
                     "policy_violation"};
    }
    if (*n > limit) return OverLimit(field, "Tokens asked for", *n, limit);
  }
  if (named || (completions && limit >= kCompletionsDefaultTokens)) return std::nullopt;
  const char* field = "max_tokens";
  if (chat) field = "max_completion_tokens";
  if (responses) field = "max_output_tokens";
  d.request.Set(field, limit);
  d.changed.push_back(field);
  return std::nullopt;
}

// JSON strings one after the other can be read back in one way only, so that no two callers who
// differ in what counts have one name, whatever their names are.
std::string NamespaceName(Namespace name_space, const Caller& caller) {
  switch (name_space) {
    case Namespace::kShared:
      return "shared";
    case Namespace::kTenant:
      return "tenant:" + json::Quote(caller.tenant);
    case Namespace::kGroup: {
      if (caller.groups.empty()) break;
      std::vector<std::string> groups = caller.groups;
      std::sort(groups.begin(), groups.end());
      groups.erase(std::unique(groups.begin(), groups.end()), groups.end());
      std::string name = "group:" + json::Quote(caller.tenant);
      for (const std::string& group : groups) name += json::Quote(group);
      return name;
    }
    case Namespace::kSubject:
      break;
  }
  return "subject:" + json::Quote(caller.tenant) + json::Quote(caller.subject);
}

}  // namespace

std::string_view ModeName(Mode mode) {
  switch (mode) {
    case Mode::kRecord:
      return "record";
    case Mode::kObserve:
      return "observe";
    case Mode::kReplay:
      return "replay";
    case Mode::kVerify:
      return "verify";
    case Mode::kBypass:
      return "bypass";
  }
  return "unknown";
}

json::Value ToJson(const Policy& policy) {
  Policy copy = policy;
  return WriteRows(PolicyRows(copy));
}

Digest PolicyDigest(const Policy& policy) { return Sha256(json::Canonical(ToJson(policy))); }

Status CheckComponents(const Policy& policy, const json::Value& manifest) {
  const auto check = [&](const char* field, const std::string& name) -> Status {
    if (Component(manifest, name)) return {};
    std::vector<std::string> components;
    ListComponents(manifest, "", components);
    std::string message = "the policy's " + std::string(field) + " names " + name +
                          ", which is no component of the manifest; it has";
    for (const std::string& c : components) message += " " + c;
    return Error{Code::kInvalid, message};
  };
  for (const auto& [name, version] : policy.lock_components) {
    if (Status s = check("software_lock.components", name); !s.ok()) return s;
  }
  for (const std::string& name : policy.key_software) {
    if (Status s = check("key.software", name); !s.ok()) return s;
  }
  return {};
}

Status CheckSoftware(const Policy& policy, const json::Value& manifest) {
  std::string wrong;
  const auto add = [&](const std::string& what) { wrong += (wrong.empty() ? "" : "; ") + what; };
  const std::string digest = HexEncode(ManifestDigest(manifest));
  if (!policy.lock_manifest.empty() && policy.lock_manifest != digest) {
    add("manifest " + policy.lock_manifest + " is pinned, " + digest + " runs");
  }
  for (const auto& [name, version] : policy.lock_components) {
    const auto runs = Component(manifest, name);
    if (runs == version) continue;
    add(name + " " + version + " is pinned, " + runs.value_or("nothing") + " runs");
  }
  if (wrong.empty()) return {};
  return Error{Code::kFailedPrecondition, "the policy's software lock does not hold: " + wrong +
                                              "; run the pinned software or change the policy"};
}

json::Value ExtraKey(const Policy& policy, const json::Value& manifest) {
  json::Value extra = json::Value::MakeObject();
  if (policy.key_policy) extra.Set("policy", HexEncode(PolicyDigest(policy)));
  if (policy.key_manifest) extra.Set("manifest", HexEncode(ManifestDigest(manifest)));
  if (!policy.key_software.empty()) {
    json::Value software = json::Value::MakeObject();
    for (const std::string& name : policy.key_software) {
      const auto version = Component(manifest, name);
      software.Set(name, version ? json::Value(*version) : json::Value());
    }
    extra.Set("software", std::move(software));
  }
  return extra.members().empty() ? json::Value() : extra;
}

Decision Decide(const Policy& policy, const Caller& caller, std::string_view endpoint,
                const json::Value& request, uint64_t body_bytes) {
  Decision d{.refusal = {},
             .mode = policy.mode,
             .request = request,
             .changed = {},
             .name_space = NamespaceName(policy.name_space, caller),
             .verify_rate = policy.verify_rate,
             .hits = policy.hits,
             .strict_hits = policy.strict_hits,
             .retention_seconds = policy.retention_seconds,
             .break_glass_seconds = policy.break_glass_seconds,
             .limits = policy.limits};
  d.refusal = CheckSizes(policy.limits, request, body_bytes);
  if (!d.refusal) d.refusal = Enforce(policy, endpoint, d);
  if (!d.refusal) d.refusal = CapTokens(policy.limits.max_tokens, endpoint, d);
  return d;
}

}  // namespace verbatim::policies
