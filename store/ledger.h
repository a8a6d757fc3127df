// The ledger: an append-only, provable log of everything the server answered, and the results that
// hits serve. One open Ledger owns its data folder.
//
// Life of an entry: Append makes the record's bytes and digests on the caller's thread and queues
// it; the ledger's thread gives it its place, seals it under that place's key, and commits leaf,
// record, payloads, tree nodes, index, receipt and tree state in ONE synced batch, together with
// whatever else waits (group commit); then it tells the callers; the publisher's thread signs a
// checkpoint at most every publish_interval, keeps it outside the database, and only then shows it.
//
// Intents: before a request leaves for an upstream, an entry of kind `intent` with opens_intent is
// appended; nothing is sent before it is acknowledged. The entry that says how that ended (whatever
// its kind) has closes_intent. An intent that a crash left open becomes an `interrupted` entry at
// the next Open, once.
//
// Threads: every method may be called from any thread. Callbacks run on the ledger's thread and
// must not block or call blocking methods of the ledger. Errors: kIo where the disk failed: the
// entry is NOT acknowledged (it may or may not be in the log), and the ledger recovers by itself
// once the disk works again; kInvalid for requests that break the format's rules; kCorrupt where
// stored bytes fail their digests (nothing of them is returned); kUnavailable while closing;
// kNotFound.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/result.h"
#include "store/anchor_options.h"
#include "store/data_folder.h"
#include "store/kv.h"
#include "store/life.h"
#include "store/ranges.h"
#include "store/records.h"

namespace verbatim::store {

class Anchors;

struct LedgerOptions {
  // First start: the log's origin, else "verbatim/<16 hex>". Later: must be empty or the same.
  std::string origin;
  int64_t publish_interval_micros = 100'000;  // at most one checkpoint per interval
  int64_t hit_interval_micros = 1'000'000;    // hits' leaves; at most a second
  json::Value start_detail;                   // null, or public facts for the server_started leaf
  std::string manifest;                       // digest in hex, for the server's own leaves
  int64_t heartbeat_micros = 0;  // a leaf where nothing else was committed so long; 0: none
  TokenConfig token;             // where keys on a token are, as configured (keys.h)
  AnchorOptions anchors;         // who cosigns and dates the log's heads
  // Called on the ledger's thread after each synced commit: how long it took, how many entries
  // shared it. Must not block.
  std::function<void(int64_t micros, size_t entries)> on_commit;
  bool control_socket = true;                // serve snapshots to readers beside this server
  std::function<int64_t()> now = NowMicros;  // wall clock; tests set it
  std::unique_ptr<Kv> kv;                    // tests; else RocksDB in the folder
};

struct AppendRequest {
  Kind kind = Kind::kGenerated;
  std::string model;     // leaf: digest in hex, or empty
  std::string manifest;  // leaf: digest in hex, or empty
  std::string numerics;  // leaf
  std::string outcome = "ok";
  std::vector<Reference> references;
  json::Value detail;  // leaf: public facts only
  // With record.serves_hits: the entry whose place as the result this one takes, where that one
  // still has it (it grew too old for the policy). Kept in record.extra as "renews".
  std::optional<uint64_t> renews;
  // Kind::kIntent has it, no other kind has. Appended.entry is the intent's number.
  bool opens_intent = false;
  // The intent that this entry ends: makes the reference {"intent", N} and takes N from the open
  // ones in the same commit. kFailedPrecondition where N is no open intent of the same tenant.
  std::optional<uint64_t> closes_intent;
  // Kind::kKeyMade of a rotation: the verifier key that signs the heads from behind this entry on.
  std::string new_log_key;
  // The private part. record.tenant gives the leaf its pseudonym and sequence number (empty: an
  // entry of the server's own). record.request_id, where set, is what the receipt is found by;
  // another tenant's id is refused (kAlreadyExists). record.serves_hits with name_space and
  // fingerprint makes it the result that hits serve, if it is the first; that needs response bytes.
  Record record;
  std::string request;   // as received
  std::string response;  // content-decoded body as recorded
  std::string trace;     // e.g. logits digests per token; may be empty
};

struct Appended {
  uint64_t entry = 0;
  int64_t time = 0;  // of the leaf
  std::optional<Digest> output_digest;
  bool serves_hits = false;  // this entry is what Lookup gives from now on
};

struct StoredResult {
  uint64_t entry = 0;
  Leaf leaf;
  Record record;
  std::string response;
};

struct HitRequest {
  Kind kind = Kind::kHit;  // or kJoined
  uint64_t result = 0;     // the entry whose answer is served
  std::string tenant, subject, key_id, request_id;
  bool new_request_id = false;            // drawn at random just now: nobody else can have it
  std::string extra;                      // canonical JSON of an object, private, or empty
  bool strict = false;                    // commit it synced as a leaf of its own
  std::string model, manifest, numerics;  // for that leaf, as in AppendRequest
};

struct EntryView {
  uint64_t entry = 0;
  std::string leaf_bytes;
  Leaf leaf;
  std::optional<Record> record;  // where asked for and not erased
  // With the record: leaf.commitment is SHA-256(salt || SHA-256(EncodeRecord(record))). Whoever has
  // both can check what the leaf commits to.
  std::string salt;
  std::string request, response, trace;
};

struct EntryProof {
  uint64_t entry = 0;
  uint64_t size = 0;  // of the tree in `checkpoint`
  Digest leaf_hash{};
  std::vector<Digest> path;  // RFC 6962 inclusion path, leaf to root
  std::string checkpoint;    // signed note
};

struct Receipt {
  std::string request_id;
  std::string tenant;             // pseudonym
  std::optional<uint64_t> entry;  // absent: pending (a hit whose interval is open)
  struct Hit {
    uint64_t number = 0, count = 0;  // of the batch in `entry`
    uint64_t result = 0;             // the entry whose answer was served
    Digest commitment{};
    bool erased = false;       // then neither `result` nor what opens the commitment is known
    std::string record, salt;  // commitment = SHA-256(salt || SHA-256(record)); FORMAT.md, Hits
    std::vector<Digest> path;  // to the batch's root; RFC 6962 leaf hash of the commitment
  };
  std::optional<Hit> hit;  // where it was a batched hit or join; filled once not pending
};

// What is durable but not yet covered by a published checkpoint.
struct LedgerLag {
  uint64_t entries = 0;
  int64_t oldest_micros = 0;  // how long the oldest of them has waited; 0 where there is none
};

// The entry that says that entries were exported, from the JSON object {"detail", "extra"}: public
// facts for the leaf, and private ones (FORMAT.md). kInvalid for other text.
Result<AppendRequest> ExportedEntry(std::string_view argument);

struct LogIdentity {
  std::string origin;
  std::string vkey;  // the newest
  struct Key {
    std::string vkey;
    uint64_t from = 0;  // it signs the heads of this size, up to the next key's
  };
  std::vector<Key> keys;  // oldest first
};

class Ledger {
 public:
  // Makes log key, origin and tables on first start. Commits server_started; after an unclean stop
  // that leaf names the interval that may be incomplete. Refuses (kFailedPrecondition) a database
  // of another version, one that is behind its kept checkpoint, and another origin.
  static Result<std::unique_ptr<Ledger>> Open(DataFolder folder, LedgerOptions options);

