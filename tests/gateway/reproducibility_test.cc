// How often answers came out equal again, from verifications as they come and from the ledger.
#include "gateway/reproducibility.h"

#include <gtest/gtest.h>

#include "gateway/gauges.h"
#include "gateway/metrics.h"
#include "tests/store/ledger_fixture.h"

namespace verbatim::gateway {
namespace {

using store::Kind;

// Values of the closed formula, computed apart with 30 digits.
TEST(Wilson, HasTheKnownBounds) {
  struct Case {
    uint64_t successes, trials;
    double low, high;
  };
  const Case cases[] = {
      {0, 0, 0, 1},
      {0, 1, 0, 0.793450685622763},
      {1, 1, 0.206549314377237, 1},
      {0, 10, 0, 0.277532799862889},
      {10, 10, 0.722467200137111, 1},
      {5, 10, 0.236593090512564, 0.763406909487436},
      {95, 100, 0.888249530768081, 0.978456320845632},
      {999'999, 1'000'000, 0.999994335088196, 0.999999823475423},
  };
  for (const Case& c : cases) {
    const Interval interval = WilsonInterval(c.successes, c.trials);
    EXPECT_NEAR(interval.low, c.low, 1e-9) << c.successes << "/" << c.trials;
    EXPECT_NEAR(interval.high, c.high, 1e-9) << c.successes << "/" << c.trials;
  }
}

TEST(Reproducibility, CountsByUpstreamAndModel) {
  Reproducibility counts;
  EXPECT_EQ(json::Canonical(counts.ToJson()), R"({"complete":true,"upstreams":[]})");
  for (int i = 0; i < 9; ++i) counts.Count("openai", "gpt-4o", true);
  counts.Count("openai", "gpt-4o", false);
  counts.Count("", "smollm2", true);
  const auto rows = counts.Rows();
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0].upstream, "");
  EXPECT_EQ(rows[0].rate, 1);
  EXPECT_EQ(rows[1].model, "gpt-4o");
  EXPECT_EQ(rows[1].equal, 9u);
  EXPECT_EQ(rows[1].diverged, 1u);
  EXPECT_EQ(rows[1].rate, 0.9);
  EXPECT_GT(rows[1].interval.low, 0.59);
  EXPECT_LT(rows[1].interval.high, 0.99);
}

TEST(Reproducibility, HasABoundedNumberOfRows) {
  Reproducibility counts;
  for (size_t i = 0; i < 2 * Reproducibility::kMaxRows; ++i) {
    counts.Count("upstream", std::to_string(i), true);
  }
  const auto rows = counts.Rows();
  EXPECT_EQ(rows.size(), Reproducibility::kMaxRows + 1);
  EXPECT_EQ(rows[0].upstream, "other");
  EXPECT_EQ(rows[0].equal, Reproducibility::kMaxRows);
}

class ReproducibilityTest : public store::LedgerFixture {};

TEST_F(ReproducibilityTest, IsRebuiltFromTheLedger) {
  store::KvMemory kv;
  auto ledger = Open(&kv);
  ASSERT_TRUE(ledger->Append(store::Generated("q")).ok());
  const auto verified = [&](Kind kind, const char* upstream, const char* model) {
    store::AppendRequest entry;
    entry.kind = kind;
    entry.record.tenant = "acme";
    if (model) SetOrigin(entry.detail, upstream, model);
    ASSERT_TRUE(ledger->Append(std::move(entry)).ok());
  };
  for (int i = 0; i < 3; ++i) verified(Kind::kVerified, "azure", "gpt-4o");
  verified(Kind::kDiverged, "azure", "gpt-4o");
  verified(Kind::kVerified, "", "smollm2");
  verified(Kind::kVerified, "", nullptr);         // of an older server, which did not say
  verified(Kind::kGenerated, "azure", "gpt-4o");  // no verification
  Reproducibility counts;
  counts.Rebuild(*ledger);
  counts.WaitUntilRebuilt();
  counts.Count("azure", "gpt-4o", true);
  const auto rows = counts.Rows();
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[1].upstream, "azure");
  EXPECT_EQ(rows[1].equal, 4u);
  EXPECT_EQ(rows[1].diverged, 1u);
  EXPECT_TRUE(counts.ToJson().Find("complete")->as_bool());

  // As gauges, beside the ledger's own.
  Metrics metrics;
  AddReproducibilityGauges(metrics, counts);
  AddLedgerGauges(metrics, *ledger);
  const std::string text = metrics.Render();
  for (const char* line :
       {"\nverbatim_reproducibility_rate{model=\"gpt-4o\",upstream=\"azure\"} 0.8\n",
        "\nverbatim_reproducibility_high{model=\"smollm2\",upstream=\"verbatim\"} 1\n",
        "\nverbatim_reproducibility_low{model=\"gpt-4o\",upstream=\"azure\"} 0.37",
        "\nverbatim_ledger_entries 9\n", "\nverbatim_ledger_open_intents 0\n",
        "\nverbatim_ledger_unpublished_entries "}) {
    EXPECT_NE(text.find(line), std::string::npos) << line << text;
  }
}

}  // namespace
}  // namespace verbatim::gateway
