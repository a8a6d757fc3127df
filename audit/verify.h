// Checks an evidence bundle offline, item by item: what holds, what does not, and what cannot be
// known from the bundle. Every byte of it is hostile until checked. tools/verify_bundle.py is a
// second implementation of the same checks (audit/FORMAT.md, Checks); they agree on every bundle.
//
// Values only; all functions may be called from any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "store/checkpoint.h"
#include "store/cosignature.h"
#include "store/records.h"

namespace verbatim::audit {

struct Note {
  std::string subject;  // "entry 12", a file's name, "tenant <pseudonym>"
  std::string what;     // printable text
};

// One line of the report. `name` is one of FORMAT.md's.
struct Check {
  std::string name;
  uint64_t holds = 0;  // how many things do
  std::vector<Note> fails, unknown;
};

// What a time-stamping authority says: the log's first `size` entries existed by then.
struct Dated {
  uint64_t size = 0;
  int64_t time = 0;       // UTC, microseconds
  std::string authority;  // subject of its certificate, printable
};

struct Verification {
  uint64_t size = 0, from = 0, to = 0;  // as bundle.json says, once it could be read
  std::string origin, root;             // root in hex; empty where no checkpoint could be opened
  std::vector<Dated> dated;             // timestamps that hold
  std::vector<Check> checks;
  bool holds() const;  // nothing fails
};

// An entry of the embedded engine that can be executed again.
struct ExecutableEntry {
  uint64_t entry = 0;
  store::Leaf leaf;
  store::Record record;
  std::string_view request, response;
};
// Executes it again. ok: the same bytes and logits chains. kUnsupported: it is none that this model
// file can execute (unknown); any other error fails the check.
using Executor = std::function<Status(const ExecutableEntry&)>;

struct VerifyOptions {
  std::optional<store::VerifierKey> key;      // the log's, from elsewhere than the bundle
  std::vector<store::CosignerKey> witnesses;  // each must have cosigned a checkpoint
  // Certificates (PEM) to which the time-stamping authority's chain must lead; empty: timestamps
  // are not checked.
  std::string timestamp_ca;
  Executor execute;  // null: nothing is executed again
};

Verification VerifyBundle(std::string_view archive, const VerifyOptions& options);

json::Value ToJson(const Verification& verification);
// For people: a line a check, and below it what fails and what cannot be known.
std::string ToText(const Verification& verification);

}  // namespace verbatim::audit
