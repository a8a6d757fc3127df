// Every write of a ledger's life fails once, not done or done but reported as failed: the
// database's batches, and the syncs and renames of the files beside it (keys, keyring, checkpoint,
// erasures). Whoever was told of a failure tries again; afterwards nothing acknowledged is lost, no
// head has another tree than the log, and nothing is left that a loss of power could take.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <thread>
#include <vector>

#include "store/kv_rocksdb.h"
#include "tests/store/file_faults.h"
#include "tests/store/known_log.h"

namespace verbatim::store {
namespace {

namespace fs = std::filesystem;

class CountedKv : public BorrowedKv {
 public:
  using BorrowedKv::BorrowedKv;
  Status Commit(const Batch& batch, bool durable) override {
    ++commits;
    return BorrowedKv::Commit(batch, durable);
  }
  std::atomic<int> commits = 0;
};

// Calls life(fault, n, reached) for both ways of failing and n = 1, 2, ...: the n-th write of a
// life fails in this way, once; `reached` says whether it had so many, and the first that has not
// is the last one.
template <typename Fault, typename Life>
void EachFailure(Fault not_done, Fault but_reported, const char* write, const Life& life) {
  for (const Fault fault : {not_done, but_reported}) {
    bool reached = true;
    for (int n = 1; reached; ++n) {
      SCOPED_TRACE((fault == not_done ? "not done, " : "done but reported, ") + std::string(write) +
                   " " + std::to_string(n));
      life(fault, n, reached);
      if (::testing::Test::HasFailure()) return;
    }
  }
}

class EveryWriteTest : public KnownLogFixture {
 protected:
  // `again`: "" or what makes the names of a second try other ones.
  using Step = std::function<Status(Ledger&, Known&, const std::string& again)>;

  static std::vector<Step> Life() {
    const auto answer = [](const std::string& request) {
      return [=](Ledger& ledger, Known& known, const std::string& again) -> Status {
        const std::string name = request + again;
        const Result<Appended> appended = ledger.Append(Generated(name, "acme", "id-" + name));
        if (!appended.ok()) return appended.error();
        known.answers[name] = appended->entry;
        return {};
      };
    };
    const auto hit = [](const std::string& id, bool strict) {
      return [=](Ledger& ledger, Known& known, const std::string& again) -> Status {
        HitRequest request = HitOf(known.answers.at("b"), id + again);
        request.strict = strict;
        const Status recorded = ledger.RecordHit(request);
        if (recorded.ok() && strict) known.strict_hits.insert(id + again);
        return recorded;
      };
    };
    const auto opens = [](Ledger& ledger, Known& known, const std::string&) -> Status {
      const Result<Appended> appended = ledger.Append(Intent("i"));
      if (!appended.ok()) return appended.error();
      known.open["i"] = appended->entry;
      return {};
    };
    const auto ends = [](Ledger& ledger, Known& known, const std::string& again) -> Status {
      AppendRequest end = Generated("i" + again, "acme", "id-i" + again);
      end.closes_intent = known.open.at("i");
      const Result<Appended> appended = ledger.Append(std::move(end));
      if (!appended.ok()) return appended.error();
      known.answers["i" + again] = appended->entry;
      return {};
    };
    const auto shreds = [](Ledger& ledger, Known& known, const std::string&) -> Status {
      const Result<LifeReport> report =
          ledger.Apply(OfEntry(LifeCommand::Verb::kShred, known.answers.at("a")));
      if (!report.ok()) return report.error();
      EXPECT_EQ(report->outcome, "ok");
      known.erased.insert("a");
      return {};
    };
    const auto rotates = [](Ledger& ledger, Known&, const std::string&) -> Status {
      const Result<LogIdentity> log = ledger.RotateKey({});
      return log.ok() ? Status() : log.error();
    };
    return {answer("c"),
            hit("hit-1", false),
            hit("hit-2", true),
            opens,
            ends,
            hit("hit-3", false),
            shreds,
            rotates,
            answer("d")};
  }

  // Waits until everything is published; not where nothing is signed any more.
  static void AwaitHead(const Ledger& ledger) {
    for (int i = 0; i < 20'000 && ledger.Lag().entries > 0; ++i) {
      std::this_thread::sleep_for(std::chrono::microseconds(250));
    }
    EXPECT_EQ(ledger.Lag().entries, 0u);
  }

