#include "audit/export.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "audit/archive.h"
#include "audit/erasure.h"
#include "audit/log_evidence.h"
#include "audit/report.h"
#include "base/clock.h"
#include "base/crypto.h"
#include "store/checkpoint.h"
#include "store/merkle.h"
#include "store/rows.h"
#include "store/tlog_proof.h"

namespace verbatim::audit {
namespace {

using store::Kind;
using store::Leaf;
using store::Table;

// How far behind a range the configuration of a server that had just started is looked for.
constexpr uint64_t kConfigurationAhead = 256;

std::string Number(uint64_t n) { return std::to_string(n); }

class Exporter {
 public:
  Exporter(const store::Reader& reader, const std::string& checkpoint, const ExportRequest& request)
      : reader_(reader), newest_(checkpoint), request_(request), log_(reader) {}

  Result<ExportResult> Run(const std::string& path) {
    for (const auto step :
         {&Exporter::ReadHead, &Exporter::ReadRange, &Exporter::ReadAnchors, &Exporter::Select,
          &Exporter::AddBoundaries, &Exporter::AddConfiguration, &Exporter::AddRotations,
          &Exporter::AddErasures}) {
      if (Status status = (this->*step)(); !status.ok()) return status.error();
    }
    Result<ArchiveWriter> archive = ArchiveWriter::Create(path);
    if (!archive.ok()) return archive.error();
    archive_ = &*archive;
    for (const auto step : {&Exporter::WriteLog, &Exporter::WriteEntries, &Exporter::WriteProse}) {
      if (Status status = (this->*step)(); !status.ok()) return status.error();
    }
    // Last, since it holds the digests of the others.
    if (Status s = archive->Add(kIndexFile, EncodeIndex(index_)); !s.ok()) return s.error();
    if (Status s = archive->Finish(); !s.ok()) return s.error();
    Result<MappedFile> written = MappedFile::Open(path);
    if (!written.ok()) return written.error();
    return ExportResult{std::move(index_), selected_, Sha256(written->bytes())};
  }

 private:
  struct Planned {
    bool selected = false;
    bool open = false;  // its record is for the requester
  };

  Status ReadHead() {
    if (Status opened = log_.Open(newest_); !opened.ok()) return opened;
    index_.origin = log_.head().origin;
    index_.size = log_.head().size;
    for (const std::string& note : request_.checkpoints) {
      if (Status added = log_.Add(note); !added.ok()) return added;
    }
    return {};
  }

  Status ReadAnchors() {
    if (Status added = log_.AddAnchors(index_.from, index_.to); !added.ok()) return added;
    for (const auto& [size, note] : log_.checkpoints()) {
      if (size < index_.size) index_.checkpoints.push_back(size);
    }
    for (const auto& [size, response] : log_.timestamps()) index_.timestamps.push_back(size);
    return {};
  }

  Status ReadRange() {
    index_.from = 0;
    index_.to = index_.size - 1;
    if (request_.range) {
      std::tie(index_.from, index_.to) = *request_.range;
      if (index_.from > index_.to) {
        return Error{Code::kInvalid, "the range begins behind its end; give it as FIRST:LAST"};
      }
      if (index_.to >= index_.size) {
        return Error{Code::kInvalid, "the newest checkpoint covers entries 0 to " +
                                         Number(index_.size - 1) + "; entry " + Number(index_.to) +
                                         " is not (yet) among them"};
      }
    }
    if (request_.since) {
      Result<uint64_t> first = FirstAtOrAfter(*request_.since);
      if (!first.ok()) return first.error();
      index_.from = std::max(index_.from, *first);
    }
    if (request_.until) {
      Result<uint64_t> end = FirstAtOrAfter(*request_.until + 1);
      if (!end.ok()) return end.error();
      if (*end <= index_.from) return Error{Code::kInvalid, "there are no entries in that time"};
      index_.to = std::min(index_.to, *end - 1);
    }
    if (index_.from > index_.to) return Error{Code::kInvalid, "there are no entries in that time"};
    index_.payloads = request_.payloads;
    if (!request_.tenants.empty()) {
      std::set<std::string> pseudonyms;
      for (const std::string& name : request_.tenants) {
        pseudonyms.insert(reader_.keys().Pseudonym(name));
      }
      index_.tenants.emplace(pseudonyms.begin(), pseudonyms.end());
    }
    return {};
  }

