#include "gateway/recorder.h"

#include <charconv>
#include <utility>

#include "base/clock.h"
#include "gateway/fingerprint.h"

namespace verbatim::gateway {

namespace {

// Everything that is known of the caller and the request, whatever becomes of it.
store::AppendRequest EntryOf(const Call& call, store::Kind kind) {
  store::AppendRequest entry;
  entry.kind = kind;
  entry.manifest = call.manifest;
  if (call.prepared) {
    entry.model = call.prepared->model_digest();
    entry.numerics = call.prepared->numerics();
    entry.record.backend = call.prepared->description();
    entry.record.parameters = call.prepared->parameters();
    entry.record.seed = call.seed;
  }
  store::Record& record = entry.record;
  record.tenant = call.principal.tenant;
  record.subject = call.principal.subject;
  record.key_id = call.principal.key_id;
  record.request_id = call.id;
  record.endpoint = EndpointPath(call.endpoint);
  record.name_space = call.decision.name_space;
  record.fingerprint = call.fingerprint;

  json::Value extra = json::Value::MakeObject();
  extra.Set("mode", policies::ModeName(call.decision.mode));
  extra.Set("policy", call.policy_digest);
  extra.Set("model", call.request.model);
  if (call.decision.retention_seconds > 0) {
    extra.Set("retention_seconds", call.decision.retention_seconds);
  }
  if (!call.decision.changed.empty()) {
    json::Value changed = json::Value::MakeArray();
    for (const std::string& field : call.decision.changed) changed.Append(field);
    extra.Set("changed_by_policy", std::move(changed));
  }
  record.extra = std::move(extra);
  if (call.KeepsPayload()) entry.request = call.body;
  return entry;
}

json::Value Object(std::initializer_list<std::pair<const char*, json::Value>> members) {
  json::Value v = json::Value::MakeObject();
  for (const auto& [key, value] : members) v.Set(key, value);
  return v;
}

}  // namespace

CacheControl ParseCacheControl(std::string_view header) {
  CacheControl cache;
  while (!header.empty()) {
    const size_t comma = std::min(header.find(','), header.size());
    std::string_view item = header.substr(0, comma);
    header.remove_prefix(std::min(comma + 1, header.size()));
    while (!item.empty() && (item.front() == ' ' || item.front() == '\t')) item.remove_prefix(1);
    while (!item.empty() && (item.back() == ' ' || item.back() == '\t')) item.remove_suffix(1);
    std::string name;
    const size_t equals = std::min(item.find('='), item.size());
    for (char c : item.substr(0, equals)) {
      name += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    }
    if (name == "no-cache") cache.no_cache = true;
    if (name == "no-store") cache.no_store = true;
    if (name == "only-if-cached") cache.only_if_cached = true;
    if (name == "max-age" && equals < item.size()) {
      const std::string_view digits = item.substr(equals + 1);
      uint64_t seconds = 0;
      auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), seconds);
      // What is no number counts as stale (RFC 9111, 4.2.1).
      const bool ok = error == std::errc() && end == digits.data() + digits.size();
      cache.max_age = ok ? seconds : 0;
    }
  }
  return cache;
}

AnswerForm FormOf(const GenerationRequest& request) {
  return {request.stream, request.stream && request.include_usage};
}

std::optional<AnswerForm> FormOf(const store::Record& record) {
  const json::Value* form = record.response.Find("form");
  const json::Value* usage = record.response.Find("include_usage");
  if (!form || !form->is_string() || !usage || !usage->is_bool()) return std::nullopt;
  return AnswerForm{form->as_string() == "stream", usage->as_bool()};
}

store::AppendRequest GeneratedEntry(const Call& call, const AnswerHead& head, const Trace& trace,
                                    int64_t run_micros) {
  store::AppendRequest entry = EntryOf(call, store::Kind::kGenerated);
  const AnswerForm form = FormOf(call.request);
  entry.response = Render(head, trace, form);
  entry.trace = EncodeTrace(trace);
  store::Record& record = entry.record;
  record.serves_hits = true;
  record.chain_heads = trace.Chains();
  record.created = head.created;
  record.usage = Object({{"prompt_tokens", static_cast<uint64_t>(trace.prompt_tokens)},
                         {"completion_tokens", trace.Generated()}});
  record.timings = Object({{"run_micros", run_micros}, {"received_micros", call.received_micros}});
  record.response = Object({{"status", 200},
                            {"form", form.streamed ? "stream" : "plain"},
                            {"include_usage", form.include_usage}});
  return entry;
}

void DropPayload(store::AppendRequest& entry) {
  entry.request.clear();
  entry.response.clear();
  entry.trace.clear();
  entry.record.serves_hits = false;
}

store::AppendRequest UnansweredEntry(const Call& call, store::Kind kind, std::string outcome,
                                     const HttpError* error, uint64_t generated_tokens) {
  store::AppendRequest entry = EntryOf(call, kind);
  entry.outcome = std::move(outcome);
  entry.record.usage = Object({{"completion_tokens", generated_tokens}});
  entry.record.timings = Object({{"received_micros", call.received_micros}});
  if (error) {
    entry.record.response = Object({{"status", error->status}, {"form", "error"}});
    if (call.KeepsPayload()) entry.response = ErrorJson(*error);
  }
  return entry;
}

store::HitRequest HitEntry(const Call& call, store::Kind kind, uint64_t result,
                           const std::optional<Digest>& output_digest) {
  store::HitRequest hit;
  hit.kind = kind;
  hit.result = result;
  hit.tenant = call.principal.tenant;
  hit.subject = call.principal.subject;
  hit.key_id = call.principal.key_id;
  hit.request_id = call.id;
  hit.strict = call.decision.strict_hits;
  hit.model = call.prepared->model_digest();
  hit.manifest = call.manifest;
  hit.numerics = call.prepared->numerics();
  const AnswerForm form = FormOf(call.request);
  hit.extra =
      Object({{"form", form.streamed ? "stream" : "plain"}, {"include_usage", form.include_usage}});
  if (!hit.strict) return hit;
  hit.extra.Set("mode", policies::ModeName(call.decision.mode));
  hit.extra.Set("policy", call.policy_digest);
  hit.extra.Set("result", result);
  hit.extra.Set("fingerprint", HexEncode(*call.fingerprint));
  if (output_digest) hit.extra.Set("output_digest", HexEncode(*output_digest));
  if (call.decision.retention_seconds > 0) {
    hit.extra.Set("retention_seconds", call.decision.retention_seconds);
  }
  return hit;
}

}  // namespace verbatim::gateway
