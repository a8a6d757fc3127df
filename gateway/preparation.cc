#include "gateway/preparation.h"

#include <utility>
#include <variant>

#include "base/clock.h"
#include "base/log.h"
#include "gateway/access.h"
#include "gateway/fingerprint.h"

namespace verbatim::gateway {

using policies::Mode;

namespace {

bool NamesLength(const json::Value& body) {
  for (const char* field : {"max_tokens", "max_completion_tokens", "max_output_tokens"}) {
    const json::Value* v = body.Find(field);
    if (v && !v->is_null()) return true;
  }
  return false;
}

uint64_t AgeSeconds(const store::StoredResult& hit) {
  return static_cast<uint64_t>(std::max<int64_t>(0, NowMicros() - hit.leaf.time) / 1'000'000);
}

}  // namespace

bool ServesHits(const Call& call) {
  const Mode mode = call.decision.mode;
  return mode == Mode::kRecord || mode == Mode::kReplay || mode == Mode::kVerify;
}

std::shared_ptr<Call> AcceptCall(Endpoint endpoint, const Request& http,
                                 std::shared_ptr<const InForce> in_force, std::string manifest) {
  auto call = std::make_shared<Call>();
  call->endpoint = endpoint;
  call->id = http.id;
  call->body = http.body;
  call->headers = http.headers;
  call->query = http.query;
  if (!http.params.empty()) call->deployment = http.params.front();
  call->principal = http.principal;
  call->received_micros = http.received_micros;
  call->cache = ParseCacheControl(http.Header("cache-control"));
  call->manifest = std::move(manifest);
  call->in_force = std::move(in_force);
  call->decision.mode = call->in_force->policy.mode;
  return call;
}

std::optional<HttpError> DecodeCall(Call& call, json::Value& body) {
  auto parsed = ParseBody(call.body);
  if (auto* error = std::get_if<HttpError>(&parsed)) return std::move(*error);
  body = std::get<json::Value>(std::move(parsed));
  // Azure's clients name the model in the path.
  if (!call.deployment.empty()) body.Set("model", call.deployment);
  const json::Value* model = body.Find("model");
  if (!model || !model->is_string() || model->as_string().empty()) {
    return HttpError{.status = 400,
                     .message = "You must provide a model parameter, as a string.",
                     .param = "model",
                     .code = model ? "invalid_type" : "missing_required_parameter"};
  }
  call.request.model = model->as_string();
  call.backend = call.first_backend = call.in_force->catalog.Find(call.request.model);
  if (!call.backend || !MayUseModel(call.in_force->tenants, call.principal, call.request.model)) {
    return NoSuchModel(call.request.model);
  }
  call.length_is_open = !NamesLength(body);
  auto request = call.backend->Decode(call.endpoint, body);
  if (auto* error = std::get_if<HttpError>(&request)) return std::move(*error);
  call.request = std::get<GenerationRequest>(std::move(request));
  return std::nullopt;
}

std::optional<HttpError> DecideCall(Call& call, const json::Value& body) {
  const InForce& in_force = *call.in_force;
  if (!in_force.locked.empty()) {
    return HttpError{.status = 503,
                     .message = "This server does not serve: " + in_force.locked,
                     .type = "server_error",
                     .code = "software_lock",
                     .headers = {{"x-should-retry", "false"}}};
  }
  const policies::Caller caller{call.principal.tenant, call.principal.subject,
                                call.principal.key_id, call.principal.groups};
  call.decision = policies::Decide(in_force.policy, caller, EndpointPath(call.endpoint), body,
                                   call.body.size());
  if (call.decision.refusal) {
    const policies::Refusal& refusal = *call.decision.refusal;
    // What is too large to be answered is too large to be kept.
    if (refusal.code == "limit_exceeded") call.cache.no_store = true;
    return HttpError{
        .status = 400, .message = refusal.message, .param = refusal.param, .code = refusal.code};
  }
  if (call.cache.only_if_cached && ServesHits(call)) call.decision.mode = Mode::kReplay;
  // Whoever must have every answer in the ledger has it there with its payload.
  if (call.decision.strict_hits) call.cache.no_store = false;
  if (call.decision.changed.empty()) return std::nullopt;

  auto request = call.backend->Decode(call.endpoint, call.decision.request);
  if (auto* error = std::get_if<HttpError>(&request)) return std::move(*error);
  call.request = std::get<GenerationRequest>(std::move(request));
  return std::nullopt;
}

std::optional<HttpError> PrepareCall(const Authenticator& authenticator, Call& call) {
  authenticator.EraseOwn(call.headers);
  auto prepared = call.backend->Prepare(call.request, {.clock_micros = call.received_micros,
                                                       .length_is_open = call.length_is_open,
                                                       .headers = &call.headers,
                                                       .query = call.query,
                                                       .body = call.body});
  if (auto* error = std::get_if<HttpError>(&prepared)) return std::move(*error);
  call.prepared = std::get<std::shared_ptr<const PreparedRequest>>(std::move(prepared));
  return std::nullopt;
}

void TakeFingerprint(Call& call) {
  const std::string endpoint(EndpointPath(call.endpoint));
  const Envelope envelope{.name_space = call.decision.name_space,
                          .endpoint = endpoint,
                          .request = call.decision.request,
                          .identity = call.prepared->identity(),
                          .extra = call.in_force->extra_key};
  call.variant.clear();
  call.fingerprint = Fingerprint(envelope, call.in_force->key_secret);
  call.seed = call.request.seed ? *call.request.seed : DerivedSeed(envelope);
  call.head = HeadOf(call.request, AnswerId(endpoint, *call.fingerprint),
                     call.prepared->system_fingerprint());
}

bool IsExpired(const Call& call, const store::StoredResult& hit) {
  const uint64_t bound = call.decision.hits.max_age_seconds;
  return bound > 0 && call.prepared->external() && AgeSeconds(hit) > bound;
}

bool IsFresh(const Call& call, const store::StoredResult& hit) {
  return !IsExpired(call, hit) && (!call.cache.max_age || AgeSeconds(hit) <= *call.cache.max_age);
}

bool NarrowToForm(Call& call) {
  std::string form = FormName(FormOf(call.request));
  if (form == call.variant) return false;
  call.variant = std::move(form);
  return true;
}

std::shared_ptr<Call> StandIn(const Authenticator& authenticator, const Call& call, size_t& next) {
  const std::vector<std::string> fallbacks = call.first_backend->fallbacks();
  while (next < fallbacks.size()) {
    const std::string& id = fallbacks[next++];
    auto other = std::make_shared<Call>(call);
    other->backend = call.in_force->catalog.Upstream(id);
    if (!other->backend || other->backend == call.backend) continue;
    if (auto error = PrepareCall(authenticator, *other)) {
      LogWarning(call.id + ": " + id + " cannot stand in: " + error->message);
      continue;
    }
    TakeFingerprint(*other);
    other->head.created = NowMicros() / 1'000'000;
    return other;
  }
  return nullptr;
}

}  // namespace verbatim::gateway
