// The rules that an operator sets, and what they decide for one request. policies/README.md says
// what each field means; loader.h reads policies from YAML; a Policy is a plain value, immutable
// once loaded, and every function here is pure: any thread may call them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/json.h"
#include "base/result.h"
#include "policies/redaction.h"

namespace verbatim::policies {

enum class Mode {
  kRecord,   // hits are served, misses run and are kept
  kObserve,  // everything runs and is kept, nothing is served from the store
  kReplay,   // only hits; a miss is refused
  kVerify,   // a hit is served and also run again
  kBypass,   // passes through, leaves a trace, keeps no payload
};
std::string_view ModeName(Mode mode);  // "record", ...

// Whose results are shared with whom.
enum class Namespace {
  kTenant,
  kSubject,
  kShared,
  kGroup,  // callers of one tenant who are in exactly the same groups; who is in none is alone
};

enum class How {
  kOverride,  // the policy's value replaces whatever the client sent
  kRefuse,    // a client that sent another value gets a 400; who sent none gets the policy's value
};

// A field of the request object whose value the policy fixes.
struct Enforced {
  std::string field;  // "temperature"
  json::Value value;
  How how = How::kOverride;
};

// Upper bounds; 0 means none.
struct Limits {
  uint64_t body_bytes = 0;    // of the request as received
  uint64_t prompt_bytes = 0;  // UTF-8 bytes of all text in messages or prompt
  uint64_t messages = 0;      // in a chat request
  uint64_t max_tokens = 0;    // asked for; a request that leaves it open gets this number
};

// Which recorded answers of upstreams serve as hits. The embedded engine's always may.
struct HitRules {
  bool sampled = false;          // also of requests without temperature 0 and without a seed
  bool stateful = false;         // also of requests that depend on state outside them
  uint64_t max_age_seconds = 0;  // older ones are run again; 0: no bound. Apart from retention
  // Answers that ended for one of these reasons, as the vendors name them; any other is recorded
  // and served to nobody but the one who asked.
  std::vector<std::string> finish_reasons = {
      "completed",  "end_turn", "function_call", "length",     "max_output_tokens",
      "max_tokens", "stop",     "stop_sequence", "tool_calls", "tool_use"};
};

struct Policy {
  Mode mode = Mode::kRecord;
  std::vector<Enforced> enforce;

  // What counts in the fingerprint beyond the request and the engine's identity.
  Namespace name_space = Namespace::kTenant;
  std::string key_secret;     // env:NAME or file:PATH: fingerprints are HMACs; "": SHA-256
  bool key_policy = false;    // the digest of the policy
  bool key_manifest = false;  // the digest of the whole manifest
  std::vector<std::string> key_software;  // components of the manifest, by name

  // What must run, or the server does not serve.
  std::string lock_manifest;  // 64 hex digits, or ""
  std::vector<std::pair<std::string, std::string>>
      lock_components;  // name, version; sorted by name

  double verify_rate = 0;  // share of recorded answers that are executed again, 0 to 1
  HitRules hits;
  bool strict_hits = false;        // every hit is committed, synced, before it leaves
  uint64_t retention_seconds = 0;  // kept in records; 0: no end
  // For how long answers are given although the ledger fails; 0: never.
  uint64_t break_glass_seconds = 0;
  Limits limits;
  std::vector<RedactRule> redact;  // in this order
  // The upstream to which everything under /v1 goes that is no endpoint of ours, unrecorded; "":
  // nothing does.
  std::string pass_through;
};

// The effective policy, every field written out, and the SHA-256 of its canonical form: the digest
// that ledger entries name. Secrets are references in it, never values.
json::Value ToJson(const Policy& policy);
Digest PolicyDigest(const Policy& policy);

// The manifest is an object of what runs (gateway/manifest.h). A component is named by its path in
// it ("build.version", "libraries.rocksdb"); its version is the text that stands there.

// Whether the manifest has every component that the policy names, to pin it or to count it in keys.
// kInvalid: names the first that is not there, and all that are.
Status CheckComponents(const Policy& policy, const json::Value& manifest);

// Whether the running software is what the policy pins; CheckComponents is ok. kFailedPrecondition:
// names each component that differs, what is pinned, what runs.
Status CheckSoftware(const Policy& policy, const json::Value& manifest);

// What the policy adds to the fingerprint of every request, for a server that runs `manifest`: an
// object, or null where it adds nothing. CheckComponents is ok.
json::Value ExtraKey(const Policy& policy, const json::Value& manifest);

// Who asks, as far as policies care.
struct Caller {
  std::string tenant;
  std::string subject;
  std::string key_id;
  std::vector<std::string> groups{};  // in any order
};

// A refusal, as the client sees it (HTTP 400).
struct Refusal {
  std::string param;  // the field of the request, or ""
  std::string message;
  std::string code;  // "policy_violation", "limit_exceeded"
};

struct Decision {
  std::optional<Refusal> refusal;  // where set, nothing else counts
  Mode mode = Mode::kRecord;
  json::Value request;               // the client's object with the policy's values: what runs
  std::vector<std::string> changed;  // the fields of it that differ from what the client sent
  std::string name_space;            // injective in what separates callers; goes into the envelope
  double verify_rate = 0;
  HitRules hits;
  bool strict_hits = false;
  uint64_t retention_seconds = 0;
  uint64_t break_glass_seconds = 0;
  Limits limits;
};

// `endpoint` is a path, "/v1/chat/completions"; `request` is the parsed body, an object that the
// decoder has accepted; `body_bytes` its size as received. A field that the endpoint does not have
// is not enforced there, and one that the client left out is not written where the policy's value
// is what its absence means anyway (top_k 0), since not every upstream knows it.
Decision Decide(const Policy& policy, const Caller& caller, std::string_view endpoint,
                const json::Value& request, uint64_t body_bytes);

}  // namespace verbatim::policies
