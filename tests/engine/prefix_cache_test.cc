// Pages of the KV cache and who has them: what is found is what was computed for the same tokens,
// whatever was shared, forked, given back and evicted before.
#include "engine/prefix_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

namespace verbatim::engine {
namespace {

constexpr size_t kPage = PrefixCache::kPageTokens;
using Pages = PrefixCache::Pages;

// A cache of a few pages, and sequences whose "keys and values" are the hash of the tokens so far.
class PrefixCacheTest : public ::testing::Test {
 protected:
  void Make(size_t pages, bool keeps = true) {
    Result<KvCache> cache = KvCache::Create({.head_dim = 64, .bits = 16}, 1, 1, pages * kPage);
    ASSERT_TRUE(cache.ok());
    kv_ = std::make_unique<KvCache>(std::move(*cache));
    cache_ = std::make_unique<PrefixCache>(*kv_, keeps);
  }

  static std::vector<int32_t> Tokens(size_t n, int32_t first) {
    std::vector<int32_t> tokens(n);
    for (size_t i = 0; i < n; ++i) tokens[i] = first + static_cast<int32_t>(i);
    return tokens;
  }

  static uint64_t HashOf(const std::vector<int32_t>& tokens, size_t n) {
    uint64_t h = 1;
    for (size_t i = 0; i < n; ++i) h = (h + static_cast<uint64_t>(tokens[i])) * 0x9e3779b97f4a7c15;
    return h;
  }

  // A position's bytes.
  static uint8_t* At(const Pages& pages, size_t position) {
    return pages.bytes[position / kPage] + position % kPage * sizeof(uint64_t);
  }
  // Computes [from, to), and remembers it.
  void Compute(Pages& pages, const std::vector<int32_t>& tokens, size_t from, size_t to) {
    for (size_t i = from; i < to; ++i) {
      const uint64_t h = HashOf(tokens, i + 1);
      std::memcpy(At(pages, i), &h, sizeof(h));
    }
    cache_->Remember(pages, tokens, to);
  }
  // True where the first n positions hold what belongs there.
  static bool Holds(const Pages& pages, const std::vector<int32_t>& tokens, size_t n) {
    for (size_t i = 0; i < n; ++i) {
      const uint64_t want = HashOf(tokens, i + 1);
      if (std::memcmp(At(pages, i), &want, sizeof(want)) != 0) return false;
    }
    return true;
  }
  // From the first position to the last, over what is there already; how many were.
  size_t Run(Pages& pages, const std::vector<int32_t>& tokens) {
    const size_t had = cache_->Extend(pages, tokens, tokens.size() - 1);
    EXPECT_TRUE(cache_->Grow(pages, tokens.size()));
    Compute(pages, tokens, had, tokens.size());
    EXPECT_TRUE(Holds(pages, tokens, tokens.size()));
    return had;
  }

