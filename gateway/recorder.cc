#include "gateway/recorder.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "base/clock.h"
#include "gateway/fingerprint.h"
#include "gateway/upstream/header_rules.h"

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
  extra.Set("policy", call.in_force->policy_digest);
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

json::Value Usage(uint64_t prompt, uint64_t completion) {
  return Object({{"prompt_tokens", prompt}, {"completion_tokens", completion}});
}

bool MayServeHits(const Call& call, const ReplyHead& reply, const RunEnd& end) {
  if (end.outcome != RunEnd::Outcome::kComplete || !call.MayReuse()) return false;
  if (end.redacted) return false;
  if (reply.streamed != call.request.stream) return false;  // not the form that was asked for
  const std::vector<std::string>& allowed = call.decision.hits.finish_reasons;
  for (const std::string& reason : end.reply.finish_reasons) {
    if (reason.empty()) continue;  // of a vendor who gives none (wire/reply_reader.h)
    if (std::find(allowed.begin(), allowed.end(), reason) == allowed.end()) return false;
  }
  return true;
}

// The reply of an upstream, as it came.
void AddReply(const Call& call, const Transcript& transcript, const RunEnd& end,
              store::AppendRequest& entry) {
  const ReplyHead& reply = *transcript.reply;
  store::Record& record = entry.record;
  entry.response = transcript.body.Joined();
  record.serves_hits = MayServeHits(call, reply, end);
  record.usage = Usage(end.reply.prompt_tokens, end.reply.completion_tokens);
  if (!end.reply.usage.is_null()) record.usage.Set("reported", end.reply.usage);
  json::Value headers = json::Value::MakeObject();
  for (const auto& [name, value] : reply.headers) {
    if (!IsOfTheMoment(name)) headers.Set(name, value);
  }
  const bool usage = call.request.include_usage || call.prepared->requests_usage();
  record.response = Object({{"status", reply.status},
                            {"form", reply.streamed ? "stream" : "plain"},
                            {"include_usage", reply.streamed && usage},
                            {"content_type", reply.content_type},
                            {"headers", std::move(headers)}});
  json::Value reported = json::Value::MakeObject();
  if (!end.reply.id.empty()) reported.Set("id", end.reply.id);
  if (!end.reply.model.empty()) reported.Set("model", end.reply.model);
  if (!end.reply.system_fingerprint.empty()) {
    reported.Set("system_fingerprint", end.reply.system_fingerprint);
  }
  json::Value reasons = json::Value::MakeArray();
  for (const std::string& reason : end.reply.finish_reasons) reasons.Append(reason);
  reported.Set("finish_reasons", std::move(reasons));
  if (end.outcome != RunEnd::Outcome::kComplete) {
    record.extra.Set("incomplete", end.cause);
    entry.detail = Object({{"reason", end.cause}});
  }
  if (!record.backend.is_object()) record.backend = json::Value::MakeObject();
  record.backend.Set("reported", std::move(reported));
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

std::string CauseOf(const HttpError& error) {
  if (!error.code.empty()) return error.code;
  return error.type.empty() ? "http_" + std::to_string(error.status) : error.type;
}

std::string UpstreamOf(const PreparedRequest& prepared) {
  const json::Value* upstream = prepared.identity().Find("upstream");
  return upstream && upstream->is_string() ? upstream->as_string() : "";
}

std::string FormName(const AnswerForm& form) {
  if (!form.streamed) return "plain";
  return form.include_usage ? "stream; usage" : "stream";
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

std::optional<ReplyHead> ReplyOf(const store::Record& record) {
  const json::Value* type = record.response.Find("content_type");
  const json::Value* status = record.response.Find("status");
  const json::Value* headers = record.response.Find("headers");
  const std::optional<AnswerForm> form = FormOf(record);
  if (!form || !type || !type->is_string() || !status || !headers || !headers->is_object()) {
    return std::nullopt;
  }
  ReplyHead reply;
  reply.status = static_cast<int>(status->AsInt64().value_or(200));
  reply.content_type = type->as_string();
  reply.streamed = form->streamed;
  for (const auto& [name, value] : headers->members()) {
    if (value.is_string()) reply.headers.emplace_back(name, value.as_string());
  }
  return reply;
}

Digest Call::ResultKey() const {
  return variant.empty() ? *fingerprint : store::VariantOf(*fingerprint, variant);
}

bool Call::MayReuse() const {
  switch (prepared->reuse()) {
    case Reuse::kAlways:
      return true;
    case Reuse::kSampled:
      return decision.hits.sampled;
    case Reuse::kStateful:
      return decision.hits.stateful;
  }
  return false;
}

store::AppendRequest GeneratedEntry(const Call& call, const Transcript& transcript,
                                    const RunEnd& end, int64_t run_micros) {
  const bool complete = end.outcome == RunEnd::Outcome::kComplete;
  store::AppendRequest entry =
      EntryOf(call, complete ? store::Kind::kGenerated : store::Kind::kFailed);
  if (!complete) entry.outcome = "incomplete";
  store::Record& record = entry.record;
  record.created = call.head.created;
  record.timings = Object({{"run_micros", run_micros}, {"received_micros", call.received_micros}});
  if (transcript.reply) {
    AddReply(call, transcript, end, entry);
  } else {
    const AnswerForm form = FormOf(call.request);
    entry.response = Render(call.head, transcript.trace, form);
    entry.trace = EncodeTrace(transcript.trace);
    record.serves_hits = true;
    record.chain_heads = transcript.trace.Chains();
    record.usage = Usage(transcript.trace.prompt_tokens, transcript.trace.Generated());
    record.response = Object({{"status", 200},
                              {"form", form.streamed ? "stream" : "plain"},
                              {"include_usage", form.include_usage}});
  }
  if (record.serves_hits && !call.variant.empty()) record.extra.Set("variant", call.variant);
  if (end.redacted) {
    const Redacted credentials{.bytes = {}, .rules = {"credentials"}};
    const json::Value note = RedactionNote(credentials, {});
    for (const auto& [name, value] : note.members()) {
      record.extra.Set(name, value);
    }
  }
  AddReport(entry, end);
  const bool streamed = transcript.reply ? transcript.reply->streamed : call.request.stream;
  Redact(call.in_force->redactor, streamed, entry);
  return entry;
}

void AddReport(store::AppendRequest& entry, const RunEnd& end) {
  if (!end.report.is_object()) return;
  json::Value& backend = entry.record.backend;
  if (!backend.is_object()) backend = json::Value::MakeObject();
  for (const auto& [name, value] : end.report.members()) backend.Set(name, value);
}

store::AppendRequest IntentEntry(const Call& call) {
  store::AppendRequest entry = EntryOf(call, store::Kind::kIntent);
  entry.opens_intent = true;
  // The answer's entry is what the request id finds.
  entry.record.request_id.clear();
  entry.record.extra.Set("request_id", call.id);
  entry.record.timings = Object({{"received_micros", call.received_micros}});
  json::Value standby = json::Value::MakeArray();
  for (const std::string& id : call.backend->fallbacks()) standby.Append(id);
  if (!standby.items().empty()) entry.record.extra.Set("fallbacks", std::move(standby));
  Redact(call.in_force->redactor, false, entry);
  return entry;
}

namespace {

// Patterns look at all strings of the member; rules with a pointer mean the bodies.
void RedactMember(const Redactor& redactor, json::Value& object, const char* name) {
  json::Value* member = object.is_object() ? object.Find(name) : nullptr;
  if (!member) return;
  const Redacted redacted = redactor.Request(json::Canonical(json::Object{{name, *member}}));
  if (!redacted.any()) return;
  auto parsed = json::Parse(redacted.bytes);
  const json::Value* kept = parsed ? parsed->Find(name) : nullptr;
  object.Set(name, kept ? *kept : json::Value());
}

}  // namespace

void Redact(const Redactor& redactor, bool streamed, store::AppendRequest& entry) {
  if (redactor.empty()) return;
  if (!entry.record.extra.is_object()) entry.record.extra = json::Value::MakeObject();
  // What client and vendor say beside the bodies.
  RedactMember(redactor, entry.record.extra, "model");
  for (const char* name : {"model", "reported", "request_id"}) {
    RedactMember(redactor, entry.record.backend, name);
  }
  RedactMember(redactor, entry.record.usage, "reported");
  RedactMember(redactor, entry.record.response, "headers");
  RedactMember(redactor, entry.record.response, "content_type");
  RedactMember(redactor, entry.detail, "model");
  Redacted request = redactor.Request(entry.request);
  Redacted response = redactor.Response(entry.response, streamed);
  if (!request.any() && !response.any()) return;
  const json::Value note = RedactionNote(request, response);
  for (const auto& [name, value] : note.members()) entry.record.extra.Set(name, value);
  entry.request = std::move(request.bytes);
  entry.response = std::move(response.bytes);
  // Neither can be had again from what is kept: the tokens would give the text away.
  entry.trace.clear();
  entry.record.serves_hits = false;
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
    if (call.KeepsPayload()) {
      entry.response = error->body;
      if (entry.response.empty()) {
        entry.response = ErrorJson(*error, ErrorFormOf(call.endpoint), call.id);
      }
    }
  }
  Redact(call.in_force->redactor, false, entry);
  return entry;
}

namespace {

// What was served, for records that hold no answer themselves.
void SetServed(json::Value& extra, const Call& answered, uint64_t result,
               const std::optional<Digest>& output_digest) {
  extra.Set("mode", policies::ModeName(answered.decision.mode));
  extra.Set("policy", answered.in_force->policy_digest);
  extra.Set("result", result);
  extra.Set("fingerprint", HexEncode(*answered.fingerprint));
  if (output_digest) extra.Set("output_digest", HexEncode(*output_digest));
  if (answered.decision.retention_seconds > 0) {
    extra.Set("retention_seconds", answered.decision.retention_seconds);
  }
}

void SetForm(json::Value& extra, const Call& call) {
  const AnswerForm form = FormOf(call.request);
  extra.Set("form", form.streamed ? "stream" : "plain");
  extra.Set("include_usage", form.include_usage);
}

}  // namespace

store::HitRequest HitEntry(const Call& call, const Call& answered, store::Kind kind,
                           uint64_t result, const std::optional<Digest>& output_digest) {
  store::HitRequest hit;
  hit.kind = kind;
  hit.result = result;
  hit.tenant = call.principal.tenant;
  hit.subject = call.principal.subject;
  hit.key_id = call.principal.key_id;
  hit.request_id = call.id;
  hit.new_request_id = true;  // the server made it
  hit.strict = call.decision.strict_hits;
  json::Value extra = json::Value::MakeObject();
  SetForm(extra, call);
  if (hit.strict) {
    hit.model = call.prepared->model_digest();
    hit.manifest = call.manifest;
    hit.numerics = call.prepared->numerics();
    SetServed(extra, answered, result, output_digest);
  }
  hit.extra = json::Canonical(extra);
  return hit;
}

store::AppendRequest StandInHitEntry(const Call& answered, const store::StoredResult& hit,
                                     const RunEnd& end) {
  store::AppendRequest entry = EntryOf(answered, store::Kind::kHit);
  entry.references = {{"result", hit.entry}};
  entry.request.clear();  // as of every hit
  SetForm(entry.record.extra, answered);
  SetServed(entry.record.extra, answered, hit.entry, hit.record.output_digest);
  AddReport(entry, end);
  Redact(answered.in_force->redactor, false, entry);
  return entry;
}

}  // namespace verbatim::gateway
