#include "gateway/request_memo.h"

#include <string>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "base/crypto.h"
#include "gateway/answerer.h"
#include "gateway/upstream/header_rules.h"

namespace verbatim::gateway {

namespace {

// Of the list's node, the map's, the call's own members, and what allocations round up.
constexpr uint64_t kOverhead = sizeof(Call) + 1024;

void AppendText(std::string& out, std::string_view text) {
  AppendU64(out, text.size());
  out += text;
}

// Of an identity, only who answered: the fingerprint is known.
json::Value UpstreamNameOf(const PreparedRequest& prepared) {
  json::Value identity = json::Value::MakeObject();
  const json::Value* upstream = prepared.identity().Find("upstream");
  if (upstream) identity.Set("upstream", *upstream);
  return identity;
}

// What a hit needs to know of a prepared request.
class Remembered : public PreparedRequest {
 public:
  explicit Remembered(const PreparedRequest& from)
      : reuse_(from.reuse()),
        external_(from.external()),
        requests_usage_(from.requests_usage()),
        identity_(UpstreamNameOf(from)),
        system_fingerprint_(from.system_fingerprint()),
        choices_(from.choices()),
        prompt_tokens_(from.prompt_tokens()),
        parameters_(from.parameters()),
        description_(from.description()),
        model_digest_(from.model_digest()),
        numerics_(from.numerics()) {}

  Reuse reuse() const override { return reuse_; }
  bool external() const override { return external_; }
  bool requests_usage() const override { return requests_usage_; }
  bool timeless() const override { return true; }
  const json::Value& identity() const override { return identity_; }
  std::string system_fingerprint() const override { return system_fingerprint_; }
  uint32_t choices() const override { return choices_; }
  uint32_t prompt_tokens() const override { return prompt_tokens_; }
  json::Value parameters() const override { return parameters_; }
  json::Value description() const override { return description_; }
  std::string model_digest() const override { return model_digest_; }
  std::string numerics() const override { return numerics_; }
  Answered<std::unique_ptr<Run>> Start(const RunOptions&, RunObserver) const override {
    CHECK(false);
  }

  uint64_t bytes() const {
    return sizeof(*this) + system_fingerprint_.size() + model_digest_.size() + numerics_.size() +
           json::Serialize(parameters_).size() * 8 + json::Serialize(description_).size() * 8;
  }

 private:
  const Reuse reuse_;
  const bool external_, requests_usage_;
  const json::Value identity_;
  const std::string system_fingerprint_;
  const uint32_t choices_, prompt_tokens_;
  const json::Value parameters_, description_;
  const std::string model_digest_, numerics_;
};

}  // namespace

Digest RequestMemo::KeyOf(Endpoint endpoint, const Request& http) {
  std::string text("verbatim-memo-1");
  text.reserve(2048 + http.body.size());
  text += static_cast<char>(endpoint);
  const Principal& principal = http.principal;
  for (const std::string* part :
       {&principal.tenant, &principal.subject, &principal.key_id, &http.path, &http.query}) {
    AppendText(text, *part);
  }
  text += static_cast<char>(principal.roles);
  AppendU64(text, principal.groups.size());
  for (const std::string& group : principal.groups) AppendText(text, group);
  for (const auto& [name, value] : http.headers) {
    // The body says its length already.
    if (name == "content-length" || HeaderNeverCounts(name)) continue;
    AppendText(text, name);
    AppendText(text, value);
  }
  // No length can be this: the end of the headers.
  AppendU64(text, UINT64_MAX);
  text += http.body;
  return Sha256(text);
}

std::shared_ptr<const RequestMemo::Known> RequestMemo::Find(const Digest& key,
                                                            const InForce& in_force,
                                                            const Principal& principal) {
  std::lock_guard lock(mutex_);
  const auto found = by_key_.find(key);
  if (found == by_key_.end()) return nullptr;
  // Both are held, so that nothing else can stand at their addresses.
  const Call& call = *found->second->known->call;
  if (call.in_force.get() != &in_force || call.principal.grant != principal.grant) return nullptr;
  held_.splice(held_.begin(), held_, found->second);
  return found->second->known;
}

void RequestMemo::Remember(const Digest& key, const Call& call, const SharedResult& result,
                           std::shared_ptr<const HitAnswer> answer) {
  if (limit_ == 0 || !call.prepared->timeless()) return;
  const auto prepared = std::make_shared<const Remembered>(*call.prepared);
  auto known = std::make_shared<Call>();
  known->endpoint = call.endpoint;
  known->principal.grant = call.principal.grant;
  known->in_force = call.in_force;
  known->cache = call.cache;
  known->decision = call.decision;
  known->decision.request = {};
  known->request.endpoint = call.request.endpoint;
  known->request.model = call.request.model;
  known->request.stream = call.request.stream;
  known->request.include_usage = call.request.include_usage;
  known->request.ignored = call.request.ignored;
  known->prepared = prepared;
  known->fingerprint = call.fingerprint;
  known->variant = call.variant;
  known->seed = call.seed;
  known->head = call.head;
  uint64_t bytes = kOverhead + prepared->bytes() + call.request.model.size() +
                   call.decision.name_space.size() + call.head.id.size() + call.head.model.size();
  for (const auto* names : {&call.request.ignored, &call.decision.changed}) {
    for (const std::string& name : *names) bytes += sizeof(name) + name.size();
  }
  bytes += answer->bytes();
  if (bytes > limit_ / 4) return;
  auto all = std::make_shared<const Known>(Known{std::move(known), result, std::move(answer)});

  std::lock_guard lock(mutex_);
  if (const auto old = by_key_.find(key); old != by_key_.end()) Drop(old->second);
  held_.push_front({key, std::move(all), bytes});
  by_key_.emplace(key, held_.begin());
  bytes_ += bytes;
  while (bytes_ > limit_) Drop(std::prev(held_.end()));
}

void RequestMemo::Drop(std::list<Held>::iterator held) {
  bytes_ -= held->bytes;
  by_key_.erase(held->key);
  held_.erase(held);
}

}  // namespace verbatim::gateway
