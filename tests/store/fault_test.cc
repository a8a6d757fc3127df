// What failing writes and a killed server leave behind: no partial entry, and nothing acknowledged
// that is lost.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <map>

#include "store/kv_rocksdb.h"
#include "tests/store/ledger_fixture.h"

namespace verbatim::store {
namespace {

class FaultTest : public LedgerFixture {};

// Each commit of a short life fails once, in each way.
TEST_F(FaultTest, EveryWriteFailsOnceInBothWays) {
  for (const KvMemory::Fault fault :
       {KvMemory::Fault::kNotPersisted, KvMemory::Fault::kPersistedButReported}) {
    for (int n = 1; n <= 8; ++n) {
      SCOPED_TRACE((fault == KvMemory::Fault::kNotPersisted ? "not persisted, commit "
                                                            : "persisted but reported, commit ") +
                   std::to_string(n));
      TemporaryFolder place;
      std::swap(folder_, place);
      KvMemory kv;
      std::map<std::string, uint64_t> acknowledged;
      {
        LedgerOptions options;
        options.hit_interval_micros = 1'000'000;
        auto ledger = Open(&kv, std::move(options));
        kv.FailCommit(n, fault);
        int failures = 0;
        for (int i = 0; i < 6; ++i) {
          const std::string request = "q" + std::to_string(i);
          const Result<Appended> appended =
              ledger->Append(Generated(request, "acme", "id-" + request));
          if (appended.ok()) {
            acknowledged[request] = appended->entry;
          } else {
            EXPECT_EQ(appended.error().code, Code::kIo);
            ++failures;
          }
          if (i == 3 && !acknowledged.empty()) {
            const Status hit = ledger->RecordHit(HitOf(acknowledged.begin()->second, "hit"));
            failures += !hit.ok();
          }
        }
        failures += !ledger->Close().ok();
        // The write itself, and a hit that came before the recovery.
        EXPECT_GE(failures, 1);
        EXPECT_LE(failures, 2);
        for (const auto& [request, entry] : acknowledged) {
          EXPECT_EQ(ledger->Lookup("acme", FingerprintOf(request)).value()->entry, entry);
        }
      }
      ASSERT_TRUE(kv.Recover().ok());  // what a restart does
      FsckReport report = Check(kv);
      EXPECT_TRUE(report.clean()) << Findings(report);
      // And after the restart.
      auto ledger = Open(&kv);
      for (const auto& [request, entry] : acknowledged) {
        const auto result = ledger->Lookup("acme", FingerprintOf(request));
        ASSERT_TRUE(result.ok() && *result) << request;
        EXPECT_EQ((*result)->entry, entry);
        EXPECT_EQ((*result)->response, "answer to " + request);
        EXPECT_EQ(ledger->FindReceipt("id-" + request)->entry, entry);
      }
      ledger.reset();
      report = Check(kv);
      EXPECT_TRUE(report.clean()) << Findings(report);
      std::swap(folder_, place);
    }
  }
}

TEST_F(FaultTest, WhileRecoveryFailsEverythingIsRefused) {
  KvMemory kv;
  auto ledger = Open(&kv);
  const uint64_t a = ledger->Append(Generated("a"))->entry;
  kv.FailCommit(1, KvMemory::Fault::kNotPersisted);
  kv.FailRecover(2);
  EXPECT_EQ(ledger->Append(Generated("b")).error().code, Code::kIo);
  EXPECT_EQ(ledger->Append(Generated("b")).error().code, Code::kIo);
  EXPECT_EQ(ledger->RecordHit(HitOf(a, "hit")).error().code, Code::kIo);
  // What is stored is still served: reading needs no writes.
  EXPECT_EQ(ledger->Lookup("acme", FingerprintOf("a")).value()->response, "answer to a");
  Result<Appended> later = Error{};
  for (int i = 0; i < 300 && !later.ok(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    later = ledger->Append(Generated("b"));
  }
  ASSERT_TRUE(later.ok());
  EXPECT_EQ(later->entry, a + 1);
  EXPECT_TRUE(ledger->RecordHit(HitOf(a, "hit")).ok());
  ledger.reset();
  const FsckReport report = Check(kv);
  EXPECT_TRUE(report.clean()) << Findings(report);
}

TEST_F(FaultTest, RocksDbRecoversWhatItHolds) {
  TemporaryFolder place;
  const auto kv = OpenRocksDb(place.path("db"), KvAccess::kReadWrite).value();
  Batch batch;
  batch.RequireAbsent(Table::kMeta, "a");
  batch.Put(Table::kMeta, "a", "1");
  batch.Put(Table::kPayload, "a", std::string(5000, 'x'));
  ASSERT_TRUE(kv->Commit(batch, true).ok());
  EXPECT_EQ(kv->Commit(batch, true).error().code, Code::kFailedPrecondition);
  ASSERT_TRUE(kv->Recover().ok());
  EXPECT_EQ(kv->Get(Table::kMeta, "a").value(), "1");
  EXPECT_EQ(kv->Get(Table::kPayload, "a").value()->size(), 5000u);
  EXPECT_FALSE(kv->Get(Table::kLeaf, "a").value().has_value());
  EXPECT_TRUE(kv->VerifyFiles().ok());
  ASSERT_TRUE(kv->Snapshot(place.path("copy")).ok());
  const auto copy = OpenRocksDb(place.path("copy"), KvAccess::kReadOnly).value();
  EXPECT_EQ(copy->Get(Table::kMeta, "a").value(), "1");
  EXPECT_FALSE(copy->Commit(batch, true).ok());
}

// Files may not grow over a megabyte for a while: a disk that refuses to be written.
int LiveThroughAFailingDisk(const std::string& path) {
  ::signal(SIGXFSZ, SIG_IGN);
  Result<DataFolder> folder = DataFolder::Open(path);
  if (!folder.ok()) return 3;
  auto ledger = Ledger::Open(std::move(*folder), {});
  if (!ledger.ok()) return 4;
  rlimit limit{};
  ::getrlimit(RLIMIT_FSIZE, &limit);
  const rlim_t before = limit.rlim_cur;
  limit.rlim_cur = 1 << 20;
  ::setrlimit(RLIMIT_FSIZE, &limit);
  std::vector<std::string> stored;
  bool failed = false;
  for (int i = 0; i < 1000 && !failed; ++i) {
    const std::string request = std::string("q") + std::to_string(i);
    AppendRequest append = Generated(request);
    append.trace = RandomBytes(20'000);
    const Result<Appended> appended = (*ledger)->Append(std::move(append));
    failed = !appended.ok();
    if (failed && appended.error().code != Code::kIo) return 5;
    if (!failed) stored.push_back(request);
  }
  if (!failed) return 6;
  limit.rlim_cur = before;
  ::setrlimit(RLIMIT_FSIZE, &limit);
  Result<Appended> later = Error{};
  for (int i = 0; i < 1000 && !later.ok(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    later = (*ledger)->Append(Generated("later"));
  }
  if (!later.ok()) return 7;
  for (const std::string& request : stored) {
    const auto result = (*ledger)->Lookup("acme", FingerprintOf(request));
    if (!result.ok() || !*result) return 8;
  }
  return (*ledger)->Close().ok() ? 0 : 9;
}

TEST_F(FaultTest, AFailingDiskIsAnErrorUntilItWorksAgain) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) ::_exit(LiveThroughAFailingDisk(folder_.path()));
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 0);
  const Result<FsckReport> report = Fsck(folder_.path(), {});
  ASSERT_TRUE(report.ok()) << report.error().message;
  EXPECT_TRUE(report->clean()) << Findings(*report);
}

// A child appends and tells each acknowledged entry through a pipe; it is killed at some moment.
void AppendUntilKilled(const std::string& path, int pipe, int round) {
  Result<DataFolder> folder = DataFolder::Open(path);
  if (!folder.ok()) ::_exit(3);
  LedgerOptions options;
  options.hit_interval_micros = 20'000;
  options.publish_interval_micros = 2'000;
  auto ledger = Ledger::Open(std::move(*folder), std::move(options));
  if (!ledger.ok()) ::_exit(4);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&ledger, pipe, round, t] {
      for (int i = 0;; ++i) {
        char name[32] = {};
        std::snprintf(name, sizeof(name), "%d-%d-%d", round, t, i);
        const Result<Appended> appended = (*ledger)->Append(Generated(name, "acme", name));
        if (!appended.ok()) ::_exit(5);
        const std::string hit = std::string("hit-") + name;
        if (!(*ledger)->RecordHit(HitOf(appended->entry, hit)).ok()) ::_exit(6);
        if (::write(pipe, name, sizeof(name)) != sizeof(name)) ::_exit(7);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(FaultTest, AKilledServerLosesNothingAcknowledged) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "the thread sanitizer does not follow threads made after a fork";
#endif
  std::vector<std::string> acknowledged;
  for (int round = 0; round < 10; ++round) {
    int pipes[2];
    ASSERT_EQ(::pipe(pipes), 0);
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      ::close(pipes[0]);
      AppendUntilKilled(folder_.path(), pipes[1], round);
      ::_exit(0);
    }
    ::close(pipes[1]);
    char name[32];
    size_t told = 0;
    const auto read_name = [&] { return ::read(pipes[0], name, sizeof(name)) == sizeof(name); };
    while (told < size_t{5} + static_cast<size_t>(round) * 7 && read_name()) {
      acknowledged.push_back(name);
      ++told;
    }
    ASSERT_EQ(::kill(child, SIGKILL), 0);
    while (read_name()) acknowledged.push_back(name);
    ::close(pipes[0]);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << "exit " << WEXITSTATUS(status);

    const Result<FsckReport> report = Fsck(folder_.path(), {});
    ASSERT_TRUE(report.ok()) << report.error().message;
    EXPECT_TRUE(report->clean()) << "round " << round << "\n" << Findings(*report);
  }
  EXPECT_GE(acknowledged.size(), 300u);
  auto ledger = Open(nullptr);
  for (const std::string& name : acknowledged) {
    const auto result = ledger->Lookup("acme", FingerprintOf(name));
    ASSERT_TRUE(result.ok() && *result) << name;
    EXPECT_EQ((*result)->response, "answer to " + name);
    EXPECT_EQ(ledger->FindReceipt(name)->entry, (*result)->entry);
    EXPECT_TRUE(ledger->FindReceipt("hit-" + name)->entry.has_value()) << name;
  }
}

}  // namespace
}  // namespace verbatim::store
