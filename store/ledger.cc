#include "store/ledger.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <mutex>

#include "base/log.h"
#include "store/anchors.h"
#include "store/checkpoint.h"
#include "store/control.h"
#include "store/hits.h"
#include "store/intents.h"
#include "store/keyring.h"
#include "store/keys.h"
#include "store/kv_rocksdb.h"
#include "store/life.h"
#include "store/migrate.h"
#include "store/promise.h"
#include "store/publisher.h"
#include "store/reader.h"
#include "store/restore.h"
#include "store/rotation.h"
#include "store/rows.h"
#include "store/sequencer.h"

namespace verbatim::store {

// In the order of their making; threads end in the opposite one (Close).
struct Ledger::State {
  explicit State(DataFolder data) : folder(std::move(data)) {}

  DataFolder folder;
  LedgerOptions options;
  std::unique_ptr<Kv> kv;
  Keys keys;
  std::unique_ptr<Keyring> entry_keys, hit_keys;
  std::unique_ptr<Reader> reader;
  std::unique_ptr<Hits> hits;
  std::unique_ptr<Publisher> publisher;
  std::unique_ptr<Sequencer> sequencer;
  std::unique_ptr<Life> life;
  std::unique_ptr<Anchors> anchors;
  std::mutex rotation_mutex;        // one at a time; guards rotation_uncertain
  bool rotation_uncertain = false;  // which key is the log's; the next Open finds out
  std::unique_ptr<ControlServer> control;
  std::once_flag closed;
  std::atomic<bool> closing = false;
  Status close_status;

