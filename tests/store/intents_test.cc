// Intents: what leaves for an upstream is in the ledger before, and what became of it after,
// whatever happens in between.
#include "store/intents.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <set>

#include "store/rows.h"
#include "tests/store/ledger_fixture.h"

namespace verbatim::store {
namespace {

AppendRequest IntentFor(const std::string& request, const std::string& request_id,
                        const std::string& tenant = "acme") {
  AppendRequest append = Generated(request, tenant, request_id);
  append.kind = Kind::kIntent;
  append.opens_intent = true;
  append.record.serves_hits = false;
  append.response.clear();
  append.trace.clear();
  return append;
}

AppendRequest AnswerTo(uint64_t intent, const std::string& request, const std::string& request_id,
                       const std::string& tenant = "acme") {
  AppendRequest append = Generated(request, tenant, request_id);
  append.closes_intent = intent;
  return append;
}

class IntentsTest : public LedgerFixture {
 protected:
  // The tables as a server leaves them that is killed now, with the checkpoint that it has now.
  std::unique_ptr<KvMemory> Kill(std::unique_ptr<Ledger> ledger, KvMemory& kv) {
    std::unique_ptr<KvMemory> killed = kv.Clone();
    const std::string then = folder_.path("checkpoint-then");
    std::filesystem::copy_file(folder_.path("data/checkpoint"), then,
                               std::filesystem::copy_options::overwrite_existing);
    ledger.reset();
    std::filesystem::copy_file(then, folder_.path("data/checkpoint"),
                               std::filesystem::copy_options::overwrite_existing);
    return killed;
  }
  void ExpectClean(const Kv& kv) {
    const FsckReport report = Check(kv);
    EXPECT_TRUE(report.clean()) << Findings(report);
  }
  static std::vector<Leaf> Leaves(const Ledger& ledger, Kind kind) {
    std::vector<Leaf> leaves;
    for (uint64_t n = 0; n < ledger.Size(); ++n) {
      const EntryView view = ledger.Entry(n, false).value();
      if (view.leaf.kind == kind) leaves.push_back(view.leaf);
    }
    return leaves;
  }
};

TEST_F(IntentsTest, OneIsOpenUntilAnEntryEndsIt) {
  KvMemory kv;
  auto ledger = Open(&kv);
  const uint64_t intent = ledger->Append(IntentFor("q", "id"))->entry;
  EXPECT_EQ(ledger->OpenIntents(), 1u);
  EXPECT_EQ(ledger->Entry(intent, false)->leaf.kind, Kind::kIntent);
  EXPECT_EQ(ledger->FindReceipt("id")->entry, intent);
  ExpectClean(kv);

  const Appended answer = *ledger->Append(AnswerTo(intent, "q", "id"));
  EXPECT_TRUE(answer.serves_hits);
  EXPECT_EQ(ledger->OpenIntents(), 0u);
  const Leaf leaf = ledger->Entry(answer.entry, false)->leaf;
  ASSERT_EQ(leaf.references.size(), 1u);
  EXPECT_EQ(leaf.references[0].relation, "intent");
  EXPECT_EQ(leaf.references[0].entry, intent);
  EXPECT_EQ(leaf.sequence, 2u);
  EXPECT_EQ(ledger->FindReceipt("id")->entry, answer.entry);
  ledger.reset();
  ExpectClean(kv);
}

TEST_F(IntentsTest, OneIsEndedOnceAndByItsOwnTenant) {
  KvMemory kv;
  auto ledger = Open(&kv);
  const uint64_t intent = ledger->Append(IntentFor("q", ""))->entry;
  const auto end = [&](uint64_t number, const std::string& tenant) {
    return ledger->Append(AnswerTo(number, "q", "", tenant));
  };
  EXPECT_EQ(end(intent, "globex").error().code, Code::kFailedPrecondition);
  EXPECT_EQ(end(0, "acme").error().code, Code::kFailedPrecondition);   // server_started
  EXPECT_EQ(end(99, "acme").error().code, Code::kFailedPrecondition);  // nothing
  EXPECT_EQ(ledger->Size(), 2u);
  EXPECT_TRUE(end(intent, "acme").ok());
  EXPECT_EQ(end(intent, "acme").error().code, Code::kFailedPrecondition);
  ledger.reset();
  ExpectClean(kv);
}

TEST_F(IntentsTest, WhatIsNoIntentOpensNone) {
  KvMemory kv;
  auto ledger = Open(&kv);
  AppendRequest generated = Generated("q");
  generated.opens_intent = true;
  EXPECT_EQ(ledger->Append(generated).error().code, Code::kInvalid);
  AppendRequest intent = IntentFor("q", "");
  intent.opens_intent = false;
  EXPECT_EQ(ledger->Append(intent).error().code, Code::kInvalid);
  intent.opens_intent = true;
  intent.closes_intent = 0;
  EXPECT_EQ(ledger->Append(intent).error().code, Code::kInvalid);
  AppendRequest interrupted = Generated("q");
  interrupted.kind = Kind::kInterrupted;
  EXPECT_EQ(ledger->Append(interrupted).error().code, Code::kInvalid);
}

TEST_F(IntentsTest, ACrashLeavesOneInterruptedEntryHoweverOftenItIsRestarted) {
  KvMemory kv;
  auto ledger = Open(&kv);
  const uint64_t answered = ledger->Append(IntentFor("a", "id-a"))->entry;
  const uint64_t lost = ledger->Append(IntentFor("b", "id-b"))->entry;
  ASSERT_TRUE(ledger->Append(AnswerTo(answered, "a", "id-a")).ok());
  std::unique_ptr<KvMemory> killed = Kill(std::move(ledger), kv);

  ledger = Open(killed.get());
  EXPECT_EQ(ledger->OpenIntents(), 0u);
  const Leaf started = Leaves(*ledger, Kind::kServerStarted).back();
  EXPECT_EQ(started.detail.Find("interrupted")->AsUint64(), 1u);
  EXPECT_FALSE(started.detail.Find("clean")->as_bool());
  const uint64_t number = ledger->Size() - 1;
  const EntryView view = ledger->Entry(number, true).value();
  EXPECT_EQ(view.leaf.kind, Kind::kInterrupted);
  EXPECT_EQ(view.leaf.outcome, "unknown");
  EXPECT_EQ(view.leaf.tenant, ledger->Pseudonym("acme"));
  EXPECT_EQ(view.leaf.sequence, 4u);
  ASSERT_EQ(view.leaf.references.size(), 1u);
  EXPECT_EQ(view.leaf.references[0].entry, lost);
  EXPECT_EQ(ledger->FindReceipt("id-b")->entry, number);

  // The record is the intent's, and says which bytes may have been sent.
  const EntryView intent = ledger->Entry(lost, true).value();
  EXPECT_EQ(view.record->subject, "alice");
  EXPECT_EQ(view.record->key_id, "key-1");
  EXPECT_EQ(view.record->endpoint, intent.record->endpoint);
  EXPECT_EQ(view.record->fingerprint, FingerprintOf("b"));
  const json::Value& about = *view.record->extra.Find("intent");
  EXPECT_EQ(about.Find("entry")->AsUint64(), lost);
  EXPECT_EQ(about.Find("request_digest")->as_string(), HexEncode(Sha256(intent.request)));
  EXPECT_EQ(about.Find("time")->as_string(), FormatTime(intent.leaf.time));

  // Killed again at once, and then stopped well: nothing more of it.
  killed = Kill(std::move(ledger), *killed);
  ExpectClean(*killed);
  for (int i = 0; i < 2; ++i) {
    ledger = Open(killed.get());
    EXPECT_EQ(Leaves(*ledger, Kind::kInterrupted).size(), 1u);
    EXPECT_EQ(Leaves(*ledger, Kind::kServerStarted).back().detail.Find("interrupted"), nullptr);
    ledger.reset();
  }
  ExpectClean(*killed);
}

// Also where the process was killed after server_started and before the interrupted entry.
TEST_F(IntentsTest, ACrashDuringTheRestartChangesNothing) {
  for (const KvMemory::Fault fault :
       {KvMemory::Fault::kNotPersisted, KvMemory::Fault::kPersistedButReported}) {
    for (int n = 1; n <= 2; ++n) {
      TemporaryFolder place;
      std::swap(folder_, place);
      KvMemory kv;
      auto ledger = Open(&kv);
      ASSERT_TRUE(ledger->Append(IntentFor("a", "")).ok());
      ASSERT_TRUE(ledger->Append(IntentFor("b", "")).ok());
      std::unique_ptr<KvMemory> killed = Kill(std::move(ledger), kv);
      killed->FailCommit(n, fault);
      TryOpen(killed.get()).ok();  // fails, or not
      ASSERT_TRUE(killed->Recover().ok());
      ledger = Open(killed.get());
      EXPECT_EQ(Leaves(*ledger, Kind::kInterrupted).size(), 2u) << n;
      EXPECT_EQ(ledger->OpenIntents(), 0u);
      ledger.reset();
      ExpectClean(*killed);
      std::swap(folder_, place);
    }
  }
}

// The commit was stored and reported as failed: nobody sent anything, and the log says so.
TEST_F(IntentsTest, OneThatWasNeverAcknowledgedIsEndedAsNotSent) {
  KvMemory kv;
  auto ledger = Open(&kv);
  const uint64_t sent = ledger->Append(IntentFor("sent", ""))->entry;
  kv.FailCommit(1, KvMemory::Fault::kPersistedButReported);
  EXPECT_EQ(ledger->Append(IntentFor("q", "id")).error().code, Code::kIo);
  Result<Appended> later = Error{};
  for (int i = 0; i < 3000 && !later.ok(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    later = ledger->Append(Generated("later"));
  }
  ASSERT_TRUE(later.ok());
  const std::vector<Leaf> interrupted = Leaves(*ledger, Kind::kInterrupted);
  ASSERT_EQ(interrupted.size(), 1u);
  EXPECT_EQ(interrupted[0].outcome, "not_sent");
  EXPECT_EQ(interrupted[0].references[0].entry, sent + 1);
  EXPECT_EQ(ledger->OpenIntents(), 1u);  // the acknowledged one runs on
  EXPECT_TRUE(ledger->Append(AnswerTo(sent, "sent", "")).ok());
  ledger.reset();
  ExpectClean(kv);
}

TEST_F(IntentsTest, AnErasedOrDamagedIntentIsEndedToo) {
  KvMemory kv;
  auto ledger = Open(&kv);
  const uint64_t intent = ledger->Append(IntentFor("q", "id"))->entry;
  std::unique_ptr<KvMemory> killed = Kill(std::move(ledger), kv);
  killed->Tamper(Table::kRecord, EntryKey(intent), std::nullopt);
  ledger = Open(killed.get());
  const EntryView view = ledger->Entry(ledger->Size() - 1, true).value();
  EXPECT_EQ(view.leaf.kind, Kind::kInterrupted);
  EXPECT_EQ(view.leaf.tenant, ledger->Pseudonym("acme"));
  EXPECT_EQ(view.record->tenant, "");
  EXPECT_EQ(view.record->extra.Find("intent")->Find("entry")->AsUint64(), intent);
  ledger.reset();
  const FsckReport report = Check(*killed);  // names the damage, and nothing else
  ASSERT_EQ(report.findings.size(), 1u) << Findings(report);
  EXPECT_EQ(report.findings[0].kind, "record");
  EXPECT_EQ(report.findings[0].entry, intent);
}

TEST_F(IntentsTest, FsckComparesTheTableWithTheLog) {
  KvMemory kv;
  auto ledger = Open(&kv);
  const uint64_t open = ledger->Append(IntentFor("a", ""))->entry;
  const uint64_t ended = ledger->Append(IntentFor("b", ""))->entry;
  ASSERT_TRUE(ledger->Append(AnswerTo(ended, "b", "")).ok());
  const std::string acme = PseudonymBytes(ledger->Pseudonym("acme"));
  const std::string globex = PseudonymBytes(ledger->Pseudonym("globex"));
  ledger.reset();
  ExpectClean(kv);
  struct Case {
    const char* what;
    std::string key;
    std::optional<std::string> value;
    const char* want;
  };
  const Case cases[] = {
      {"an open one is missing", EntryKey(open), std::nullopt, "lacks it"},
      {"an ended one is there", EntryKey(ended), acme, "it is none"},
      {"another kind of entry", EntryKey(0), acme, "it is none"},
      {"beyond the log", EntryKey(1000), acme, "it is none"},
      {"another tenant", EntryKey(open), globex, "another tenant"},
      {"a short key", "x", acme, "damaged"},
      {"a short value", EntryKey(open), "x", "damaged"},
  };
  for (const Case& c : cases) {
    const auto damaged = kv.Clone();
    damaged->Tamper(Table::kIntent, c.key, c.value);
    const FsckReport report = Check(*damaged);
    ASSERT_FALSE(report.clean()) << c.what;
    EXPECT_EQ(report.findings[0].kind, "intent") << c.what;
    EXPECT_NE(report.findings[0].what.find(c.want), std::string::npos)
        << c.what << ": " << Findings(report);
  }
}

TEST_F(IntentsTest, ManyAtOnceShareTheirSyncs) {
  KvMemory kv;
  std::atomic<uint64_t> commits = 0, entries = 0;
  LedgerOptions options;
  options.on_commit = [&](int64_t micros, size_t shared) {
    EXPECT_GE(micros, 0);
    ++commits;
    entries += shared;
  };
  auto ledger = Open(&kv, std::move(options));
  constexpr int kThreads = 16, kEach = 20;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kEach; ++i) {
        const std::string name = std::to_string(t) + "/" + std::to_string(i);
        const Result<Appended> intent = ledger->Append(IntentFor(name, name));
        CHECK(intent.ok());
        CHECK(ledger->Append(AnswerTo(intent->entry, name, name)).ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(ledger->OpenIntents(), 0u);
  EXPECT_EQ(entries, uint64_t{2 * kThreads * kEach + 1});
  EXPECT_LT(commits, entries);
  ledger.reset();
  ExpectClean(kv);
}

TEST_F(IntentsTest, TheLagIsWhatNoCheckpointCovers) {
  KvMemory kv;
  auto ledger = Open(&kv);
  const uint64_t entry = ledger->Append(Generated("q"))->entry;
  WaitForProof(*ledger, entry);
  EXPECT_EQ(ledger->Lag().entries, 0u);
  EXPECT_EQ(ledger->Lag().oldest_micros, 0);
  // Where the checkpoint cannot be written, it grows.
  std::filesystem::permissions(folder_.path(), std::filesystem::perms(0700));
  std::filesystem::rename(folder_.path("data/checkpoint"), folder_.path("data/kept"));
  std::filesystem::create_directory(folder_.path("data/checkpoint"));
  ASSERT_TRUE(ledger->Append(Generated("r")).ok());
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  ASSERT_TRUE(ledger->Append(Generated("s")).ok());
  EXPECT_EQ(ledger->Lag().entries, 2u);
  EXPECT_GE(ledger->Lag().oldest_micros, 4000);
  std::filesystem::remove(folder_.path("data/checkpoint"));
  std::filesystem::rename(folder_.path("data/kept"), folder_.path("data/checkpoint"));
  WaitForProof(*ledger, entry + 2);
  EXPECT_EQ(ledger->Lag().entries, 0u);
}

// A child opens intents and ends every other one; it is killed at some moment.
void OpenUntilKilled(const std::string& path, int pipe) {
  Result<DataFolder> folder = DataFolder::Open(path);
  if (!folder.ok()) ::_exit(3);
  auto ledger = Ledger::Open(std::move(*folder), {});
  if (!ledger.ok()) ::_exit(4);
  for (int i = 0;; ++i) {
    const std::string name = std::to_string(i);
    const Result<Appended> intent = (*ledger)->Append(IntentFor(name, ""));
    if (!intent.ok()) ::_exit(5);
    if (::write(pipe, &intent->entry, sizeof(uint64_t)) != sizeof(uint64_t)) ::_exit(6);
    if (i % 2 == 0 && !(*ledger)->Append(AnswerTo(intent->entry, name, "")).ok()) ::_exit(7);
  }
}

TEST_F(IntentsTest, AKilledServersIntentsAllHaveOneEnd) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "the thread sanitizer does not follow threads made after a fork";
#endif
  std::vector<uint64_t> acknowledged;
  for (int round = 0; round < 3; ++round) {
    int pipes[2];
    ASSERT_EQ(::pipe(pipes), 0);
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      ::close(pipes[0]);
      OpenUntilKilled(folder_.path(), pipes[1]);
    }
    ::close(pipes[1]);
    uint64_t entry = 0;
    const auto read_entry = [&] {
      return ::read(pipes[0], &entry, sizeof(entry)) == sizeof(entry);
    };
    for (int i = 0; i < 15 + round && read_entry(); ++i) acknowledged.push_back(entry);
    ASSERT_EQ(::kill(child, SIGKILL), 0);
    while (read_entry()) acknowledged.push_back(entry);
    ::close(pipes[0]);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << "exit " << WEXITSTATUS(status);
    const Result<FsckReport> report = Fsck(folder_.path(), {});
    ASSERT_TRUE(report.ok()) << report.error().message;
    EXPECT_TRUE(report->clean()) << Findings(*report);
  }
  ASSERT_GE(acknowledged.size(), 45u);
  auto ledger = Open(nullptr);
  EXPECT_EQ(ledger->OpenIntents(), 0u);
  std::map<uint64_t, int> ends;
  for (uint64_t n = 0; n < ledger->Size(); ++n) {
    const Leaf leaf = ledger->Entry(n, false)->leaf;
    for (const Reference& reference : leaf.references) {
      if (reference.relation == kIntentRelation) ++ends[reference.entry];
    }
  }
  for (const uint64_t intent : acknowledged) EXPECT_EQ(ends[intent], 1) << intent;
}

}  // namespace
}  // namespace verbatim::store