  // Leaves' times never fall.
  Result<uint64_t> FirstAtOrAfter(int64_t time) const {
    uint64_t low = 0, high = index_.size;
    while (low < high) {
      const uint64_t middle = low + (high - low) / 2;
      Result<Leaf> leaf = LeafOf(middle);
      if (!leaf.ok()) return leaf.error();
      if (leaf->time < time) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low;
  }

  Result<Leaf> LeafOf(uint64_t entry) const {
    Result<store::EntryView> view = reader_.Entry(entry, false);
    if (!view.ok()) return view.error();
    return std::move(view->leaf);
  }

  bool IsTenant(const std::string& pseudonym) const {
    return !index_.tenants ||
           std::binary_search(index_.tenants->begin(), index_.tenants->end(), pseudonym);
  }

  Status Select() {
    for (uint64_t entry = index_.from; entry <= index_.to; ++entry) {
      Result<Leaf> leaf = LeafOf(entry);
      if (!leaf.ok()) return leaf.error();
      if (IsConfiguration(*leaf)) {
        if (Status added = AddOpen(entry, *leaf, IsTenant(leaf->tenant)); !added.ok()) return added;
        continue;
      }
      if (!IsTenant(leaf->tenant)) continue;
      if (!leaf->tenant.empty()) {
        sequences_.try_emplace(leaf->tenant, leaf->sequence);
      }
      if (Status added = AddOpen(entry, *leaf, true); !added.ok()) return added;
    }
    return {};
  }

  static bool IsConfiguration(const Leaf& leaf) {
    return leaf.kind == Kind::kConfiguration && leaf.outcome != "rejected";
  }

  // The entry, and those that it and its hits refer to.
  Status AddOpen(uint64_t first, const Leaf& first_leaf, bool selected) {
    plan_[first] = {selected, true};
    if (selected) ++selected_;
    Result<std::set<uint64_t>> named = ReferencesOf(first, first_leaf);
    if (!named.ok()) return named.error();
    std::vector<uint64_t> waiting(named->begin(), named->end());
    while (!waiting.empty()) {
      const uint64_t entry = waiting.back();
      waiting.pop_back();
      if (plan_.contains(entry)) continue;
      Result<Leaf> leaf = LeafOf(entry);
      if (!leaf.ok()) return leaf.error();
      const bool in_range = entry >= index_.from && entry <= index_.to;
      if (in_range && IsTenant(leaf->tenant)) continue;  // Select comes, or came, to it
      const bool open = IsTenant(leaf->tenant);
      plan_[entry] = {false, open};
      if (!open) continue;
      Result<std::set<uint64_t>> more = ReferencesOf(entry, *leaf);
      if (!more.ok()) return more.error();
      waiting.insert(waiting.end(), more->begin(), more->end());
    }
    return {};
  }

  Result<std::set<uint64_t>> ReferencesOf(uint64_t entry, const Leaf& leaf) {
    std::set<uint64_t> named;
    for (const store::Reference& reference : leaf.references) named.insert(reference.entry);
    if (!leaf.manifest.empty()) manifests_.insert(leaf.manifest);
    if (IsConfiguration(leaf)) known_manifests_.insert(leaf.manifest);
    if (leaf.kind != Kind::kHits) return named;
    Result<std::vector<HitLine>> hits = HitsOf(entry);
    if (!hits.ok()) return hits.error();
    for (const HitLine& hit : *hits) {
      if (!hit.record) continue;
      Result<store::HitRecord> record = store::ParseHitRecord(*hit.record);
      if (!record.ok()) return record.error();
      named.insert(record->result);
    }
    return named;
  }

  // A batch's hits with their paths.
  Result<std::vector<HitLine>> HitsOf(uint64_t entry) {
    if (batches_.empty()) {
      const Status scanned = reader_.kv().Scan(Table::kHitBatch, "", "",
                                               [&](std::string_view key, std::string_view value) {
                                                 Result<uint64_t> leaf = store::DecodeU64(value);
                                                 if (leaf.ok()) batches_[*leaf] = std::string(key);
                                                 return true;
                                               });
      if (!scanned.ok()) return scanned.error();
    }
    const Error damaged{Code::kCorrupt,
                        "the hits of entry " + Number(entry) + " are damaged; run verbatim fsck"};
    const auto batch = batches_.find(entry);
    if (batch == batches_.end()) return damaged;
    std::vector<HitLine> hits;
    Status problem;
    const Status scanned = reader_.kv().Scan(
        Table::kHit, batch->second, store::PrefixEnd(batch->second),
        [&](std::string_view key, std::string_view value) {
          Result<store::HitRow> row = store::DecodeHitRow(value);
          problem = row.ok() && key.size() == store::kHitKeyBytes ? AddRow(hits, key, *row)
                                                                  : Status(damaged);
          return problem.ok();
        });
    if (!scanned.ok()) return scanned.error();
    if (!problem.ok()) return problem.error();
    if (Status added = AddPaths(hits); !added.ok()) return added.error();
    return hits;
  }

  Status AddRow(std::vector<HitLine>& hits, std::string_view key, const store::HitRow& row) const {
    Result<std::vector<store::OpenedHit>> opened = reader_.OpenHits(key, row);
    if (!opened.ok() && opened.error().code != Code::kNotFound) return opened.error();
    for (size_t i = 0; i < row.commitments.size(); ++i) {
      HitLine hit;
      hit.number = hits.size();
      hit.commitment = row.commitments[i];
      if (opened.ok()) {
        hit.record = std::move((*opened)[i].bytes);
        hit.salt = std::move((*opened)[i].salt);
      }
      hits.push_back(std::move(hit));
    }
    return {};
  }

  static Status AddPaths(std::vector<HitLine>& hits) {
    std::map<std::pair<unsigned, uint64_t>, Digest> nodes;
    store::CompactRange tree;
    for (const HitLine& hit : hits) {
      std::vector<store::Node> completed;
      tree.Append(store::LeafHash(AsBytes(hit.commitment)), &completed);
      for (const store::Node& node : completed) nodes[{node.level, node.index}] = node.hash;
    }
    const auto read = [&](unsigned level, uint64_t index) -> Result<Digest> {
      return nodes.at({level, index});
    };
    for (HitLine& hit : hits) {
      Result<std::vector<Digest>> path = store::InclusionProof(hit.number, hits.size(), read);
      if (!path.ok()) return path.error();
      hit.path = std::move(*path);
    }
    return {};
  }

  // Of each tenant that was asked for, the entry before the range and the one behind it: their
  // numbers show that nothing between is missing.
  Status AddBoundaries() {
    if (!index_.tenants) return {};
    std::set<std::string> missing;
    for (const std::string& tenant : *index_.tenants) {
      if (sequences_[tenant] != 1) missing.insert(tenant);
    }
    for (uint64_t entry = index_.from; entry-- > 0 && !missing.empty();) {
      if (Status added = AddBoundary(entry, missing); !added.ok()) return added;
    }
    missing = {index_.tenants->begin(), index_.tenants->end()};
    for (uint64_t entry = index_.to + 1; entry < index_.size && !missing.empty(); ++entry) {
      if (Status added = AddBoundary(entry, missing); !added.ok()) return added;
    }
    return {};
  }

  Status AddBoundary(uint64_t entry, std::set<std::string>& missing) {
    Result<Leaf> leaf = LeafOf(entry);
    if (!leaf.ok()) return leaf.error();
    if (missing.erase(leaf->tenant) > 0) plan_.try_emplace(entry, Planned{});
    return {};
  }

  // What was in force when the range began, and whatever else its entries name.
  Status AddConfiguration() {
    for (uint64_t entry = index_.from; entry-- > 0;) {
      Result<Leaf> leaf = LeafOf(entry);
      if (!leaf.ok()) return leaf.error();
      if (!IsConfiguration(*leaf)) continue;
      plan_[entry] = {false, true};
      known_manifests_.insert(leaf->manifest);
      break;
    }
    const auto complete = [&] {
      return std::includes(known_manifests_.begin(), known_manifests_.end(), manifests_.begin(),
                           manifests_.end());
    };
    const uint64_t end = std::min(index_.size, index_.to + 1 + kConfigurationAhead);
    for (uint64_t entry = index_.to + 1; entry < end && !complete(); ++entry) {
      Result<Leaf> leaf = LeafOf(entry);
      if (!leaf.ok()) return leaf.error();
      if (!IsConfiguration(*leaf) || !manifests_.contains(leaf->manifest)) continue;
      plan_[entry] = {false, true};
      known_manifests_.insert(leaf->manifest);
    }
    return {};
  }

  // The entries that name the log's newer keys.
  Status AddRotations() {
    for (const store::LogKey& key : log_.keys()) {
      if (key.from > 0) plan_.try_emplace(key.from - 1, Planned{});
    }
    return {};
  }

  // The entries that say of what is erased here that it is.
  Status AddErasures() {
    std::map<uint64_t, Leaf> erased;
    for (const auto& [entry, planned] : plan_) {
      if (!planned.open) continue;
      const Result<store::SlotKeys> keys = reader_.entry_keys().Get(entry);
      if (keys.ok()) continue;
      if (keys.error().code != Code::kNotFound) return keys.error();
      Result<Leaf> leaf = LeafOf(entry);
      if (!leaf.ok()) return leaf.error();
      erased.emplace(entry, std::move(*leaf));
    }
    if (erased.empty()) return {};
    for (uint64_t entry = erased.begin()->first + 1; entry < index_.size && !erased.empty();
         ++entry) {
      Result<std::string> bytes = reader_.LeafBytes(entry);
      if (!bytes.ok()) return bytes.error();
      // Most of a log is neither, and is not parsed.
      const bool may_be = bytes->find("\"erased\"") != std::string::npos ||
                          bytes->find("\"pruned\"") != std::string::npos;
      if (!may_be) continue;
      Result<Leaf> leaf = store::ParseLeaf(*bytes);
      if (!leaf.ok()) return leaf.error();
      if (!IsErasure(*leaf)) continue;
      Result<Erasure> erasure = ErasureOf(entry, *leaf);
      if (!erasure.ok()) return erasure.error();
      const size_t covered = std::erase_if(
          erased, [&](const auto& one) { return erasure->Covers(one.first, one.second); });
      if (covered > 0) plan_.try_emplace(entry, Planned{false, IsTenant(leaf->tenant)});
    }
    return {};
  }

  Status Add(const std::string& name, std::string_view bytes) {
    index_.files[name] = Sha256(bytes);
    return archive_->Add(name, bytes);
  }

  Status WriteLog() {
    if (Status s = Add(kReadmeFile, MakeReadme()); !s.ok()) return s;
    if (Status s = Add(kKeyFile, store::FormatVerifierKey(key()) + "\n"); !s.ok()) return s;
    if (log_.keys().size() > 1) {
      if (Status s = Add(kKeysFile, EncodeKeys(log_.keys())); !s.ok()) return s;
    }
    if (Status s = Add(kCheckpointFile, log_.checkpoint()); !s.ok()) return s;
    for (const auto& [size, note] : log_.checkpoints()) {
      if (size == index_.size) continue;
      Result<std::vector<Digest>> path =
          store::ConsistencyProof(size, index_.size, reader_.nodes());
      if (!path.ok()) return path.error();
      if (Status s = Add(OldCheckpointFile(size), note); !s.ok()) return s;
      if (Status s = Add(ConsistencyFile(size), EncodeHashes(*path)); !s.ok()) return s;
    }
    for (const auto& [size, response] : log_.timestamps()) {
      if (Status s = Add(TimestampFile(size), response); !s.ok()) return s;
    }
    return {};
  }

  Status WriteEntries() {
    uint64_t done = 0;
    for (const auto& [entry, planned] : plan_) {
      if (Status written = WriteEntry(entry, planned); !written.ok()) return written;
      if (request_.progress) request_.progress(++done, plan_.size());
    }
    return {};
  }

  Status WriteEntry(uint64_t entry, const Planned& planned) {
    Result<store::EntryView> view = reader_.Entry(entry, planned.open);
    if (!view.ok()) return view.error();
    Result<std::vector<Digest>> path = store::InclusionProof(entry, index_.size, reader_.nodes());
    if (!path.ok()) return path.error();
    BundleEntry item;
    item.entry = entry;
    if (planned.open) item.record = view->record ? RecordState::kIncluded : RecordState::kErased;
    item.salt = view->salt;
    if (Status s = Add(EntryFile(entry, kLeaf), view->leaf_bytes); !s.ok()) return s;
    const std::string proof =
        store::FormatTlogProof({entry, std::move(*path), log_.checkpoint(), ""});
    if (Status s = Add(EntryFile(entry, kProof), proof); !s.ok()) return s;
    if (item.record == RecordState::kIncluded) {
      const store::Record& record = *view->record;
      Status s = Add(EntryFile(entry, kRecord), store::EncodeRecord(record));
      if (!s.ok()) return s;
      const bool configuration = view->leaf.kind == Kind::kConfiguration;
      for (const auto& [file, digest, bytes] :
           {std::tuple(kRequest, &record.request_digest, &view->request),
            std::tuple(kResponse, &record.output_digest, &view->response),
            std::tuple(kTrace, &record.trace_digest, &view->trace)}) {
        if (!*digest || (!index_.payloads && !configuration)) continue;
        if (Status added = Add(EntryFile(entry, file), *bytes); !added.ok()) return added;
      }
    }
    if (planned.open && view->leaf.kind == Kind::kHits) {
      Result<std::vector<HitLine>> hits = HitsOf(entry);
      if (!hits.ok()) return hits.error();
      std::string lines;
      for (const HitLine& hit : *hits) lines += EncodeHit(hit);
      if (Status s = Add(EntryFile(entry, kHits), lines); !s.ok()) return s;
    }
    Describe(*view, planned, item.record);
    index_.entries.push_back(std::move(item));
    return {};
  }

  void Describe(const store::EntryView& view, const Planned& planned, RecordState state) {
    if (described_.size() == kReportRows) return;
    ReportEntry entry;
    entry.entry = view.entry;
    entry.selected = planned.selected;
    entry.leaf = view.leaf;
    entry.record = state;
    if (view.record) {
      entry.endpoint = view.record->endpoint;
      const json::Value* model = view.record->extra.Find("model");
      if (model && model->is_string()) entry.model = model->as_string();
    }
    const bool shown = view.leaf.kind != Kind::kConfiguration && index_.payloads;
    if (shown && planned.selected && !(view.request.empty() && view.response.empty()) &&
        excerpts_ < kExcerpts) {
      ++excerpts_;
      entry.has_payload = true;
      entry.request = view.request.substr(0, kExcerptBytes);
      entry.response = view.response.substr(0, kExcerptBytes);
      entry.request_bytes = view.request.size();
      entry.response_bytes = view.response.size();
    }
    described_.push_back(std::move(entry));
  }

  Status WriteProse() {
    const ReportFacts facts{index_, store::FormatVerifierKey(key()), HexEncode(log_.head().root),
                            std::move(described_), selected_};
    if (Status s = Add(kReportFile, MakeReport(facts)); !s.ok()) return s;
    return Add(kStatementFile, MakeStatement(facts));
  }

  // That signs the newest checkpoint.
  const store::VerifierKey& key() const { return log_.keys().back().key; }

  const store::Reader& reader_;
  const std::string& newest_;
  const ExportRequest& request_;
  ArchiveWriter* archive_ = nullptr;
  LogEvidence log_;
  BundleIndex index_;
  std::map<uint64_t, Planned> plan_;
  uint64_t selected_ = 0;
  std::map<std::string, uint64_t> sequences_;  // tenant -> its first number in the range
  std::set<std::string> manifests_, known_manifests_;
  std::map<uint64_t, std::string> batches_;  // entry -> its key in Table::kHitBatch
  std::vector<ReportEntry> described_;
  size_t excerpts_ = 0;
};

}  // namespace

Result<ExportResult> WriteBundle(const store::Reader& reader, const std::string& checkpoint,
                                 const ExportRequest& request, const std::string& path) {
  return Exporter(reader, checkpoint, request).Run(path);
}

json::Value ExportDetail(const ExportResult& result) {
  return json::Object{{"from", result.index.from},
                      {"to", result.index.to},
                      {"entries", result.selected},
                      {"size", result.index.size}};
}

json::Value ExportExtra(const ExportResult& result, const ExportRequest& request) {
  json::Value extra = json::Value::MakeObject();
  extra.Set("bundle_digest", HexEncode(result.digest));
  extra.Set("payloads", request.payloads);
  if (!request.tenants.empty()) {
    json::Value tenants = json::Value::MakeArray();
    for (const std::string& tenant : request.tenants) tenants.Append(tenant);
    extra.Set("tenants", std::move(tenants));
  }
  return extra;
}

}  // namespace verbatim::audit
