// What an evidence bundle holds, and the bytes of its files that are not the ledger's own
// (audit/FORMAT.md). Values only; all functions may be called from any thread.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/result.h"
#include "store/checkpoint.h"

namespace verbatim::audit {

inline constexpr char kIndexFile[] = "bundle.json";
inline constexpr char kReadmeFile[] = "README.txt";
inline constexpr char kReportFile[] = "report.html";
inline constexpr char kStatementFile[] = "statement.txt";
inline constexpr char kKeyFile[] = "log/vkey";
inline constexpr char kKeysFile[] = "log/keys";
inline constexpr char kCheckpointFile[] = "log/checkpoint";
// Of an entry (EntryFile).
inline constexpr char kLeaf[] = "leaf.json";
inline constexpr char kProof[] = "leaf.tlog-proof";
inline constexpr char kRecord[] = "record.json";
inline constexpr char kRequest[] = "request";
inline constexpr char kResponse[] = "response";
inline constexpr char kTrace[] = "trace.json";
inline constexpr char kHits[] = "hits.jsonl";

std::string EntryFile(uint64_t entry, std::string_view file);  // "entries/12/leaf.json"
std::string OldCheckpointFile(uint64_t size);                  // "log/checkpoints/8"
std::string ConsistencyFile(uint64_t size);                    // "log/consistency/8"
std::string TimestampFile(uint64_t size);                      // "log/timestamps/8.tsr"

enum class RecordState {
  kIncluded,  // record.json is there, and its salt
  kWithheld,  // it is not for this requester
  kErased     // its keys and salt were destroyed
};

struct BundleEntry {
  uint64_t entry = 0;
  RecordState record = RecordState::kWithheld;
  std::string salt;  // 32 bytes where the record is included
};

// bundle.json.
struct BundleIndex {
  std::string origin;
  uint64_t size = 0;  // of the tree in log/checkpoint
  // What was asked for: the entries from..to, of these tenants (pseudonyms, ascending) where given.
  uint64_t from = 0, to = 0;
  std::optional<std::vector<std::string>> tenants;
  bool payloads = true;               // requests, answers and traces of included records are there
  std::vector<uint64_t> checkpoints;  // sizes of older checkpoints, ascending
  std::vector<uint64_t> timestamps;   // sizes of checkpoints with an RFC 3161 token, ascending
  std::vector<BundleEntry> entries;   // ascending
  std::map<std::string, Digest> files;  // of every other member: SHA-256
};
std::string EncodeIndex(const BundleIndex& index);
// kCorrupt for whatever EncodeIndex would not have written, and for numbers that cannot be.
Result<BundleIndex> ParseIndex(std::string_view bytes);

// log/keys, of a log that had several: a line "<from> <verifier key>" for each, oldest first.
std::string EncodeKeys(const std::vector<store::LogKey>& keys);
// kCorrupt for whatever EncodeKeys would not have written, fewer than two keys, keys of several
// logs, and sizes that do not ascend from 0.
Result<std::vector<store::LogKey>> ParseKeys(std::string_view bytes);

// log/consistency/<size>: a line of base64 for each hash.
std::string EncodeHashes(const std::vector<Digest>& hashes);
Result<std::vector<Digest>> ParseHashes(std::string_view bytes);

// A line of hits.jsonl: a hit of the batch, in the order of their numbers.
struct HitLine {
  uint64_t number = 0;
  Digest commitment{};
  std::vector<Digest> path;  // to the batch's root
  // Absent where they were erased.
  std::optional<std::string> record;  // canonical JSON
  std::string salt;                   // 32 bytes
};
std::string EncodeHit(const HitLine& hit);  // with its newline
Result<HitLine> ParseHit(std::string_view line);

}  // namespace verbatim::audit
