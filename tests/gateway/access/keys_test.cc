#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <thread>

#include "base/clock.h"
#include "base/crypto.h"
#include "gateway/access.h"
#include "gateway/api_keys.h"
#include "store/data_folder.h"
#include "tests/store/ledger_fixture.h"

namespace verbatim::gateway {
namespace {

StoredKey NewKey(std::string* secret, const std::string& subject = "ci") {
  StoredKey key;
  key.tenant = "acme";
  key.subject = subject;
  key.roles = {"client"};
  key.created = NowMicros();
  *secret = MakeSecret(key);
  return key;
}

Status Add(const std::string& path, const StoredKey& key) {
  return UpdateKeys(path, [&](std::vector<StoredKey>& keys) -> Status {
    keys.push_back(key);
    return {};
  });
}

TEST(ApiKeys, ASecretIsRandomAndNotInTheFile) {
  std::string a, b;
  const StoredKey key = NewKey(&a);
  (void)NewKey(&b);
  EXPECT_NE(a, b);
  EXPECT_EQ(a.size(), 4 + 43u);
  EXPECT_TRUE(a.starts_with("vbk_"));
  EXPECT_EQ(a.substr(4).find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                          "0123456789-_"),
            std::string::npos);
  EXPECT_EQ(key.sha256, HexEncode(Sha256(a)));
  EXPECT_EQ(FormatKeys({key}).find(a.substr(4)), std::string::npos);
}

TEST(ApiKeys, TheFileReadsBackAsItWasWritten) {
  std::string secret;
  StoredKey key = NewKey(&secret);
  key.groups = {"a\"b", "c"};
  key.roles = {"auditor", "client"};
  key.models = {"gpt-*"};
  key.limits = {1, 2, 3};
  key.budget = {4, policies::Period::kDay};
  key.expires = key.created + 1'000'000;
  key.revoked = key.created + 5;
  const std::string text = FormatKeys({key, NewKey(&secret)});
  const auto keys = ParseKeys(text);
  ASSERT_TRUE(keys.ok()) << keys.error().message;
  ASSERT_EQ(keys->size(), 2u);
  EXPECT_EQ(FormatKeys(*keys), text);
  EXPECT_EQ((*keys)[0].groups, key.groups);
  EXPECT_EQ((*keys)[0].limits.concurrent, 3u);
  EXPECT_EQ((*keys)[0].budget.tokens, 4u);
  EXPECT_EQ((*keys)[0].budget.per, policies::Period::kDay);
  EXPECT_EQ((*keys)[1].budget.tokens, 0u);
  EXPECT_EQ((*keys)[0].revoked, key.revoked);
}

TEST(ApiKeys, BrokenFiles) {
  const std::string head = R"({"version":1,"keys":[)", digest(64, 'a');
  const std::string good = R"({"id":"k","sha256":")" + digest + R"(","tenant":"t","subject":"s"})";
  ASSERT_TRUE(ParseKeys(head + good + "]}").ok());
  const auto with = [&](const std::string& member) {
    return head + good.substr(0, good.size() - 1) + "," + member + "}]}";
  };
  const std::string cases[] = {
      "",
      "[]",
      "{}",
      R"({"version":2,"keys":[]})",
      R"({"version":1,"keys":{}})",
      R"({"version":1,"keys":[],"more":1})",
      head + "1]}",
      head + "{}]}",
      head + good + "," + good + "]}",
      head + good,
      with(R"("role":"client")"),
      with(R"("roles":["admin"])"),
      with(R"("roles":"client")"),
      with(R"("groups":["*"])"),
      with(R"("groups":[1])"),
      with(R"("limits":{"requests":1})"),
      with(R"("limits":{"concurrent":-1})"),
      with(R"("budget":{"tokens":1})"),
      with(R"("budget":{"tokens":1,"per":"year"})"),
      with(R"("budget":{"tokens":-1,"per":"day"})"),
      with(R"("budget":1000)"),
      with(R"("expires":"soon")"),
      with(R"("created":0)"),
      with(R"("tenant":"t2")"),
      head + R"({"id":"k","sha256":"aa","tenant":"t","subject":"s"}]})",
      head + R"({"id":"k","sha256":")" + digest + R"(","tenant":"","subject":"s"}]})"};
  for (const std::string& text : cases) EXPECT_FALSE(ParseKeys(text).ok()) << text;
}

TEST(ApiKeys, UpdatesAreWholeAndOneAtATime) {
  store::TemporaryFolder folder;
  std::filesystem::create_directory(folder.path());
  const std::string path = folder.path() + "/keys.json";
  EXPECT_TRUE(ReadKeys(path)->empty());
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      std::string secret;
      for (int n = 0; n < 5; ++n) EXPECT_TRUE(Add(path, NewKey(&secret)).ok());
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(ReadKeys(path)->size(), 20u);
  struct stat info {};
  ASSERT_EQ(::stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  EXPECT_FALSE(UpdateKeys(path, [](std::vector<StoredKey>& keys) -> Status {
                 keys.clear();
                 return Error{Code::kNotFound, "no"};
               }).ok());
  EXPECT_EQ(ReadKeys(path)->size(), 20u);
  EXPECT_EQ(UpdateKeys(folder.path("nowhere") + "/k", [](auto&) { return Status(); }).error().code,
            Code::kIo);
}

class AccessTest : public store::LedgerFixture {
 protected:
  void SetUp() override {
    store::LedgerFixture::SetUp();
    std::filesystem::create_directories(folder_.path("d"));
    config_.data = folder_.path("d");
  }
  std::string keys_file() const { return KeysFile(config_); }
  static bool Admits(const Authenticator& auth, const std::string& secret) {
    return auth.Authenticate({{"x-api-key", secret}}, "203.0.113.9").ok();
  }
  static std::vector<std::string> Kinds(store::Ledger& ledger) {
    std::vector<std::string> kinds;
    for (uint64_t i = 0; i < ledger.Size(); ++i) {
      kinds.push_back(store::KindName(ledger.Entry(i, false)->leaf.kind));
    }
    return kinds;
  }

  policies::Config config_;
};

TEST_F(AccessTest, WithoutConfigurationNobodyNeedsAKey) {
  const auto rules = LoadAccess(config_);
  ASSERT_TRUE(rules.ok());
  EXPECT_FALSE(rules->required);
  config_.access.configured = true;
  EXPECT_TRUE(LoadAccess(config_)->required) << "a section without any key lets nobody in";
}

TEST_F(AccessTest, KeysOfTheConfiguration) {
  const std::string file = folder_.path("secret");
  ASSERT_TRUE(store::WriteFileDurably(file, "from-a-file\n").ok());
  policies::InlineKey a, b;
  a.id = "a";
  a.secret = "file:" + file;
  a.tenant = "acme";
  a.groups = {"g"};
  a.roles = {"auditor", "operator"};
  b.id = "b";
  b.sha256 = HexEncode(Sha256("by-digest"));
  b.limits.concurrent = 4;
  config_.access.configured = true;
  config_.access.keys = {a, b};
  const auto rules = LoadAccess(config_);
  ASSERT_TRUE(rules.ok()) << rules.error().message;
  const Authenticator auth(*rules);
  const auto first = auth.Authenticate({{"x-api-key", "from-a-file"}}, "203.0.113.9");
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(first->subject, "a");
  EXPECT_EQ(first->groups, std::vector<std::string>{"g"});
  EXPECT_TRUE(first->Has(Role::kAuditor) && first->Has(Role::kOperator));
  EXPECT_FALSE(first->Has(Role::kClient));
  const auto second = auth.Authenticate({{"authorization", "Bearer by-digest"}}, "203.0.113.9");
  ASSERT_TRUE(second.ok());
  EXPECT_TRUE(second->Has(Role::kClient));
  EXPECT_EQ(second->grant->limits.concurrent, 4u);

  config_.access.keys[0].secret = "file:" + folder_.path("missing");
  EXPECT_FALSE(LoadAccess(config_).ok());
  config_.access.keys.clear();
  config_.access.issuers.push_back({});
  config_.access.issuers[0].keys = file;
  const auto bad = LoadAccess(config_);
  ASSERT_FALSE(bad.ok());
  EXPECT_EQ(bad.error().message.find("from-a-file"), std::string::npos) << bad.error().message;
  config_.access.issuers.clear();
  config_.access.trusted_header = {"x-user", "default", {"10.0.0.0/99"}};
  EXPECT_FALSE(LoadAccess(config_).ok());
}

TEST_F(AccessTest, MadeAndRevokedKeysAreEntries) {
  auto ledger = Open(nullptr);
  Authenticator auth(LoadAccess(config_).value());
  AccessWatch watch(config_, auth, *ledger);
  EXPECT_FALSE(auth.has_keys());
  std::string secret;
  StoredKey key = NewKey(&secret);
  ASSERT_TRUE(Add(keys_file(), key).ok());
  ASSERT_TRUE(watch.Check().ok());
  EXPECT_TRUE(auth.has_keys());
  EXPECT_TRUE(Admits(auth, secret));
  EXPECT_FALSE(Admits(auth, secret + "x"));
  EXPECT_EQ(Kinds(*ledger), (std::vector<std::string>{"server_started", "key_made"}));

  const store::EntryView made = ledger->Entry(1, true).value();
  EXPECT_EQ(made.leaf.detail.Find("key")->as_string(), key.id);
  EXPECT_EQ(made.record->subject, "ci");
  for (const std::string& hidden : {secret, secret.substr(4), key.sha256}) {
    EXPECT_EQ(made.leaf_bytes.find(hidden), std::string::npos);
    EXPECT_EQ(store::EncodeRecord(*made.record).find(hidden), std::string::npos);
  }
  EXPECT_EQ(made.leaf_bytes.find("acme"), std::string::npos);

  ASSERT_TRUE(UpdateKeys(keys_file(), [](std::vector<StoredKey>& keys) -> Status {
                keys[0].revoked = NowMicros();
                return {};
              }).ok());
  ASSERT_TRUE(watch.Check().ok());
  EXPECT_FALSE(Admits(auth, secret));
  EXPECT_TRUE(auth.has_keys()) << "the last key's end opens nothing";
  ASSERT_TRUE(watch.Check().ok());
  EXPECT_EQ(Kinds(*ledger), (std::vector<std::string>{"server_started", "key_made", "key_revoked"}))
      << "each once";
}

// What was changed while no server ran is in the ledger before the next one serves.
TEST_F(AccessTest, ChangesBesideTheServerAreRecordedAtItsStart) {
  std::string secret;
  StoredKey key = NewKey(&secret);
  key.revoked = NowMicros();
  ASSERT_TRUE(Add(keys_file(), key).ok());
  auto ledger = Open(nullptr);
  Authenticator auth(LoadAccess(config_).value());
  for (int i = 0; i < 2; ++i) AccessWatch watch(config_, auth, *ledger);
  EXPECT_EQ(Kinds(*ledger),
            (std::vector<std::string>{"server_started", "key_made", "key_revoked"}));
}

TEST_F(AccessTest, AKeyCountsOnceItsEntryIsDurable) {
  auto ledger = Open(nullptr);
  std::string old_secret, new_secret;
  ASSERT_TRUE(Add(keys_file(), NewKey(&old_secret, "old")).ok());
  Authenticator auth(LoadAccess(config_).value());
  AccessWatch watch(config_, auth, *ledger);
  ASSERT_TRUE(Admits(auth, old_secret));
  ASSERT_TRUE(ledger->Close().ok());  // appends fail from now on
  ASSERT_TRUE(UpdateKeys(keys_file(), [&](std::vector<StoredKey>& keys) -> Status {
                keys[0].revoked = NowMicros();
                keys.push_back(NewKey(&new_secret, "new"));
                return {};
              }).ok());
  EXPECT_FALSE(watch.Check().ok());
  EXPECT_FALSE(Admits(auth, old_secret)) << "a revocation waits for nothing";
  EXPECT_FALSE(Admits(auth, new_secret));
}

TEST_F(AccessTest, ABrokenFileChangesNothing) {
  auto ledger = Open(nullptr);
  std::string secret;
  ASSERT_TRUE(Add(keys_file(), NewKey(&secret)).ok());
  Authenticator auth(LoadAccess(config_).value());
  AccessWatch watch(config_, auth, *ledger);
  ASSERT_TRUE(store::WriteFileDurably(keys_file(), "{").ok());
  const Status broken = watch.Check();
  ASSERT_FALSE(broken.ok());
  EXPECT_NE(broken.error().message.find(keys_file()), std::string::npos);
  EXPECT_TRUE(Admits(auth, secret));
  policies::Config other = config_;
  other.access.trusted_header = {"x-user", "default", {"nonsense"}};
  EXPECT_FALSE(watch.Replace(other).ok());
  std::filesystem::remove(keys_file());
  EXPECT_TRUE(watch.Check().ok());
  EXPECT_FALSE(Admits(auth, secret));
  EXPECT_TRUE(auth.has_keys());
}

}  // namespace
}  // namespace verbatim::gateway
