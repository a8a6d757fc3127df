// Redaction: what policy says must not be kept is replaced before a request or an answer is stored,
// and after the fingerprint was taken from what really came. The client gets its answer unchanged.
//
// Rules look at JSON strings only (not at member names, nor at numbers), at the places that their
// pointer names: in the request, and in the plain form of the answer, which stands for its stream
// as well (redaction_places.h). What cannot be looked into is not kept at all: a body that is no
// JSON, an event whose data is none. Text that is split over the deltas of a stream is put together
// by its place (the pointer, and the numbers in "index" fields on the way) before patterns look at
// it; where one matches there, the first delta of that place becomes the whole redacted text and
// the others become empty. So a redacted stream reads as the redacted text, and holds nothing of
// the raw.
//
// A redacted answer must not be a hit (record.serves_hits = false), nor may its trace be kept (the
// tokens would give the text away); an entry with anything redacted cannot be executed again:
// record.extra gets {"redacted": true, "redaction_rules": [names]}. Immutable; any thread.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "policies/redaction.h"

namespace verbatim::gateway {

struct Redacted {
  std::string bytes;  // what may be stored; the input's own bytes where nothing matched
  std::vector<std::string> rules;  // names of those that matched, sorted; empty: nothing did
  bool any() const { return !rules.empty(); }
};

// For record.extra: {"redacted": true, "redaction_rules": [...]}, of request and answer together.
json::Value RedactionNote(const Redacted& request, const Redacted& response);

class Redactor {
 public:
  Redactor();  // no rules: nothing is ever redacted
  // kInvalid: a regular expression that PCRE2 does not take, or a pointer that only the events of a
  // stream have; the message names the rule.
  static Result<Redactor> Make(const std::vector<policies::RedactRule>& rules);

  bool empty() const;  // no rules: the calls below need not be made

  Redacted Request(std::string_view body) const;
  // `streamed`: an event stream, as it came, decoded; else a JSON body.
  Redacted Response(std::string_view body, bool streamed) const;

 private:
  struct Rules;
  std::shared_ptr<const Rules> rules_;
};

}  // namespace verbatim::gateway