  // Closes as Close does, where the caller has not.
  ~Ledger();
  Ledger(const Ledger&) = delete;
  Ledger& operator=(const Ledger&) = delete;

  // Blocks until the entry is durable (or not).
  Result<Appended> Append(AppendRequest request);
  using AppendCallback = std::function<void(Result<Appended>)>;
  void AppendAsync(AppendRequest request, AppendCallback done);

  // Records a served hit or join before its last byte leaves. Not strict: unsynced, and returns
  // soon (microseconds, or one sync of others). Strict: blocks as Append does.
  Status RecordHit(const HitRequest& hit);
  void RecordHitAsync(HitRequest hit, std::function<void(Status)> done);
  // Many that are not strict, in one unsynced write: a status for each. Returns as soon.
  std::vector<Status> RecordHits(std::span<const HitRequest> hits);

  // The first complete result, or the one that renewed it, decrypted and checked against its
  // digests and commitment. `fingerprint`: or VariantOf one (records.h).
  Result<std::optional<StoredResult>> Lookup(std::string_view name_space,
                                             const Digest& fingerprint) const;

  uint64_t Size() const;         // durable entries
  uint64_t OpenIntents() const;  // intents that no entry has ended yet
  LedgerLag Lag() const;
  // private_parts: also decrypts and checks record, request, response and trace.
  Result<EntryView> Entry(uint64_t entry, bool private_parts) const;
  // kUnavailable until a checkpoint covers the entry (within publish_interval).
  Result<EntryProof> Proof(uint64_t entry) const;
  // Under the newest cosigned checkpoint. kUnavailable until one covers the entry.
  Result<EntryProof> CosignedProof(uint64_t entry) const;
  Result<Receipt> FindReceipt(std::string_view request_id) const;
  // Bytes of a tile or entry bundle of the published tree, by its path (tiles.h). kNotFound for any
  // other path.
  Result<std::string> Tile(std::string_view path) const;
  // The newest published checkpoint, a signed note.
  std::string Checkpoint() const;
  LogIdentity Log() const;
  // Another key signs from now on: made in keys/log.key, or on a token where one is named. The
  // entry that says so (kind key_made) comes before its first head. Blocks. Where the commit fails,
  // nothing is signed any more, and no other rotation begins (kFailedPrecondition): the next Open
  // finds out which key is the log's.
  Result<LogIdentity> RotateKey(const TokenConfig& token);
  // RFC 6962 consistency proof between two sizes of the published tree.
  Result<std::vector<Digest>> Consistency(uint64_t first, uint64_t second) const;
  // What witnesses and time-stamping authorities say of the heads.
  Anchors& anchors();
  // A signed promise (promise.h) that the receipt's entry or hit will be covered by a checkpoint.
  Result<std::string> Promise(const Receipt& receipt) const;
  // The pseudonym that leaves hold for this tenant.
  std::string Pseudonym(std::string_view tenant) const;

  // Holds, releases, erases, prunes (life.h). Blocks, for as long as it takes to read the records
  // in question. A refusal by hold or retention is no error, but the report's outcome.
  Result<LifeReport> Apply(const LifeCommand& command);
  // Called when entries were erased, once Lookup does not give them any more and before their keys
  // are destroyed: whoever keeps something of them forgets it. Replaces the one before (null:
  // none), and returns when that is not being called any more.
  void OnErased(std::function<void(const Ranges& entries)> forget);

  // Commits what is queued, open hit intervals and server_stopped; publishes the last checkpoint.
  // Appends after it give kUnavailable. Idempotent.
  Status Close();

 private:
  struct State;
  explicit Ledger(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace verbatim::store
