// The parts of a bundle that people read: what it is, what is in it, what each figure means, and a
// statement to sign. They follow from the exported entries alone, so that they are the same bytes
// wherever they are made; none of them proves anything by itself.
// Values only; all functions may be called from any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "audit/bundle.h"
#include "store/records.h"

namespace verbatim::audit {

// What the report shows of an entry.
struct ReportEntry {
  uint64_t entry = 0;
  bool selected = false;  // else it supports the others
  store::Leaf leaf;
  RecordState record = RecordState::kWithheld;
  bool has_payload = false;
  std::string endpoint, model;    // of the record
  std::string request, response;  // their beginnings
  uint64_t request_bytes = 0, response_bytes = 0;
};
inline constexpr size_t kExcerptBytes = 2000;  // of request and response each
inline constexpr size_t kExcerpts = 200;       // entries that have them
inline constexpr size_t kReportRows = 5000;    // entries that are listed

struct ReportFacts {
  BundleIndex index;  // without files
  std::string vkey, root;
  std::vector<ReportEntry> entries;  // the first kReportRows, ascending
  uint64_t selected = 0;
};

std::string MakeReadme();
std::string MakeReport(const ReportFacts& facts);  // HTML, without anything from elsewhere
std::string MakeStatement(const ReportFacts& facts);

}  // namespace verbatim::audit
