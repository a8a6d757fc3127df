// Answers without entries: for a bounded time, counted, and said as soon as the ledger writes.
#include "gateway/break_glass.h"

#include <gtest/gtest.h>

#include "tests/store/ledger_fixture.h"

namespace verbatim::gateway {
namespace {

using store::Kind;

class BreakGlassTest : public store::LedgerFixture {
 protected:
  BreakGlassTest()
      : ledger_(Open(&kv_)),
        glass_(*ledger_, HexEncode(Sha256("manifest")), [this] { return now_; }) {}

  std::vector<store::Leaf> Gaps() const {
    std::vector<store::Leaf> leaves;
    for (uint64_t n = 0; n < ledger_->Size(); ++n) {
      store::Leaf leaf = ledger_->Entry(n, false)->leaf;
      if (leaf.kind == Kind::kUnrecorded) leaves.push_back(std::move(leaf));
    }
    return leaves;
  }
  const Error failed_{Code::kIo, "the ledger cannot write"};
  store::KvMemory kv_;
  std::unique_ptr<store::Ledger> ledger_;
  int64_t now_ = 1'000'000;
  BreakGlass glass_;
};

TEST_F(BreakGlassTest, AnswersForABoundedTimeAndSaysHowMany) {
  EXPECT_FALSE(glass_.Answers(failed_, 0));
  EXPECT_FALSE(glass_.Answers({Code::kInvalid, "a bad request"}, 30));
  EXPECT_TRUE(glass_.Opens(failed_, 30));  // counts nothing
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(glass_.Answers(failed_, 30));
    now_ += 10'000'000;
  }
  EXPECT_FALSE(glass_.Answers(failed_, 30));  // 30 seconds after the first failure
  EXPECT_EQ(glass_.unrecorded(), 3u);
  glass_.Worked();
  ASSERT_TRUE(ledger_->Append(store::Generated("q")).ok());
  ASSERT_EQ(Gaps().size(), 1u);
  EXPECT_EQ(Gaps()[0].outcome, "break_glass");
  EXPECT_EQ(Gaps()[0].detail.Find("answers")->AsUint64(), 3u);
  EXPECT_LE(Gaps()[0].detail.Find("from")->as_string(), Gaps()[0].detail.Find("to")->as_string());
  // The next failure is another one, and nothing is said twice.
  EXPECT_TRUE(glass_.Opens(failed_, 30));
  glass_.Worked();
  ASSERT_TRUE(ledger_->Close().ok());
  EXPECT_EQ(Gaps().size(), 1u);
}

TEST_F(BreakGlassTest, WhatCouldNotBeSaidIsSaidLater) {
  EXPECT_TRUE(glass_.Answers(failed_, 30));
  kv_.FailCommit(1, store::KvMemory::Fault::kNotPersisted);
  glass_.Worked();
  EXPECT_FALSE(ledger_->Append(store::Generated("q")).ok() && glass_.unrecorded() == 0 &&
               Gaps().empty());
  for (int i = 0; i < 5000 && glass_.unrecorded() == 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_EQ(glass_.unrecorded(), 1u);
  while (!ledger_->Append(store::Generated("r")).ok()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  glass_.Worked();
  ASSERT_TRUE(ledger_->Close().ok());
  ASSERT_EQ(Gaps().size(), 1u);
  EXPECT_EQ(Gaps()[0].detail.Find("answers")->AsUint64(), 1u);
}

}  // namespace
}  // namespace verbatim::gateway
