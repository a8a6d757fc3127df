// Which entries and hits a command about records is about, and what protects some of them.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "store/ranges.h"
#include "store/reader.h"

namespace verbatim::store {

// A legal hold in force.
struct ActiveHold {
  uint64_t entry = 0;   // the `held` one
  Ranges entries;       // or, where it is of a subject,
  std::string subject;  // its SubjectPseudonym
};
Result<std::vector<ActiveHold>> ReadHolds(const Kv& kv);

struct Selection {
  std::optional<std::pair<uint64_t, uint64_t>> entries;  // first, last
  std::string tenant, subject;                           // names
  std::optional<uint64_t> before;                        // for pruning
};

struct Targets {
  Ranges entries, slots;                // what may be erased, and is not yet
  std::vector<std::string> index_keys;  // of results among them
  // What holds and retention protect (entries; a batch of hits counts as its entry). For pruning
  // also the intents that are open.
  Ranges held, retained, open_intents;
};

// Reads every leaf and record in question. What belongs to an entry goes with it: its intent, what
// was recorded when it was executed again, and of a batch its hits. The server's own entries are
// left out. Borrows the reader.
class TargetCollector {
 public:
  TargetCollector(const Reader& reader, std::vector<ActiveHold> holds, int64_t now)
      : reader_(reader), holds_(std::move(holds)), now_(now) {}
  Result<Targets> Collect(const Selection& selection);
  // Of a pruning that was decided: all tenants' entries before `before` but those in `kept`.
  Result<Targets> Pruned(uint64_t before, const Ranges& kept);

 private:
  struct Protection {
    bool held = false, retained = false;
    bool any() const { return held || retained; }
    void Add(const Protection& other) {
      held |= other.held;
      retained |= other.retained;
    }
  };
  Status CollectEntries(const Selection& selection);
  Status Consider(uint64_t entry, const Leaf& leaf, const Selection& selection);
  Status ConsiderIntents(const Leaf& leaf, const Selection& selection);
  Status CollectSubjectHits(const Selection& selection);
  // The slots of a batch, each with what protects it.
  Result<std::map<uint64_t, Protection>> ReadBatch(const std::string& key, uint64_t entry);
  Status AddRow(std::string_view key, const HitRow& row, uint64_t entry, const std::string* subject,
                std::map<uint64_t, Protection>& slots, std::set<uint64_t>& others);
  Status ReadBatches();
  Protection ProtectionOf(uint64_t entry, const std::string& subject) const;
  bool IsRetained(const json::Value& extra, int64_t time) const;

  const Reader& reader_;
  const std::vector<ActiveHold> holds_;
  const int64_t now_;
  Targets targets_;
  Ranges selected_;                          // protected ones and erased ones, too
  std::map<uint64_t, std::string> batches_;  // entry of a batch's leaf -> its key
  std::set<uint64_t> intents_;               // open ones
};

}  // namespace verbatim::store
