// Copies made beside a running server, and what a restored one may do.
#include "store/backup.h"

#include <gtest/gtest.h>

#include "store/carry.h"
#include "store/restore.h"
#include "tests/store/ledger_fixture.h"

namespace verbatim::store {
namespace {

namespace fs = std::filesystem;

class BackupTest : public LedgerFixture {
 protected:
  BackupOptions Options() const {
    BackupOptions options;
    options.data = folder_.path();
    options.out = folder_.path("backup");
    options.reason = "nightly";
    options.authority = "operations";
    return options;
  }
  RestoreOptions Back() const {
    RestoreOptions options;
    options.from = folder_.path("backup");
    options.data = folder_.path("restored");
    return options;
  }
  LifeCommand Shred(uint64_t entry) const {
    LifeCommand command;
    command.verb = LifeCommand::Verb::kShred;
    command.entries = {entry, entry};
    command.reason = "r";
    command.authority = "a";
    return command;
  }
};

TEST_F(BackupTest, ABackupOfARunningServerIsWholeAndComesBack) {
  auto ledger = Open(nullptr);
  const uint64_t entry = ledger->Append(Generated("q", "acme", "id"))->entry;
  ASSERT_TRUE(ledger->RecordHit(HitOf(entry, "hit")).ok());
  const BackupReport made = MakeBackup(Options()).value();
  EXPECT_EQ(made.hits, 1u);
  EXPECT_GE(made.entries, 4u);  // started, generated, hits, the backup's own
  EXPECT_EQ(made.origin, ledger->Log().origin);
  EXPECT_EQ(ledger->Entry(made.entries - 1, false)->leaf.kind, Kind::kExported);
  // Nothing is overwritten.
  EXPECT_EQ(MakeBackup(Options()).error().code, Code::kInvalid);
  EXPECT_TRUE(Fsck(folder_.path("backup"), {})->clean());
  ledger->Append(Generated("later")).value();
  ledger.reset();

  const RestoreReport back = RestoreBackup(Back()).value();
  EXPECT_EQ(back.root, made.root);
  EXPECT_EQ(back.entries, made.entries);
  EXPECT_FALSE(back.log_went_on);
  EXPECT_EQ(RestoreBackup(Back()).error().code, Code::kInvalid);
  // Neither the backup nor what came of it is served from just so.
  for (const char* name : {"backup", "restored"}) {
    Result<DataFolder> folder = DataFolder::Open(folder_.path(name));
    EXPECT_EQ(Ledger::Open(std::move(*folder), {}).error().code, Code::kFailedPrecondition) << name;
  }
  const std::string newest = ReadFile(folder_.path() + "/checkpoint").value();
  EXPECT_EQ(ConfirmRestored(folder_.path("restored"), newest).error().code,
            Code::kFailedPrecondition);
  ASSERT_TRUE(AcknowledgeRollback(folder_.path("restored"), "").ok());
  Result<DataFolder> folder = DataFolder::Open(folder_.path("restored"));
  auto next = Ledger::Open(std::move(*folder), {}).value();
  EXPECT_EQ(next->Entry(0, false)->leaf.detail.Find("continues")->Find("origin")->as_string(),
            made.origin);
}

TEST_F(BackupTest, ErasuresReachTheBackupAndWhatIsRestoredFromAnOlderOne) {
  auto ledger = Open(nullptr);
  const uint64_t entry = ledger->Append(Generated("q"))->entry;
  const uint64_t other = ledger->Append(Generated("r"))->entry;
  BackupOptions apart = Options();
  apart.keyring = folder_.path("keyring");
  ASSERT_TRUE(MakeBackup(apart).ok());
  EXPECT_FALSE(fs::exists(folder_.path("backup") + "/keyring"));
  const std::string away = folder_.path("away");
  fs::copy(folder_.path("keyring"), away, fs::copy_options::recursive);

  // One is erased while the backup is there, one while it is not.
  EXPECT_TRUE(CarryOut(folder_.path(), Shred(entry), nullptr)->backups_not_reached.empty());
  fs::rename(folder_.path("keyring"), folder_.path("gone"));
  EXPECT_EQ(CarryOut(folder_.path(), Shred(other), nullptr)->backups_not_reached,
            std::vector<std::string>{folder_.path("keyring")});
  fs::rename(folder_.path("gone"), folder_.path("keyring"));
  ledger.reset();
  const std::string lists = folder_.path() + "/erasures";

  struct Case {
    const char* name;
    std::string keyring, erasures;
    bool first_gone, second_gone;
  };
  const Case cases[] = {
      {"that was reached", folder_.path("keyring"), "", true, false},
      {"that was reached, with the newest list", folder_.path("keyring"), lists, true, true},
      {"that was away", away, "", false, false},
      {"that was away, with the newest list", away, lists, true, true},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    RestoreOptions options = Back();
    options.keyring = c.keyring;
    options.erasures = c.erasures;
    const RestoreReport report = RestoreBackup(options).value();
    EXPECT_EQ(report.log_went_on, c.first_gone);
    EXPECT_EQ(report.erasures, (c.first_gone ? 1u : 0u) + (c.second_gone ? 1u : 0u));
    const DataFolder restored = DataFolder::Unlocked(options.data);
    const Keys keys = LoadKeys(restored, "", false).value();
    const auto ring =
        Keyring::Open(restored.keyring() + "/entries", "entries", *keys.wrapper, false).value();
    EXPECT_EQ(ring->Get(entry).ok(), !c.first_gone);
    EXPECT_EQ(ring->Get(other).ok(), !c.second_gone);
    const FsckReport checked = Fsck(options.data, {}).value();
    EXPECT_TRUE(checked.clean()) << Findings(checked);
    fs::remove_all(options.data);
  }
  // A line without the log key's signature destroys nothing, and is not passed over.
  std::string forged = ReadFile(lists).value();
  forged[forged.find("\"entry\":") + 8] ^= 1;
  ASSERT_TRUE(WriteFileDurably(folder_.path("forged"), forged).ok());
  RestoreOptions options = Back();
  options.keyring = away;
  options.erasures = folder_.path("forged");
  const Result<RestoreReport> refused = RestoreBackup(options);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("no key of this log signed"), std::string::npos)
      << refused.error().message;
}

TEST_F(BackupTest, ADamagedCopyIsNoBackup) {
  {
    auto ledger = Open(nullptr);
    ledger->Append(Generated("q")).value();
  }
  ASSERT_TRUE(MakeBackup(Options()).ok());
  for (const fs::directory_entry& file :
       fs::directory_iterator(folder_.path("backup") + "/keyring/entries")) {
    std::string bytes = ReadFile(file.path()).value();
    bytes[200] ^= 1;  // of the first entry's row
    ASSERT_TRUE(WriteFileDurably(file.path(), bytes).ok());
  }
  EXPECT_EQ(RestoreBackup(Back()).error().code, Code::kCorrupt);
  EXPECT_FALSE(fs::exists(folder_.path("restored")));
  fs::remove(folder_.path("backup") + "/backup.json");
  EXPECT_EQ(RestoreBackup(Back()).error().code, Code::kNotFound);
}

}  // namespace
}  // namespace verbatim::store
