// The fingerprint of a request: what makes two requests the same one. FINGERPRINT.md is the
// specification; this is its code. Pure functions; any thread may call them.
//
// envelope = {"version","namespace","endpoint","request","identity"[,"policy"]}, as canonical JSON.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/json.h"

namespace verbatim::gateway {

// Of the envelope's form, and of everything that turns a request into the engine's answer apart
// from the numbers: rendering, tokenising, defaults, stopping, wire bytes. Raised when one of them
// changes.
inline constexpr int kEnvelopeVersion = 1;
inline constexpr char kAnswerVersion[] = "1";

// A field that is not part of the fingerprint, and why.
struct ExcludedField {
  std::string_view field;
  std::string_view reason;
};
// `endpoint` is the path, "/v1/chat/completions". Only what the endpoint's answer does not repeat.
std::vector<ExcludedField> ExcludedFields(std::string_view endpoint);

// Identity of the embedded engine: all that can change its answer and is not in the request.
struct EngineIdentity {
  Digest model_digest{};
  std::string fidelity;    // "wba16"
  std::string numerics;    // version of numerics.md
  Digest prompt_digest{};  // SHA-256 of the rendered prompt's text
};
json::Value ToJson(const EngineIdentity& identity);

// Of a prompt that was given as token ids: SHA-256 of their JSON array, canonical. (Of a rendered
// prompt it is the SHA-256 of its text.)
Digest PromptDigestOfTokens(const std::vector<int32_t>& tokens);

struct Envelope {
  std::string name_space;
  std::string endpoint;
  json::Value request;   // the client's object with the policy's overrides (policies::Decision)
  json::Value identity;  // of the backend
  json::Value extra;     // policies::ExtraKey: an object, or null
};

// The envelope as JSON: `request` without the excluded fields and with "seed": null where it has
// none.
json::Value EnvelopeJson(const Envelope& envelope);

// SHA-256 of the envelope's canonical JSON, or HMAC-SHA-256 where `key` is not empty.
Digest Fingerprint(const Envelope& envelope, std::string_view key = {});

// The seed in force where the client gave none: the first 8 bytes, big-endian, of
// SHA-256("verbatim-seed-1" || canonical envelope without namespace and policy).
uint64_t DerivedSeed(const Envelope& envelope);

// "fp_" and the first 16 hex digits of the SHA-256 of the identity's canonical JSON, without the
// prompt's digest: the same for all answers of one model as configured.
std::string SystemFingerprint(const json::Value& identity);

// "chatcmpl-", "cmpl-", "resp_" or "msg_", by endpoint, and the first 32 hex digits of the
// fingerprint.
std::string AnswerId(std::string_view endpoint, const Digest& fingerprint);

// Why two envelopes have different fingerprints: the JSON pointers (RFC 6901) of the deepest values
// that differ, in canonical order, with both values as canonical JSON, cut to 200 bytes ("" where
// one side has no such value). At most `limit` of them.
struct Difference {
  std::string pointer;
  std::string a, b;
};
std::vector<Difference> Explain(const json::Value& a, const json::Value& b, size_t limit = 100);

}  // namespace verbatim::gateway
