#include "gateway/fingerprint.h"

#include <algorithm>

#include "base/crypto.h"
#include "gateway/endpoint.h"

namespace verbatim::gateway {

namespace {

constexpr size_t kShownBytes = 200;

constexpr ExcludedField kStream = {
    "stream", "how the answer travels; both forms of one answer are made from one record"};
constexpr ExcludedField kStreamOptions = {
    "stream_options", "what is sent beside the answer's text; usage is the same either way"};
constexpr ExcludedField kUser = {
    "user", "an end user's name for abuse reports; not read, and not in the answer"};
constexpr ExcludedField kMetadata = {
    "metadata", "an end user's id for abuse reports; not read, and not in the answer"};

// What the seed derives from: no namespace and no policy, so that every tenant and every policy
// draws the same answer for the same request.
json::Value SeedJson(const Envelope& envelope) {
  json::Value request = envelope.request;
  for (const ExcludedField& e : ExcludedFields(envelope.endpoint)) request.Erase(e.field);
  if (request.Find("seed") == nullptr) request.Set("seed", json::Value());
  return json::Object{{"version", kEnvelopeVersion},
                      {"endpoint", envelope.endpoint},
                      {"request", std::move(request)},
                      {"identity", envelope.identity}};
}

std::string Token(std::string_view name) {  // RFC 6901, section 3
  std::string out = "/";
  for (const char c : name) {
    if (c == '~') {
      out += "~0";
    } else if (c == '/') {
      out += "~1";
    } else {
      out += c;
    }
  }
  return out;
}

std::string Shown(const json::Value* v) {
  if (v == nullptr) return "";
  std::string text = json::Canonical(*v);
  if (text.size() <= kShownBytes) return text;
  size_t cut = kShownBytes - 3;
  while (cut > 0 && (static_cast<uint8_t>(text[cut]) & 0xc0) == 0x80) --cut;
  return text.substr(0, cut) + "...";
}

class Differ {
 public:
  Differ(size_t limit, std::vector<Difference>& out) : limit_(limit), out_(out) {}

  void Compare(const std::string& pointer, const json::Value* a, const json::Value* b) {
    if (out_.size() >= limit_) return;
    if (a != nullptr && b != nullptr) {
      if (a->is_object() && b->is_object()) return Members(pointer, *a, *b);
      if (a->is_array() && b->is_array()) return Items(pointer, *a, *b);
      if (*a == *b) return;
    }
    out_.push_back({pointer, Shown(a), Shown(b)});
  }

 private:
  // Both sides in the canonical order of names, side by side.
  void Members(const std::string& pointer, const json::Value& a, const json::Value& b) {
    const auto sorted = [](const json::Value& v) {
      std::vector<const json::Member*> members;
      for (const json::Member& m : v.members()) members.push_back(&m);
      std::sort(members.begin(), members.end(),
                [](const auto* x, const auto* y) { return x->first < y->first; });
      return members;
    };
    const auto left = sorted(a), right = sorted(b);
    for (size_t i = 0, k = 0; i < left.size() || k < right.size();) {
      const bool take_left =
          k == right.size() || (i < left.size() && left[i]->first <= right[k]->first);
      const bool take_right =
          i == left.size() || (k < right.size() && right[k]->first <= left[i]->first);
      const std::string& name = take_left ? left[i]->first : right[k]->first;
      Compare(pointer + Token(name), take_left ? &left[i]->second : nullptr,
              take_right ? &right[k]->second : nullptr);
      i += take_left;
      k += take_right;
    }
  }

  void Items(const std::string& pointer, const json::Value& a, const json::Value& b) {
    const size_t n = std::max(a.items().size(), b.items().size());
    for (size_t i = 0; i < n && out_.size() < limit_; ++i) {
      Compare(pointer + Token(std::to_string(i)), i < a.items().size() ? &a.items()[i] : nullptr,
              i < b.items().size() ? &b.items()[i] : nullptr);
    }
  }

  size_t limit_;
  std::vector<Difference>& out_;
};

}  // namespace

std::vector<ExcludedField> ExcludedFields(std::string_view endpoint) {
  const std::optional<Endpoint> known = EndpointOfPath(endpoint);
  if (!known) return {};
  switch (*known) {
    case Endpoint::kChatCompletions:
    case Endpoint::kCompletions:
      return {kStream, kStreamOptions, kUser};
    case Endpoint::kResponses:
      return {kStream, kStreamOptions};
    case Endpoint::kEmbeddings:
      return {kUser};
    case Endpoint::kMessages:
      return {kStream, kMetadata};
    case Endpoint::kCountTokens:
      break;
  }
  return {};
}

json::Value ToJson(const EngineIdentity& identity) {
  return json::Object{
      {"backend", "engine"},           {"model", HexEncode(identity.model_digest)},
      {"fidelity", identity.fidelity}, {"numerics", identity.numerics},
      {"answers", kAnswerVersion},     {"prompt", HexEncode(identity.prompt_digest)}};
}

Digest PromptDigestOfTokens(const std::vector<int32_t>& tokens) {
  json::Value list = json::Value::MakeArray();
  for (const int32_t token : tokens) list.Append(token);
  return Sha256(json::Canonical(list));
}

json::Value EnvelopeJson(const Envelope& envelope) {
  json::Value v = SeedJson(envelope);
  v.Set("namespace", envelope.name_space);
  if (!envelope.extra.is_null()) v.Set("policy", envelope.extra);
  return v;
}

Digest Fingerprint(const Envelope& envelope, std::string_view key) {
  const std::string canonical = json::Canonical(EnvelopeJson(envelope));
  return key.empty() ? Sha256(canonical) : HmacSha256(key, canonical);
}

uint64_t DerivedSeed(const Envelope& envelope) {
  return ReadU64(AsBytes(Sha256("verbatim-seed-1" + json::Canonical(SeedJson(envelope)))));
}

std::string SystemFingerprint(const json::Value& identity) {
  json::Value model = identity;
  if (model.is_object()) model.Erase("prompt");
  return "fp_" + HexEncode(Sha256(json::Canonical(model))).substr(0, 16);
}

std::string AnswerId(std::string_view endpoint, const Digest& fingerprint) {
  const char* prefix = "chatcmpl-";
  if (endpoint == "/v1/completions") prefix = "cmpl-";
  if (endpoint == "/v1/responses") prefix = "resp_";
  if (endpoint == "/v1/messages") prefix = "msg_";
  return prefix + HexEncode(fingerprint).substr(0, 32);
}

std::vector<Difference> Explain(const json::Value& a, const json::Value& b, size_t limit) {
  std::vector<Difference> out;
  Differ(limit, out).Compare("", &a, &b);
  return out;
}

}  // namespace verbatim::gateway
