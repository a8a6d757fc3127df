// Writes evidence bundles: what an auditor needs to check a part of the ledger offline
// (audit/FORMAT.md). The same ledger state and request give the same bytes.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "audit/bundle.h"
#include "base/bytes.h"
#include "base/json.h"
#include "base/result.h"
#include "store/reader.h"

namespace verbatim::audit {

struct ExportRequest {
  // Entries first..last, both included; else those since..until (UTC microseconds, both included);
  // else all that the checkpoint covers.
  std::optional<std::pair<uint64_t, uint64_t>> range;
  std::optional<int64_t> since, until;
  // Names. Given: of the range only these tenants' entries, and only their records are opened.
  std::vector<std::string> tenants;
  bool payloads = true;                  // requests, answers and traces, too
  std::vector<std::string> checkpoints;  // older ones of this log, signed notes
  std::function<void(uint64_t done, uint64_t total)> progress;  // entries; may be empty
};

struct ExportResult {
  BundleIndex index;
  uint64_t selected = 0;  // of index.entries, what was asked for; the others support them
  Digest digest{};        // SHA-256 of the bundle's file
};

// Makes the file `path`, which must not exist, readable by its owner only. `checkpoint`: the newest
// signed note of the reader's log. kInvalid where the request names nothing that the checkpoint
// covers; kCorrupt where the ledger is damaged (run fsck); kAlreadyExists; kIo.
Result<ExportResult> WriteBundle(const store::Reader& reader, const std::string& checkpoint,
                                 const ExportRequest& request, const std::string& path);

// What the `exported` entry says of it: facts for the leaf and, private, who got what.
json::Value ExportDetail(const ExportResult& result);
json::Value ExportExtra(const ExportResult& result, const ExportRequest& request);

}  // namespace verbatim::audit
