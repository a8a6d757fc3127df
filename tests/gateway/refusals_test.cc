// What refusals can cost the disk is bounded, and what was left out is counted in the log.
#include "gateway/refusals.h"

#include <gtest/gtest.h>

#include "tests/store/ledger_fixture.h"

namespace verbatim::gateway {
namespace {

using store::Kind;

class RefusalsTest : public store::LedgerFixture {
 protected:
  RefusalsTest() : ledger_(Open(&kv_)) {}

  std::vector<store::Leaf> Refused() const {
    std::vector<store::Leaf> leaves;
    for (uint64_t n = 0; n < ledger_->Size(); ++n) {
      store::Leaf leaf = ledger_->Entry(n, false)->leaf;
      if (leaf.kind == Kind::kRefused) leaves.push_back(std::move(leaf));
    }
    return leaves;
  }
  void WaitForLeaves(size_t count) const {
    for (int i = 0; i < 5000 && Refused().size() < count; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

  store::KvMemory kv_;
  Metrics metrics_;
  std::unique_ptr<store::Ledger> ledger_;
};

uint64_t Number(const json::Value& detail, const char* name) {
  const json::Value* value = detail.Find(name);
  return value ? value->AsUint64().value_or(0) : 0;
}

store::AppendRequest Somebodys() {
  store::AppendRequest entry;
  entry.kind = Kind::kRefused;
  entry.outcome = "http_413";
  entry.record.tenant = "acme";
  return entry;
}

TEST_F(RefusalsTest, AnyNumberOfNobodysMakesOneLeafAnInterval) {
  Refusals refusals(*ledger_, metrics_, {.interval_micros = 60'000'000});
  for (int i = 0; i < 50'000; ++i) refusals.Count(i % 10 == 0 ? 400 : 401);
  EXPECT_EQ(ledger_->Size(), 1u);  // nothing but server_started yet
  refusals.Close();
  const auto leaves = Refused();
  ASSERT_EQ(leaves.size(), 1u);
  EXPECT_EQ(leaves[0].outcome, "unauthenticated");
  EXPECT_EQ(leaves[0].tenant, "");
  EXPECT_EQ(leaves[0].sequence, 0u);
  EXPECT_EQ(Number(leaves[0].detail, "count"), 50'000u);
  EXPECT_EQ(Number(*leaves[0].detail.Find("status"), "400"), 5'000u);
  EXPECT_EQ(Number(*leaves[0].detail.Find("status"), "401"), 45'000u);
  EXPECT_LE(leaves[0].detail.Find("from")->as_string(), leaves[0].detail.Find("to")->as_string());
  EXPECT_EQ(leaves[0].detail.Find("unrecorded"), nullptr);
  // Afterwards there is nobody to count for.
  refusals.Count(401);
  refusals.Close();
  EXPECT_EQ(Refused().size(), 1u);
}

TEST_F(RefusalsTest, IntervalsEndByThemselves) {
  Refusals refusals(*ledger_, metrics_, {.interval_micros = 30'000});
  const int64_t begin = MonotonicMicros();
  uint64_t counted = 0;
  while (MonotonicMicros() - begin < 200'000) {
    refusals.Count(401);
    ++counted;
    if (counted % 64 == 0) std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  WaitForLeaves(2);
  refusals.Close();
  const auto leaves = Refused();
  const auto intervals = static_cast<size_t>((MonotonicMicros() - begin) / 30'000);
  EXPECT_GE(leaves.size(), 2u);
  EXPECT_LE(leaves.size(), intervals + 1);
  uint64_t sum = 0;
  for (const store::Leaf& leaf : leaves) sum += Number(leaf.detail, "count");
  EXPECT_EQ(sum, counted);
}

TEST_F(RefusalsTest, WithoutRefusalsThereIsNoLeaf) {
  {
    Refusals refusals(*ledger_, metrics_, {.interval_micros = 1'000});
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_EQ(ledger_->Size(), 1u);
}

TEST_F(RefusalsTest, SomebodysHaveEntriesUntilThereAreTooMany) {
  int64_t now = 0;
  RefusalOptions options;
  options.now = [&] { return now; };
  Refusals refusals(*ledger_, metrics_, std::move(options));
  for (uint64_t i = 0; i < 2 * Refusals::kBurst; ++i) {
    refusals.Offer(Somebodys());
    if (i % 32 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  refusals.Close();
  const auto leaves = Refused();
  const size_t own = leaves.size() - 1;
  EXPECT_GT(own, Refusals::kWaiting - 1);
  EXPECT_LE(own, Refusals::kBurst);
  size_t counting = 0;
  for (const store::Leaf& leaf : leaves) {
    if (!leaf.tenant.empty()) continue;
    ++counting;
    EXPECT_EQ(leaf.outcome, "unrecorded");
    EXPECT_EQ(Number(leaf.detail, "unrecorded"), 2 * Refusals::kBurst - own);
    EXPECT_EQ(leaf.detail.Find("count"), nullptr);
  }
  EXPECT_EQ(counting, 1u);
}

TEST_F(RefusalsTest, TheBoundRefills) {
  int64_t now = 0;
  RefusalOptions options;
  options.now = [&] { return now; };
  Refusals refusals(*ledger_, metrics_, std::move(options));
  for (uint64_t i = 0; i < 2 * Refusals::kBurst; ++i) {
    refusals.Offer(Somebodys());
    if (i % 32 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  const size_t before = Refused().size();
  now += 1'000'000;
  for (uint64_t i = 0; i < 2 * Refusals::kPerSecond; ++i) refusals.Offer(Somebodys());
  WaitForLeaves(before + Refusals::kPerSecond);
  EXPECT_EQ(Refused().size(), before + Refusals::kPerSecond);
}

TEST_F(RefusalsTest, AFailedCommitsCountsGoIntoTheNextLeaf) {
  Refusals refusals(*ledger_, metrics_, {.interval_micros = 20'000});
  kv_.FailCommit(1, store::KvMemory::Fault::kNotPersisted);
  for (int i = 0; i < 7; ++i) refusals.Count(401);
  WaitForLeaves(1);
  refusals.Close();
  const auto leaves = Refused();
  ASSERT_EQ(leaves.size(), 1u);
  EXPECT_EQ(Number(leaves[0].detail, "count"), 7u);
}

}  // namespace
}  // namespace verbatim::gateway
