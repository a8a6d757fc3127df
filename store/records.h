// What an entry of the ledger says: the public leaf, the private record, and their bytes
// (store/FORMAT.md). Values only; no I/O. All functions may be called from any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/json.h"
#include "base/result.h"

namespace verbatim::store {

inline constexpr size_t kMaxLeafBytes = 65'535;  // C2SP tlog-tiles, entry bundles

enum class Kind {
  kGenerated,      // a request that ran to its end
  kHit,            // a stored result served (strict policy: one leaf each)
  kJoined,         // a follower of a run in flight (strict policy: one leaf each)
  kHits,           // a batch of hits and joins of one tenant and interval
  kReplayed,       // executed again on purpose
  kRefused,        // answered with an error before anything ran
  kFailed,         // ran and did not complete
  kCancelled,      // the client went away and nobody waited any more
  kInterrupted,    // an intent that a crash left open
  kIntent,         // about to leave for an upstream
  kVerified,       // executed again in the background: equal
  kDiverged,       // executed again in the background: different
  kQuarantined,    // a result that is not served any more
  kErased,         // keys and salts destroyed
  kHeld,           // a legal hold begins
  kReleased,       // a legal hold ends
  kViewed,         // somebody looked at a payload
  kExported,       // an evidence bundle was made
  kKeyMade,        // log or API key
  kKeyRevoked,     //
  kConfiguration,  // configuration or policy in force changed
  kServerStarted,
  kServerStopped,
  kClockJumped,  // the machine's clock went backwards
  kPruned,       // records up to an entry removed by policy
  kUnrecorded,   // answers that were given while the ledger failed
  kHeartbeat,    // nothing else was committed for an interval
};

// The kind's name in leaves ("generated", "server_started"), and back.
const char* KindName(Kind kind);
Result<Kind> ParseKind(std::string_view name);

// Of the entry that ends an intent, to that intent. The ledger makes it (AppendRequest).
inline constexpr char kIntentRelation[] = "intent";

// Another entry that this one is about. relation: "result", "verifies", "leader", "intent", ...
struct Reference {
  std::string relation;
  uint64_t entry = 0;
};

// Public in principle: never holds a prompt, an answer, or a bare hash of something guessable.
struct Leaf {
  std::string origin;
  Kind kind = Kind::kGenerated;
  int64_t time = 0;       // UTC, microseconds
  std::string tenant;     // pseudonym, 32 hex digits; empty for the server's own entries
  uint64_t sequence = 0;  // that tenant's own number, from 1; 0 for the server's own entries
  std::string model;      // digest, 64 hex digits, or empty
  std::string manifest;   // digest, 64 hex digits, or empty
  std::string numerics;   // version name, or empty
  std::string outcome;    // "ok" or a short code
  std::vector<Reference> references;
  json::Value detail;   // null, or an object of public facts
  Digest commitment{};  // SHA-256(salt || record digest)
};

// Canonical JSON. kInvalid over kMaxLeafBytes.
Result<std::string> EncodeLeaf(const Leaf& leaf);
// Refuses what is not canonical, has an unknown member or another version (kCorrupt, kUnsupported).
Result<Leaf> ParseLeaf(std::string_view bytes);

// Private. Holds nothing of its own leaf, so that it is complete before the entry has its place.
// The caller fills what it knows; empty and null members are left out of the JSON.
struct Record {
  std::string tenant;      // the tenant's name
  std::string subject;     // whom the request is from, within the tenant
  std::string key_id;      // the API key's id, never the key
  std::string request_id;  // x-request-id
  std::string endpoint;    // "/v1/chat/completions"
  std::string name_space;  // of the fingerprint
  std::optional<Digest> fingerprint;
  bool serves_hits = false;  // complete, and policy lets it be served again
  std::optional<uint64_t> seed;
  std::vector<Digest> chain_heads;  // logits chain per choice
  int64_t created = 0;              // seconds: the second in which the run began
  json::Value backend;              // object: id, what it reported
  json::Value parameters;           // object: effective parameters
  json::Value usage;                // object
  json::Value timings;              // object
  json::Value response;             // object: status, form ("stream" or "plain"), content type, ...
  json::Value extra;                // object: anything else worth keeping
  // Set by the ledger from the bytes given to it.
  std::optional<Digest> request_digest;
  std::optional<Digest> output_digest;
  std::optional<Digest> trace_digest;
};

// By what the index finds a result beside the first one of its fingerprint: one that serves
// requests of that variant only (record.extra "variant"), such as those for one form of the answer.
Digest VariantOf(const Digest& fingerprint, std::string_view variant);
// By what the index finds this record, where it serves hits: its fingerprint, or that of its
// variant.
std::optional<Digest> IndexedBy(const Record& record);

// Canonical JSON; its SHA-256 is the record digest.
std::string EncodeRecord(const Record& record);
Result<Record> ParseRecord(std::string_view bytes);

// SHA-256(salt || record digest). salt: 32 bytes.
Digest Commitment(std::string_view salt, const Digest& record_digest);

// What lies encrypted beside a leaf. The numbers are part of the format.
enum class Part : uint8_t { kRecord = 0, kRequest = 1, kResponse = 2, kTrace = 3, kHit = 4 };

// nonce (12 random bytes) || AES-256-GCM(key, plaintext) with the entry and part as associated
// data. key: 32 bytes. A blob moved to another entry or part does not open (kCorrupt).
std::string SealPart(std::string_view key, uint64_t entry, Part part, std::string_view plaintext);
inline constexpr size_t kNonceBytes = 12;
Result<std::string> OpenPart(std::string_view key, uint64_t entry, Part part,
                             std::string_view sealed);

// Keys of the tables (kv.h): big-endian, so that their order is the order of entries.
std::string EntryKey(uint64_t entry);
std::string PayloadKey(uint64_t entry, Part part);

}  // namespace verbatim::store
