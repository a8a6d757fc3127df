// A machine that loses its power at any moment of a ledger's life, and a disk that lies about
// syncs: what was acknowledged is there afterwards, every head that was signed is a head of the log
// that goes on, or the server refuses to start.
#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "tests/store/known_log.h"

namespace verbatim::store {
namespace {

namespace fs = std::filesystem;

class PowerLossTest : public KnownLogFixture {
 protected:
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
