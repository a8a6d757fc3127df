// What those outside of a server know of its log, and whether a server that starts on what is left
// of it still knows all of that.
#pragma once

#include <map>
#include <set>
#include <string>

#include "store/checkpoint.h"
#include "store/life.h"
#include "store/merkle.h"
#include "tests/store/ledger_fixture.h"

namespace verbatim::store {

// One server's life as those outside of it know it.
struct Known {
  std::map<std::string, uint64_t> answers;  // request, and the entry that was acknowledged for it
  std::map<std::string, uint64_t> open;     // intents: request id, and entry
  std::set<std::string> strict_hits;        // request ids
  std::set<std::string> hits;               // of batches: unsynced up to their leaf
  std::set<std::string> erased;             // requests
  std::map<uint64_t, std::string> heads;    // size, and root in hex, of what was published
};

class KnownLogFixture : public LedgerFixture {
 protected:
  static AppendRequest Intent(const std::string& name) {
    AppendRequest intent = Generated(name);
    intent.kind = Kind::kIntent;
    intent.opens_intent = true;
    intent.record.serves_hits = false;
    intent.response.clear();
    intent.trace.clear();
    return intent;
  }

  static LifeCommand OfEntry(LifeCommand::Verb verb, uint64_t entry) {
    LifeCommand command;
    command.verb = verb;
    command.entries = {entry, entry};
    command.reason = "article 17 request";
    command.authority = "privacy office";
    command.by = "test";
    return command;
  }

  static void NoteHead(const Ledger& ledger, Known& known) { NoteHead(ledger.Checkpoint(), known); }
  static void NoteHead(const std::string& note, Known& known) {
    const Result<TreeHead> head = ParseCheckpoint(note.substr(0, note.find("\n\n") + 1));
    ASSERT_TRUE(head.ok()) << head.error().message;
    const auto [at, added] = known.heads.emplace(head->size, HexEncode(head->root));
    EXPECT_TRUE(added || at->second == HexEncode(head->root)) << "two heads of one size";
  }

  // Starts a server on what is left, and looks whether it is what those outside know.
  void ExpectKept(Kv& left, const std::string& folder, const Known& known) {
    {
      Result<DataFolder> data = DataFolder::Open(folder);
      ASSERT_TRUE(data.ok()) << data.error().message;
      LedgerOptions options;
      options.control_socket = false;
      options.publish_interval_micros = 1000;
      options.kv = std::make_unique<BorrowedKv>(left);
      auto opened = Ledger::Open(std::move(*data), std::move(options));
      ASSERT_TRUE(opened.ok()) << opened.error().message;
      Ledger& ledger = **opened;
      for (const auto& [name, entry] : known.answers) {
        const auto result = ledger.Lookup("acme", FingerprintOf(name));
        ASSERT_TRUE(result.ok() && *result) << name;
        EXPECT_EQ((*result)->entry, entry) << name;
        EXPECT_EQ((*result)->response, "answer to " + name);
        EXPECT_EQ(ledger.FindReceipt("id-" + name).value().entry, entry) << name;
      }
      for (const std::string& name : known.erased) {
        EXPECT_FALSE(ledger.Lookup("acme", FingerprintOf(name)).value().has_value()) << name;
      }
      for (const std::string& id : known.strict_hits) {
        EXPECT_TRUE(ledger.FindReceipt(id).ok()) << id;
      }
      EXPECT_EQ(ledger.OpenIntents(), 0u);  // each has its interrupted entry by now
      EXPECT_TRUE(ledger.Append(Generated("after", "acme", "id-after")).ok());
      ExpectHeads(ledger, known);
      ASSERT_TRUE(ledger.Close().ok());
    }
    const FsckReport report = Check(left, folder);
    EXPECT_TRUE(report.clean()) << Findings(report);
  }

  // Every head that anybody has seen is one of this log.
  static void ExpectHeads(const Ledger& ledger, const Known& known) {
    CompactRange tree;
    for (uint64_t entry = 0; entry < ledger.Size(); ++entry) {
      std::vector<Node> completed;
      tree.Append(LeafHash(ledger.Entry(entry, false).value().leaf_bytes), &completed);
      const auto head = known.heads.find(entry + 1);
      if (head != known.heads.end()) {
        EXPECT_EQ(HexEncode(tree.Root()), head->second) << "the log forked at " << entry + 1;
      }
    }
    EXPECT_LE(known.heads.rbegin()->first, ledger.Size());
  }
};

}  // namespace verbatim::store
