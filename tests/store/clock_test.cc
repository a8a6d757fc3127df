// A clock that jumps. Leaves' times never go back, a step back of more than a second is an entry
// (store/FORMAT.md, clock_jumped), and nothing is retained for less than was promised.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "store/life.h"
#include "tests/store/ledger_fixture.h"

namespace verbatim::store {
namespace {

constexpr int64_t kSecond = 1'000'000, kHour = 3600 * kSecond, kYear = 366 * 24 * kHour;

class ClockTest : public LedgerFixture {
 protected:
  LedgerOptions Clocked() {
    LedgerOptions options;
    options.now = [this] { return now_.load(); };
    return options;
  }

  // What every log must keep, whatever its clock did: `jumps` of them were told.
  void ExpectInOrder(const Ledger& ledger, size_t jumps) {
    int64_t last = 0;
    size_t told = 0;
    for (uint64_t entry = 0; entry < ledger.Size(); ++entry) {
      const Leaf leaf = ledger.Entry(entry, false).value().leaf;
      EXPECT_GE(leaf.time, last) << "entry " << entry;
      last = leaf.time;
      if (leaf.kind != Kind::kClockJumped) continue;
      ++told;
      const int64_t from = ParseTime(leaf.detail.Find("from")->as_string()).value();
      const int64_t to = ParseTime(leaf.detail.Find("to")->as_string()).value();
      EXPECT_GT(from - to, kSecond) << "entry " << entry;
      EXPECT_GE(leaf.time, from) << "entry " << entry;
    }
    EXPECT_EQ(told, jumps);
  }

  static constexpr int64_t kStart = 1'796'054'400 * kSecond;
  std::atomic<int64_t> now_ = kStart;
};

TEST_F(ClockTest, AtAppendsAndHits) {
  struct Case {
    const char* name;
    int64_t step;  // of the clock, from one append to the next
    bool told;
  };
  const Case cases[] = {
      {"stands still", 0, false},
      {"a second back", -kSecond, false},
      {"just more than a second back", -kSecond - 1, true},
      {"an hour back", -kHour, true},
      {"an hour on", kHour, false},
      {"seventy years on", 70 * kYear, false},
      {"seventy years back", -70 * kYear, true},
      {"to 1970", kSecond - kStart, true},
  };
  for (const Case& test : cases) {
    SCOPED_TRACE(test.name);
    std::filesystem::remove_all(folder_.path());
    KvMemory kv;
    now_ = kStart;
    auto ledger = Open(&kv, Clocked());
    const Appended before = ledger->Append(Generated("a")).value();
    ASSERT_TRUE(ledger->RecordHit(HitOf(before.entry, "hit-1")).ok());
    now_ += test.step;
    ASSERT_TRUE(ledger->RecordHit(HitOf(before.entry, "hit-2")).ok());
    const Appended after = ledger->Append(Generated("b")).value();
    EXPECT_EQ(after.time, std::max(before.time, now_.load()));
    // It is told once, and again only when the clock steps back again.
    ASSERT_TRUE(ledger->Append(Generated("c")).ok());
    WaitForProof(*ledger, after.entry);
    ASSERT_TRUE(ledger->Close().ok());
    ExpectInOrder(*ledger, test.told);
    // The times of a batch of hits are those of its hits, whichever came first.
    const Receipt receipt = ledger->FindReceipt("hit-2").value();
    const Leaf leaf = ledger->Entry(receipt.entry.value(), false).value().leaf;
    const json::Value* hits = leaf.detail.Find("hits");
    ASSERT_NE(hits, nullptr);
    EXPECT_EQ(hits->Find("from")->as_string(), FormatTime(std::min(kStart, now_.load())));
    EXPECT_EQ(hits->Find("to")->as_string(), FormatTime(std::max(kStart, now_.load())));
    const FsckReport report = Check(kv);
    EXPECT_TRUE(report.clean()) << Findings(report);
  }
}

TEST_F(ClockTest, BetweenStopAndStart) {
  KvMemory kv;
  ASSERT_TRUE(Open(&kv, Clocked())->Append(Generated("a")).ok());
  size_t told = 0;
  for (const int64_t step : {-kHour, 2 * kHour, -30 * kYear, -kSecond, 31 * kYear}) {
    SCOPED_TRACE(step);
    now_ += step;
    const auto ledger = Open(&kv, Clocked());
    ASSERT_TRUE(ledger->Append(Generated("b" + std::to_string(step))).ok());
    ASSERT_TRUE(ledger->Close().ok());
    const Leaf newest = ledger->Entry(ledger->Size() - 1, false).value().leaf;
    // A start measures against the last leaf, which a clock that was ahead may have left ahead.
    told += now_ + kSecond < newest.time;
    ExpectInOrder(*ledger, told);
  }
  EXPECT_GE(told, 2u);
  const FsckReport report = Check(kv);
  EXPECT_TRUE(report.clean()) << Findings(report);
}

TEST_F(ClockTest, AtHeartbeats) {
  KvMemory kv;
  LedgerOptions options = Clocked();
  options.heartbeat_micros = 2'000;
  const auto ledger = Open(&kv, std::move(options));
  const auto await = [&](uint64_t size) {
    for (int i = 0; i < 5000 && ledger->Size() < size; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    EXPECT_GE(ledger->Size(), size);
  };
  // They come by the machine's steady clock: neither jump stops them or makes them come at once.
  await(3);
  now_ -= kHour;
  await(ledger->Size() + 4);
  now_ += kYear;
  await(ledger->Size() + 3);
  ASSERT_TRUE(ledger->Close().ok());
  ExpectInOrder(*ledger, 1);
  const FsckReport report = Check(kv);
  EXPECT_TRUE(report.clean()) << Findings(report);
}

TEST_F(ClockTest, AtRetentionAndPruning) {
  KvMemory kv;
  const auto shred = [](Ledger& ledger, uint64_t entry) {
    LifeCommand command;
    command.verb = LifeCommand::Verb::kShred;
    command.entries = {entry, entry};
    command.reason = "article 17";
    command.authority = "privacy office";
    command.by = "test";
    return ledger.Apply(command).value().outcome;
  };
  const auto kept = [](const std::string& name) {
    AppendRequest append = Generated(name);
    append.record.extra = json::Object{{"retention_seconds", uint64_t{3600}}};
    return append;
  };
  uint64_t first = 0, ahead = 0;
  {
    const auto ledger = Open(&kv, Clocked());
    first = ledger->Append(kept("a")).value().entry;
    for (const int64_t back : {kHour, 30 * kYear}) {  // never shortens it
      now_ = kStart - back;
      EXPECT_EQ(shred(*ledger, first), "retained") << back;
    }
    // What is made while the clock is ahead is retained from the time in its leaf, which it keeps.
    now_ = kStart + 30 * kYear;
    ahead = ledger->Append(kept("b")).value().entry;
    now_ = kStart + 2 * kHour;
    EXPECT_EQ(shred(*ledger, ahead), "retained");
    ASSERT_TRUE(ledger->Close().ok());
  }
  const auto ledger = Open(&kv, Clocked());
  EXPECT_EQ(shred(*ledger, ahead), "retained");
  EXPECT_EQ(shred(*ledger, first), "ok");
  now_ = kStart + 30 * kYear + kHour;
  EXPECT_EQ(shred(*ledger, ahead), "ok");
  ASSERT_TRUE(ledger->Close().ok());
  const FsckReport report = Check(kv);
  EXPECT_TRUE(report.clean()) << Findings(report);
}

}  // namespace
}  // namespace verbatim::store
