#include "store/restore.h"

#include <unistd.h>

#include <filesystem>
#include <memory>
#include <optional>

#include "base/crypto.h"
#include "store/keys.h"
#include "store/kv_rocksdb.h"
#include "store/ledger.h"
#include "store/reader.h"

namespace verbatim::store {
namespace {

namespace fs = std::filesystem;

bool Exists(const std::string& path) {
  std::error_code ignored;
  return fs::exists(fs::symlink_status(path, ignored));
}

Status Rename(const std::string& from, const std::string& to) {
  std::error_code error;
  fs::rename(from, to, error);
  if (!error) return {};
  return Error{Code::kIo, "cannot move " + from + " to " + to + ": " + error.message()};
}

// What the log of a folder has come to, by its database and by what it has published.
struct Standing {
  TreeHead published;
  std::string note, vkey;
  uint64_t entries = 0;
  bool behind = false;  // the database does not hold what was published
};

Result<Standing> ReadStanding(const DataFolder& folder, std::optional<std::string> newer_note) {
  Result<Keys> keys = LoadKeys(folder, "", false);
  if (!keys.ok()) return keys.error();
  Standing standing;
  standing.vkey = FormatVerifierKey(keys->signer->key());
  Result<std::string> note =
      newer_note ? Result<std::string>(*newer_note) : ReadFile(folder.checkpoint());
  if (!note.ok()) return note.error();
  Result<std::unique_ptr<Kv>> kv = OpenRocksDb(folder.database(), KvAccess::kReadOnly);
  if (!kv.ok()) return kv.error();
  Result<std::unique_ptr<Keyring>> entries =
      Keyring::Open(folder.keyring() + "/entries", "entries", *keys->wrapper, false);
  if (!entries.ok()) return entries.error();
  Result<std::unique_ptr<Keyring>> hits =
      Keyring::Open(folder.keyring() + "/hits", "hits", *keys->wrapper, false);
  if (!hits.ok()) return hits.error();
  const Reader reader(**kv, *keys, **entries, **hits);
  Result<std::vector<LogKey>> log_keys = reader.LogKeys();
  if (!log_keys.ok()) return log_keys.error();
  Result<TreeHead> head = OpenCheckpoint(*note, *log_keys);
  if (!head.ok()) {
    return Error{Code::kInvalid, "the checkpoint is not one of this log: " + head.error().message};
  }
  standing.note = std::move(*note);
  standing.published = std::move(*head);
  Result<TreeState> tree = reader.ReadTreeState();
  if (!tree.ok()) return tree.error();
  standing.entries = tree->tree.size();
  standing.behind = standing.published.size > standing.entries;
  if (!standing.behind) {
    Result<Digest> root = RootAt(standing.published.size, reader.nodes());
    if (!root.ok()) return root.error();
    standing.behind = *root != standing.published.root;
  }
  return standing;
}

Status WriteContinuation(const DataFolder& folder, const Continuation& continuation) {
  const json::Value object = json::Object{{"checkpoint", continuation.checkpoint},
                                          {"entries", continuation.entries},
                                          {"former", continuation.former},
                                          {"origin", continuation.origin},
                                          {"vkey", continuation.vkey}};
  return WriteFileDurably(folder.continues(), json::Canonical(object) + "\n");
}

Result<Continuation> Begin(const DataFolder& folder, std::string_view origin) {
  Result<Standing> standing = ReadStanding(folder, std::nullopt);
  if (!standing.ok()) return standing.error();
  if (!standing->behind && !Exists(folder.restored())) {
    return Error{Code::kInvalid,
                 "the database holds all that was published: there is no rollback to acknowledge; "
                 "start the server"};
  }
  Continuation continuation;
  continuation.checkpoint = standing->note;
  continuation.vkey = standing->vkey;
  continuation.entries = standing->entries;
  continuation.origin = std::string(origin);
  if (origin.empty()) {
    continuation.origin = standing->published.origin + "-" + HexEncode(RandomBytes(4));
  }
  if (!IsKeyName(continuation.origin) || continuation.origin == standing->published.origin) {
    return Error{Code::kInvalid,
                 "the new log needs an origin of its own, without spaces and plus signs"};
  }
  if (Status made = MakeFolder(folder.path() + "/former"); !made.ok()) return made.error();
  for (int n = 1;; ++n) {
    continuation.former = "former/" + std::to_string(n);
    if (!Exists(folder.path() + "/" + continuation.former)) break;
  }
  if (Status written = WriteContinuation(folder, continuation); !written.ok()) {
    return written.error();
  }
  return continuation;
}

// The new log's keys are made whole beside the old ones before they take their place.
Status ReplaceKeys(const DataFolder& folder, const std::string& former, const std::string& origin) {
  const DataFolder next = DataFolder::Unlocked(folder.path() + "/tmp/new-log");
  std::error_code error;
  if (!Exists(former + "/keys")) {
    fs::remove_all(next.path(), error);
    for (const std::string& made : {next.path(), next.keys()}) {
      if (Status status = MakeFolder(made); !status.ok()) return status;
    }
    // Pseudonyms and the blinding of the index stay what they were.
    for (const char* secret : {"/tenant.key", "/index.key"}) {
      Result<std::string> bytes = ReadFile(folder.keys() + secret);
      if (!bytes.ok()) return bytes.error();
      const Status copied = WriteFileDurably(next.keys() + secret, *bytes);
      Wipe(*bytes);
      if (!copied.ok()) return copied;
    }
    if (Result<Keys> made = LoadKeys(next, origin, true); !made.ok()) return made.error();
    if (Status moved = Rename(folder.keys(), former + "/keys"); !moved.ok()) return moved;
  }
  if (!Exists(next.keys())) return {};
  fs::remove(folder.keys(), error);  // an empty one, of whoever looked at the folder in between
  if (Status moved = Rename(next.keys(), folder.keys()); !moved.ok()) return moved;
  fs::remove_all(next.path(), error);
  return SyncFolder(folder.path());
}

Status MoveAway(const DataFolder& folder, const Continuation& continuation) {
  const std::string former = folder.path() + "/" + continuation.former;
  if (Status made = MakeFolder(former); !made.ok()) return made;
  for (const char* name :
       {"/checkpoint", "/db", "/keyring", "/erasures", "/backups", "/restored"}) {
    if (Exists(former + name) || !Exists(folder.path() + name)) continue;
    if (Status moved = Rename(folder.path() + name, former + name); !moved.ok()) return moved;
  }
  if (Status synced = SyncFolder(folder.path()); !synced.ok()) return synced;
  if (Status replaced = ReplaceKeys(folder, former, continuation.origin); !replaced.ok()) {
    return replaced;
  }
  return SyncFolder(former);
}

}  // namespace

Result<Continuation> ReadContinuation(const DataFolder& folder) {
  Result<std::string> text = ReadFile(folder.continues());
  if (!text.ok()) return text.error();
  const Error damaged{Code::kCorrupt,
                      folder.continues() + " is damaged; restore it from a backup of this folder"};
  Result<json::Value> object = json::Parse(*text);
  if (!object.ok()) return damaged;
  Continuation continuation;
  for (const auto& [name, out] :
       {std::pair("checkpoint", &continuation.checkpoint), std::pair("vkey", &continuation.vkey),
        std::pair("origin", &continuation.origin), std::pair("former", &continuation.former)}) {
    const json::Value* value = object->Find(name);
    if (!value || !value->is_string()) return damaged;
    *out = value->as_string();
  }
  const json::Value* entries = object->Find("entries");
  if (!entries || !entries->AsUint64()) return damaged;
  continuation.entries = *entries->AsUint64();
  if (!continuation.former.starts_with("former/") ||
      continuation.former.find_first_not_of("0123456789", 7) != std::string::npos) {
    return damaged;
  }
  return continuation;
}

Result<json::Value> ContinuesDetail(const Continuation& continuation) {
  Result<VerifierKey> key = ParseVerifierKey(continuation.vkey);
  if (!key.ok()) return key.error();
  Result<TreeHead> head = OpenCheckpoint(continuation.checkpoint, *key);
  if (!head.ok()) return head.error();
  return json::Value(json::Object{{"origin", head->origin},
                                  {"vkey", continuation.vkey},
                                  {"size", head->size},
                                  {"root", HexEncode(head->root)},
                                  {"checkpoint", continuation.checkpoint},
                                  {"entries", continuation.entries}});
}

Result<Continuation> AcknowledgeRollback(const std::string& path, std::string_view origin) {
  if (!Exists(path + "/keys")) {
    return Error{Code::kNotFound,
                 "there is no ledger in " + path + "; name a data folder with --data"};
  }
  Result<DataFolder> folder = DataFolder::Open(path);
  if (!folder.ok()) return folder.error();
  Result<Continuation> continuation = ReadContinuation(*folder);
  if (!continuation.ok() && continuation.error().code == Code::kNotFound) {
    continuation = Begin(*folder, origin);
  }
  if (!continuation.ok()) return continuation.error();
  if (Status moved = MoveAway(*folder, *continuation); !moved.ok()) return moved.error();
  for (const std::string& part : {folder->database(), folder->keyring()}) {
    if (Status made = MakeFolder(part); !made.ok()) return made.error();
  }
  LedgerOptions options;
  options.control_socket = false;
  Result<std::unique_ptr<Ledger>> ledger = Ledger::Open(std::move(*folder), std::move(options));
  if (!ledger.ok()) return ledger.error();
  if (Status closed = (*ledger)->Close(); !closed.ok()) return closed.error();
  return continuation;
}

Status ConfirmRestored(const std::string& path, std::string_view newest_checkpoint) {
  Result<DataFolder> folder = DataFolder::Open(path);
  if (!folder.ok()) return folder.error();
  if (!Exists(folder->restored())) {
    return Error{Code::kInvalid, path + " is no restored folder that waits for this"};
  }
  Result<Standing> own = ReadStanding(*folder, std::nullopt);
  if (!own.ok()) return own.error();
  Result<Standing> newest = ReadStanding(*folder, std::string(newest_checkpoint));
  if (!newest.ok()) return newest.error();
  if (own->behind || newest->behind) {
    const Standing& ahead = newest->behind ? *newest : *own;
    return Error{Code::kFailedPrecondition,
                 "the log went on to " + std::to_string(ahead.published.size) +
                     " entries, and this database does not hold them (" +
                     std::to_string(own->entries) +
                     " entries): restore a newer backup, or run verbatim restore "
                     "--acknowledge-rollback --data " +
                     path};
  }
  if (newest->published.size > own->published.size) {
    if (Status kept = WriteFileDurably(folder->checkpoint(), newest_checkpoint); !kept.ok()) {
      return kept;
    }
  }
  if (::unlink(folder->restored().c_str()) != 0) {
    return Error{Code::kIo, "cannot remove " + folder->restored()};
  }
  return SyncFolder(path);
}

}  // namespace verbatim::store