  Status Start(AppendRequest started, const std::vector<OpenIntent>& open_intents);
  Status TakesHit(const HitRequest& hit) const;
  Result<EntryProof> ProofUnder(uint64_t entry, std::string note, uint64_t size) const;
  // What the newest checkpoint promises: the tree has that many entries, with that root.
  Status CheckAgainst(const TreeHead& kept, const TreeState& state) const;
};

namespace {

Error Interrupted(const DataFolder& folder) {
  return {Code::kFailedPrecondition,
          "the beginning of a new log in " + folder.path() +
              " was interrupted; run verbatim restore --acknowledge-rollback --data " +
              folder.path() + " again"};
}

// Not what is a backup, was restored, or is on its way to a new log.
Status MayServe(const DataFolder& folder, bool continues) {
  if (::access(folder.restored().c_str(), F_OK) == 0) {
    return Error{Code::kFailedPrecondition,
                 folder.path() +
                     " was restored from a backup, and its log may have gone on after that: run "
                     "verbatim restore --data " +
                     folder.path() +
                     " with --checkpoint FILE, the newest checkpoint that was published, or with "
                     "--acknowledge-rollback, which begins a new log"};
  }
  if (::access((folder.path() + "/backup.json").c_str(), F_OK) == 0) {
    return Error{Code::kFailedPrecondition, folder.path() +
                                                " is a backup; run verbatim restore --from " +
                                                folder.path() + " --data DIR, and serve from that"};
  }
  if (continues && ::access((folder.keys() + "/log.key").c_str(), F_OK) != 0) {
    return Interrupted(folder);
  }
  return {};
}

// Makes the rows of a new log, or checks that those of an old one, migrated, are of this log.
Status OpenFormat(Kv& kv, const std::string& origin) {
  Result<std::optional<std::string>> format = kv.Get(Table::kMeta, kMetaFormat);
  if (!format.ok()) return format.error();
  if (!*format) {
    bool empty = true;
    const auto note_row = [&](std::string_view, std::string_view) { return empty = false; };
    for (const Table table : {Table::kMeta, Table::kLeaf}) {
      if (Status scanned = kv.Scan(table, "", "", note_row); !scanned.ok()) return scanned;
    }
    if (!empty) {
      return Error{Code::kFailedPrecondition,
                   "the database names no format version; it is not a ledger of Verbatim"};
    }
    Batch first;
    first.RequireAbsent(Table::kMeta, kMetaFormat);
    first.Put(Table::kMeta, kMetaFormat, std::string(kFormatVersion));
    first.Put(Table::kMeta, kMetaOrigin, origin);
    first.Put(Table::kMeta, kMetaTree, EncodeTreeState({}));
    return kv.Commit(first, true);
  }
  Result<std::optional<std::string>> stored = kv.Get(Table::kMeta, kMetaOrigin);
  if (!stored.ok()) return stored.error();
  if (!*stored || **stored != origin) {
    return Error{Code::kFailedPrecondition, "keys/log.key is of the log " + origin +
                                                ", the database of " + stored->value_or("(none)") +
                                                "; restore both from one backup"};
  }
  return {};
}

Status MigrateAloud(Kv& kv, const Keyring& hits) {
  MigrationOptions options;
  int64_t last = MonotonicMicros();
  options.progress = [&](uint64_t rows) {
    if (MonotonicMicros() - last < 2'000'000) return;
    last = MonotonicMicros();
    LogInfo("ledger: migrating the database to format " + std::string(kFormatVersion) + ", " +
            std::to_string(rows) + " rows done");
  };
  return Migrate(kv, hits, options);
}

// Facts of the server_started leaf.
json::Value StartDetail(const json::Value& given, const std::optional<Leaf>& last, int64_t now,
                        size_t open_intents) {
  json::Value detail = given.is_object() ? given : json::Value::MakeObject();
  const bool clean = !last || last->kind == Kind::kServerStopped;
  detail.Set("clean", clean);
  if (!clean) {
    json::Value incomplete = json::Value::MakeObject();
    incomplete.Set("from", FormatTime(last->time));
    incomplete.Set("to", FormatTime(std::max(now, last->time)));
    detail.Set("incomplete", std::move(incomplete));
  }
  if (open_intents > 0) detail.Set("interrupted", static_cast<uint64_t>(open_intents));
  return detail;
}

AppendRequest ServerEntry(Kind kind, const std::string& manifest, json::Value detail) {
  AppendRequest request;
  request.kind = kind;
  request.manifest = manifest;
  request.detail = std::move(detail);
  return request;
}

// The control socket's "exported": the argument of ExportedEntry -> the entry's number.
Result<std::string> RecordExport(Ledger& ledger, std::string_view argument) {
  Result<AppendRequest> entry = ExportedEntry(argument);
  if (!entry.ok()) return entry.error();
  Result<Appended> appended = ledger.Append(std::move(*entry));
  if (!appended.ok()) return appended.error();
  return std::to_string(appended->entry);
}

}  // namespace

Result<AppendRequest> ExportedEntry(std::string_view argument) {
  Result<json::Value> value = json::Parse(argument);
  const json::Value* detail = value.ok() ? value->Find("detail") : nullptr;
  const json::Value* extra = value.ok() ? value->Find("extra") : nullptr;
  if (!detail || !detail->is_object() || !extra || !extra->is_object()) {
    return Error{Code::kInvalid, "exported: give {\"detail\": {...}, \"extra\": {...}}"};
  }
  AppendRequest entry = ServerEntry(Kind::kExported, "", *detail);
  entry.record.extra = *extra;
  return entry;
}

Status Ledger::State::CheckAgainst(const TreeHead& kept, const TreeState& state) const {
  if (kept.size > state.tree.size()) {
    return Error{Code::kFailedPrecondition,
                 "the database holds " + std::to_string(state.tree.size()) +
                     " entries, but a checkpoint of " + std::to_string(kept.size) +
                     " was published (" + folder.checkpoint() +
                     "): an old copy of the database was put back. Put the newest one back; where "
                     "it is lost, verbatim restore --acknowledge-rollback --data " +
                     folder.path() + " begins a new log"};
  }
  Result<Digest> whole = RootAt(state.tree.size(), reader->nodes());
  if (!whole.ok()) return whole.error();
  if (*whole != state.tree.Root()) {
    return Error{Code::kCorrupt,
                 "the database's tree state is not that of its tree; run verbatim fsck and restore "
                 "a backup of this log"};
  }
  Result<Digest> root = RootAt(kept.size, reader->nodes());
  if (!root.ok()) return root.error();
  if (*root != kept.root) {
    return Error{
        Code::kFailedPrecondition,
        "the database's first " + std::to_string(kept.size) +
            " entries are not those of the published checkpoint; restore a newer backup of "
            "this log, or begin a new one with verbatim restore --acknowledge-rollback "
            "--data " +
            folder.path()};
  }
  return {};
}

// Commits server_started, and behind it what a crash left open; blocks.
Status Ledger::State::Start(AppendRequest started, const std::vector<OpenIntent>& open_intents) {
  std::vector<std::future<Result<Appended>>> waiting;
  const auto push = [&](auto&& prepare) -> Status {
    const auto promise = std::make_shared<std::promise<Result<Appended>>>();
    Result<PreparedAppend> prepared =
        prepare([promise](Result<Appended> result) { promise->set_value(std::move(result)); });
    if (!prepared.ok()) return prepared.error();
    waiting.push_back(promise->get_future());
    sequencer->Push(std::move(*prepared));
    return {};
  };
  Status status =
      push([&](AppendCallback done) { return PrepareAppend(std::move(started), std::move(done)); });
  for (const OpenIntent& intent : open_intents) {
    if (!status.ok()) break;
    status = push([&](AppendCallback done) {
      return InterruptedEntry(*reader, intent, kOutcomeUnknown, std::move(done));
    });
  }
  for (std::future<Result<Appended>>& future : waiting) {
    Result<Appended> result = future.get();
    if (status.ok() && !result.ok()) status = result.error();
  }
  return status;
}

Result<std::unique_ptr<Ledger>> Ledger::Open(DataFolder folder, LedgerOptions options) {
  auto state = std::make_unique<State>(std::move(folder));
  State& s = *state;
  s.options = std::move(options);
  const std::string& origin = s.options.origin;

  Result<Continuation> continues = ReadContinuation(s.folder);
  if (!continues.ok() && continues.error().code != Code::kNotFound) return continues.error();
  if (Status free = MayServe(s.folder, continues.ok()); !free.ok()) return free.error();

  s.kv = std::move(s.options.kv);
  if (!s.kv) {
    Result<std::unique_ptr<Kv>> kv = OpenRocksDb(s.folder.database(), KvAccess::kReadWrite);
    if (!kv.ok()) return kv.error();
    s.kv = std::move(*kv);
  }
  Result<std::optional<std::string>> format = s.kv->Get(Table::kMeta, kMetaFormat);
  if (!format.ok()) return format.error();
  Result<std::string> kept_note = ReadFile(s.folder.checkpoint());
  if (!kept_note.ok() && kept_note.error().code != Code::kNotFound) return kept_note.error();
  if (kept_note.ok() && !*format) {
    return Error{Code::kFailedPrecondition, s.folder.checkpoint() +
                                                " was published, but the database holds no "
                                                "entries; put the log's database back"};
  }
  // Only a folder without any entries gets new keys; what an old one lacks is never made up for.
  const bool is_new = !*format;

  Result<Keys> keys = LoadKeys(s.folder, origin, is_new, s.options.token);
  if (!keys.ok()) return keys.error();
  s.keys = std::move(*keys);
  const VerifierKey& log_key = s.keys.signer->key();
  if (continues.ok() && continues->origin != log_key.name) return Interrupted(s.folder);
  if (!origin.empty() && origin != log_key.name) {
    return Error{Code::kFailedPrecondition, "this log's origin is " + log_key.name +
                                                " and never changes; leave --origin out, or start "
                                                "a new log in another folder"};
  }
  for (const auto& [name, ring] :
       {std::pair("entries", &s.entry_keys), std::pair("hits", &s.hit_keys)}) {
    Result<std::unique_ptr<Keyring>> opened =
        Keyring::Open(s.folder.keyring() + "/" + name, name, *s.keys.wrapper, is_new);
    if (!opened.ok()) return opened.error();
    *ring = std::move(*opened);
  }
  // A name that an earlier process made, and whose sync failed, may be gone after the next loss of
  // power; entries must not rest on it.
  for (const std::string& made : {s.folder.keys(), s.folder.keyring(),
                                  s.folder.keyring() + "/entries", s.folder.keyring() + "/hits"}) {
    if (Status synced = SyncFolder(made); !synced.ok()) return synced.error();
  }
  s.reader = std::make_unique<Reader>(*s.kv, s.keys, *s.entry_keys, *s.hit_keys);

  if (Status migrated = MigrateAloud(*s.kv, *s.hit_keys); !migrated.ok()) return migrated.error();
  if (Status opened = OpenFormat(*s.kv, log_key.name); !opened.ok()) return opened.error();
  Result<TreeState> tree = s.reader->ReadTreeState();
  if (!tree.ok()) return tree.error();
  Status settled = SettleRotation(s.folder, s.options.token, *s.reader, *s.keys.signer);
  if (settled.ok()) settled = s.keys.signer->Check();
  if (!settled.ok()) return settled.error();
  Result<std::vector<LogKey>> log_keys = s.reader->LogKeys();
  if (!log_keys.ok()) return log_keys.error();
  if (!kept_note.ok()) {
    if (tree->tree.size() > 0) {
      return Error{Code::kFailedPrecondition, s.folder.checkpoint() +
                                                  " is missing although there are entries; restore "
                                                  "it from a backup of this log"};
    }
    // Kept before the first entry, so that a log without a checkpoint is always damage.
    const TreeHead empty{log_key.name, 0, EmptyRoot(), ""};
    kept_note = SignNote(FormatCheckpoint(empty), *s.keys.signer);
    if (!kept_note.ok()) return kept_note.error();
    Status written = WriteFileDurably(s.folder.checkpoint(), *kept_note);
    if (!written.ok()) return written.error();
  }
  Result<TreeHead> kept = OpenCheckpoint(*kept_note, *log_keys);
  if (!kept.ok()) {
    return Error{Code::kFailedPrecondition, s.folder.checkpoint() + ": " + kept.error().message +
                                                "; restore it from a backup"};
  }
  if (Status fits = s.CheckAgainst(*kept, *tree); !fits.ok()) return fits.error();
  if (s.entry_keys->End() < tree->tree.size()) {
    return Error{Code::kFailedPrecondition, "the keyring is older than the database: restore " +
                                                s.folder.keyring() + " from the same backup"};
  }
  // Both rings have a segment ready before the first entry or hit needs it.
  if (Status made = s.entry_keys->Prepare(tree->tree.size()); !made.ok()) return made.error();
  s.hits = std::make_unique<Hits>(*s.kv, s.keys, *s.hit_keys, *s.reader);
  Result<std::vector<ClosedBatch>> unfinished = s.hits->Restore();
  if (!unfinished.ok()) return unfinished.error();
  if (Status made = s.hit_keys->Prepare(s.hits->counters().slot); !made.ok()) return made.error();
  std::optional<Leaf> last;
  if (tree->tree.size() > 0) {
    Result<EntryView> view = s.reader->Entry(tree->tree.size() - 1, false);
    if (!view.ok()) return view.error();
    last = std::move(view->leaf);
    if (last->time != tree->time) {
      return Error{Code::kCorrupt,
                   "the database's tree state has another time than its last entry; run verbatim "
                   "fsck and restore a backup of this log"};
    }
  }

  Result<std::vector<OpenIntent>> open_intents = ReadOpenIntents(*s.kv, 0);
  if (!open_intents.ok()) return open_intents.error();

  s.anchors = std::make_unique<Anchors>(*s.kv, *s.reader, s.options.anchors, s.options.now,
                                        [&s] { s.sequencer->RequestRecovery(); });
  if (Status loaded = s.anchors->Load(); !loaded.ok()) return loaded.error();
  s.publisher = std::make_unique<Publisher>(
      *s.keys.signer, s.folder.checkpoint(), s.options.publish_interval_micros, *kept_note,
      kept->size, [&s](uint64_t size) {
        for (const auto& [ring, next] : {std::pair(s.entry_keys.get(), size),
                                         std::pair(s.hit_keys.get(), s.hits->counters().slot)}) {
          const Status made = ring->Prepare(next + Keyring::kSlotsPerSegment / 2);
          if (!made.ok()) LogWarning("ledger: " + made.error().message);
        }
      });
  Sequencer::Options sequencing;
  sequencing.origin = log_key.name;
  sequencing.manifest = s.options.manifest;
  sequencing.hit_interval_micros = s.options.hit_interval_micros;
  sequencing.heartbeat_micros = s.options.heartbeat_micros;
  sequencing.now = s.options.now;
  sequencing.committed = [&s](const TreeState& durable) { s.publisher->Notify(durable); };
  sequencing.on_commit = s.options.on_commit;
  sequencing.recovered = [&s](const TreeState& stored) -> Status {
    Result<std::vector<LogKey>> known = s.reader->LogKeys();
    if (!known.ok()) return known.error();
    Result<TreeHead> published = OpenCheckpoint(s.publisher->newest().note, *known);
    if (!published.ok()) return published.error();
    return s.CheckAgainst(*published, stored);
  };
  s.sequencer = std::make_unique<Sequencer>(*s.kv, s.keys, *s.entry_keys, *s.hits, *s.reader,
                                            std::move(sequencing), *tree, std::move(*unfinished),
                                            *open_intents);
  s.sequencer->Start();

  std::unique_ptr<Ledger> ledger(new Ledger(std::move(state)));
  json::Value detail =
      StartDetail(s.options.start_detail, last, s.options.now(), open_intents->size());
  if (continues.ok() && !last) {
    Result<json::Value> old_log = ContinuesDetail(*continues);
    if (!old_log.ok()) return old_log.error();
    detail.Set("continues", std::move(*old_log));
  }
  const Status started = s.Start(
      ServerEntry(Kind::kServerStarted, s.options.manifest, std::move(detail)), *open_intents);
  if (!started.ok()) return started.error();
  if (continues.ok() && ::unlink(s.folder.continues().c_str()) != 0) {
    return Error{Code::kIo, "cannot remove " + s.folder.continues()};
  }
  s.life =
      std::make_unique<Life>(Life::Parts{*s.kv, *s.entry_keys, *s.hit_keys, *s.reader, *s.sequencer,
                                         s.folder, s.options.manifest, s.options.now});
  if (Status completed = s.life->Complete(); !completed.ok()) return completed.error();
  if (s.options.control_socket) {
    ControlCommands commands;
    commands.emplace("exported", [&log = *ledger](std::string_view argument) {
      return RecordExport(log, argument);
    });
    commands.emplace("records",
                     [&life = *s.life](std::string_view argument) -> Result<std::string> {
                       return life.Answer(argument);
                     });
    Result<std::unique_ptr<ControlServer>> control =
        ControlServer::Start(s.folder, *s.kv, std::move(commands));
    if (!control.ok()) return control.error();
    s.control = std::move(*control);
  }
  return ledger;
}

Ledger::Ledger(std::unique_ptr<State> state) : state_(std::move(state)) {}

Ledger::~Ledger() {
  if (Status closed = Close(); !closed.ok()) LogError("ledger: " + closed.error().message);
}

void Ledger::AppendAsync(AppendRequest request, AppendCallback done) {
  Result<PreparedAppend> prepared = PrepareAppend(std::move(request), done);
  if (!prepared.ok()) {
    done(prepared.error());
    return;
  }
  state_->sequencer->Push(std::move(*prepared));
}

Result<Appended> Ledger::Append(AppendRequest request) {
  // Shared: the setter may still be inside set_value when the waiter returns.
  const auto promise = std::make_shared<std::promise<Result<Appended>>>();
  std::future<Result<Appended>> future = promise->get_future();
  AppendAsync(std::move(request),
              [promise](Result<Appended> result) { promise->set_value(std::move(result)); });
  return future.get();
}

namespace {

Status CheckHit(const HitRequest& hit) {
  for (const std::string* text : {&hit.tenant, &hit.subject, &hit.key_id, &hit.request_id}) {
    if (!IsUtf8(*text)) return Error{Code::kInvalid, "ledger: a text of the hit is not UTF-8"};
  }
  if (hit.kind != Kind::kHit && hit.kind != Kind::kJoined) {
    return Error{Code::kInvalid, "ledger: a hit's kind is hit or joined"};
  }
  if (hit.request_id.size() > 256) {
    return Error{Code::kInvalid, "ledger: a request id has at most 256 bytes"};
  }
  if (!hit.extra.empty() && (hit.extra.front() != '{' || hit.extra.back() != '}')) {
    return Error{Code::kInvalid, "ledger: a hit's extra part is no JSON object"};
  }
  return {};
}

// A hit under strict policy is an entry like any other, that names the one whose answer it gave.
Result<AppendRequest> StrictHit(HitRequest hit) {
  AppendRequest request;
  if (!hit.extra.empty()) {
    Result<json::Value> extra = json::Parse(hit.extra);
    if (!extra.ok()) return extra.error();
    request.record.extra = std::move(*extra);
  }
  request.kind = hit.kind;
  request.model = std::move(hit.model);
  request.manifest = std::move(hit.manifest);
  request.numerics = std::move(hit.numerics);
  request.references = {{"result", hit.result}};
  request.record.tenant = std::move(hit.tenant);
  request.record.subject = std::move(hit.subject);
  request.record.key_id = std::move(hit.key_id);
  request.record.request_id = std::move(hit.request_id);
  return request;
}

}  // namespace

Status Ledger::State::TakesHit(const HitRequest& hit) const {
  if (Status checked = CheckHit(hit); !checked.ok()) return checked;
  if (closing) {
    return Error{Code::kUnavailable, "the ledger is closing; try again after the restart"};
  }
  if (hit.result >= sequencer->size()) {
    return Error{Code::kInvalid, "ledger: a hit names an entry that is not there"};
  }
  if (!hit.strict && sequencer->failed()) {
    return Error{Code::kIo, "the ledger cannot write; see the server's log"};
  }
  return {};
}

void Ledger::RecordHitAsync(HitRequest hit, std::function<void(Status)> done) {
  if (!hit.strict) return done(RecordHits({&hit, 1}).front());
  if (Status takes = state_->TakesHit(hit); !takes.ok()) return done(takes);
  Result<AppendRequest> request = StrictHit(std::move(hit));
  if (!request.ok()) return done(request.error());
  AppendAsync(std::move(*request), [done = std::move(done)](Result<Appended> appended) {
    done(appended.ok() ? Status() : appended.error());
  });
}

std::vector<Status> Ledger::RecordHits(std::span<const HitRequest> hits) {
  State& s = *state_;
  for (const HitRequest& hit : hits) {
    CHECK(!hit.strict);
    Status takes = s.TakesHit(hit);
    if (takes.ok()) continue;
    // Whatever is wrong with one is no other's.
    if (hits.size() == 1) return {std::move(takes)};
    std::vector<Status> statuses;
    for (const HitRequest& each : hits) statuses.push_back(RecordHits({&each, 1}).front());
    return statuses;
  }
  std::vector<Status> written = s.hits->Record(hits, s.options.now());
  for (const Status& status : written) {
    if (status.ok() || status.error().code == Code::kAlreadyExists) continue;
    s.sequencer->RequestRecovery();
    break;
  }
  s.sequencer->WakeForHits();
  return written;
}

Status Ledger::RecordHit(const HitRequest& hit) {
  const auto promise = std::make_shared<std::promise<Status>>();
  std::future<Status> future = promise->get_future();
  RecordHitAsync(hit, [promise](Status status) { promise->set_value(std::move(status)); });
  return future.get();
}

Result<std::optional<StoredResult>> Ledger::Lookup(std::string_view name_space,
                                                   const Digest& fingerprint) const {
  return state_->reader->Lookup(name_space, fingerprint);
}

uint64_t Ledger::Size() const { return state_->sequencer->size(); }

uint64_t Ledger::OpenIntents() const { return state_->sequencer->open_intents(); }

LedgerLag Ledger::Lag() const { return state_->publisher->lag(); }

Result<EntryView> Ledger::Entry(uint64_t entry, bool private_parts) const {
  return state_->reader->Entry(entry, private_parts);
}

Result<EntryProof> Ledger::State::ProofUnder(uint64_t entry, std::string note,
                                             uint64_t size) const {
  if (entry >= sequencer->size()) {
    return Error{Code::kNotFound, "there is no entry " + std::to_string(entry)};
  }
  if (entry >= size) {
    return Error{Code::kUnavailable,
                 "no checkpoint covers entry " + std::to_string(entry) + " yet; try again in " +
                     std::to_string(options.publish_interval_micros / 1000) + " ms"};
  }
  Result<std::vector<Digest>> path = InclusionProof(entry, size, reader->nodes());
  if (!path.ok()) return path.error();
  Result<Digest> leaf_hash = reader->ReadNode(0, entry);
  if (!leaf_hash.ok()) return leaf_hash.error();
  return EntryProof{entry, size, *leaf_hash, std::move(*path), std::move(note)};
}

Result<EntryProof> Ledger::Proof(uint64_t entry) const {
  Publisher::Published published = state_->publisher->newest();
  return state_->ProofUnder(entry, std::move(published.note), published.size);
}

Result<EntryProof> Ledger::CosignedProof(uint64_t entry) const {
  std::string note = state_->anchors->Cosigned();
  const size_t text = note.find("\n\n");
  if (text == std::string::npos) return Error{Code::kUnavailable, "no checkpoint is cosigned yet"};
  Result<TreeHead> head = ParseCheckpoint(std::string_view(note).substr(0, text + 1));
  if (!head.ok()) return head.error();
  return state_->ProofUnder(entry, std::move(note), head->size);
}

Result<Receipt> Ledger::FindReceipt(std::string_view request_id) const {
  return state_->reader->FindReceipt(request_id);
}

Result<std::string> Ledger::Tile(std::string_view path) const {
  Result<TilePath> tile = ParseTilePath(path);
  if (!tile.ok()) return Error{Code::kNotFound, tile.error().message};
  return state_->reader->Tile(*tile, state_->publisher->newest().size);
}

std::string Ledger::Checkpoint() const { return state_->publisher->newest().note; }

LogIdentity Ledger::Log() const {
  const VerifierKey& newest = state_->keys.signer->key();
  LogIdentity log{newest.name, FormatVerifierKey(newest), {}};
  Result<std::vector<LogKey>> keys = state_->reader->LogKeys();
  if (!keys.ok()) LogError("ledger: " + keys.error().message);
  if (keys.ok()) {
    for (const LogKey& key : *keys) log.keys.push_back({FormatVerifierKey(key.key), key.from});
  }
  return log;
}

Result<LogIdentity> Ledger::RotateKey(const TokenConfig& token) {
  State& s = *state_;
  std::lock_guard one(s.rotation_mutex);
  if (s.rotation_uncertain) {
    // Another key would take the place of the one that waits in keys/log.key.next.
    return Error{Code::kFailedPrecondition,
                 "a rotation before this one failed; restart the server, which completes it or "
                 "takes it back"};
  }
  const std::string origin = s.keys.signer->key().name;
  Result<std::shared_ptr<const Signer>> next = MakeNextSigner(s.folder, origin, token);
  if (!next.ok()) return next.error();
  if (Status there = (*next)->Check(); !there.ok()) return there.error();
  AppendRequest made = ServerEntry(Kind::kKeyMade, s.options.manifest,
                                   RotationDetail(*s.keys.signer, (*next)->key()));
  made.new_log_key = FormatVerifierKey((*next)->key());
  // The old key signs no head that the leaf is in: the new one's first head is its first proof.
  s.publisher->Pause();
  Result<Appended> appended = Append(std::move(made));
  if (!appended.ok()) {
    // A commit that failed on the disk may be stored all the same: then the new key is the log's.
    const bool certain = appended.error().code != Code::kIo;
    s.rotation_uncertain = !certain;
    if (certain) s.publisher->Resume();
    return Error{appended.error().code,
                 appended.error().message +
                     (certain ? "" : "; no checkpoints are signed until the server was restarted")};
  }
  if (Status taken = TakeNextSigner(s.folder); !taken.ok()) {
    s.rotation_uncertain = true;
    return Error{taken.error().code,
                 taken.error().message + "; restart the server, which completes the rotation"};
  }
  s.keys.signer->Replace(*next);
  s.publisher->Resume();
  return Log();
}

Result<std::vector<Digest>> Ledger::Consistency(uint64_t first, uint64_t second) const {
  const State& s = *state_;
  if (second > s.publisher->newest().size) {
    return Error{Code::kUnavailable, "no checkpoint of that size is published yet"};
  }
  return ConsistencyProof(first, second, s.reader->nodes());
}

Anchors& Ledger::anchors() { return *state_->anchors; }

Result<std::string> Ledger::Promise(const Receipt& receipt) const {
  const State& s = *state_;
  store::Promise promise;
  promise.origin = s.keys.signer->key().name;
  promise.request_id = receipt.request_id;
  promise.tenant = receipt.tenant;
  if (receipt.hit) {
    promise.hash = receipt.hit->commitment;
  } else {
    if (!receipt.entry) return Error{Code::kNotFound, "there is nothing to promise"};
    Result<Digest> leaf = s.reader->ReadNode(0, *receipt.entry);
    if (!leaf.ok()) return leaf.error();
    promise.entry = receipt.entry;
    promise.hash = *leaf;
  }
  promise.given = s.options.now();
  promise.until = promise.given + kPromiseMicros;
  Result<std::string> text = FormatPromise(promise);
  if (!text.ok()) return text.error();
  return SignNote(*text, *s.keys.signer);
}

std::string Ledger::Pseudonym(std::string_view tenant) const {
  return state_->keys.Pseudonym(tenant);
}

Result<LifeReport> Ledger::Apply(const LifeCommand& command) {
  return state_->life->Apply(command);
}

void Ledger::OnErased(std::function<void(const Ranges&)> forget) {
  state_->life->OnErased(std::move(forget));
}

Status Ledger::Close() {
  State& s = *state_;
  std::call_once(s.closed, [&s] {
    s.closing = true;
    s.control.reset();
    Status stopped;
    Result<PreparedAppend> last =
        PrepareAppend(ServerEntry(Kind::kServerStopped, s.options.manifest, json::Value()),
                      [&stopped](Result<Appended> result) {
                        if (!result.ok()) stopped = result.error();
                      });
    CHECK(last.ok());
    s.sequencer->Stop(std::move(*last));
    const Status published = s.publisher->Stop();
    s.close_status = stopped.ok() ? published : stopped;
  });
  return s.close_status;
}

}  // namespace verbatim::store
