#include "audit/log_evidence.h"

#include <limits>

#include "base/log.h"
#include "store/anchors.h"
#include "store/merkle.h"

namespace verbatim::audit {
namespace {

std::string Number(uint64_t n) { return std::to_string(n); }

size_t SignaturesAt(std::string_view note) { return note.rfind("\n\n") + 2; }

// `note` with the signature lines of `more`, of the same text, that it has not; the log's own ones
// (of this name) before all others.
std::string Merged(std::string note, std::string_view more, const std::string& name) {
  if (note.empty()) note = more.substr(0, SignaturesAt(more));
  const std::string own = "\xE2\x80\x94 " + name + " ";
  for (const bool owns : {true, false}) {
    for (size_t at = SignaturesAt(more); at < more.size();) {
      const size_t end = more.find('\n', at) + 1;
      const std::string line(more.substr(at, end - at));
      if (line.starts_with(own) == owns && note.find("\n" + line) == std::string::npos) {
        note += line;
      }
      at = end;
    }
  }
  return note;
}

}  // namespace

Status LogEvidence::Open(const std::string& newest) {
  Result<std::vector<store::LogKey>> keys = reader_.LogKeys();
  if (!keys.ok()) return keys.error();
  keys_ = std::move(*keys);
  Result<store::TreeHead> head = store::OpenCheckpoint(newest, keys_);
  if (!head.ok()) return head.error();
  if (head->size == 0) return Error{Code::kInvalid, "the log has no published entries yet"};
  head_ = std::move(*head);
  // A key that was just made signs nothing yet that is here.
  std::erase_if(keys_, [&](const store::LogKey& key) { return key.from > head_.size; });
  return Add(newest);
}

Status LogEvidence::Add(const std::string& note) {
  Result<store::TreeHead> head = store::OpenCheckpoint(note, keys_);
  if (!head.ok()) return head.error();
  if (head->size == 0 || head->size > head_.size) {
    return Error{Code::kInvalid, "the checkpoint of " + Number(head->size) +
                                     " entries is not older than the newest, of " +
                                     Number(head_.size)};
  }
  Result<Digest> root = store::RootAt(head->size, reader_.nodes());
  if (!root.ok()) return root.error();
  if (*root != head->root) {
    return Error{Code::kCorrupt, "the checkpoint of " + Number(head->size) +
                                     " entries is not of this tree: the log shows two"};
  }
  // Another text of the same head (an extension line) stays apart: its signatures are of that.
  std::string& kept = notes_[head->size];
  const std::string_view text = std::string_view(note).substr(0, SignaturesAt(note));
  if (!kept.empty() && !kept.starts_with(text)) return {};
  std::string merged = Merged(kept, note, head->origin);
  if (store::ParseNote(merged).ok()) kept = std::move(merged);
  return {};
}

Status LogEvidence::AddAnchors(uint64_t from, uint64_t to) {
  // Timestamps first: each is over the log's signature as it stands there.
  constexpr size_t kAll = std::numeric_limits<size_t>::max();
  Result<std::vector<store::StoredTimestamp>> stored = store::ReadTimestamps(reader_.kv(), kAll);
  if (!stored.ok()) return stored.error();
  // What is damaged here takes nothing from the log: a bundle is then made without it.
  const auto is_damaged = [&](const std::string& note, uint64_t size) {
    const Result<store::TreeHead> head = store::OpenCheckpoint(note, keys_);
    if (head.ok() && (size == 0 || head->size == size)) return false;
    LogWarning(
        "export: a stored checkpoint with a timestamp or cosignatures is damaged, and left out");
    return true;
  };
  bool covered = false;
  for (auto stamp = stored->rbegin(); stamp != stored->rend() && !covered; ++stamp) {
    if (stamp->size <= from || stamp->size > head_.size) continue;
    if (is_damaged(stamp->checkpoint, stamp->size)) continue;
    if (Status added = Add(stamp->checkpoint); !added.ok()) return added;
    if (StampedPart(notes_.at(stamp->size)) != stamp->checkpoint) {
      LogWarning("export: the timestamp of " + Number(stamp->size) +
                 " entries is over another text than the checkpoint, and is left out");
      continue;
    }
    timestamps_[stamp->size] = std::move(stamp->response);
    covered = stamp->size > to;
  }
  Result<std::string> cosigned = store::ReadCosigned(reader_.kv(), head_.size);
  if (!cosigned.ok()) return cosigned.error();
  return cosigned->empty() || is_damaged(*cosigned, 0) ? Status() : Add(*cosigned);
}

std::string_view StampedPart(std::string_view note) {
  return note.substr(0, note.find('\n', SignaturesAt(note)) + 1);
}

}  // namespace verbatim::audit