  uint64_t SizeOfKept() const {
    const std::string note = ReadFile(folder_.path() + "/checkpoint").value();
    return ParseCheckpoint(note.substr(0, note.find("\n\n") + 1)).value().size;
  }

  // Lives once, over `kv`; `restart` is what the database does when its process is started again.
  // Returns how many failures somebody was told of.
  int Live(Kv& kv, Known& known, const std::function<void()>& restart) {
    int failures = 0;
    Result<std::unique_ptr<Ledger>> opened = TryOpen(&kv);
    if (!opened.ok()) {
      ++failures;
      ExpectOneLine(opened.error());
      restart();
      opened = TryOpen(&kv);
    }
    EXPECT_TRUE(opened.ok()) << opened.error().message;
    if (!opened.ok()) return failures;
    Ledger& ledger = **opened;
    bool signs = true;
    uint64_t newest = SizeOfKept();
    for (const Step& step : Life()) {
      Status status = step(ledger, known, "");
      if (!status.ok()) {
        ++failures;
        ExpectOneLine(status.error());
        signs = status.error().message.find("restart") == std::string::npos;
        for (int i = 0; i < 5000; ++i) {  // at most some seconds, until the ledger has recovered
          status = step(ledger, known, "-again");
          if (status.ok() || status.error().code != Code::kIo) break;
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
        // Done by the first try, or not to be tried again before a restart.
        EXPECT_TRUE(status.ok() || status.error().code == Code::kFailedPrecondition)
            << status.error().message;
      }
      if (signs) AwaitHead(ledger);
      NoteHead(ledger, known);
      const uint64_t kept = SizeOfKept();
      EXPECT_GE(kept, newest) << "an older head took a newer one's place";
      newest = kept;
      NoteHead(ReadFile(folder_.path() + "/checkpoint").value(), known);
    }
    if (known.erased.contains("a")) known.answers.erase("a");
    failures += !ledger.Close().ok();
    NoteHead(ReadFile(folder_.path() + "/checkpoint").value(), known);
    return failures;
  }

  static void ExpectOneLine(const Error& error) {
    EXPECT_FALSE(error.message.empty());
    EXPECT_EQ(error.message.find('\n'), std::string::npos) << error.message;
  }

  // A log with two answers, whose server was stopped.
  void Begin(KvMemory& kv, Known& known) {
    const auto ledger = Open(&kv);
    for (const char* name : {"a", "b"}) {
      known.answers[name] =
          ledger->Append(Generated(name, "acme", std::string("id-") + name)).value().entry;
    }
    ASSERT_TRUE(ledger->Close().ok());
    NoteHead(*ledger, known);
    fs::copy(folder_.path(), begun_.path(), fs::copy_options::recursive);
  }

  // Puts the folder back as it was after Begin.
  void BeginAgain() {
    fs::remove_all(folder_.path());
    fs::copy(begun_.path(), folder_.path(), fs::copy_options::recursive);
  }

  TemporaryFolder begun_;
};

TEST_F(EveryWriteTest, BatchesOfTheDatabase) {
  KvMemory begun;
  Known known_then;
  ASSERT_NO_FATAL_FAILURE(Begin(begun, known_then));
  const auto life = [&](KvMemory::Fault fault, int n, bool& reached) {
    BeginAgain();
    const std::unique_ptr<KvMemory> kv = begun.Clone();
    CountedKv counted(*kv);
    Known known = known_then;
    const FileFaults no_syncs(folder_.path(), 0, FileFaults::Fault::kNotDone);
    kv->FailCommit(n, fault);
    const int failures = Live(counted, known, [&] { ASSERT_TRUE(kv->Recover().ok()); });
    reached = counted.commits >= n;
    EXPECT_EQ(failures > 0, reached);
    EXPECT_TRUE(reached || n > 10) << "a life has more batches than that";
    // A restart, after which only what was synced is there.
    ExpectKept(*kv->AfterPowerLoss(0), folder_.path(), known);
  };
  EachFailure(KvMemory::Fault::kNotPersisted, KvMemory::Fault::kPersistedButReported, "batch",
              life);
}

TEST_F(EveryWriteTest, SyncsAndRenamesOfFiles) {
  KvMemory begun;
  Known known_then;
  ASSERT_NO_FATAL_FAILURE(Begin(begun, known_then));
  const auto life = [&](FileFaults::Fault fault, int n, bool& reached) {
    BeginAgain();
    const std::unique_ptr<KvMemory> kv = begun.Clone();
    Known known = known_then;
    FileFaults faults(folder_.path(), n, fault);
    Live(*kv, known, [] {});
    reached = faults.seen() >= n;
    EXPECT_TRUE(reached || n > 5) << "a life has more operations than that";
    faults.StopFailing();
    ExpectKept(*kv->AfterPowerLoss(0), folder_.path(), known);
    EXPECT_EQ(faults.Unsynced(), std::vector<std::string>());
  };
  EachFailure(FileFaults::Fault::kNotDone, FileFaults::Fault::kDoneButReported, "operation", life);
}

// The folder of a log that has no entry yet: whatever fails, the next start succeeds.
TEST_F(EveryWriteTest, SyncsAndRenamesOfAFirstStart) {
  const auto life = [&](FileFaults::Fault fault, int n, bool& reached) {
    fs::remove_all(folder_.path());
    fs::create_directory(folder_.path());
    KvMemory kv;
    Known known;
    FileFaults faults(folder_.path(), n, fault);
    Result<std::unique_ptr<Ledger>> opened = TryOpen(&kv);
    if (!opened.ok()) {
      ExpectOneLine(opened.error());
      opened = TryOpen(&kv);
    }
    ASSERT_TRUE(opened.ok()) << opened.error().message;
    reached = faults.seen() >= n;
    known.answers["a"] = (*opened)->Append(Generated("a", "acme", "id-a")).value().entry;
    (*opened)->Close().ok();  // the last head may be what fails
    NoteHead(**opened, known);
    opened->reset();
    faults.StopFailing();
    ExpectKept(*kv.AfterPowerLoss(0), folder_.path(), known);
    EXPECT_EQ(faults.Unsynced(), std::vector<std::string>());
  };
  EachFailure(FileFaults::Fault::kNotDone, FileFaults::Fault::kDoneButReported, "operation", life);
}

// RocksDB's own syncs and renames, of its log, tables, manifest and CURRENT, from the first start
// on.
TEST_F(EveryWriteTest, SyncsAndRenamesOfTheDatabase) {
  const std::string database = folder_.path() + "/db";
  const auto life = [&](FileFaults::Fault fault, int n, bool& reached) {
    fs::remove_all(folder_.path());
    Known known;
    FileFaults faults(database, n, fault);
    Result<std::unique_ptr<Ledger>> opened = TryOpen(nullptr);
    if (!opened.ok()) {
      ExpectOneLine(opened.error());
      opened = TryOpen(nullptr);
    }
    ASSERT_TRUE(opened.ok()) << opened.error().message;
    for (const char* name : {"a", "b", "c"}) {
      const auto answer = [&](const std::string& request) {
        const auto appended = (*opened)->Append(Generated(request, "acme", "id-" + request));
        if (appended.ok()) known.answers[request] = appended->entry;
        return appended.ok();
      };
      const bool stored = answer(name) || answer(std::string(name) + "-again");
      EXPECT_TRUE(stored) << name;
    }
    (*opened)->Close().ok();
    opened->reset();
    reached = faults.seen() >= n;
    EXPECT_TRUE(reached || n > 5) << "a database has more operations than that";
    faults.StopFailing();
    NoteHead(ReadFile(folder_.path() + "/checkpoint").value(), known);
    const auto kv = OpenRocksDb(database, KvAccess::kReadWrite);
    ASSERT_TRUE(kv.ok()) << kv.error().message;
    ExpectKept(**kv, folder_.path(), known);
    EXPECT_TRUE((*kv)->VerifyFiles().ok());
  };
  EachFailure(FileFaults::Fault::kNotDone, FileFaults::Fault::kDoneButReported, "operation", life);
}

}  // namespace
}  // namespace verbatim::store
