// What the ledger promises, one example each.
#include "store/ledger.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <mutex>
#include <set>

#include "store/checkpoint.h"
#include "store/merkle.h"
#include "tests/store/file_faults.h"
#include "tests/store/ledger_fixture.h"

namespace verbatim::store {
namespace {

class LedgerTest : public LedgerFixture {};

TEST_F(LedgerTest, AnEntryIsStoredProvenAndServed) {
  auto ledger = Open(nullptr);
  const Result<Appended> appended = ledger->Append(Generated("hello", "acme", "req-1"));
  ASSERT_TRUE(appended.ok()) << appended.error().message;
  EXPECT_EQ(appended->entry, 1u);  // entry 0 is server_started
  EXPECT_TRUE(appended->serves_hits);
  EXPECT_EQ(appended->output_digest, Sha256("answer to hello"));

  const auto hit = ledger->Lookup("acme", FingerprintOf("hello"));
  ASSERT_TRUE(hit.ok() && *hit);
  EXPECT_EQ((*hit)->response, "answer to hello");
  EXPECT_EQ((*hit)->entry, 1u);
  EXPECT_EQ((*hit)->record.subject, "alice");
  EXPECT_EQ((*hit)->record.seed, 18446744073709551615u);
  EXPECT_EQ((*hit)->record.created, 1796054400);
  EXPECT_FALSE(ledger->Lookup("globex", FingerprintOf("hello")).value().has_value());
  EXPECT_FALSE(ledger->Lookup("acme", FingerprintOf("other")).value().has_value());

  const EntryView view = ledger->Entry(1, true).value();
  EXPECT_EQ(view.request, "{\"prompt\":\"hello\"}");
  EXPECT_EQ(view.trace, std::string(80, 't'));
  EXPECT_EQ(view.leaf.tenant, ledger->Pseudonym("acme"));
  EXPECT_EQ(view.leaf.sequence, 1u);
  // The public part holds neither the tenant's name nor anything of prompt and answer.
  for (const std::string& secret :
       {std::string("acme"), std::string("alice"), std::string("hello"),
        HexEncode(Sha256("answer to hello")), HexEncode(FingerprintOf("hello"))}) {
    EXPECT_EQ(view.leaf_bytes.find(secret), std::string::npos) << view.leaf_bytes;
  }

  const EntryProof proof = WaitForProof(*ledger, 1);
  const VerifierKey key = ParseVerifierKey(ledger->Log().vkey).value();
  const TreeHead head = OpenCheckpoint(proof.checkpoint, key).value();
  EXPECT_EQ(head.origin, ledger->Log().origin);
  EXPECT_EQ(head.size, proof.size);
  EXPECT_EQ(LeafHash(view.leaf_bytes), proof.leaf_hash);
  EXPECT_TRUE(VerifyInclusion(1, head.size, proof.leaf_hash, proof.path, head.root).ok());
  EXPECT_EQ(ledger->FindReceipt("req-1")->entry, 1u);
  EXPECT_EQ(ledger->FindReceipt("req-2").error().code, Code::kNotFound);
  EXPECT_EQ(ledger->Proof(99).error().code, Code::kNotFound);
}

TEST_F(LedgerTest, TheFirstCompleteResultIsWhatHitsServe) {
  auto ledger = Open(nullptr);
  AppendRequest partial = Generated("q");
  partial.kind = Kind::kFailed;
  partial.outcome = "upstream_reset";
  partial.record.serves_hits = false;
  partial.response = "partial";
  EXPECT_FALSE(ledger->Append(partial)->serves_hits);
  EXPECT_FALSE(ledger->Lookup("acme", FingerprintOf("q")).value().has_value());
  const Appended first = *ledger->Append(Generated("q"));
  AppendRequest again = Generated("q");
  again.response = "another answer";
  const Appended second = *ledger->Append(again);
  EXPECT_TRUE(first.serves_hits);
  EXPECT_FALSE(second.serves_hits);
  EXPECT_EQ(ledger->Lookup("acme", FingerprintOf("q")).value()->response, "answer to q");
  // Both stay in the history.
  EXPECT_EQ(ledger->Entry(second.entry, true)->response, "another answer");
}

TEST_F(LedgerTest, AVariantStandsBesideTheFirstResult) {
  auto ledger = Open(nullptr);
  const Digest fingerprint = FingerprintOf("q");
  EXPECT_TRUE(ledger->Append(Generated("q"))->serves_hits);
  for (const bool first : {true, false}) {
    AppendRequest plain = Generated("q");
    plain.response = first ? "in its form" : "too late";
    plain.record.extra = json::Object{{"variant", "plain"}};
    EXPECT_EQ(ledger->Append(plain)->serves_hits, first);
  }
  EXPECT_EQ(ledger->Lookup("acme", fingerprint).value()->response, "answer to q");
  const auto variant = ledger->Lookup("acme", VariantOf(fingerprint, "plain")).value();
  ASSERT_TRUE(variant);
  EXPECT_EQ(variant->response, "in its form");
  EXPECT_EQ(variant->record.fingerprint, fingerprint);
  EXPECT_FALSE(ledger->Lookup("acme", VariantOf(fingerprint, "stream")).value());
}

TEST_F(LedgerTest, RequestsThatBreakTheFormatAreRefused) {
  auto ledger = Open(nullptr);
  struct Case {
    const char* what;
    std::function<void(AppendRequest&)> change;
  };
  const Case cases[] = {
      {"no response to serve", [](AppendRequest& r) { r.response.clear(); }},
      {"no fingerprint", [](AppendRequest& r) { r.record.fingerprint.reset(); }},
      {"no namespace", [](AppendRequest& r) { r.record.name_space.clear(); }},
      {"model is no digest", [](AppendRequest& r) { r.model = std::string("SmolLM2"); }},
      {"not UTF-8", [](AppendRequest& r) { r.record.subject = std::string("\xFF"); }},
      {"a long request id", [](AppendRequest& r) { r.record.request_id.assign(257, 'x'); }},
      {"detail is no object", [](AppendRequest& r) { r.detail = json::Value("text"); }},
      {"a leaf over 65535 bytes",
       [](AppendRequest& r) {
         r.detail = json::Value::MakeObject();
         r.detail.Set("x", std::string(70000, 'x'));
       }},
  };
  for (const Case& c : cases) {
    AppendRequest request = Generated("q");
    c.change(request);
    const Result<Appended> result = ledger->Append(request);
    ASSERT_FALSE(result.ok()) << c.what;
    EXPECT_EQ(result.error().code, Code::kInvalid) << c.what;
  }
  EXPECT_EQ(ledger->Size(), 1u);  // server_started alone
}

TEST_F(LedgerTest, ReopeningContinuesTheLog) {
  std::string vkey;
  {
    LedgerOptions options;
    options.origin = "bank.example/verbatim";
    auto ledger = Open(nullptr, std::move(options));
    EXPECT_TRUE(ledger->Append(Generated("a")).ok());
    vkey = ledger->Log().vkey;
    EXPECT_TRUE(ledger->Close().ok());
    EXPECT_EQ(ledger->Append(Generated("b")).error().code, Code::kUnavailable);
    EXPECT_EQ(ledger->RecordHit(HitOf(1, "r")).error().code, Code::kUnavailable);
  }
  {
    LedgerOptions other;
    other.origin = "other.example/log";
    EXPECT_EQ(TryOpen(nullptr, std::move(other)).error().code, Code::kFailedPrecondition);
  }
  auto ledger = Open(nullptr);
  EXPECT_EQ(ledger->Log().vkey, vkey);
  EXPECT_EQ(ledger->Log().origin, "bank.example/verbatim");
  EXPECT_EQ(ledger->Size(), 4u);  // started, a, stopped, started
  EXPECT_EQ(ledger->Entry(2, false)->leaf.kind, Kind::kServerStopped);
  const Leaf started = ledger->Entry(3, false)->leaf;
  EXPECT_EQ(started.kind, Kind::kServerStarted);
  EXPECT_TRUE(started.detail.Find("clean")->as_bool());
  EXPECT_EQ(ledger->Lookup("acme", FingerprintOf("a")).value()->response, "answer to a");
  EXPECT_EQ(ledger->Append(Generated("b"))->entry, 4u);
  EXPECT_EQ(ledger->Entry(4, false)->leaf.sequence, 2u);
}

TEST_F(LedgerTest, ASecondServerIsRefused) {
  auto ledger = Open(nullptr);
  const auto second = TryOpen(nullptr);
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.error().code, Code::kFailedPrecondition);
  EXPECT_NE(second.error().message.find(folder_.path()), std::string::npos);
  EXPECT_NE(second.error().message.find(std::to_string(::getpid())), std::string::npos);
}

TEST_F(LedgerTest, ADatabaseBehindItsCheckpointIsRefused) {
  KvMemory kv;
  std::unique_ptr<KvMemory> old;
  {
    auto ledger = Open(&kv);
    EXPECT_TRUE(ledger->Append(Generated("a")).ok());
    WaitForProof(*ledger, 1);
    old = kv.Clone();
    const uint64_t entry = ledger->Append(Generated("b"))->entry;
    WaitForProof(*ledger, entry);
  }
  const auto behind = TryOpen(old.get());
  ASSERT_FALSE(behind.ok());
  EXPECT_EQ(behind.error().code, Code::kFailedPrecondition);
  EXPECT_NE(behind.error().message.find("old copy"), std::string::npos) << behind.error().message;
  // An empty database is behind too.
  KvMemory empty;
  EXPECT_EQ(TryOpen(&empty).error().code, Code::kFailedPrecondition);
  EXPECT_TRUE(TryOpen(&kv).ok());
}

TEST_F(LedgerTest, AnotherFormatVersionIsRefused) {
  KvMemory kv;
  Open(&kv)->Close().ok();
  for (const char* other : {"0", "3"}) {
    kv.Tamper(Table::kMeta, "format", other);
    const auto opened = TryOpen(&kv);
    ASSERT_FALSE(opened.ok()) << other;
    EXPECT_NE(opened.error().message.find(std::string("format ") + other), std::string::npos)
        << opened.error().message;
  }
}

TEST_F(LedgerTest, MissingKeysAreNotMadeUp) {
  KvMemory kv;
  Open(&kv)->Close().ok();
  std::filesystem::remove(folder_.path() + "/keys/tenant.key");
  const auto opened = TryOpen(&kv);
  ASSERT_FALSE(opened.ok());
  EXPECT_NE(opened.error().message.find("tenant.key"), std::string::npos);
}

TEST_F(LedgerTest, FilesAndFoldersAreForTheirOwnerAlone) {
  auto ledger = Open(nullptr);
  using std::filesystem::perms;
  const auto open_to_others = [](const std::string& path) {
    return (std::filesystem::status(path).permissions() & (perms::group_all | perms::others_all)) !=
           perms::none;
  };
  for (const char* name :
       {"", "/db", "/tmp", "/keys", "/keys/log.key", "/keys/wrapping.key", "/keys/tenant.key",
        "/keys/index.key", "/keyring", "/keyring/entries/00000000.keys", "/LOCK", "/control.sock",
        "/checkpoint"}) {
    EXPECT_FALSE(open_to_others(folder_.path() + name)) << name;
  }
}

TEST_F(LedgerTest, AnExistingFolderIsTakenFromOthers) {
  using std::filesystem::perms;
  for (const char* name : {"", "/db"}) {
    std::filesystem::create_directory(folder_.path() + name);
    std::filesystem::permissions(folder_.path() + name, perms(0755));
  }
  auto ledger = Open(nullptr);
  for (const char* name : {"", "/db"}) {
    EXPECT_EQ(std::filesystem::status(folder_.path() + name).permissions(), perms(0700)) << name;
  }
}

TEST_F(LedgerTest, TheFirstStartLogsNoError) {
  ::testing::internal::CaptureStderr();
  Open(nullptr)->Close().ok();
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(log.find("database:"), std::string::npos) << log;
}

TEST_F(LedgerTest, TimeNeverGoesBackAndAJumpIsAnEntry) {
  KvMemory kv;
  std::atomic<int64_t> now = 1'796'000'000'000'000;
  LedgerOptions options;
  options.now = [&now] { return now.load(); };
  auto ledger = Open(&kv, std::move(options));
  EXPECT_TRUE(ledger->Append(Generated("a")).ok());
  now -= 500'000;  // within tolerance: no entry
  const Appended b = *ledger->Append(Generated("b"));
  EXPECT_EQ(b.entry, 2u);
  EXPECT_EQ(b.time, 1'796'000'000'000'000);
  now -= 60'000'000;
  const Appended c = *ledger->Append(Generated("c"));
  EXPECT_EQ(c.entry, 4u);
  EXPECT_EQ(c.time, b.time);
  EXPECT_EQ(ledger->Entry(3, false)->leaf.kind, Kind::kClockJumped);
  EXPECT_EQ(ledger->Append(Generated("d"))->entry, 5u);  // told once
}

TEST_F(LedgerTest, SixtyFourAppendersMakeOneLinearLog) {
  const FileFaults syncs(folder_.path() + "/db", 0, FileFaults::Fault::kNotDone);
  std::atomic<int> commits = 0, shared_by = 0;
  LedgerOptions options;
  options.on_commit = [&](int64_t, size_t entries_of_commit) {
    ++commits;
    shared_by += static_cast<int>(entries_of_commit);
  };
  auto ledger = Open(nullptr, std::move(options));
  const int before = syncs.seen(), commits_before = commits;
  constexpr int kThreads = 64, kEach = 20;
  std::mutex mutex;
  std::set<uint64_t> entries;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kEach; ++i) {
        const std::string name = std::to_string(t) + "/" + std::to_string(i);
        const Result<Appended> appended = ledger->Append(
            Generated(name, std::string("tenant-") + std::to_string(t % 4), "id-" + name));
        CHECK(appended.ok());
        std::lock_guard lock(mutex);
        entries.insert(appended->entry);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(entries.size(), size_t{kThreads * kEach});
  EXPECT_EQ(*entries.begin(), 1u);
  EXPECT_EQ(*entries.rbegin(), uint64_t{kThreads * kEach});
  EXPECT_EQ(ledger->Size(), uint64_t{kThreads * kEach + 1});
  // Each commit was synced, and they shared their commits.
  EXPECT_GE(syncs.seen() - before, commits - commits_before);
  EXPECT_EQ(shared_by, kThreads * kEach + 1);
  EXPECT_LT(commits - commits_before, kThreads * kEach / 2);
  EXPECT_TRUE(ledger->Close().ok());
  ledger.reset();
  const Result<FsckReport> report = Fsck(folder_.path(), {.deep = true});
  ASSERT_TRUE(report.ok()) << report.error().message;
  EXPECT_TRUE(report->clean()) << Findings(*report);
  EXPECT_EQ(report->entries, uint64_t{kThreads * kEach + 2});
}

TEST_F(LedgerTest, ARequestIdBelongsToItsTenant) {
  auto ledger = Open(nullptr);
  EXPECT_TRUE(ledger->Append(Generated("a", "acme", "id")).ok());
  EXPECT_EQ(ledger->Append(Generated("a", "globex", "id")).error().code, Code::kAlreadyExists);
  EXPECT_EQ(ledger->RecordHit(HitOf(1, "id", "globex")).error().code, Code::kAlreadyExists);
  EXPECT_TRUE(ledger->Append(Generated("a", "acme", "id")).ok());
  EXPECT_EQ(ledger->FindReceipt("id")->entry, 2u);
}

TEST_F(LedgerTest, HitsOfAnIntervalBecomeOneProvenLeafPerTenant) {
  LedgerOptions options;
  options.hit_interval_micros = 1'000'000;
  auto ledger = Open(nullptr, std::move(options));
  const uint64_t result = ledger->Append(Generated("q"))->entry;
  for (int i = 0; i < 5; ++i) {
    HitRequest hit = HitOf(result, std::string("hit-") + std::to_string(i),
                           i < 3 ? "acme" : "globex", i % 2 ? "alice" : "bob");
    if (i == 1) hit.kind = Kind::kJoined;
    ASSERT_TRUE(ledger->RecordHit(hit).ok());
  }
  Receipt receipt = ledger->FindReceipt("hit-2").value();
  EXPECT_FALSE(receipt.entry.has_value());  // pending
  EXPECT_EQ(receipt.hit->result, result);
  for (int i = 0; i < 5000 && !receipt.entry; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    receipt = ledger->FindReceipt("hit-2").value();
  }
  ASSERT_TRUE(receipt.entry.has_value());
  const Leaf leaf = ledger->Entry(*receipt.entry, false)->leaf;
  EXPECT_EQ(leaf.kind, Kind::kHits);
  EXPECT_EQ(leaf.tenant, ledger->Pseudonym("acme"));
  EXPECT_EQ(leaf.sequence, 2u);
  const json::Value& hits = *leaf.detail.Find("hits");
  EXPECT_EQ(hits.Find("count")->AsUint64(), 3u);
  EXPECT_EQ(receipt.hit->count, 3u);
  EXPECT_EQ(receipt.hit->number, 2u);
  const Digest root = HexDecodeDigest(hits.Find("root")->as_string()).value();
  EXPECT_TRUE(
      VerifyInclusion(2, 3, LeafHash(AsBytes(receipt.hit->commitment)), receipt.hit->path, root)
          .ok());
  EXPECT_EQ(ledger->Size(), 4u);  // started, generated, a leaf of hits each for acme and globex

  HitRequest strict = HitOf(result, "hit-strict");
  strict.strict = true;
  ASSERT_TRUE(ledger->RecordHit(strict).ok());
  const Receipt own = ledger->FindReceipt("hit-strict").value();
  ASSERT_TRUE(own.entry.has_value());
  EXPECT_EQ(ledger->Entry(*own.entry, false)->leaf.kind, Kind::kHit);
  EXPECT_EQ(ledger->Entry(*own.entry, false)->leaf.references.at(0).entry, result);

  // What is open at the stop is committed by it.
  ASSERT_TRUE(ledger->RecordHit(HitOf(result, "hit-last")).ok());
  ASSERT_TRUE(ledger->Close().ok());
  EXPECT_TRUE(ledger->FindReceipt("hit-last")->entry.has_value());
  ledger.reset();
  const FsckReport report = Fsck(folder_.path(), {}).value();
  EXPECT_TRUE(report.clean()) << Findings(report);
  EXPECT_EQ(report.hits, 6u);
}

TEST_F(LedgerTest, HitsThatAKilledServerLeftBehindGetTheirLeaf) {
  KvMemory kv;
  std::unique_ptr<KvMemory> killed;
  {
    LedgerOptions options;
    options.hit_interval_micros = 60'000'000;
    auto ledger = Open(&kv, std::move(options));
    const uint64_t result = ledger->Append(Generated("q"))->entry;
    ASSERT_TRUE(ledger->RecordHit(HitOf(result, "hit")).ok());
    killed = kv.Clone();
    std::filesystem::copy(folder_.path("data/checkpoint"), folder_.path("checkpoint-then"));
  }
  std::filesystem::copy(folder_.path("checkpoint-then"), folder_.path("data/checkpoint"),
                        std::filesystem::copy_options::overwrite_existing);
  auto ledger = Open(killed.get());
  const Leaf hits = ledger->Entry(2, false)->leaf;
  EXPECT_EQ(hits.kind, Kind::kHits);
  const Leaf started = ledger->Entry(3, false)->leaf;
  EXPECT_EQ(started.kind, Kind::kServerStarted);
  EXPECT_FALSE(started.detail.Find("clean")->as_bool());
  EXPECT_NE(started.detail.Find("incomplete"), nullptr);
  EXPECT_EQ(ledger->FindReceipt("hit")->entry, 2u);
  ledger.reset();
  const FsckReport report = Check(*killed);
  EXPECT_TRUE(report.clean()) << Findings(report);
}

}  // namespace
}  // namespace verbatim::store
