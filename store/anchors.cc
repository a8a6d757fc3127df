#include "store/anchors.h"

#include <algorithm>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/log.h"
#include "store/merkle.h"

namespace verbatim::store {
namespace {

// Kinds of rows (FORMAT.md, Anchors).
constexpr char kCosigned = 1, kTimestamp = 2;
constexpr int64_t kSecond = 1'000'000, kHour = 3'600 * kSecond;
// How far a witness's clock may be from ours.
constexpr int64_t kClockTolerance = 300 * kSecond;
constexpr size_t kMaxWaiting = 16;  // sizes that collect cosignatures

std::string AnchorKey(char kind, uint64_t size) {
  std::string key(1, kind);
  AppendU64(key, size);
  return key;
}

int64_t Micros(uint64_t seconds) {
  return seconds > uint64_t{9'000'000'000'000} ? int64_t{9'000'000'000'000} * kSecond
                                               : static_cast<int64_t>(seconds) * kSecond;
}

}  // namespace

Anchors::Anchors(Kv& kv, const Reader& reader, AnchorOptions options, std::function<int64_t()> now,
                 std::function<void()> failed)
    : kv_(kv),
      reader_(reader),
      options_(std::move(options)),
      now_(std::move(now)),
      failed_(std::move(failed)),
      opened_(now_()) {}

Status Anchors::Load() {
  if (options_.quorum == 0) return {};
  Result<std::string> note = ReadCosigned(kv_, UINT64_MAX);
  if (!note.ok()) return note.error();
  if (note->empty()) return {};
  Result<Note> parsed = ParseNote(*note);
  Result<std::vector<LogKey>> keys = reader_.LogKeys();
  if (!keys.ok()) return keys.error();
  Result<TreeHead> head = OpenCheckpoint(*note, *keys);
  Result<std::vector<Cosignature>> cosignatures = OpenCosignatures(*note, options_.witnesses);
  if (!parsed.ok() || !head.ok() || !cosignatures.ok()) {
    LogWarning("ledger: the stored cosigned checkpoint is damaged; it is asked for again");
    return {};
  }
  Collected collected;
  // The log's signature stands first.
  collected.checkpoint = note->substr(0, note->find('\n', parsed->text.size() + 1) + 1);
  for (Cosignature& c : *cosignatures) collected.by_name[c.name] = std::move(c);
  std::lock_guard lock(mutex_);
  if (collected.by_name.size() < options_.quorum) return {};
  newest_ = head->size;
  waiting_[newest_] = std::move(collected);
  return {};
}

Status Anchors::AddCosignatures(std::string_view checkpoint, std::string_view lines,
                                const CosignerKey& witness) {
  Result<std::vector<LogKey>> keys = reader_.LogKeys();
  if (!keys.ok()) return keys.error();
  Result<TreeHead> head = OpenCheckpoint(checkpoint, *keys);
  if (!head.ok()) return head.error();
  const std::string note = std::string(checkpoint) + std::string(lines);
  // An empty line among them would move the end of the text that is signed.
  Result<Note> before = ParseNote(checkpoint);
  Result<Note> after = ParseNote(note);
  if (!after.ok()) return after.error();
  if (!before.ok() || before->text != after->text) {
    return Error{Code::kInvalid, "the answer holds more than signature lines"};
  }
  Result<std::vector<Cosignature>> found = OpenCosignatures(note, {&witness, 1});
  if (!found.ok()) return found.error();
  if (found->empty()) {
    return Error{Code::kNotFound, "no cosignature by " + witness.name + " is in the answer"};
  }
  Cosignature& cosignature = found->front();
  const int64_t now = now_();
  if (std::abs(Micros(cosignature.time) - now) > kClockTolerance) {
    return Error{Code::kInvalid,
                 "the cosignature of " + witness.name + " is of " +
                     FormatTime(Micros(cosignature.time)) +
                     ", over five minutes from this machine's clock; set the clocks"};
  }
  std::lock_guard lock(mutex_);
  if (head->size < newest_) return {};  // a larger one has its quorum already
  Collected& collected = waiting_[head->size];
  collected.checkpoint = std::string(checkpoint);
  Cosignature& kept = collected.by_name[witness.name];
  if (kept.time <= cosignature.time) kept = std::move(cosignature);
  if (collected.by_name.size() >= options_.quorum) {
    if (Status stored = Keep(head->size, collected); !stored.ok()) return stored;
    newest_ = head->size;
    waiting_.erase(waiting_.begin(), waiting_.find(newest_));
  }
  // Of those that no quorum came for the oldest go.
  while (waiting_.size() > kMaxWaiting) {
    const auto oldest = waiting_.begin();
    waiting_.erase(oldest->first == newest_ ? std::next(oldest) : oldest);
  }
  return {};
}

std::string Anchors::NoteOf(const Collected& collected) const {
  std::string note = collected.checkpoint;
  for (const auto& [name, cosignature] : collected.by_name) note += cosignature.line;
  return note;
}

// When the quorum was reached: the time of the oldest of its newest cosignatures.
int64_t Anchors::TimeOf(const Collected& collected) const {
  std::vector<int64_t> times;
  for (const auto& [name, cosignature] : collected.by_name) {
    times.push_back(Micros(cosignature.time));
  }
  std::sort(times.rbegin(), times.rend());
  return times.at(options_.quorum - 1);
}

// Unsynced: what a power loss takes is asked for again.
Status Anchors::Keep(uint64_t size, const Collected& collected) {
  Batch batch;
  batch.Put(Table::kAnchor, AnchorKey(kCosigned, size), NoteOf(collected));
  const auto before = waiting_.find(newest_);
  if (newest_ != 0 && newest_ != size && before != waiting_.end() &&
      TimeOf(before->second) / kHour == TimeOf(collected) / kHour) {
    batch.Delete(Table::kAnchor, AnchorKey(kCosigned, newest_));
  }
  Status stored = kv_.Commit(batch, false);
  if (!stored.ok()) failed_();
  return stored;
}

std::string Anchors::Cosigned() const {
  std::lock_guard lock(mutex_);
  const auto newest = waiting_.find(newest_);
  return newest_ == 0 || newest == waiting_.end() ? "" : NoteOf(newest->second);
}

Anchors::Quorum Anchors::quorum() const {
  std::lock_guard lock(mutex_);
  const auto newest = waiting_.find(newest_);
  if (newest_ == 0 || newest == waiting_.end()) return {};
  return {newest_, std::max<int64_t>(now_() - TimeOf(newest->second), 0)};
}

std::string Anchors::Stale() const {
  if (options_.quorum == 0) return "";
  const Quorum quorum = this->quorum();
  const int64_t age = quorum.age_micros >= 0 ? quorum.age_micros : now_() - opened_;
  if (age <= options_.max_age_micros) return "";
  std::string text = "no quorum of witnesses (" + std::to_string(options_.quorum) + " of " +
                     std::to_string(options_.witnesses.size()) + ") has cosigned the log";
  text += quorum.age_micros >= 0 ? " for " + std::to_string(age / kSecond) + " s" : " yet";
  return text;
}

Result<Timestamp> Anchors::AddTimestamp(std::string_view checkpoint, std::string_view response,
                                        uint64_t nonce) {
  Result<std::vector<LogKey>> keys = reader_.LogKeys();
  if (!keys.ok()) return keys.error();
  Result<TreeHead> head = OpenCheckpoint(checkpoint, *keys);
  if (!head.ok()) return head.error();
  Result<Timestamp> timestamp = VerifyTimestamp(response, checkpoint, options_.timestamp_ca);
  if (!timestamp.ok()) return timestamp;
  if (timestamp->nonce != nonce) {
    return Error{Code::kCorrupt, "the timestamp does not hold: it answers another request"};
  }
  std::string value;
  AppendU32(value, static_cast<uint32_t>(checkpoint.size()));
  value += checkpoint;
  value += response;
  Batch batch;
  batch.Put(Table::kAnchor, AnchorKey(kTimestamp, head->size), std::move(value));
  if (Status stored = kv_.Commit(batch, true); !stored.ok()) {
    failed_();
    return stored.error();
  }
  return timestamp;
}

Result<std::vector<StoredTimestamp>> Anchors::Timestamps(size_t limit) const {
  return ReadTimestamps(kv_, limit);
}

Result<std::string> ReadCosigned(const Kv& kv, uint64_t size) {
  std::string note;
  const std::string end =
      size == UINT64_MAX ? AnchorKey(kCosigned + 1, 0) : AnchorKey(kCosigned, size + 1);
  const Status scanned = kv.Scan(Table::kAnchor, AnchorKey(kCosigned, 0), end,
                                 [&](std::string_view, std::string_view value) {
                                   note = value;
                                   return true;
                                 });
  if (!scanned.ok()) return scanned.error();
  return note;
}

Result<std::vector<StoredTimestamp>> ReadTimestamps(const Kv& kv, size_t limit) {
  std::vector<StoredTimestamp> all;
  Status problem;
  const Status scanned =
      kv.Scan(Table::kAnchor, AnchorKey(kTimestamp, 0), AnchorKey(kTimestamp + 1, 0),
              [&](std::string_view key, std::string_view value) {
                const size_t note = value.size() >= 4 ? ReadU32(value) : 0;
                if (key.size() != 9 || value.size() < 4 || value.size() - 4 < note) {
                  problem = Error{Code::kCorrupt, "a stored timestamp is damaged"};
                  return false;
                }
                all.push_back({ReadU64(key.substr(1)), std::string(value.substr(4, note)),
                               std::string(value.substr(4 + note))});
                if (all.size() > limit) all.erase(all.begin());
                return true;
              });
  if (!scanned.ok()) return scanned.error();
  if (!problem.ok()) return problem.error();
  std::reverse(all.begin(), all.end());
  return all;
}

}  // namespace verbatim::store
