// A machine that loses its power at any moment of a ledger's life, and a disk that lies about
// syncs: what was acknowledged is there afterwards, every head that was signed is a head of the log
// that goes on, or the server refuses to start.
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <set>
#include <vector>

#include "store/checkpoint.h"
#include "store/life.h"
#include "store/merkle.h"
#include "tests/store/ledger_fixture.h"

namespace verbatim::store {
namespace {

namespace fs = std::filesystem;

// One server's life as those outside of it know it.
struct Known {
  std::map<std::string, uint64_t> answers;  // request, and the entry that was acknowledged for it
  std::map<std::string, uint64_t> open;     // intents: request id, and entry
  std::set<std::string> strict_hits;        // request ids
  std::set<std::string> hits;               // of batches: unsynced up to their leaf
  std::set<std::string> erased;             // requests
  std::map<uint64_t, std::string> heads;    // size, and root in hex, of what was published
};

class PowerLossTest : public LedgerFixture {
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

  void NoteHead(const Ledger& ledger, Known& known) {
    const Result<TreeHead> head =
        ParseCheckpoint(ledger.Checkpoint().substr(0, ledger.Checkpoint().find("\n\n") + 1));
    ASSERT_TRUE(head.ok()) << head.error().message;
    const auto [at, added] = known.heads.emplace(head->size, HexEncode(head->root));
    EXPECT_TRUE(added || at->second == HexEncode(head->root)) << "two heads of one size";
  }

  // What the steps of a life are, each with what is known once it is acknowledged.
  using Step = std::function<void(Ledger&, Known&)>;
  static std::vector<Step> Life() {
    std::vector<Step> steps;
    const auto answer = [&](const std::string& name) {
      steps.push_back([name](Ledger& ledger, Known& known) {
        known.answers[name] = ledger.Append(Generated(name, "acme", "id-" + name)).value().entry;
      });
    };
    const auto hit = [&](const std::string& of, const std::string& id, bool strict) {
      steps.push_back([=](Ledger& ledger, Known& known) {
        HitRequest request = HitOf(known.answers.at(of), id);
        request.strict = strict;
        ASSERT_TRUE(ledger.RecordHit(request).ok());
        (strict ? known.strict_hits : known.hits).insert(id);
      });
    };
    answer("a");
    hit("a", "hit-1", false);
    hit("a", "hit-2", false);
    hit("a", "hit-3", true);
    hit("a", "hit-4", false);
    answer("b");
    steps.push_back([](Ledger& ledger, Known& known) {
      known.open["i"] = ledger.Append(Intent("i")).value().entry;
    });
    hit("b", "hit-5", false);
    steps.push_back([](Ledger& ledger, Known& known) {
      AppendRequest end = Generated("i", "acme", "id-i");
      end.closes_intent = known.open.at("i");
      known.answers["i"] = ledger.Append(std::move(end)).value().entry;
      known.open.erase("i");
    });
    steps.push_back([](Ledger& ledger, Known& known) {
      known.open["j"] = ledger.Append(Intent("j")).value().entry;
    });
    steps.push_back([](Ledger& ledger, Known& known) {
      const uint64_t entry = known.answers.at("b");
      ASSERT_EQ(ledger.Apply(OfEntry(LifeCommand::Verb::kHold, entry)).value().outcome, "ok");
    });
    steps.push_back([](Ledger& ledger, Known& known) {
      const uint64_t entry = known.answers.at("a");
      ASSERT_EQ(ledger.Apply(OfEntry(LifeCommand::Verb::kShred, entry)).value().outcome, "ok");
      known.answers.erase("a");
      known.erased.insert("a");
    });
    hit("b", "hit-6", false);
    steps.push_back([](Ledger& ledger, Known&) { ASSERT_TRUE(ledger.RotateKey({}).ok()); });
    hit("b", "hit-7", false);
    answer("c");
    return steps;
  }

  // Starts a server on what the power left, and looks whether it is what those outside know.
  void ExpectKept(KvMemory& left, const std::string& folder, const Known& known) {
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

  TemporaryFolder elsewhere_;
};

TEST_F(PowerLossTest, AfterEveryStepOfALife) {
  const std::vector<Step> steps = Life();
  KvMemory kv;
  Known known;
  LedgerOptions options;
  options.hit_interval_micros = 60'000'000;
  const auto ledger = Open(&kv, std::move(options));
  size_t lives = 0;
  for (size_t done = 0; done < steps.size(); ++done) {
    ASSERT_NO_FATAL_FAILURE(steps[done](*ledger, known));
    if (done % 4 == 1) WaitForProof(*ledger, ledger->Size() - 1);
    ASSERT_NO_FATAL_FAILURE(NoteHead(*ledger, known));
    // A crash keeps what was synced and any first part of what was not.
    for (size_t kept = 0; kept <= kv.Unsynced(); ++kept) {
      SCOPED_TRACE("after step " + std::to_string(done) + ", " + std::to_string(kept) +
                   " unsynced batches kept");
      const std::unique_ptr<KvMemory> left = kv.AfterPowerLoss(kept);
      const std::string folder = elsewhere_.path();
      std::error_code moving;  // of the checkpoint, which is being replaced meanwhile
      do {
        moving.clear();
        fs::remove_all(folder);
        fs::copy(folder_.path(), folder, fs::copy_options::recursive, moving);
      } while (moving);
      ASSERT_NO_FATAL_FAILURE(ExpectKept(*left, folder, known));
      ++lives;
    }
  }
  EXPECT_GT(lives, steps.size()) << "no step left anything unsynced";
}

// A sync that was reported done and was not, of entries that a head already covers: the next start
// finds the head ahead of the database and refuses, rather than sign another head of that size.
TEST_F(PowerLossTest, LostSyncsAreFoundOut) {
  KvMemory kv;
  {
    const auto ledger = Open(&kv);
    WaitForProof(*ledger, ledger->Append(Generated("a")).value().entry);
    kv.LoseSyncs();
    for (const char* name : {"b", "c", "d"}) {
      WaitForProof(*ledger, ledger->Append(Generated(name)).value().entry);
    }
    ASSERT_TRUE(ledger->Close().ok());
  }
  const size_t unsynced = kv.Unsynced();
  ASSERT_GE(unsynced, 4u);
  const std::string head = ReadFile(folder_.path() + "/checkpoint").value();
  for (size_t kept = 0; kept < unsynced; ++kept) {
    const std::unique_ptr<KvMemory> left = kv.AfterPowerLoss(kept);
    const FsckReport report = Check(*left);
    EXPECT_FALSE(report.clean()) << kept;
    EXPECT_NE(Findings(report).find("are missing: a published checkpoint covers them"),
              std::string::npos)
        << Findings(report);
    const auto opened = TryOpen(left.get());
    ASSERT_FALSE(opened.ok()) << kept << " of " << unsynced << " batches kept";
    EXPECT_EQ(opened.error().code, Code::kFailedPrecondition);
    EXPECT_EQ(ReadFile(folder_.path() + "/checkpoint").value(), head) << "another head was signed";
  }
  EXPECT_TRUE(TryOpen(kv.AfterPowerLoss(unsynced).get()).ok());
}

}  // namespace
}  // namespace verbatim::store