  std::unique_ptr<KvCache> kv_;
  std::unique_ptr<PrefixCache> cache_;
};

TEST_F(PrefixCacheTest, WholePagesOfTheSameBeginningAreFound) {
  const struct {
    size_t size, same, found;
  } cases[] = {
      {200, 200, 192}, {200, 199, 192}, {200, 192, 192}, {200, 191, 128}, {200, 65, 64},
      {200, 64, 64},   {200, 63, 0},    {200, 0, 0},     {128, 128, 64},  {129, 129, 128},
  };
  for (const auto& c : cases) {
    Make(16);
    Pages first, second;
    std::vector<int32_t> tokens = Tokens(c.size, 1);
    EXPECT_EQ(Run(first, tokens), 0u);
    cache_->Release(first);
    for (size_t i = c.same; i < c.size; ++i) tokens[i] += 1000;
    EXPECT_EQ(Run(second, tokens), c.found) << c.size << ", " << c.same;
    cache_->Release(second);
  }
}

TEST_F(PrefixCacheTest, NothingIsFoundInAnotherScopeOrWhereItIsOff) {
  for (const bool keeps : {true, false}) {
    Make(8, keeps);
    const std::vector<int32_t> tokens = Tokens(200, 1);
    Pages a(cache_->ScopeId("a")), b(cache_->ScopeId("b")), again(cache_->ScopeId("a"));
    EXPECT_EQ(Run(a, tokens), 0u);
    EXPECT_EQ(Run(b, tokens), 0u);
    cache_->Release(a);
    cache_->Release(b);
    EXPECT_EQ(Run(again, tokens), keeps ? 192u : 0u);
    cache_->Release(again);
    EXPECT_EQ(cache_->available(), 8u);
    EXPECT_EQ(cache_->remembered(), keeps ? 6u : 0u);
  }
}

TEST_F(PrefixCacheTest, RunningSequencesShareAndTheirPagesStay) {
  Make(5);
  const std::vector<int32_t> tokens = Tokens(150, 1);
  Pages first, second, third;
  Run(first, tokens);
  EXPECT_EQ(cache_->available(), 2u);
  EXPECT_EQ(Run(second, tokens), 128u);
  EXPECT_EQ(cache_->available(), 1u);
  EXPECT_EQ(first.bytes[0], second.bytes[0]);
  EXPECT_FALSE(cache_->Grow(third, 2 * kPage));
  EXPECT_TRUE(third.bytes.empty());
  cache_->Release(first);
  EXPECT_FALSE(cache_->Grow(third, 3 * kPage));
  EXPECT_TRUE(cache_->Grow(third, 2 * kPage));
  EXPECT_TRUE(Holds(second, tokens, tokens.size()));
  cache_->Release(second);
  cache_->Release(third);
  EXPECT_EQ(cache_->available(), 5u);
}

// Two that computed the same at the same time keep one copy of it.
TEST_F(PrefixCacheTest, WhatWasComputedTwiceIsKeptOnce) {
  Make(6);
  const std::vector<int32_t> tokens = Tokens(150, 1);
  Pages a, b;
  ASSERT_TRUE(cache_->Grow(a, 150));
  ASSERT_TRUE(cache_->Grow(b, 150));
  EXPECT_EQ(cache_->available(), 0u);
  Compute(a, tokens, 0, 150);
  Compute(b, tokens, 0, 150);
  EXPECT_EQ(cache_->available(), 2u);
  EXPECT_EQ(a.bytes[1], b.bytes[1]);
  EXPECT_NE(a.bytes[2], b.bytes[2]);
  EXPECT_TRUE(Holds(a, tokens, 150) && Holds(b, tokens, 150));
}

TEST_F(PrefixCacheTest, WhatWasUnusedForLongestGoesFirstTheEndBeforeTheBeginning) {
  Make(6);
  const std::vector<int32_t> old = Tokens(3 * kPage, 1), young = Tokens(2 * kPage, 1000);
  Pages pages;
  Run(pages, old);
  cache_->Release(pages);
  Run(pages, young);
  cache_->Release(pages);
  Pages other;
  ASSERT_TRUE(cache_->Grow(other, 3 * kPage));  // the free one, and two of the old ones
  EXPECT_EQ(cache_->Find(0, old, old.size()).tokens, kPage);
  EXPECT_EQ(cache_->Find(0, young, young.size()).tokens, 2 * kPage);
  EXPECT_EQ(cache_->Find(0, young, 2 * kPage - 1).tokens, kPage);
}

TEST_F(PrefixCacheTest, ForksShareWhatIsFullAndCopyTheRest) {
  for (const bool keeps : {true, false}) {
    for (const size_t size : {64, 100, 128}) {
      Make(8, keeps);
      std::vector<int32_t> tokens = Tokens(size, 1);
      Pages from, to;
      Run(from, tokens);
      ASSERT_TRUE(cache_->Fork(from, size, to));
      EXPECT_EQ(cache_->available(), 8 - (size + kPage - 1) / kPage - (size % kPage != 0));
      std::vector<int32_t> other = tokens;
      for (int32_t i = 0; i < 70; ++i) {
        tokens.push_back(5000 + i);
        other.push_back(7000 + i);
      }
      ASSERT_TRUE(cache_->Grow(from, tokens.size()) && cache_->Grow(to, other.size()));
      Compute(from, tokens, size, tokens.size());
      Compute(to, other, size, other.size());
      EXPECT_TRUE(Holds(from, tokens, tokens.size())) << size;
      EXPECT_TRUE(Holds(to, other, other.size())) << size;
      cache_->Release(from);
      EXPECT_TRUE(Holds(to, other, other.size())) << size;
      cache_->Release(to);
      EXPECT_EQ(cache_->available(), 8u);
    }
  }
}

// Many sequences of few different tokens come, grow, fork and go; whatever is found must be right.
TEST_F(PrefixCacheTest, RandomLives) {
  uint64_t state = 7;
  const auto random = [&](uint64_t n) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (state >> 33) % n;
  };
  Make(24);
  struct Life {
    Pages pages;
    std::vector<int32_t> tokens;
    size_t computed = 0;
  };
  std::vector<Life> lives;
  size_t found = 0, refused = 0, forks = 0;
  for (int step = 0; step < 4000; ++step) {
    const uint64_t what = random(10);
    if (lives.size() < 8 && what < 4) {
      Life life{Pages(cache_->ScopeId(random(2) == 0 ? "a" : "b")), {}};
      for (uint64_t n = 1 + random(400); n > 0; --n) {
        // Runs of tokens that are mostly the same.
        life.tokens.push_back(static_cast<int32_t>(random(40) == 0 ? random(3) : 1));
      }
      life.computed = cache_->Extend(life.pages, life.tokens, life.tokens.size() - 1);
      ASSERT_TRUE(Holds(life.pages, life.tokens, life.computed));
      found += life.computed;
      lives.push_back(std::move(life));
      continue;
    }
    if (lives.empty()) continue;
    const size_t i = random(lives.size());
    Life& life = lives[i];
    if (what < 8) {
      if (life.computed == life.tokens.size()) life.tokens.push_back(1);
      if (life.computed == life.pages.known * kPage) {
        life.computed = cache_->Extend(life.pages, life.tokens, life.tokens.size() - 1);
      }
      const size_t end = std::min(life.tokens.size(), life.computed + 1 + random(100));
      if (cache_->Grow(life.pages, end)) {
        Compute(life.pages, life.tokens, life.computed, end);
        life.computed = end;
        ASSERT_TRUE(Holds(life.pages, life.tokens, life.computed)) << step;
      } else {
        ++refused;
        cache_->Release(life.pages);
        life.computed = 0;
      }
    } else if (what == 8) {
      Life other{Pages(life.pages.scope), life.tokens, life.computed};
      other.tokens.resize(life.computed);
      if (life.computed > 0 && cache_->Fork(life.pages, life.computed, other.pages)) {
        ++forks;
        other.tokens.push_back(2);
        lives.push_back(std::move(other));
      }
    } else {
      cache_->Release(life.pages);
      lives.erase(lives.begin() + static_cast<ptrdiff_t>(i));
    }
  }
  for (Life& life : lives) cache_->Release(life.pages);
  EXPECT_EQ(cache_->available(), 24u);
  EXPECT_GT(found, 500u);
  EXPECT_GT(refused, 20u);
  EXPECT_GT(forks, 50u);
}

}  // namespace
}  // namespace verbatim::engine
