// A database that is behind what its log has published: the log does not go on, a new one does.
#include "store/restore.h"

#include <gtest/gtest.h>

#include "tests/store/ledger_fixture.h"

namespace verbatim::store {
namespace {

namespace fs = std::filesystem;

class RollbackTest : public LedgerFixture {
 protected:
  std::string path(const std::string& name) const { return folder_.path() + "/" + name; }
  void Append(Ledger& ledger, int n) {
    for (int i = 0; i < n; ++i) {
      ASSERT_TRUE(ledger.Append(Generated("q" + std::to_string(ledger.Size()))).ok());
    }
  }
  // A folder whose database is three entries older than its checkpoint.
  void RollBack() {
    {
      auto ledger = Open(nullptr);
      Append(*ledger, 2);
    }
    fs::copy(path("db"), path("old-db"), fs::copy_options::recursive);
    {
      auto ledger = Open(nullptr);
      Append(*ledger, 3);
      origin_ = ledger->Log().origin;
    }
    checkpoint_ = ReadFile(path("checkpoint")).value();
    fs::remove_all(path("db"));
    fs::rename(path("old-db"), path("db"));
  }
  std::string origin_, checkpoint_;
};

TEST_F(RollbackTest, AnOldDatabaseIsRefusedUntilANewLogBegins) {
  RollBack();
  const auto refused = TryOpen(nullptr);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, Code::kFailedPrecondition);
  EXPECT_NE(refused.error().message.find("--acknowledge-rollback"), std::string::npos);
  EXPECT_EQ(ReadFile(path("checkpoint")).value(), checkpoint_);

  const Continuation continuation = AcknowledgeRollback(folder_.path(), "").value();
  EXPECT_EQ(continuation.checkpoint, checkpoint_);
  EXPECT_EQ(ReadFile(path("former/1/checkpoint")).value(), checkpoint_);
  auto ledger = Open(nullptr);
  EXPECT_NE(ledger->Log().origin, origin_);
  EXPECT_EQ(ledger->Log().origin, continuation.origin);
  const Leaf first = ledger->Entry(0, false)->leaf;
  EXPECT_EQ(first.kind, Kind::kServerStarted);
  const json::Value* old_log = first.detail.Find("continues");
  ASSERT_NE(old_log, nullptr);
  EXPECT_EQ(old_log->Find("checkpoint")->as_string(), checkpoint_);
  EXPECT_EQ(old_log->Find("origin")->as_string(), origin_);
  EXPECT_EQ(old_log->Find("size")->AsUint64(), 9u);
  EXPECT_EQ(old_log->Find("entries")->AsUint64(), 4u);
  EXPECT_EQ(ledger->Entry(2, false)->leaf.detail.Find("continues"), nullptr);
  ledger.reset();
  const FsckReport report = Fsck(folder_.path(), {}).value();
  EXPECT_TRUE(report.clean()) << Findings(report);
  // The old one is there to be read, and says what is missing.
  const FsckReport former = Fsck(path("former/1"), {}).value();
  EXPECT_EQ(former.entries, 4u);
  EXPECT_EQ(former.findings.size(), 1u) << Findings(former);
}

TEST_F(RollbackTest, WhereNothingIsLostNothingIsAcknowledged) {
  Open(nullptr).reset();
  const auto refused = AcknowledgeRollback(folder_.path(), "");
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, Code::kInvalid);
  EXPECT_TRUE(Open(nullptr)->Close().ok());
}

// Killed between any two of its steps: a server refuses, and the same command goes on.
TEST_F(RollbackTest, AnInterruptedBeginningGoesOn) {
  RollBack();
  const std::string whole = folder_.path("whole");
  fs::copy(folder_.path(), whole, fs::copy_options::recursive);
  const std::string continues = [&] {
    const Continuation c = AcknowledgeRollback(folder_.path(), "new.example/log").value();
    return json::Canonical(json::Object{{"checkpoint", c.checkpoint},
                                        {"entries", c.entries},
                                        {"former", c.former},
                                        {"origin", c.origin},
                                        {"vkey", c.vkey}});
  }();
  const std::vector<std::string> moved = {"checkpoint", "db", "keyring", "keys"};
  for (size_t done = 0; done <= moved.size(); ++done) {
    SCOPED_TRACE(done);
    fs::remove_all(folder_.path());
    fs::copy(whole, folder_.path(), fs::copy_options::recursive);
    ASSERT_TRUE(WriteFileDurably(path("continues"), continues).ok());
    fs::create_directories(path("former/1"));
    for (size_t i = 0; i < done; ++i) fs::rename(path(moved[i]), path("former/1/" + moved[i]));
    if (done == moved.size()) {  // the new keys wait in tmp/
      const DataFolder next = DataFolder::Unlocked(path("tmp/new-log"));
      fs::create_directories(next.keys());
      for (const char* secret : {"/tenant.key", "/index.key"}) {
        fs::copy(path("former/1/keys") + secret, next.keys() + secret);
      }
      ASSERT_TRUE(LoadKeys(next, "new.example/log", true).ok());
    }
    EXPECT_FALSE(TryOpen(nullptr).ok());
    ASSERT_TRUE(AcknowledgeRollback(folder_.path(), "").ok());
    auto ledger = Open(nullptr);
    EXPECT_EQ(ledger->Log().origin, "new.example/log");
    EXPECT_NE(ledger->Entry(0, false)->leaf.detail.Find("continues"), nullptr);
    ledger.reset();
    EXPECT_TRUE(Fsck(folder_.path(), {})->clean());
  }
}

TEST_F(RollbackTest, ARestoredFolderServesOnlyWithItsNewestCheckpoint) {
  {
    auto ledger = Open(nullptr);
    Append(*ledger, 2);
  }
  const std::string older = ReadFile(path("checkpoint")).value();
  fs::copy(path("db"), path("old-db"), fs::copy_options::recursive);
  {
    auto ledger = Open(nullptr);
    Append(*ledger, 3);
  }
  const std::string newest = ReadFile(path("checkpoint")).value();
  fs::remove_all(path("db"));
  fs::rename(path("old-db"), path("db"));
  ASSERT_TRUE(WriteFileDurably(path("checkpoint"), older).ok());
  ASSERT_TRUE(WriteFileDurably(path("restored"), "{}\n").ok());
  EXPECT_EQ(TryOpen(nullptr).error().code, Code::kFailedPrecondition);
  EXPECT_EQ(ConfirmRestored(folder_.path(), newest).error().code, Code::kFailedPrecondition);
  EXPECT_EQ(ConfirmRestored(folder_.path(), "nonsense").error().code, Code::kInvalid);
  EXPECT_EQ(TryOpen(nullptr).error().code, Code::kFailedPrecondition);
  ASSERT_TRUE(ConfirmRestored(folder_.path(), older).ok());
  EXPECT_TRUE(Open(nullptr)->Close().ok());
}

}  // namespace
}  // namespace verbatim::store
