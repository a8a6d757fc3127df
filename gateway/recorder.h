// One request on its way through the pipeline, and the ledger entries that it can leave: refused,
// failed, cancelled, generated. Pure functions from what is known to what is appended.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "gateway/backend.h"
#include "gateway/http.h"
#include "gateway/in_force.h"
#include "gateway/limits.h"
#include "gateway/transcript.h"
#include "gateway/wire/answer.h"
#include "gateway/wire/openai.h"
#include "policies/policy.h"
#include "store/ledger.h"

namespace verbatim::gateway {

// What a request asks of the cache, of RFC 9111's directives. Unknown ones are ignored.
struct CacheControl {
  bool no_cache = false;            // run again, and compare with what is stored
  bool no_store = false;            // keep neither request nor answer
  bool only_if_cached = false;      // as mode replay
  std::optional<uint64_t> max_age;  // seconds that a hit may be old
};
CacheControl ParseCacheControl(std::string_view header);

// Takes out of an entry what the policy does not let be kept, and says so in its record. The
// entries below are redacted already. streamed: the response is an event stream.
void Redact(const Redactor& redactor, bool streamed, store::AppendRequest& entry);

// Grows from step to step of pipeline.cc; what a step has not reached is empty. Outlives the HTTP
// request that it came with, since its run may.
struct Call {
  // Accept
  Endpoint endpoint = Endpoint::kChatCompletions;
  std::string id;    // x-request-id
  std::string body;  // as received
  Headers headers;   // the client's: an upstream's backend chooses among them
  std::string query;
  std::string deployment;  // the model, where the path names it
  Principal principal;
  int64_t received_micros = 0;
  CacheControl cache;
  std::weak_ptr<Ticket> ticket;             // of the caller's limits; lives as long as the request
  Headers limit_headers;                    // x-ratelimit-*, for the answer
  std::string manifest;                     // digest in hex
  std::shared_ptr<const InForce> in_force;  // what it began under
  // Decode, decide
  std::shared_ptr<const Backend> backend;        // that answers
  std::shared_ptr<const Backend> first_backend;  // that was asked first: the same, or one whose
                                                 // fallback that is
  policies::Decision decision;
  GenerationRequest request;  // with the policy's values
  std::shared_ptr<const PreparedRequest> prepared;
  bool length_is_open = false;  // the client named no number of tokens
  // Fingerprint
  std::optional<Digest> fingerprint;
  // Which of the fingerprint's results may be its answer: "" the first one; else only what was
  // recorded in its own form (FormName), since the first cannot be had in that.
  std::string variant;
  uint64_t seed = 0;  // in force
  AnswerHead head;    // created: of the run, so 0 until one begins

  bool KeepsPayload() const { return decision.mode != policies::Mode::kBypass && !cache.no_store; }
  // By what the store finds its result (store/records.h).
  Digest ResultKey() const;
  // Whether an answer to an equal request may be this one's: by what the request is, and by policy.
  bool MayReuse() const;
};

// The short code that a leaf names an error with.
std::string CauseOf(const HttpError& error);

// The configured id of the upstream that answers, or "": the embedded engine.
std::string UpstreamOf(const PreparedRequest& prepared);

// The form that a request asks for, and the one that a record keeps (nothing where it keeps none).
AnswerForm FormOf(const GenerationRequest& request);
std::optional<AnswerForm> FormOf(const store::Record& record);
// "plain", "stream", "stream; usage": the variants of results (Call::variant).
std::string FormName(const AnswerForm& form);
// The head of an upstream's recorded reply; nothing where the engine answered.
std::optional<ReplyHead> ReplyOf(const store::Record& record);

// What a run made of `call`: a complete answer, which hits serve where policy lets them, or what
// came of an upstream's (end: kComplete or kIncomplete). The body as recorded is in `response`,
// also where the call keeps no payload: the caller clears it then (DropPayload).
store::AppendRequest GeneratedEntry(const Call& call, const Transcript& transcript,
                                    const RunEnd& end, int64_t run_micros);
void DropPayload(store::AppendRequest& entry);

// A request without a complete answer. kind: kRefused, kFailed or kCancelled; outcome: a short code
// for the leaf. `error` is the answer that the client gets, null where it gets none.
store::AppendRequest UnansweredEntry(const Call& call, store::Kind kind, std::string outcome,
                                     const HttpError* error, uint64_t generated_tokens);
// Of a run that ended so: what its backend reports of it.
void AddReport(store::AppendRequest& entry, const RunEnd& end);

// The request leaves for an upstream, or for those that stand in for it.
store::AppendRequest IntentEntry(const Call& call);

// A stored result served to `call`, or a run of another's that it joined (kJoined). Under strict
// policy its record says what was served: {"result","fingerprint","output_digest",...} in extra.
// answered: the request as it was answered, a fallback's where one stood in.
store::HitRequest HitEntry(const Call& call, const Call& answered, store::Kind kind,
                           uint64_t result, const std::optional<Digest>& output_digest);

// A stored result of a fallback's, served where others were asked and failed (end: how). Ends the
// intent of these; its record says what was served as a strict hit's does.
store::AppendRequest StandInHitEntry(const Call& answered, const store::StoredResult& hit,
                                     const RunEnd& end);

}  // namespace verbatim::gateway
